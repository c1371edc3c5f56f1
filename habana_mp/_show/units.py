"""Times, sizes, shares, counts and names as people read them: two figures or more, the unit that fits. templates/scripts/units.js says the same."""

from __future__ import annotations

import numbers

import habana_mp._core as _core

_TIMES = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns"))
_SIZES = ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB"))


def time(seconds: float) -> str:
    """``0.0012`` is ``1.2 ms``."""
    if seconds <= 0:
        return "0"
    return _scaled(seconds, _TIMES) or "<1 ns"


def unit_of(seconds: float) -> tuple[float, str]:
    """The unit that fits, for a column of times that are compared."""
    return next((each for each in _TIMES if seconds / each[0] >= 0.9995), _TIMES[-1])


def in_unit(seconds: float, unit: tuple[float, str]) -> str:
    """``0.0012`` is ``1.2 ms``, or ``1,200 µs``."""
    return f"{_figures(seconds / unit[0])} {unit[1]}"


def size(count: float) -> str:
    """``3_400_000`` bytes are ``3.4 MB``."""
    return _scaled(count, _SIZES) or f"{count:.0f} B"


def share(part: float, whole: float) -> str:
    """``0.11`` of ``1`` is ``11 %``; nothing of nothing is nothing."""
    if part <= 0 or whole <= 0:
        return "0 %"
    percent = 100 * part / whole
    return "<0.1 %" if percent < 0.05 else f"{_figures(percent)} %"


def apart(value: float, other: float) -> str:
    """``0.02004`` beside ``0.02``: two figures, or as many as show that it is another number."""
    texts = ((f"{value:.{digits}g}", f"{other:.{digits}g}") for digits in range(2, 18))
    return next((own for own, beside in texts if own != beside), f"{value:.2g}")


def counted(count: int, noun: str) -> str:
    """``1 cast``, ``4,658 casts``."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def printable(name: str) -> str:
    """Without control characters and lone surrogates, which a terminal would act on and XML has no place for."""
    return "".join(each if each.isprintable() else "\ufffd" for each in name)


def encodable(text: str) -> str:
    """What the core takes: names of files, modules and ops may have halves of characters, which are no UTF-8."""
    return text if text.isascii() else text.encode(errors="backslashreplace").decode()


def whole(value: object) -> int | None:
    """A whole number that was given, also one of NumPy; None for anything else. A bool is none."""
    return None if isinstance(value, bool) or not isinstance(value, numbers.Integral) else int(value)


def short(dtype: str) -> str:
    """``bfloat16`` is ``bf16``, where a column has little room."""
    return _core.SHORT_DTYPE_NAMES.get(dtype, dtype)


def _scaled(value: float, steps: tuple[tuple[float, str], ...]) -> str:
    # 0.9995 of a unit is written as one of it: 999.6 ms would be 1000 ms.
    return next((f"{_figures(value / step)} {unit}" for step, unit in steps if value / step >= 0.9995), "")


def _figures(value: float) -> str:
    return f"{value:.1f}" if value < 9.95 else f"{value:,.0f}"
