"""The lists of ops in 8 bits, as which a report runs calls once more where that is asked for."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import cast

import habana_mp._core as _core
from habana_mp._report.data import Format
from habana_mp._show.did_you_mean import near
from habana_mp._show.short import brief

FORMATS = cast("tuple[Format, ...]", _core.OPTIONAL_LISTS)


def checked_formats(formats: Iterable[str], accepted: Sequence[str] = FORMATS) -> tuple[str, ...]:
    """Each once, in the order of ``accepted``.

    Raises:
        TypeError: it is no collection of names.
        ValueError: one of them is not accepted.
    """
    if isinstance(formats, str) or not isinstance(formats, Iterable):
        raise TypeError(f"formats must be names, such as ({accepted[-1]!r},), not {brief(formats)}")
    names = [*formats]
    if wrong := [each for each in names if each not in accepted]:
        close = near(wrong[0], accepted) if isinstance(wrong[0], str) else ""
        raise ValueError(f"formats has {wrong[0]!r}; accepted are {', '.join(map(repr, accepted))}{close}")
    return tuple(each for each in accepted if each in names)
