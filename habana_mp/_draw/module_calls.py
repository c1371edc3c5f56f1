"""One run of a model with a gradient for all that it takes, and which call of which module made which node of its graph.

Knows nothing of pictures.
"""

from __future__ import annotations

import bisect
import contextlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch

from habana_mp._autocast.devices import devices
from habana_mp._autocast.regions import region_policy
from habana_mp._compiled.rounding import uncompiled
from habana_mp._report.findings.groups import rule_in_words
from habana_mp._report.formats import FORMATS
from habana_mp._scope import in_force
from habana_mp._scope.disable_casts import casts_off
from habana_mp._torch_private import DRAW
from habana_mp._watch.listener import Call as ListenedCall
from habana_mp._watch.listener import CallListener

# How many dimensions the weight of an op has in 8 bits, where it is no matrix.
_DIMS_IN_8_BITS = {"bmm": 3, "baddbmm": 3, "conv1d": 3, "conv2d": 4, "conv3d": 5}


@dataclass(eq=False)
class Call:
    """A call of a module. ``number`` is 1 for the first of this module; ``depth`` is 0 for the model itself."""

    module: torch.nn.Module
    path: str
    number: int
    parent: Call | None

    def __post_init__(self) -> None:
        self.depth: int = 0 if self.parent is None else self.parent.depth + 1

    def up_to(self, depth: int) -> Call:
        """The call round this one, or itself, that is so deep."""
        return self if self.parent is None or self.depth <= depth else self.parent.up_to(depth)


@dataclass(eq=False)
class OpCall:
    """A call of an op, as a row of the report counts it. ``innermost``: no such call is inside, so what torch does there is its own
    business.
    """  # (D19)

    op: str
    nodes: range
    innermost: bool = True
    rule: str = ""


@dataclass
class ModuleCalls:
    """What is known of a run. Without one all is empty.

    ``inputs`` are the names of the inputs, by the numbers of the nodes that they came in by; ``parameters`` the paths of the weights
    by their ids, of which ``frozen`` need no gradient otherwise.
    """

    output: Any = None
    inputs: dict[int, str] = field(default_factory=dict)
    parameters: dict[int, str] = field(default_factory=dict)
    frozen: set[int] = field(default_factory=set)
    calls: list[Call] = field(default_factory=list)
    ops: list[OpCall] = field(default_factory=list)
    _outer: list[int] = field(default_factory=list)  # of each of these, the one round it, or -1
    _count: Counter[str] = field(default_factory=Counter)
    _first: dict[str, Call] = field(default_factory=dict)
    _starts: list[int] = field(default_factory=list)
    _inside: list[Call | None] = field(default_factory=list)

    def of_node(self, born: int) -> Call | None:
        """The innermost call that made the node with this number; None where none did."""
        at = bisect.bisect_right(self._starts, born) - 1
        return self._inside[at] if at >= 0 else None

    def op_of_node(self, born: int) -> OpCall | None:
        """The innermost call of an op that made the node with this number."""
        at = bisect.bisect_right(self.ops, born, key=lambda call: call.nodes.start) - 1
        while at >= 0 and born not in self.ops[at].nodes:
            at = self._outer[at]
        return self.ops[at] if at >= 0 else None

    def of_parameter(self, path: str) -> Call | None:
        """The first call of the module that owns the parameter, or of the nearest one round it that is called."""
        while path and path not in self._first:
            path = path.rpartition(".")[0]
        return self._first.get(path)

    def take_ops(self, calls: Iterable[OpCall]) -> None:
        """Keep those that made nodes; a function and the method of its name, which it calls, are one."""
        open_now: list[int] = []
        for call in sorted(calls, key=lambda call: (call.nodes.start, -call.nodes.stop)):
            while open_now and self.ops[open_now[-1]].nodes.stop <= call.nodes.start:
                open_now.pop()
            if not call.nodes or (open_now and self.ops[open_now[-1]].nodes == call.nodes):
                continue
            if open_now:
                self.ops[open_now[-1]].innermost = False
            self._outer.append(open_now[-1] if open_now else -1)
            open_now.append(len(self.ops))
            self.ops.append(call)

    def enter(self, module: torch.nn.Module, path: str, parent: Call | None) -> Call:
        self._count[path] += 1
        call = Call(module, path, self._count[path], parent)
        self.calls.append(call)
        self._first.setdefault(path, call)
        self.go_on_in(call)
        return call

    def go_on_in(self, call: Call | None) -> None:
        """What is made from now on is made by this call."""
        self._starts.append(DRAW.born_next())
        self._inside.append(call)


