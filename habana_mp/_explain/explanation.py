"""``explain``: which rule an op has here and now, which list it comes from, which homes it covers and what happens to its arguments."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple, overload

import torch

import habana_mp._core as _core
from habana_mp._autocast.regions import region_policy
from habana_mp._autocast.set_policies import policy_of_module
from habana_mp._convert.rule import Rule, rule_of
from habana_mp._explain.modules import module_named, ops_of
from habana_mp._policy.edit import read_entry
from habana_mp._policy.homes import Home, ops
from habana_mp._policy.names import is_dispatched, known_names, names_of, plain_name, registered
from habana_mp._policy.policy import OpRule, Policy
from habana_mp._scope import in_force
from habana_mp._scope.disable_casts import casts_off, convert_off
from habana_mp._show.html import render
from habana_mp._show.short import Short, brief
from habana_mp._torch_private import CPU


@dataclass(frozen=True, repr=False)
class Explanation(Short):
    """The result of ``explain`` for one op. ``print`` shows it.

    Attributes:
        op: the op.
        rule: the rule, and the line of the list that decides.
        policy: the policy.
        in_force: False if the policy is not in force here; the explanation then shows what it would do. Where casts are switched off, it
            shows that calls are left alone.
        state: the same as text.
        homes: what happens to calls by each Python name of the op; in a region of autocast, by the names of the dispatcher
            (``aten::linear``). An alias that a list names has a rule of its own.
        arguments: what happens to the arguments.
        notes: remarks, such as another rule inside some modules.

    Example:
        >>> why = hmp.explain("softmax", policy="torch-cuda")
        >>> why.rule.action
        'fp32'
    """

    op: str
    rule: OpRule
    policy: Policy
    in_force: bool
    state: str
    homes: dict[str, str]
    arguments: tuple[str, ...]
    notes: tuple[str, ...] = ()

    def __str__(self) -> str:
        homes = [f"{label}  ->  {what}" for label, what in self.homes.items()] or ["none: no Python call reaches it"]
        rows = self._rows()
        after = next(i for i, (title, _) in enumerate(rows, 1) if title == "arguments")
        rows.insert(after, ("homes", tuple(homes)))
        lines = [self.op]
        for title, texts in rows:
            lines += [f"  {title if i == 0 else '':<10} {text}" for i, text in enumerate(texts)]
        return "\n".join(lines)

    def _line(self) -> str:
        return f"{self.op}, {self.rule.action} in {self.policy.name}"

    def _repr_html_(self) -> str:
        return render("explanation.html", op=self.op, rows=self._rows(), homes=self.homes)

    def _rows(self) -> list[tuple[str, tuple[str, ...]]]:
        return [
            ("rule", (self.rule._text,)),
            *([("comment", (self.rule.comment,))] if self.rule.comment else []),
            ("policy", (f"{self.policy.name}, {self.state}",)),
            ("compiled", (_COMPILED[self.policy.compiled],)),
            ("arguments", self.arguments),
            *([("note", self.notes)] if self.notes else []),
        ]


# How code of torch.compile rounds (D55).
_COMPILED = {"exact": "exact: it rounds where the lists say", "fused": "fused: Inductor may leave out roundings"}


class Explanations(tuple[Explanation, ...]):
    """The result of ``explain`` for several ops. ``print`` shows one line for each, and one for each rule inside some modules.

    Example:
        >>> several = hmp.explain("mm", "softmax", policy="torch-cuda")
        >>> [each.rule.action for each in several]
        ['lower', 'fp32']
    """

    __slots__ = ()

    def __str__(self) -> str:
        wide = max((len(each.op) for each in self), default=0)
        states = dict.fromkeys(f"{each.policy.name}, {each.state}" for each in self)
        lines = []
        for each in self:
            lines.append(f"  {each.op:<{wide}}  {each.rule._text}")
            lines += [f"  {'':<{wide}}  {note}" for note in _note_of_modules(each.op, each.policy)]
        return "\n".join([*states, *lines])

    def _repr_html_(self) -> str:
        return "".join(each._repr_html_() for each in self)


@overload
def explain(
    op: str,
    *,
    policy: Policy | str | os.PathLike[str] | None = None,
    module: torch.nn.Module | None = None,
) -> Explanation: ...
@overload
def explain(
    op: str | type[torch.nn.Module],
    *more: str | type[torch.nn.Module],
    policy: Policy | str | os.PathLike[str] | None = None,
    module: torch.nn.Module | None = None,
) -> Explanation | Explanations: ...
def explain(
    op: str | type[torch.nn.Module],
    *more: str | type[torch.nn.Module],
    policy: Policy | str | os.PathLike[str] | None = None,
    module: torch.nn.Module | None = None,
) -> Explanation | Explanations:
    """Return which rule applies to an op, and why.

    Args:
        op: any name of an op: "layer_norm", "torch.nn.functional.layer_norm", "Tensor.__matmul__", "linalg_solve",
            "pow.Tensor_Scalar". A class of torch.nn, or its name ("nn.MultiheadAttention"), means the ops that it calls. A part of a name
            ("attention") means all computing ops that have it in their names.
        more: more names.
        policy: the policy to ask: a ``Policy``, or its name or path. The default is the policy in force, that of a region of autocast
            before that of ``convert``, and else that of a plain ``convert()``.
        module: a module of a model that ``set_policies`` was called on. The explanation is for calls inside it. It does
            not count if ``policy`` is given.

    Returns:
        An ``Explanation`` of one op, or ``Explanations`` of several.

    Raises:
        TypeError: ``op`` is not a name, ``policy`` not a policy, or ``module`` not a module.
        ValueError: the installed torch has no op of this name. The message has the nearest names.

    Example:
        >>> print(hmp.explain("layer_norm"))
        >>> print(hmp.explain("softmax", "nn.MultiheadAttention"))
    """
    ops = (op, *more)
    for each in ops:
        if not isinstance(each, str) and not (isinstance(each, type) and issubclass(each, torch.nn.Module)):
            raise TypeError(
                f"explain takes the name of an op, such as 'layer_norm', or a class of torch.nn, not {brief(each)}"
            )
    if module is not None and not isinstance(module, torch.nn.Module):
        raise TypeError(f"module must be a torch.nn.Module, not {brief(module)}")
    if policy is not None and not isinstance(policy, Policy):
        policy = Policy.load(policy)
    asked = _asked(policy, module)
    names = [name for each in ops for name in _names_of(each, asked.policy)]
    found = [_explanation(name, asked) for name in dict.fromkeys(names)]
    return found[0] if len(found) == len(ops) == 1 else Explanations(found)


_SHORTEST_PART = 3


def _names_of(op: str | type[torch.nn.Module], policy: Policy) -> list[str]:
    """The op itself, or those that a module or a part of a name stands for."""
    kind: type[torch.nn.Module] | None
    if isinstance(op, str):
        entry = read_entry(op)
        if entry is not None and entry.modules:
            raise ValueError(
                f"explain takes the name of an op, here {entry.op!r}: its explanation has the rules inside modules"
            )
        try:
            return [plain_name(op)]
        except ValueError:
            kind = module_named(op)
            if kind is None:
                if parts := _with_part(op):
                    return parts
                raise
    else:
        kind = op
    found = ops_of(kind, lambda name: policy._rule(name).action != "rest")
    if not found:
        raise ValueError(f"the source of {op if isinstance(op, str) else op.__name__} calls no op that computes")
    return found


def _with_part(text: str) -> list[str]:
    if len(text) < _SHORTEST_PART:
        return []
    names = (name for name in known_names() if text.lower() in name.lower() and "." not in name)
    return sorted(name for name in names if name[0] != "_" and name[-1] != "_" and _core.computes(name))


# What ``_asked`` says first of a state.
_IN_FORCE, _NOT_IN_FORCE, _SWITCHED_OFF = "in force", "not in force", "switched off"


class _Asked(NamedTuple):
    """The policy to explain, what it is here and now, and whether it acts at the dispatcher."""

    policy: Policy
    kind: str
    where: str
    dispatched: bool


def _explanation(name: str, asked: _Asked) -> Explanation:
    policy, kind, where, dispatched = asked
    if name in registered:
        homes = {"register_op": _effects(policy).get(policy._rule(name).action, "called as it is written")}
    else:
        homes = _overloads_of(name, policy) if dispatched else _homes_of(name, policy)
    arguments = _arguments(name, policy, dispatched)
    if kind == _SWITCHED_OFF:
        homes, arguments = dict.fromkeys(homes, "left alone"), ("left alone: casts are switched off here",)
    notes = tuple(_notes(name, policy, dispatched))
    return Explanation(name, policy._rule(name), policy, kind == _IN_FORCE, kind + where, homes, arguments, notes)


def _asked(policy: Policy | None, module: torch.nn.Module | None) -> _Asked:
    region, device = region_policy()
    current = region or in_force.policy
    ruled = _core.autocast_ruled()
    suspended = region is None and bool(ruled)
    dispatched = region is not None or (suspended and in_force.policy is None)
    path, own = (policy_of_module(module) if module is not None and policy is None else None) or (None, None)
    if policy is not None and policy != current:
        return _Asked(policy, _NOT_IN_FORCE, "", dispatched)
    if current is None and not suspended:
        where = ": nothing is converted"
        if path is not None:
            where += f", and set_policies rules {path!r} under convert and in regions of autocast"
        elif torch.is_autocast_enabled("cpu"):
            where += ", and the torch.autocast that is on here has lists of its own"
        return _Asked(own or Policy.load("hmp"), _NOT_IN_FORCE, where, path is not None)
    kind = _SWITCHED_OFF
    if casts_off():
        where = " here by disable_casts"
    elif path is not None and own is None:
        where = f" inside {path!r} by set_policies, which has it run in float32"
    elif own is not None and not dispatched and current is not None:
        where = f" inside {path!r}: set_policies, in place of {current.name}, of convert"
        current, kind, dispatched = own, _IN_FORCE, True
    elif own is not None:
        current, kind = own, _IN_FORCE
        where = f" inside {path!r}: set_policies, autocast for {device or ruled[0][0]}"
    elif suspended or (convert_off() and not dispatched):
        where = " here by set_policies, which has the module run in float32"
    else:
        kind, where = _IN_FORCE, f" here: autocast for {device}" if dispatched else ""
        if dispatched and in_force.policy is not None:
            where += f"; {in_force.policy.name}, of convert, acts before it"
    return _Asked(current or Policy.load("hmp"), kind, where, dispatched)


def _overloads_of(name: str, policy: Policy) -> dict[str, str]:
    """What autocast does to the overloads of an op at the dispatcher."""
    base = name.partition(".")[0]
    effects = _effects(policy)
    found = {}
    for op in _core.dispatched_ops():
        if any(base in level for level in _core.dispatched_candidates(op.partition(".")[0])):
            entry = policy._core.resolve_overload(op).entry
            found[f"aten::{op}"] = _rest_of(op, policy) if entry is None else effects[entry.list]
    return found


def _effects(policy: Policy) -> dict[str, str]:
    """What happens to calls, by the action of a rule."""
    return {
        "lower": policy._core.low_dtype,
        "weight_int8": f"{policy._core.low_dtype}, weights in 8 bits",
        "int8": "int8",
        "fp32": "float32",
        "promote": "widest",
        "first_input": "first input's dtype",
        "error": "error",
    }


def _rest_of(overload: str, policy: Policy) -> str:
    """What autocast does to an overload that no list names."""  # (D15, D40, D41)
    base = overload.partition(".")[0]
    if _core.is_compound(base):
        return "by the lists, what it is made of"
    if policy.rest == "inputs" or not _core.computes(base):
        return "widest" if _core.refuses_mixed(base) else "left alone"
    return {"fp32": "float32 (rest)", "first_input": "first input's dtype, of two or more (rest)"}[policy.rest]


_noted: set[str] = set()


def _notes(name: str, policy: Policy, dispatched: bool) -> Iterator[str]:
    if dispatched and name not in registered and not is_dispatched(name):
        yield "a region of autocast does not see it: torch has it in Python alone. Under hmp.convert the rule holds"
    yield from _note_of_modules(name, policy)
    low = policy._core.low_dtype
    if _core.may_lack_low_kernel(name.partition(".")[0]):  # D42
        yield f"if the device has no {low} kernel for it, the call runs in float32 and the report shows: no {low} kernel"
    is_x86 = platform.machine() in ("x86_64", "AMD64")
    if low == "bfloat16" and low not in _noted and is_x86 and CPU.works and not CPU.avx512() and not CPU.amx():
        _noted.add(low)  # shown once in a process
        yield (
            "this CPU has no bfloat16 instructions: bfloat16 saves memory on it, and products of matrices take several times as long (habana-mp doctor measures it)"
        )


def _note_of_modules(name: str, policy: Policy) -> Iterator[str]:
    """What names that are limited to modules say of the op."""
    for entry in policy._core.entries:
        if entry.modules and entry.base in names_of(name):
            place = f" ({entry.place})" if entry.line else ""
            yield f"in the modules {entry.modules} it is in the {entry.list} list{place}, once set_policies(model, policy) was called"


def _homes_of(name: str, policy: Policy) -> dict[str, str]:
    base = name.partition(".")[0]
    found: dict[str, str] = {}
    for original, places in ops():
        if any(base in level for home in places for level in _core.candidates(home.name)):
            what = _effect(rule_of(policy, places, original), places[0], policy)
            found.update((home.label, what) for home in places)
    return dict(sorted(found.items(), key=lambda item: (item[0].startswith("torch._"), item[0])))


def _effect(rule: Rule | None, home: Home, policy: Policy) -> str:
    if rule is None:
        return "left alone"
    action = _core.ACTIONS[rule.action]
    if not rule.listed and _core.is_compound(home.name):
        return "by the lists, what it is made of"  # D41
    if action == "inputs":
        return "left alone"
    if home.in_place:
        return "in place: the other tensors take the dtype of the one written to"
    return _effects(policy)[action] + ("" if rule.listed or action == "promote" else " (rest)")


_ALL = "float32, bfloat16, float16 and float8 tensors, also in lists and given by keyword,"
# By the action of a list, or of the rest: what happens to arguments, and to those of a norm if that is something else.
_ARGUMENTS = {
    "lower": (f"{_ALL} go to {{low}}", "the input goes to {low}; weight, bias and running statistics stay as they are"),
    "weight_int8": (f"a weight that requires no gradient is rounded to 8 bits; else {_ALL} go to {{low}}",),
    "int8": (f"a weight that requires no gradient, and the input, are rounded to 8 bits; else {_ALL} go to {{low}}",),
    "fp32": (f"{_ALL} go to float32", "the input, weight and bias go to float32; running statistics stay"),
    "promote": (f"{_ALL} go to the widest dtype among them",),
    "mixed": (f"{_ALL} go to the widest dtype among them: no list names it, and it refuses to mix them",),
    "rest fp32": (f"{_ALL} go to float32, if the op computes on them",),
    "rest first_input": (
        f"{_ALL} take the dtype of the first, if the op computes on two or more",
        "nothing but the first argument counts",
    ),
}


def _arguments(name: str, policy: Policy, dispatched: bool) -> tuple[str, ...]:
    action = policy._rule(name).action
    if action == "error":
        return ("the call raises RuntimeError: it is unsafe in lower precision",)
    if action == "rest" and name in registered:
        return ("left alone: no list names it, and the ops inside follow their own rules",)
    if action == "rest":
        action = f"rest {policy.rest}" if policy.rest != "inputs" else "mixed" if _core.refuses_mixed(name) else ""
    if not action:
        return ("left alone: no list names it and the policy leaves the rest to its inputs",)
    to = _ARGUMENTS[action][-1 if name in _core.NORMS else 0].format(low=policy._core.low_dtype)
    left_to_torch = dispatched and not _core.refuses_mixed(name)
    in_place = ", and calls in place" if left_to_torch else "; in place the target keeps its dtype"
    return to, f"left alone: calls with a float64 or complex tensor, with dtype= or with out={in_place}"
