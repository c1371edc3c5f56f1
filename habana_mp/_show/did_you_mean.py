"""The end of a message about a name that is not known: the names that are near it."""

from __future__ import annotations

from collections.abc import Iterable


def did_you_mean(names: Iterable[str]) -> str:
    """``. Did you mean 'a' or 'b'?``, and "" without names."""
    listed = " or ".join(map(repr, names))
    return f". Did you mean {listed}?" if listed else ""


def near(text: str, known: Iterable[str], *, most: int = 3, cutoff: float = 0.6) -> str:
    """``did_you_mean`` with the nearest of the known names."""
    from difflib import get_close_matches

    return did_you_mean(get_close_matches(text, [*known], n=most, cutoff=cutoff))