def run(model: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> ModuleCalls:
    """Call the model, as it is, on copies of its inputs, and write down what its modules do."""
    calls = ModuleCalls(parameters={id(weight): path for path, weight in model.named_parameters()})
    names = {id(module): path for path, module in model.named_modules()}
    current: list[Call] = []

    # A module that is copied inside the call takes its hooks along.
    def enter(module: torch.nn.Module, _: Any) -> None:
        give_gradients(module)
        if id(module) in names:
            current.append(calls.enter(module, names[id(module)], current[-1] if current else None))

    def leave(module: torch.nn.Module, _: Any, __: Any) -> None:
        if id(module) in names:
            while current.pop().module is not module:
                pass  # torch calls no hook of a module that something other than an Exception has ended
            calls.go_on_in(current[-1] if current else None)

    with contextlib.ExitStack() as undo:
        calls.frozen, give_gradients = undo.enter_context(_weights_with_gradients(model))
        undo.enter_context(torch.inference_mode(mode=False))
        undo.enter_context(torch.enable_grad())
        undo.enter_context(uncompiled())  # a compiled function is one node
        for module in model.modules():
            if isinstance(module, torch.jit.ScriptModule):  # takes no hooks
                continue
            undo.callback(module.register_forward_pre_hook(enter, prepend=True).remove)
            undo.callback(module.register_forward_hook(leave, always_call=True).remove)
        give_gradients(model)  # one that takes no hooks, too
        args, kwargs = _with_gradient(args, kwargs, calls.inputs)
        with CallListener() as listener:
            calls.output = model(*args, **kwargs)
        # Outside of ours torch.autocast may decide, whose casts lie inside its ops.
        calls.take_ops(
            OpCall(call.op, range(*call.nodes), rule=_rule_of(call))
            for call in listener.take()
            if call.decision != "outside"
        )
    return calls


def _rule_of(call: ListenedCall) -> str:
    """Nothing where casts were off."""
    return "" if call.decision == "off" else rule_in_words(call.rule, call.decision, call.instead_of)


@contextlib.contextmanager
def _weights_with_gradients(
    model: torch.nn.Module,
) -> Iterator[tuple[set[int], Callable[[torch.nn.Module], None]]]:
    """The frozen weights of a model, and what gives those of a module gradients, for the policy that is in force as it is called.

    A weight without a gradient has no place in a graph, and one with a gradient does not run in 8 bits. So what may run in 8 bits for the
    caller gets none.
    """
    weights = [weight for weight in model.parameters() if weight.is_floating_point() and not weight.is_inference()]
    trained = {id(weight) for weight in weights if weight.requires_grad}
    frozen = {id(weight) for weight in weights} - trained
    without = frozen if torch.is_grad_enabled() else frozen | trained  # of those of a call by the caller

    def give_gradients(module: torch.nn.Module) -> None:
        dims = _dims_in_8_bits(module)
        for weight in module.parameters():
            if id(weight) in without:
                weight.requires_grad = weight.dim() not in dims

    try:
        yield frozen, give_gradients
    finally:
        for weight in weights:
            if not weight.is_leaf:  # written to by the model, with what has a graph
                weight.detach_()
            weight.requires_grad = id(weight) in trained


def _dims_in_8_bits(module: torch.nn.Module) -> set[int]:
    """How many dimensions those weights have that the policy in force may run in 8 bits in a module."""
    region, _ = region_policy()
    policy = region or in_force.policy
    torch_decides = region is None and any(map(torch.is_autocast_enabled, devices()))
    if policy is None or torch_decides or casts_off():
        return set()
    ops = {
        entry.base
        for entry in policy._core.entries
        if entry.list in FORMATS and not entry.modules and entry.low_dtype in ("", policy._core.low_dtype)
    }
    if isinstance(module, (torch.nn.Embedding, torch.nn.EmbeddingBag)):
        ops &= {"embedding", "embedding_bag"}
    return {_DIMS_IN_8_BITS.get(op, 2) for op in ops}


def _with_gradient(
    args: tuple[Any, ...], kwargs: dict[str, Any], names: dict[int, str]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Copies that are no leaves, since a model may write to its inputs."""

    def copied(name: str, value: Any) -> Any:
        def copy(tensor: torch.Tensor) -> torch.Tensor:
            if not (tensor.is_floating_point() or tensor.is_complex()):
                return tensor
            # As the dispatcher has it: what convert did to Tensor.clone does not matter, and the weight cache stays as it is.
            clone = torch.ops.aten.clone.default
            leaf = clone(tensor).detach().requires_grad_()
            names[DRAW.born_next()] = name
            own: torch.Tensor = clone(leaf)
            return own

        return DRAW.map_tensors(torch.Tensor, copy, value)

    return (
        tuple(copied(f"input {i}" if len(args) > 1 else "input", arg) for i, arg in enumerate(args)),
        {name: copied(name, value) for name, value in kwargs.items()},
    )
