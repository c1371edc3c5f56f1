"""``find_nonfinite``: the first op of a step that makes a NaN or an infinity which spoils the step.

The search is in src/probe/nonfinite.cpp.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch

import habana_mp._core as _core
from habana_mp._report.cast_report import CastReport
from habana_mp._report.findings.groups import OWN_FILES
from habana_mp._show.short import Short, brief
from habana_mp._show.units import counted
from habana_mp._torch_private import DRAW

_LARGEST = torch.finfo(torch.float16).max
_FIRST_SCALE = 2.0**16  # of a GradScaler
_LOWER = "lower the scale (a GradScaler does so by itself: it skips this step and halves the scale)"
_OUTSIDE = "no op here has made them: they come from data, a constant, a worker process, another thread, compiled code, or before the step"


@dataclass(frozen=True)
class GivenTensor:
    """A floating tensor that the op was given: its dtype ("number" of a Python number), its sizes, and the smallest and largest of its numbers.

    Example:
        >>> with hmp.autocast("cpu", dtype=torch.float16, policy="hmp"):
        ...     found = hmp.find_nonfinite(lambda: torch.full((4, 4), 3e4) @ torch.ones(4, 4))
        >>> print(found.given[0])
        float16 [4, 4], 3e+04 to 3e+04
    """

    dtype: str
    sizes: tuple[int, ...]
    smallest: float
    largest: float

    def __str__(self) -> str:
        if self.dtype == "number":
            return f"the number {self.smallest:.4g}"
        return f"{self.dtype} {list(self.sizes)}, {self.smallest:.4g} to {self.largest:.4g}"


@dataclass(frozen=True, repr=False)
class Nonfinite(Short):
    """The result of ``find_nonfinite``. ``print`` shows it.

    Attributes:
        op: the op, as lists name it; "" if no op that the search saw made the value.
        module: the module that called it.
        phase: "forward", or "backward" if the backward pass of the op made the value.
        source: the line that called it.
        rule: its rule, as in a row of a report.
        policy: its policy.
        inner: the op that torch called inside it, or "cast" if the dtype of a cast cannot hold the numbers of an argument.
        kind: "nan" or "inf".
        dtype: the dtype of the result.
        given: the first floating tensors among its arguments.
        edit: the edit that keeps the op in float32, in which its result is finite; None if there is none.
        no_edit: why there is no edit, else "".
        scale: in the backward pass, what the loss is multiplied by before ``backward``, as a ``GradScaler`` does; else 1.
        largest: the largest absolute number that is finite in the result in float32; 0 if the op was not run in float32.
        from_outside: whether the op was given numbers that are not finite and that no op of the step made from finite ones.
        forked_casts: how many tensors forked processes have cast so far, such as the workers of a DataLoader, which the search does not see.

    Example:
        >>> with hmp.autocast("cpu", dtype=torch.float16, policy="hmp"):
        ...     found = hmp.find_nonfinite(lambda: torch.full((4, 4), 3e4) @ torch.ones(4, 4))
        >>> found.op, found.kind, found.edit
        ('matmul', 'inf', '+matmul:fp32')
    """

    op: str
    module: str
    phase: str
    source: str
    rule: str
    policy: str
    inner: str
    kind: str
    dtype: str
    given: tuple[GivenTensor, ...]
    edit: str | None
    no_edit: str = ""
    scale: float = 1.0
    largest: float = 0.0
    from_outside: bool = False
    forked_casts: int = 0

    def _line(self) -> str:
        made = "NaN" if self.kind == "nan" else "infinities"
        if not self.op:
            return f"the result has {made} in {self.dtype}, which no op here has made"
        if self.from_outside:
            return f"{self.op} was given numbers that are not finite, and returns {made} in {self.dtype}, in the {self.phase} pass"
        return f"{self.op} makes {made} in {self.dtype}, in the {self.phase} pass"

    def _workers(self) -> str:
        return f"forked processes, such as workers of a DataLoader, have cast {counted(self.forked_casts, 'tensor')} unseen: search with num_workers=0"

    @property
    def lower_scale(self) -> bool:
        """Whether the scale of the loss overflows, and not the op: without it, float16 holds the gradient."""
        return self._beyond() and self.scale > 1 and self.largest <= _LARGEST * self.scale

    def _beyond(self) -> bool:
        return self.phase == "backward" and self.dtype == "float16" and self.largest > _LARGEST

    def _scale(self) -> str:
        factor = f"{self.scale:,.0f}" if self.scale.is_integer() else f"{self.scale:.4g}"
        if self.lower_scale:
            return f"the loss is multiplied by {factor}: without it, {self.largest:.4g} is {self.largest / self.scale:.4g}, which float16 holds"
        if self._beyond() and self.scale <= 1 and self.largest <= _LARGEST * _FIRST_SCALE:
            return f"if the loss is scaled, lower the scale first: in float32 the largest number is {self.largest:.4g}"
        if self.phase == "backward" and self.dtype == "float16" and self.scale > 1 and not self.largest:
            return f"the loss is multiplied by {factor}: lower the scale first"
        return ""

    def __str__(self) -> str:
        inside = "" if self.inner == f"aten::{self.op}" else self.inner
        lines = [self._line()]
        lines += [
            f"  {title:<8} {text}"
            for title, text in (
                ("module", self.module),
                ("at", self.source),
                ("rule", self.rule and f"{self.rule} ({self.policy})"),
                ("inside", "the cast of what it is given" if inside == "cast" else inside),
                *(("given" if number == 0 else "", str(tensor)) for number, tensor in enumerate(self.given)),
                ("from", _OUTSIDE if self.from_outside else ""),
                ("", self._workers() if self.from_outside and self.forked_casts else ""),
                ("scale", self._scale()),
                ("edit", self.edit or f"none: {self.no_edit}"),
            )
            if text
        ]
        return "\n".join(lines)


def find_nonfinite(step: Callable[[], Any]) -> Nonfinite | None:
    """Run a step and return the op that first made a NaN or an infinity from finite numbers, or None.

    If no op made it, it comes from outside: from data, a constant, a worker process, another thread, compiled code or code before the step.
    The result is then the op that was given such numbers, with ``from_outside``.

    The search follows the values that are not finite from op to op. They count only if they reach a gradient of a weight, a weight, a
    number that leaves torch (``loss.item()``), or the result of the step. Masks of -inf, and logs of zeros that are masked later, do not
    count. If a step has none of these, the tensors that are in memory at its end count. A step takes longer.

    Args:
        step: a function without arguments. It runs under the policy in force, and it may call ``backward`` and an optimizer.

    Raises:
        TypeError: ``step`` is not callable.
        RuntimeError: another search, a recording or a comparison is running, or a report measures values.
        BaseException: what the step raises.

    Example:
        >>> found = hmp.find_nonfinite(lambda: model(x).float().mean().backward())
        >>> print(found)
        None

    See Also:
        report
    """
    if not callable(step):
        raise TypeError(f"step must be a function without arguments, not {brief(step)}")
    with CastReport(own_thread=True):
        returned: list[torch.Tensor] = []
        _core.start_finding()
        try:
            DRAW.map_tensors(torch.Tensor, returned.append, step())
        except BaseException:
            returned.clear()
            raise
        finally:
            found = _core.stop_finding(returned)
    return None if found is None else _named(found)


def _named(found: _core.Nonfinite) -> Nonfinite:
    site = found.site
    own = site.op or found.inner.removeprefix("aten::")
    named = Nonfinite(
        op=own,
        module=site.module,
        phase="backward" if found.backward else "forward",
        source=site.source,
        rule=site.rule.replace(OWN_FILES, ""),
        policy=site.policy,
        inner=found.inner,
        kind="nan" if found.nan else "inf",
        dtype=_dtype(found.dtype),
        given=tuple(
            GivenTensor(_dtype(each.dtype), tuple(each.sizes), each.smallest, each.largest) for each in found.given
        ),
        edit=None,
        scale=abs(found.loss_scale),
        largest=found.largest_in_float32,
        from_outside=found.from_outside,
        forked_casts=_core.casts_of_children(),
    )
    why_not = _why_no_edit(named, found)
    return replace(named, no_edit=why_not, edit=None if why_not else f"+{own}:fp32")


def _why_no_edit(named: Nonfinite, found: _core.Nonfinite) -> str:
    """Empty if an edit of the op makes the result finite."""
    dtype, low = named.dtype, named.dtype in ("float16", "bfloat16")
    of_code = found.casts and (found.inner != "cast" or not found.site.op)
    gradient = f"the gradient is cast to {dtype}, the dtype of what {named.op} was given, and {dtype} does not hold it"
    reasons = (
        (named.from_outside, "what it was given is not finite"),
        (named.lower_scale, _LOWER),
        (found.casts and found.backward, gradient),
        (of_code, f"it is a cast of the code to {dtype}, which does not hold the number"),
        (low and found.finite_in_float32, ""),
        (low and found.inner.endswith("_"), f"it writes into what it is given, in {dtype}"),
        (low and not found.ran_in_float32, "whether it is finite in float32 is not known: the op cannot run again"),
    )
    return next((reason for holds, reason in reasons if holds), "it is not finite in float32 either")


def _dtype(name: str) -> str:
    return _DTYPES.get(name, name.lower())


_DTYPES = {"Half": "float16", "BFloat16": "bfloat16", "Float": "float32", "Double": "float64"}
