"""``set_policies``: policies for parts of a model, held by hooks of its modules.

A hook is an object of this file that holds its policy and nothing else, so it goes where its module goes: deepcopy, pickle,
checkpoints, torch.compile. It enters nothing itself but in traced code: src/scope/module_calls.h enters the policy of a module that has
one as its call begins, and leaves it as the call ends, whatever happens to hooks and threads meanwhile.
"""

from __future__ import annotations

import contextlib
import inspect
import os
import sys
import weakref
from collections.abc import Mapping
from pathlib import Path
from threading import get_ident
from types import CoroutineType
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.hooks import RemovableHandle

import habana_mp._core as _core
from habana_mp._autocast import neighbours
from habana_mp._autocast.devices import devices
from habana_mp._autocast.module_lines import ModuleLines, classes_by_path, hint_for, lines_of, path_pattern
from habana_mp._autocast.regions import is_accepted, rules_of
from habana_mp._cast import LOW_DTYPES, dtype_named
from habana_mp._compiled import module_hooks
from habana_mp._policy.policy import Policy
from habana_mp._scope import in_force, traced
from habana_mp._scope.async_functions import decorated_async
from habana_mp._scope.placed import placed
from habana_mp._show.warning import warn
from habana_mp._torch_private import DECORATORS, SET_POLICIES, run_while_traced
from habana_mp._watch.error_note import note_of_float32_module

if TYPE_CHECKING:
    from typing_extensions import Self

_FP32 = "fp32"
_TORCH = str(Path(torch.__file__).parent)
# Python 3.11 runs a function that is called with plain arguments without its C slot, which enters the policy.
_PASSED_BY = "the policy that set_policies has given to {!r} is not in force in this call: module._call_impl(x) passes by it. Call the module, module(x)"
_Ruled = tuple[tuple[str, torch.dtype, bool], ...]
_map_tensors = SET_POLICIES.get("map_tensors")


def set_policies(
    model: torch.nn.Module, policies: Mapping[str, Policy | str | os.PathLike[str]] | Policy | str | os.PathLike[str]
) -> PoliciesHandle:
    """Set policies of their own for modules of a model. They act inside the modules, under ``convert`` and in regions of ``autocast``.

    A module inside a named module follows it, unless a name matches the inner module itself. Inside, the policy acts like one of
    ``autocast``, in place of that of ``convert``. The low dtype is that of the region or of ``convert``: a policy
    that is not made for it triggers a warning, and nothing is cast inside. A policy is in force from the
    beginning of a call of its module, hooks included, to its end, even if the call is interrupted or the policy is removed meanwhile. If
    the call returns a generator or a coroutine, the policy is in force while its body runs.

    Args:
        model: the model. Policies that an earlier call set on its modules are removed.
        policies: a policy, or a mapping of modules to policies.

            Of a policy, the names that are limited to modules ("mul in *.rotary_emb") apply inside these modules, together with the
            other names of that policy. The rest of the model runs under the policy that is in force. If the model has none of the
            modules, the name triggers a warning. A ``Policy`` without such names leaves no module with a policy of its own.

            A mapping has paths of modules as ``named_modules`` returns them ("" is the model itself), or patterns of paths below the
            model: ``*`` matches any characters but a dot, ``**`` matches any characters. An exact path takes precedence over a pattern,
            and a later pattern over an earlier one. The values are a ``Policy``, its name or path, or "fp32". "fp32" switches casts off
            inside and casts bfloat16 and float16 inputs of the module to float32.

    Returns:
        A handle. Its ``remove()`` takes the policies off the model. As a context manager it does so at the end of the block.

    Raises:
        TypeError: model is not a module, policies is neither a policy nor a mapping of paths to policies, or the forward of a module
            that gets a policy is an async generator.
        ValueError: no module has the path or matches the pattern, or a policy is not accepted, such as the name of one without names for modules.
        OSError: a policy cannot be read.

    Example:
        >>> policy = hmp.Policy.load("hmp").with_edits("+layer_norm in encoder.layers.*:fp32")
        >>> handle = hmp.set_policies(model, policy)
        >>> with hmp.autocast("cpu", policy=policy):
        ...     y = model(x)

        >>> handle = hmp.set_policies(model, {"encoder.layers.*.norm1": "fp32", "lm_head": "hmp-o2"})

    See Also:
        autocast, explain
    """
    if not isinstance(model, torch.nn.Module):
        raise TypeError(f"model must be a torch.nn.Module, not {model!r}")
    if isinstance(policies, (Policy, str, os.PathLike)):
        if policies == _FP32:
            raise ValueError("'fp32' is for the modules of a mapping. For the whole model pass {'': 'fp32'}")
        SET_POLICIES.need()
        policy = policies if isinstance(policies, Policy) else Policy.load(policies)
        lines = lines_of(policy)
        if not lines and policy is not policies:  # of a preset or a file by its name: a mistake
            raise ValueError(
                f"{policy.name} has no names that are limited to modules. To set it for some modules, pass a mapping such as {{'encoder.*': policy}}"
            )
        placed(policy)
        handle = put(model, chosen_by_lines(model, lines))
        if idle := [*lines.idle(classes_by_path(model))]:
            warn(f"{policy.name} names modules that {type(model).__name__} does not have:\n" + "\n".join(idle))
        return handle
    if not isinstance(policies, Mapping) or not all(isinstance(path, str) for path in policies):
        raise TypeError(
            f"policies must be a policy, or a mapping of paths of modules to policies such as {{'encoder.*': 'fp32'}}, not {policies!r}"
        )
    SET_POLICIES.need()
    return put(model, _chosen(model, {path: _value(path, policy) for path, policy in policies.items()}))


