"""The names of ops that a list may hold, and the warning for a name that torch does not have."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable

import torch

import habana_mp._core as _core
from habana_mp._core import Entry
from habana_mp._policy.homes import OPERATORS, aten_tensor_arguments, homes, is_in_place
from habana_mp._show.did_you_mean import did_you_mean
from habana_mp._show.short import brief
from habana_mp._show.warning import warn

registered: set[str] = set()  # names of users' own functions, which hmp.register_op adds


def known_names() -> frozenset[str]:
    """Every name that a list may hold: those of torch, and of functions that users registered."""  # (D17, D22)
    return torch_names() | registered


@functools.cache
def torch_names() -> frozenset[str]:
    """Of homes, of operators without their underscores, of aten ops and overloads."""
    own = {home.attribute for home in homes()} | {home.name for home in homes()}
    operators = {name.strip("_") for name in OPERATORS & own}
    return frozenset(own | operators | set(aten_tensor_arguments()) | {"GRUCell", "LSTMCell", "RNNCell"})


def listed_name(attribute: str) -> str:
    """The name of a home as lists spell it: "matmul" for the operator ``__matmul__``."""
    if not attribute.startswith("__"):
        return attribute
    spellings = (spelling for level in _core.candidates(attribute) for spelling in level)
    return next((name for name in spellings if not name.startswith("__") and hasattr(torch.Tensor, name)), attribute)


def plain_name(op: str) -> str:
    """The name of an op, out of one that has the module that it is in; overload names keep their dot."""
    op = op.removeprefix("torch.ops.").replace("aten::", "aten.").removesuffix(".default")
    if op in known_names():
        return op
    if op.removeprefix("aten.") in known_names():
        return op.removeprefix("aten.")
    for prefix, own in (("torch.linalg.", "linalg_"), ("torch.fft.", "fft_"), ("torch.special.", "special_")):
        if op.startswith(prefix) and own + op.removeprefix(prefix) in known_names():
            return own + op.removeprefix(prefix)
    last = op.rpartition(".")[2]
    if last in registered:  # flash_attn.flash_attn_func
        return last
    if last in known_names() and "." in op and op.partition(".")[0] in ("torch", "Tensor", "F", "nn", "aten"):
        return last
    hint = did_you_mean(nearest(last, known_names()))
    raise ValueError(f"{op!r} is not an op of torch {torch.__version__}{hint}")


def names_of(op: object) -> set[str]:
    """The names that a call of an op may have in the report and in the log. Raises TypeError or ValueError for what is no op."""
    if not isinstance(op, str):
        raise TypeError(f"op must be the name of an op, such as 'linear', not {brief(op)}")
    name = plain_name(op).partition(".")[0]
    # A list names add_ by add as well, and so covers both; here they are two ops.
    return {each for each in {name}.union(*_core.candidates(name)) if is_in_place(each) == is_in_place(name)}


_OWN = " (hmp.register_op gives a function of your own a name)"
# Looking for near names takes milliseconds each: a file that is no list at all must not take minutes.
_MOST_SUGGESTIONS = 20


def unknown_in(entries: Iterable[Entry]) -> list[tuple[Entry, str]]:
    """The entries whose names torch does not have, with what to say of them."""  # (D22)
    known = known_names()
    found: list[tuple[Entry, str]] = []
    for entry in entries:
        if entry.op not in known:
            near = nearest(entry.op, known) if len(found) < _MOST_SUGGESTIONS else []
            hint = did_you_mean(near) or ("" if found else _OWN)
            found.append((entry, f"{entry.op!r} is not an op of torch {torch.__version__}{hint}"))
    return found


def check_known(entries: Iterable[Entry], where: str, *, strict: bool) -> None:
    """One warning, or with ``strict`` a ValueError, for all names of a list that torch does not have."""
    found = unknown_in(entries)
    text = "\n".join(f"{entry.place}: {message}" if entry.place else message for entry, message in found)
    if found and strict:
        raise ValueError(text)
    if found:
        warn(f"names without effect in {where}:\n{text}")


@functools.cache
def _dispatched_names() -> frozenset[str]:
    ops = {op.partition(".")[0] for op in _core.dispatched_ops()}
    return frozenset(name for op in ops for level in _core.dispatched_candidates(op) for name in level)


def is_dispatched(op: str) -> bool:
    """Whether a region of autocast sees calls of an op. It does not see functions that torch has in Python alone."""
    return op.removeprefix("aten.").partition(".")[0] in _dispatched_names()


_NAMESPACE = re.compile(r"(torch|nn|F|Tensor)(\..+)?")
# Where a word begins in the name of a class: RMS|Norm, Layer|Norm.
_NEXT_WORD = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")


def nearest(name: str, known: frozenset[str]) -> list[str]:
    from difflib import get_close_matches

    before, _, last = name.rpartition(".")
    # torch.relu; the class of a module: nn.ReLU, RMSNorm
    for own in (last, last.lower(), _NEXT_WORD.sub("_", last).lower()):
        if own != name and own in known:
            return [own]
    if _NAMESPACE.fullmatch(before):
        name = last
    # Names of C++ helpers and overloads are near only to what looks like one.
    pool = [
        other for other in known if ("." in name or "." not in other) and other.startswith("_") <= name.startswith("_")
    ]
    return get_close_matches(name, sorted(pool), n=3, cutoff=0.7)
