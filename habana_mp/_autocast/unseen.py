"""Names of a policy that a region of autocast does not see, because torch has these functions in Python alone."""

from __future__ import annotations

import functools
from collections.abc import Iterator

from habana_mp._policy.homes import OPERATORS, is_in_place
from habana_mp._policy.list_file import ALL_LISTS, Entry
from habana_mp._policy.names import is_dispatched, torch_names
from habana_mp._policy.policy import Policy, presets
from habana_mp._show.did_you_mean import did_you_mean
from habana_mp._show.warning import warn


def warn_of_unseen(policy: Policy) -> None:
    """One warning for all of them, but for those that a preset has in the same list: presets are made for convert and for regions."""
    unseen = [(title, *entry) for title, entry in _unseen(policy)]
    lines = [
        f"{f'{file}:{line}: ' if line else ''}{name!r}{_full_name(name)}"
        for title, name, file, line in unseen
        if (title, name) not in _of_presets()
    ]
    if lines:
        warn(
            f"{policy.name} has names that a region of autocast does not see, because torch has these functions in Python alone. "
            "hmp.convert sees them:\n" + "\n".join(lines)
        )


def _unseen(policy: Policy) -> Iterator[tuple[str, Entry]]:
    for title in ALL_LISTS:
        for entry in getattr(policy._core, title):
            op = entry[0].partition("@")[0]
            # A region leaves calls in place alone (D12), and HMP's lists have operators beside the functions that these call.
            if not (is_dispatched(op) or is_in_place(op) or {op, f"__{op}__"} & OPERATORS) and op in torch_names():
                yield title, entry


@functools.cache
def _of_presets() -> frozenset[tuple[str, str]]:
    return frozenset((title, entry[0]) for name in presets() for title, entry in _unseen(Policy.load(name)))


def _full_name(name: str) -> str:
    op = name.partition("@")[0]
    full = [each for each in (f"linalg_{op}", f"fft_{op}", f"special_{op}") if is_dispatched(each)]
    return did_you_mean(full[:1])