def put(model: torch.nn.Module, chosen: Mapping[str, Policy | None]) -> PoliciesHandle:
    # One module may have several paths; what was chosen last holds.
    by_module = {model.get_submodule(path): (path, value) for path, value in chosen.items()}
    for module, (path, _) in by_module.items():
        if inspect.isasyncgenfunction(getattr(module, "forward", None)):
            raise TypeError(
                f"{path!r} cannot have a policy, because its forward is an async generator: use hmp.autocast inside"
            )
    for module in model.modules():
        for hooks in (SET_POLICIES.of(module, "before"), SET_POLICIES.of(module, "after")):
            for number in [number for number, hook in hooks.items() if isinstance(hook, (PolicyHook, _Leave))]:
                del hooks[number]
    handles = []
    for module, (path, value) in by_module.items():
        hook = PolicyHook(path, value)
        leave = _Leave(hook)
        handles.append(module.register_forward_pre_hook(hook, prepend=True, with_kwargs=True))
        handles.append(module.register_forward_hook(leave, always_call=True))
    _models.add(model)
    return PoliciesHandle(handles, {path: "fp32" if each is None else each.name for path, each in chosen.items()})


class PoliciesHandle:
    """The result of ``set_policies``: ``remove`` takes the policies off the model, as the end of a ``with`` block does.

    Example:
        >>> with hmp.set_policies(model, {"lm_head": "fp32"}) as handle:
        ...     y = model(x)
        >>> handle
        <hmp.set_policies {'lm_head': 'fp32'}, removed>
    """

    def __init__(self, handles: list[RemovableHandle], policies: Mapping[str, str]) -> None:
        self._handles = handles
        self._policies = policies

    def __repr__(self) -> str:
        state = "" if self._handles else ", removed"
        return f"<hmp.set_policies {dict(self._policies)}{state}>"

    def remove(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.remove()


def is_ruled(module: torch.nn.Module) -> bool:
    """Whether it has a policy of its own."""
    return any(isinstance(hook, PolicyHook) for hook in SET_POLICIES.of(module, "before").values())


def policy_of_module(module: torch.nn.Module) -> tuple[str, Policy | None] | None:
    """What ``set_policies`` says for a module: its path and policy, None for "fp32"; None where it has none."""
    for model in (module, *list(_models)):
        paths = {id(found): path for path, found in model.named_modules()}
        if id(module) not in paths:
            continue
        names = paths[id(module)].split(".") if paths[id(module)] else []
        for depth in range(len(names), -1, -1):  # the innermost one is in force
            for hook in SET_POLICIES.of(model.get_submodule(".".join(names[:depth])), "before").values():
                if isinstance(hook, PolicyHook):
                    return hook.path, hook.policy
    return None


_models: weakref.WeakSet[torch.nn.Module] = weakref.WeakSet()


def _value(path: str, policy: Policy | str | os.PathLike[str]) -> Policy | None:
    if policy == _FP32:
        return None
    try:
        found = policy if isinstance(policy, Policy) else Policy.load(policy)
    except (TypeError, ValueError) as error:
        near = isinstance(policy, str) and dtype_named(policy.lower()) == "float32"
        reason = 'did you mean "fp32"?' if near else str(error)
        raise ValueError(f'the policy for {path!r} must be "fp32" or a policy, not {policy!r}: {reason}') from None
    if lines_of(found):
        raise ValueError(
            f"the policy for {path!r} has names that are limited to modules, and a mapping cannot have such a policy. Pass it without a "
            "mapping: set_policies(model, policy). For the modules that the mapping sets, add a name for each op to the policy: "
            f"policy.with_edits('+mul in {path or 'encoder.*'}:fp32')"
        )
    return found


def _is_never_called(module: torch.nn.Module) -> bool:
    # The class of a scripted module has no forward to be looked at.
    return getattr(type(module), "forward", None) is torch.nn.Module.forward


def _chosen(model: torch.nn.Module, policies: Mapping[str, Policy | None]) -> dict[str, Policy | None]:
    paths = [path for path, _ in model.named_modules(remove_duplicate=False)]
    chosen: dict[str, Policy | None] = {}
    exact = [path for path in policies if path in paths]
    for pattern in [*(path for path in policies if path not in exact), *exact]:
        matches = path_pattern(pattern).fullmatch
        named = [pattern] if pattern in exact else [path for path in paths if path and matches(path)]
        if not named:
            hint = hint_for(pattern, classes_by_path(model))
            raise ValueError(f"{pattern!r} names no module of {type(model).__name__}{hint}")
        chosen.update(dict.fromkeys(named, policies[pattern]))
    # Nobody calls a ModuleList: what is said of it is said of the modules in it, unless they are named themselves.
    for path in paths:
        parent = path.rpartition(".")[0]
        if path and path not in chosen and parent in chosen and _is_never_called(model.get_submodule(parent)):
            chosen[path] = chosen[parent]
    return chosen


def chosen_by_lines(model: torch.nn.Module, lines: ModuleLines) -> dict[str, Policy | None]:
    """The modules in which other lines hold than round them."""
    chosen: dict[str, Policy | None] = {}
    held: dict[str, tuple[Any, ...]] = {}  # inside of a module; one that nobody calls cannot enter a policy
    for path, module in model.named_modules(remove_duplicate=False):
        here, round_it = lines.of(path), held.get(path.rpartition(".")[0], ()) if path else ()
        held[path] = round_it if _is_never_called(module) else here
        if here != round_it and not _is_never_called(module):
            chosen[path] = lines.policy_of(here)
    return chosen


class PolicyHook:
    """The policy of a module. As torch calls it, before the forward, it is in force already but in traced code."""

    in_force_on: set[int]  # the threads that have entered it and not come to the hook yet

    def __new__(cls, *_: Any) -> Self:
        # Also where a model is copied or read from a file.
        _core.surround_module_calls(SET_POLICIES.call, "policies", on=True)
        module_hooks.guard()
        made = super().__new__(cls)
        made.in_force_on = set()
        return made

    def __init__(self, path: str, policy: Policy | None) -> None:
        self.path = path
        self.policy = policy
        self.entered: list[str] = []  # used by traced code only

    def __call__(
        self, _: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        if torch.compiler.is_dynamo_compiling():
            key, on = _traced_inside(None if self.policy is None else self.policy._text)
            self.entered.append(key)
            traced.enter(key)
        else:
            on = self.policy is None and (in_force.policy is not None or bool(_core.autocast_ruled()))
            if (thread := get_ident()) in self.in_force_on:
                self.in_force_on.discard(thread)
            elif self._region() is not None:
                warn(_PASSED_BY.format(self.path), through=_TORCH)
        return _map_tensors(torch.Tensor, _to_fp32, (args, kwargs)) if on and self.policy is None else None

    def region(self) -> Any:
        """What a call of the module enters; None where nothing is in force that the policy could take the place of."""
        self.in_force_on.add(get_ident())
        return self._region()

    def _region(self) -> Any:
        ruled = _core.autocast_ruled()
        return _inside(ruled, self.policy) if ruled or in_force.policy is not None else None

    def inside(self, result: Any) -> Any:
        """What a call of the module has returned, a generator or a coroutine, with a body that runs under the policy."""
        if isinstance(result, CoroutineType):
            if inspect.getcoroutinestate(result) != inspect.CORO_CREATED:
                return result  # somebody else's

            async def wait() -> Any:
                return await result

            return decorated_async("hmp.set_policies", self._while_it_runs, wait)()
        if inspect.getgeneratorstate(result) != inspect.GEN_CREATED:
            return result

        def go_on() -> Any:
            return (yield from result)

        return DECORATORS.in_steps(self._while_it_runs, go_on)()

    def _while_it_runs(self) -> contextlib.AbstractContextManager[Any]:
        region: contextlib.AbstractContextManager[Any] | None = self._region()
        return contextlib.nullcontext() if region is None else region


_core.set_policy_hook(PolicyHook)


class _Leave:
    """After a module's forward: in traced code it leaves what the hook before it has entered, and notes of an error what "fp32" has to do with it."""

    def __init__(self, hook: PolicyHook) -> None:
        self.hook = hook

    def __call__(self, module: torch.nn.Module, _: Any, result: Any) -> None:
        if torch.compiler.is_dynamo_compiling():
            traced.leave(self.hook.entered.pop())
        elif self.hook.entered:  # by traced code, whose graph broke since
            traced.leave_in_graph(self.hook.entered.pop())
        elif result is None and self.hook.policy is None and (error := sys.exc_info()[1]) is not None:
            note_of_float32_module(error, self.hook.path, module)


# By the device types that a region is in force for, and the low dtype and the use of the weight cache under convert: made anew, one would
# take longer than all else in a call.
_Inside = dict[tuple[_Ruled, torch.dtype | None, bool], Any]
_inside_fp32: _Inside = {}


def _inside(ruled: _Ruled, policy: Policy | None) -> Any:
    """A region with another policy for the device types that one is in force for: under ``convert`` for all of them."""
    conversion = in_force.policy
    made: _Inside = _inside_fp32 if policy is None else policy.__dict__.setdefault("_inside", {})
    key = ruled, None if conversion is None else conversion.low_dtype, conversion is None or conversion.cached
    if (kept := made.get(key)) is not None:
        return kept
    dtypes = {device: dtype for device, dtype, _ in ruled}
    if policy is not None and conversion is not None:
        neighbours.prepare()
        dtypes = {device: dtypes.get(device, conversion.low_dtype) for device in devices()}
    refused = set() if policy is None else {each for each in {*dtypes.values()} if not is_accepted("cpu", each, policy)}
    rows = [
        (device, dtype, None if policy is None or dtype in refused else rules_of(policy, dtype))
        for device, dtype in dtypes.items()
    ]
    cached = (policy is None or policy.cached) and (conversion is None or conversion.cached)
    region = _core.autocast_region(
        rows,
        cached and all(keeps_casts for *_, keeps_casts in ruled),
        in_place_of_convert=conversion is not None,
        suspends=policy is None,
    )
    if not refused:  # else each one warns
        made[key] = region
    return region


@run_while_traced
def _traced_inside(policy: str | None) -> tuple[str, bool]:
    """Run by torch.compile while it traces."""
    ruled = _core.autocast_ruled()
    region = _inside(ruled, None if policy is None else Policy.load(policy))
    key = traced.remember(region)
    traced.keep(key, region)
    return key, bool(ruled) or in_force.policy is not None


def _to_fp32(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.float() if tensor.dtype in LOW_DTYPES else tensor
