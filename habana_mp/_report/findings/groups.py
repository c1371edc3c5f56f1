"""The findings of a report about many rows at once: modules that are alike, chains and tensors grouped by them, listed ops never seen."""

from __future__ import annotations

import os
from typing import Any, cast

from msgspec import Struct, field, structs

import habana_mp._core as _core
from habana_mp._policy.folder import SHIPPED
from habana_mp._policy.policy import Policy
from habana_mp._report.added import added, grouped
from habana_mp._report.data import CastFrom, CastTo, ListName, NeverSeen, PingPong, Recast, Row
from habana_mp._report.merge import dearest
from habana_mp._show.module_path import ModulePath, common

OWN_FILES = f"{SHIPPED.parent}{os.sep}"  # the files of the presets are named from here


def rule_in_words(rule: str, decision: str, instead_of: str) -> str:
    """The line that decided a call, with what became of one for 8 bits that it could not be in."""
    rule = rule.replace(OWN_FILES, "")
    return f"{decision} instead of {rule}" if instead_of else rule


class Site(Struct, frozen=True):
    op: str
    module: str

    @property
    def alike(self) -> tuple[str, ModulePath]:
        """The same for sites in modules whose paths differ in numbers."""
        return self.op, ModulePath.of(self.module).starred


class Repeated(Struct):
    """A tensor that was cast to one dtype more than once, as the core has it."""

    maker: Site
    sites: list[Site]
    from_: CastFrom = field(name="from")
    to: CastTo
    times: int
    needed: int
    bytes: int
    seconds: float


def grouped_ping_pong(chains: list[PingPong]) -> list[PingPong]:
    """The core's chains, those of modules that are alike as one, what costs most first."""
    made = []
    for group in grouped(chains, lambda chain: repr(([Site(op.op, op.module).alike for op in chain.ops], chain.path))):
        modules = [common(op.module for op in ops) for ops in zip(*(chain.ops for chain in group), strict=True)]
        ops = [structs.replace(op, module=module) for op, module in zip(group[0].ops, modules, strict=True)]
        made.append(structs.replace(added(group), ops=ops))
    return dearest(made)


def grouped_recast(found: list[Repeated]) -> list[Recast]:
    """Tensors that were cast to one dtype more than once, those of modules that are alike as one.

    Those in float8 are meant to be cast each time: a copy would take the memory that they save.
    """  # (D49)

    def alike(entry: Repeated) -> Any:
        wanting = tuple(sorted({site.alike for site in entry.sites}))
        return entry.maker.alike, wanting, entry.from_, entry.to

    made = []
    for group in grouped([entry for entry in found if entry.from_ != "float8"], alike):
        first, module = group[0], common(entry.maker.module for entry in group)
        wanted = sorted({site.module for entry in group for site in entry.sites if site.module})
        tensor = f"output of {first.maker.op}" + (f" in {module}" if module else "")
        if not first.maker.op:
            tensor = f"a weight or an input of {first.sites[0].op}" + (f" in {common(wanted)}" if wanted else "")
        made.append(
            Recast(
                tensor=tensor,
                from_=first.from_,
                to=first.to,
                times=sum(entry.times for entry in group),
                needed=sum(entry.needed for entry in group),
                ops=sorted({site.op for site in first.sites}),
                modules=wanted[:16],
                bytes=sum(entry.bytes for entry in group),
                seconds=sum(entry.seconds for entry in group),
            )
        )
    return dearest(made)


def never_seen(rows: list[Row], policies: list[Policy]) -> list[NeverSeen]:
    """The names in the lists of the policies that no call was decided by."""
    decided = {(row.policy, row.rule) for row in rows}
    found: dict[tuple[str, str], NeverSeen] = {}  # one policy may be there twice, for both front ends
    for policy in policies:
        entries = [entry for entry in policy._core.entries if not entry.modules]
        rules = {entry: policy._core.rule_text(entry).replace(OWN_FILES, "") for entry in entries}
        seen = {entry.op for entry, rule in rules.items() if (policy.name, rule) in decided}
        for entry in sorted(entries, key=lambda each: _core.LISTS.index(each.list)):
            if entry.op not in seen:
                rule = rules[entry]
                found[policy.name, rule] = NeverSeen(str(entry), cast(ListName, entry.list), rule)
    return list(found.values())
