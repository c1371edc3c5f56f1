"""The cases under each instrument: the calls give the same as without it, nothing of theirs is written to, and memory does not grow.

A step makes all calls of a case, forward and backward. What a call gives without the instrument is what it gives twice: a call whose two
plain runs differ is not compared. An error of a call is one of its results.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import gc
import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils._pytree import tree_flatten

from habana_mp import hmp
from zoo.cases import Began, Case, Outcome, Run, architectures, first_line, layers, modules, ops
from zoo.cases.calls import Call, Maker
from zoo.cases.seen import Seen, difference, random_states, seed, seen
from zoo.cases.variants import PLAIN, Variant

POLICY = "balanced"
# A search runs its step some twenty times.
ROUNDS = {"values": 50, "errors": 50, "nonfinite": 50, "compare": 50, "tune": 10}
BOTH = ("float32", "mixed")
# Python's cache of attributes keeps names that were made at run time, such as "layers.0", until others take their places.
_clear_type_cache: Callable[[], None] = getattr(sys, "_clear_internal_caches", None) or sys._clear_type_cache
# What a round may leave, where a tensor that stays takes some 400 bytes, and how many objects of Python a half of the rounds, by its caches.
MOST_BYTES, MOST_OBJECTS = 200, 80
_MOST_BYTES_OF_AN_OBJECT = 512  # by pymalloc; larger ones it takes from malloc

Step = Callable[[], list[Any]]


def _report(values: Any, step: Step) -> None:
    with hmp.report(values=values):
        step()


def _compare(step: Step) -> None:
    hmp.compare(step, None, POLICY)


def _tune(step: Step) -> None:
    try:
        hmp.tune(step, 1e-2, start=POLICY, others="lower", cost="numbers")
    except ValueError as error:  # a step that has nothing to tune is refused
        if not any(text in str(error) for text in _REFUSED):
            raise


_REFUSED = (
    "returns no numbers",
    "not finite in float32",
    "nothing to tune",
    "no policy stays within the budget",
    "by itself",
)

# Those that run the step once run it as a program does, under a policy by each front end. The others enter their policies themselves, and
# put back what each run has changed.
ONCE: dict[str, Callable[[Step], object]] = {
    "values": functools.partial(_report, True),
    "errors": functools.partial(_report, "errors"),
    "nonfinite": hmp.find_nonfinite,
}
RESTORING: dict[str, Callable[[Step], None]] = {"compare": _compare, "tune": _tune}
VARIANTS = [
    *((name, Variant(front, POLICY)) for name in ONCE for front in ("convert", "autocast")),
    *((name, PLAIN) for name in RESTORING),
]


def cases() -> list[Case]:
    from torch.testing._internal.common_methods_invocations import op_db
    from torch.testing._internal.common_modules import module_db

    return [
        *(
            Case("op", op.formatted_name, functools.partial(_runs, functools.partial(ops.maker, op), BOTH))
            for op in op_db
        ),
        *(
            Case("module", info.formatted_name, functools.partial(_runs, functools.partial(modules.maker, info), BOTH))
            for info in module_db
        ),
        *(
            Case("layer", name, functools.partial(_runs, functools.partial(layers.maker, name), BOTH))
            for name in layers.LAYERS
        ),
        *(
            Case(
                "architecture",
                case.name,
                functools.partial(_runs, functools.partial(architectures.maker, case.name), ("float32",)),
            )
            for case in architectures.cases()
        ),
    ]


def _runs(
    maker: Callable[[], Maker | None], given: tuple[str, ...], skip: frozenset[tuple[str, str]]
) -> Iterator[Run | Began]:
    yield Began(*PLAIN)
    try:
        make = maker()
    except Exception as error:
        yield Run(*PLAIN, "float32", [Outcome("forward", first_line(error))])
        return
    if make is None:
        yield Run(*PLAIN, "float32", [Outcome("forward", "no dtype on CPU")])
        return
    yield Run(*PLAIN, "float32", [Outcome("ran", "")])
    for name, variant in VARIANTS:
        if (name, variant.front) in skip:
            continue
        yield Began(name, variant.front)
        for inputs in given:
            yield Run(name, variant.front, inputs, _looked_at(make, inputs, name, variant))
        rounds = f"{variant.front} {ROUNDS[name]} rounds"
        yield Began(name, rounds)
        yield Run(name, rounds, "float32", [_grown(make, name, variant)])


def _looked_at(make: Maker, inputs: str, name: str, variant: Variant) -> list[Outcome]:
    with variant.conversion():
        plain, again = (_plain(make(inputs), variant) for _ in range(2))
        calls = make(inputs)
        seed()
        before = [*(seen(call, None) for call in calls), random_states()]
        results: list[Any] = []
        try:
            _under(lambda: _kept(results, calls), name, variant)
        except Exception as error:
            return [Outcome("raised", first_line(error))]
        if name in RESTORING:
            after = [*(seen(call, None) for call in calls), random_states()]
            return [_outcome(*each) for each in zip(before, before, after, strict=True)]
        found = [*map(seen, calls, results), random_states()]
    return [_outcome(*each) for each in zip(plain, again, found, strict=True)]


def _kept(results: list[Any], calls: list[Call]) -> list[Any]:
    results[:] = _step(calls)
    return results


def _outcome(plain: Seen, again: Seen, found: Seen) -> Outcome:
    if difference(plain, again):
        return Outcome("ran", "not repeatable")
    changed = difference(plain, found)
    return Outcome("changed", changed) if changed else Outcome("ran", "")


def _plain(calls: list[Call], variant: Variant) -> list[Seen]:
    seed()
    with variant.region():
        results = _step(calls)
    return [*map(seen, calls, results), random_states()]


def _under(step: Step, name: str, variant: Variant) -> None:
    if name in RESTORING:
        RESTORING[name](step)
    else:
        with variant.region():
            ONCE[name](step)


def _step(calls: list[Call]) -> list[Any]:
    return [_called(call) for call in calls]


def _called(call: Call) -> Any:
    try:
        result = call.function(*call.args, **call.kwargs)
        leaves = [leaf for leaf in tree_flatten(result)[0] if isinstance(leaf, torch.Tensor) and leaf.requires_grad]
        if leaves:
            torch.autograd.backward(leaves, [torch.ones_like(leaf) for leaf in leaves])
    except Exception as error:
        return type(error).__name__
    return result


def _grown(make: Maker, name: str, variant: Variant) -> Outcome:
    """Of the first call, round after round: what each half of the rounds leaves, if the call does not leave it alone."""
    with variant.conversion():
        calls = make("float32")[:1]
        grown, objects = _growth(calls, ROUNDS[name], lambda: _under(lambda: _step(calls), name, variant))
        most = MOST_BYTES * _half(ROUNDS[name])
        if sys.getallocatedblocks() == 0:  # PYTHONMALLOC=malloc: objects of Python are among the bytes
            most += MOST_OBJECTS * _MOST_BYTES_OF_AN_OBJECT
        if grown > most or objects > MOST_OBJECTS:
            plain, plain_objects = _growth(calls, ROUNDS[name], lambda: _in_region(calls, variant))
            grown, objects = grown - max(plain, 0), objects - max(plain_objects, 0)
    if grown > most or objects > MOST_OBJECTS:
        return Outcome("grew", f"{grown} bytes and {objects} objects of Python in {_half(ROUNDS[name])} rounds")
    return Outcome("ran", "")


def _in_region(calls: list[Call], variant: Variant) -> None:
    with variant.region():
        _step(calls)


def _half(rounds: int) -> int:
    """Behind a fifth of the rounds, which is not measured."""
    return rounds * 2 // 5


def _growth(calls: list[Call], rounds: int, run: Callable[[], object]) -> tuple[int, int]:
    def after(rounds: int) -> tuple[int, int]:
        for _ in range(rounds):
            _forget_gradients(calls)
            with contextlib.suppress(Exception):
                run()
        gc.collect()
        _clear_type_cache()
        return _bytes_in_use(), sys.getallocatedblocks()

    after(rounds // 5)
    first, middle, last = (after(count) for count in (0, _half(rounds), _half(rounds)))
    bytes_, objects = (min(middle[place] - first[place], last[place] - middle[place]) for place in (0, 1))
    return bytes_, objects


def _forget_gradients(calls: list[Call]) -> None:
    tensors = tree_flatten([(call.args, call.kwargs) for call in calls])[0]
    for module in (call.function for call in calls if isinstance(call.function, torch.nn.Module)):
        tensors += module.parameters()
    for each in tensors:
        if isinstance(each, torch.Tensor) and each.is_leaf:
            each.grad = None


class _Mallinfo(ctypes.Structure):
    _fields_ = [
        (name, ctypes.c_size_t)
        for name in "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost".split()
    ]


def _bytes_in_use() -> int:
    """By malloc of glibc or of the address sanitizer, of all threads."""
    process = ctypes.CDLL(None)
    if (by_sanitizer := getattr(process, "__sanitizer_get_current_allocated_bytes", None)) is not None:
        by_sanitizer.restype = ctypes.c_size_t
        return int(by_sanitizer())
    mallinfo = process.mallinfo2
    mallinfo.restype = _Mallinfo
    info = mallinfo()
    return int(info.uordblks + info.hblkhd)
