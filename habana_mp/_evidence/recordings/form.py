"""The form of a recording: what its JSON has, and what must be true of it. A file may come from anybody."""

from __future__ import annotations

import math
from typing import Annotated, Literal

from msgspec import Meta, Struct

from habana_mp._report.data.base import Decision

_Count = Annotated[int, Meta(ge=0)]
_Call = Annotated[int, Meta(ge=-2)]  # a call by its number; -1 is none, -2 a cast of what no call made
_Text = Annotated[str, Meta(max_length=1 << 16)]
_Sizes = Annotated[list[_Count], Meta(max_length=64)]


class _Row(Struct, array_like=True, forbid_unknown_fields=True):
    """Written without the names of its fields, in their order: a recording has many of them."""


class About(Struct, forbid_unknown_fields=True):
    """Where a run was recorded.

    ``policy`` is the text of the policy in force, "" without one; ``instructions`` is the instruction set of torch's kernels, such as
    "AVX2"; ``threads`` are those of an op; ``devices`` are those that torch could use.
    """

    habana_mp: _Text
    torch: _Text
    python: _Text
    machine: _Text
    cpu: _Text
    instructions: _Text
    threads: _Count
    devices: list[_Text]
    policy: _Text
    policy_name: _Text


class Site(_Row):
    op: _Text
    module: _Text
    rule: _Text
    source: _Text
    decision: Decision
    instead_of: Literal["", "weight_int8", "int8"]


class Argument(_Row):
    hash: _Count
    ran: _Text
    maker: _Call
    weight: _Call
    seen: bool
    sizes: _Sizes


class Digest(_Row):
    """``sampled`` numbers of the tensor of samples, behind those of the digest before it: each ``step``-th one of the result."""

    hash: _Count
    dtype: _Text
    sizes: _Sizes
    norm: float | None
    step: Annotated[int, Meta(ge=1)]
    sampled: _Count


class Call(_Row):
    """``chosen`` numbers of the tensor of choices, ``width`` for each choice."""

    site: _Count
    inner: _Text
    backward: bool
    moves: bool
    outer: _Call
    arguments: list[Argument]
    constants: str
    results: list[Digest]
    chosen: _Count
    width: Annotated[int, Meta(ge=1)]


class Gradient(_Row):
    weight: _Call
    digest: Digest


class Form(Struct, forbid_unknown_fields=True):
    """The JSON in a recording. The numbers are in tensors beside it."""

    about: About
    sites: list[Site]
    calls: list[Call]
    lost: _Count
    gradients: list[Gradient]
    returned: list[Digest]

    def digests(self) -> list[Digest]:
        """In the order of their samples."""
        found = [digest for call in self.calls for digest in call.results]
        return found + [each.digest for each in self.gradients] + self.returned


_MOST_NUMBERS = 1 << 63


def check(form: Form, samples: int, choices: int) -> None:
    """Raise ValueError where parts of a form do not fit together. There are so many samples and numbers of choices."""
    for number, call in enumerate(form.calls):
        _check_call(form, number, call)
    digests = form.digests()
    for digest in digests:
        _check_digest(digest)
    if (sampled := sum(digest.sampled for digest in digests)) != samples:
        raise ValueError(f"the results have {sampled} samples, and the file has {samples}")
    if (chosen := sum(call.chosen for call in form.calls)) != choices:
        raise ValueError(f"the calls have {chosen} numbers of choices, and the file has {choices}")


def _check_call(form: Form, number: int, call: Call) -> None:
    if call.site >= len(form.sites):
        raise ValueError(f"call {number} has site {call.site} of {len(form.sites)}")
    if not -1 <= call.outer < number:
        raise ValueError(f"call {number} is inside of call {call.outer}, which is not before it")
    for argument in call.arguments:
        if argument.maker >= number:
            raise ValueError(f"call {number} has an argument of call {argument.maker}, which is not before it")


def _check_digest(digest: Digest) -> None:
    # A complex number has two samples, and one of a sparse tensor those of its indices, too.
    whole = math.prod(max(1, size) for size in digest.sizes) * (len(digest.sizes) + 2)
    if max(whole, digest.step) >= _MOST_NUMBERS:
        raise ValueError("a result has more numbers than 63 bits count")
    if digest.step & (digest.step - 1):
        raise ValueError(f"a result has a sample of each {digest.step}th number, which is no power of 2")
    if digest.sampled > -(-whole // digest.step):
        raise ValueError(f"a result of sizes {digest.sizes} has {digest.sampled} samples")
