"""``check_ranks``: ranks that train one model together run it under one policy. ``convert`` has it checked where they begin.

The ranks exchange their policies through the store of the process group, which no collective of theirs can meet:

1. ``DistributedDataParallel`` exchanges the shapes of the parameters when it is made. Each rank publishes its policy before that, so
   afterwards all have published that ever will. Nothing waits.
2. FSDP2 and tensor parallel begin with a ``DeviceMesh``, which is made by all ranks, but not at one time. A rank waits there for the
   others, and after a minute goes on with a warning: a program that is right is only late by it. From then on their meshes are not compared.
3. ``check_ranks`` is called by all ranks, and waits as long as the timeout of the process group.

What a rank reads does not grow with their number, unless policies differ.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from datetime import timedelta
from typing import Any

import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from habana_mp._policy.checkpoint import PolicyState
from habana_mp._policy.diff import PolicyDiff
from habana_mp._policy.policy import Policy
from habana_mp._ranks.rank import is_joined
from habana_mp._scope import in_force
from habana_mp._show.short import brief
from habana_mp._show.warning import warn
from habana_mp._torch_private import DDP, MESH, STORE

_PATIENCE = timedelta(minutes=1)
_FAREWELL = timedelta(seconds=10)
_NONE = "none"  # the hash of no policy
# No ranks, or ranks that are threads of one process, or no store.
_WITHOUT_STORE = ("fake", "threaded", "mpi")


def check_ranks(policy: Policy | None = None, *, group: dist.ProcessGroup | None = None) -> None:
    """Compare the policies of the ranks, and raise on every rank if they differ.

    All ranks of the group have to call it. After ``convert``, a ``DistributedDataParallel`` or a ``DeviceMesh`` makes this comparison by
    itself. Call ``check_ranks`` for what they do not cover: a policy of ``autocast``, or a training loop that averages gradients by
    itself. Without a process group it does nothing.

    Args:
        policy: the policy to compare. The default is that of ``convert``; a rank without a conversion differs from a rank with one.
        group: the ranks to compare. The default is all ranks.

    Raises:
        RuntimeError: the ranks have different policies. The message shows the policy of each rank and the ops that differ. Or a rank
            did not call it within the timeout of the process group.
        TypeError: ``policy`` is not a ``Policy``.

    Example:
        >>> hmp.check_ranks(policy)  # after torch.distributed.init_process_group

    See Also:
        convert, Policy
    """
    if policy is not None and not isinstance(policy, Policy):
        raise TypeError(f"policy must be a Policy, as Policy.load makes it, not {brief(policy)}")
    if not _has_store():
        return
    STORE.need()
    meeting = _Meeting("check", dist.get_process_group_ranks(group))
    if not meeting.is_ours:
        return
    meeting.tell(in_force.policy if policy is None else policy)
    timeout: timedelta = meeting.store.timeout
    if late := meeting.wait(timeout):
        raise RuntimeError(f"{_ranks(late)} did not call hmp.check_ranks() within {timeout.total_seconds():g} seconds")
    meeting.compare("hmp.check_ranks()")


def patches() -> Iterator[tuple[Any, str, Any]]:
    """(owner, attribute, value) of what a conversion puts in the place of torch's, for 1 and 2."""
    if dist.is_available() and STORE.works:
        if DDP.works:
            yield *DDP.place("exchange"), _exchange
        if MESH.works:
            yield *MESH.place("set_up"), _setup


if dist.is_available():
    _torch_exchange, _torch_setup = DDP.get("exchange"), MESH.get("set_up")

    @functools.wraps(_torch_exchange)
    def _exchange(process_group: dist.ProcessGroup, *args: Any, **kwargs: Any) -> Any:
        meeting = _Meeting("ddp", dist.get_process_group_ranks(process_group)) if _has_store() else None
        if meeting is not None:
            meeting.tell(in_force.policy)
        made = _torch_exchange(process_group, *args, **kwargs)
        if meeting is not None:
            meeting.compare("DistributedDataParallel")
        return made

    @functools.wraps(_torch_setup)
    def _setup(self: DeviceMesh) -> Any:
        made = _torch_setup(self)
        if _has_store() and (meeting := _Meeting("mesh", self.mesh.flatten().tolist())).is_ours:
            _meet_at_mesh(meeting)
        return made


def _meet_at_mesh(meeting: _Meeting) -> None:
    if meeting.given_up:
        return
    meeting.tell(in_force.policy)
    # Less than the others wait for this rank in a collective.
    patience: timedelta = min(_PATIENCE, meeting.store.timeout / 2)
    late = meeting.wait(patience)
    if late and not meeting.given_up:
        # Who comes later counts from another mesh on: their policies would be of different meshes.
        meeting.give_up()
        warn(
            f"the policies of the ranks are not compared at a DeviceMesh: within {patience.total_seconds():g} seconds {_ranks(late)} did not "
            "make the mesh under a conversion. Call hmp.check_ranks() after all of them are converted."
        )
    meeting.compare("a DeviceMesh", late)


