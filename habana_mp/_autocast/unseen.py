"""Names of a policy that a region of autocast does not see, because torch has these functions in Python alone."""

from __future__ import annotations

import functools
from collections.abc import Iterator

from habana_mp._core import LISTS, Entry
from habana_mp._policy.folder import presets
from habana_mp._policy.homes import OPERATORS, is_in_place
from habana_mp._policy.names import is_dispatched, torch_names
from habana_mp._policy.policy import Policy
from habana_mp._show.did_you_mean import did_you_mean
from habana_mp._show.warning import warn


def warn_of_unseen(policy: Policy) -> None:
    """One warning for all of them, but for those that a preset has in the same list: presets are made for convert and for regions."""
    lines = [
        f"{f'{entry.place}: ' if entry.line else ''}{str(entry)!r}{_full_name(entry.op)}"
        for entry in _unseen(policy)
        if entry not in _of_presets()
    ]
    if lines:
        warn(
            f"{policy.name} has names that a region of autocast does not see, because torch has these functions in Python alone. "
            "hmp.convert sees them:\n" + "\n".join(lines)
        )


def _unseen(policy: Policy) -> Iterator[Entry]:
    for entry in sorted(policy._core.entries, key=lambda each: LISTS.index(each.list)):
        op = entry.op
        # A region leaves calls in place alone (D12), and HMP's lists have operators beside the functions that these call.
        is_seen = is_dispatched(op) or is_in_place(op) or {op, f"__{op}__"} & OPERATORS
        if not entry.modules and not is_seen and op in torch_names():
            yield entry


@functools.cache
def _of_presets() -> frozenset[Entry]:
    return frozenset(entry for name in presets() for entry in _unseen(Policy.load(name)))


def _full_name(op: str) -> str:
    full = [each for each in (f"linalg_{op}", f"fft_{op}", f"special_{op}") if is_dispatched(each)]
    return did_you_mean(full[:1])