_meetings: Counter[tuple[str, tuple[int, ...]]] = Counter()


class _Meeting:
    """One comparison: the n-th of its kind among its ranks, which all count alike."""

    def __init__(self, kind: str, ranks: Sequence[int]) -> None:
        self.store: Any = STORE.default()  # torch's stub lacks its timeout
        self._ranks = sorted(ranks)
        self.is_ours = dist.get_rank() in self._ranks
        which = (kind, tuple(self._ranks))
        _meetings[which] += 1
        among = hashlib.sha256(repr(which).encode()).hexdigest()[:16]
        self._key = f"habana_mp/policies/{kind}/{among}/{_meetings[which]}"
        self._hash = ""
        self._given_up = f"habana_mp/policies/{kind}/{among}/given up"

    @property
    def given_up(self) -> bool:
        """Whether these ranks have missed one another before."""
        return bool(self.store.check([self._given_up]))

    def give_up(self) -> None:
        self.store.set(self._given_up, "")

    def tell(self, policy: Policy | None) -> None:
        state = {"policy": "", "hash": _NONE} if policy is None else PolicyState(policy).state_dict()
        self._hash = state["hash"]
        self.store.set(f"{self._key}/text/{self._hash}", state["policy"])
        self.store.set(f"{self._key}/rank/{dist.get_rank()}", self._hash)
        # Last, and answered: who counts it finds the others.
        self.store.add(f"{self._key}/with/{self._hash}", 1)
        self._count("come")

    def wait(self, timeout: timedelta) -> list[int]:
        """The ranks that have not published a policy by then."""
        try:
            self.store.wait([f"{self._key}/come/all"], timeout)
        except RuntimeError:  # not every store has one of its own for it; a broken one raises again
            return [rank for rank in self._ranks if not self._has_told(rank)]
        return []

    def compare(self, place: str, unknown: Iterable[int] = ()) -> None:
        """Raises RuntimeError where policies differ. A rank that has published nothing has none, but for the ``unknown``."""
        if self.store.add(f"{self._key}/with/{self._hash}", 0) == len(self._ranks):
            return
        of_rank = {rank: self._hash_of(rank) for rank in self._ranks if rank not in unknown}
        if len(set(of_rank.values())) == 1:
            return
        said = self._told(of_rank)
        # The process that keeps the store stays until the others have read it.
        self._count("read", len([rank for rank in self._ranks if self._has_told(rank)]))
        with contextlib.suppress(RuntimeError):
            self.store.wait([f"{self._key}/read/all"], _FAREWELL)
        raise RuntimeError(f"the ranks have different policies at {place}:\n{said}")

    def _count(self, what: str, of: int | None = None) -> None:
        if self.store.add(f"{self._key}/{what}", 1) == (of or len(self._ranks)):
            self.store.set(f"{self._key}/{what}/all", "")

    def _has_told(self, rank: int) -> bool:
        return bool(self.store.check([f"{self._key}/rank/{rank}"]))

    def _hash_of(self, rank: int) -> str:
        return str(self.store.get(f"{self._key}/rank/{rank}"), "ascii") if self._has_told(rank) else _NONE

    def _told(self, of_rank: dict[int, str]) -> str:
        """The policies, that of most ranks first, and what is different in the others."""
        hashes = [found for found, _ in Counter(of_rank.values()).most_common()]
        policies = {
            found: Policy.load(self.store.get(f"{self._key}/text/{found}").decode())
            for found in hashes
            if found != _NONE
        }
        first, lines = policies.get(hashes[0]), []
        for found in hashes:
            whose = _ranks([rank for rank, other in of_rank.items() if other == found])
            policy = policies.get(found)
            if policy is None:
                lines.append(f"  {whose}: none, hmp.convert was not called")
                continue
            lines.append(f"  {whose}: {policy.name!r}, hash {found}")
            if first is not None and policy is not first:
                diff = (
                    str(PolicyDiff.between(first, policy))
                    or "the same for every op, by lists that are written differently"
                )
                lines += [f"    {line}" for line in diff.splitlines()]
        return "\n".join(lines)


def _has_store() -> bool:
    return is_joined() and dist.get_backend() not in _WITHOUT_STORE


def _ranks(ranks: Sequence[int]) -> str:
    """``ranks 0, 2-7``."""
    runs: list[list[int]] = []
    for rank in ranks:
        if runs and runs[-1][-1] == rank - 1:
            runs[-1][1:] = [rank]
        else:
            runs.append([rank])
    return f"rank{'s' if len(ranks) > 1 else ''} " + ", ".join("-".join(map(str, run)) for run in runs)
