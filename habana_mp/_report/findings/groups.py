"""The findings of a report about many rows at once: modules that are alike, chains and tensors grouped by them, listed ops never seen.

Pure functions on the plain values of the core and of ``CastReport.to_dict``.
"""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import habana_mp._core as _core
from habana_mp._policy.folder import SHIPPED
from habana_mp._policy.policy import Policy

OWN_FILES = f"{SHIPPED.parent}{os.sep}"  # the files of the presets are named from here
_Item = TypeVar("_Item")


def inside(module: str, asked: str) -> bool:
    """Whether a module's path is ``asked`` or below it; ``*`` stands for one name. Both with or without the root's class. "" is outside."""
    if not asked or not module:
        return asked == module
    root, _, path = module.partition(": ")
    asked_root, colon, asked_path = asked.partition(": ")
    if not colon:
        if asked_root == root and "." not in asked_root:
            return True
        asked_root, asked_path = root, asked
    if asked_root != root:
        return False
    names, wanted = _names(path), _names(asked_path)
    return len(names) >= len(wanted) and all(want in ("*", name) for want, name in zip(wanted, names, strict=False))


def _names(path: str) -> list[str]:
    return path.split(".") if path else []


def pattern(modules: Iterable[str]) -> str:
    """One text for some modules: the path itself, with ``*`` where numbers differ, or what their paths have in common."""
    distinct = sorted(set(modules))
    if len(distinct) < 2:
        return "".join(distinct)
    starred = sorted({_starred(module) for module in distinct})
    if len(starred) == 1:
        return starred[0]
    names = zip(*(re.split(r"(?<=:) |\.", module) for module in starred), strict=False)
    common = [level[0] for level in itertools.takewhile(lambda level: len(set(level)) == 1, names)]
    if not common:
        return f"{len(distinct)} modules"
    root, *path = common
    return f"{root} {'.'.join(path)}".rstrip(": ") + f" ({len(distinct)} modules)"


def _starred(module: str) -> str:
    return re.sub(r"(?<=[. ])\d+(?=\.|$)", "*", module)


def path_with_stars(module: str) -> str:
    """The path of a module without the class of the root, as a pattern of a list: ``*`` for numbers, and for what no pattern holds. "" is the root."""
    return re.sub(r"[^\w.*-]", "*", _starred(module).partition(": ")[2])


def grouped(items: Iterable[_Item], key: Callable[[_Item], Any]) -> list[list[_Item]]:
    """The items of each key, in the order in which the keys come."""
    groups: dict[Any, list[_Item]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return list(groups.values())


def grouped_ping_pong(chains: list[tuple[Any, ...]]) -> list[dict[str, Any]]:
    """The core's chains, those of modules that are alike as one, what costs most first."""

    def alike(chain: tuple[Any, ...]) -> Any:
        sites, source, target, *_ = chain
        return tuple((op, _starred(module)) for op, module in sites), source, target

    made = []
    for group in grouped(chains, alike):
        sites, source, target, *_ = group[0]
        modules = [pattern(chain[0][i][1] for chain in group) for i in range(len(sites))]
        made.append(
            {
                "ops": [
                    {"op": op, "module": module, "dtype": target if i < len(sites) - 1 else source}
                    for i, ((op, _), module) in enumerate(zip(sites, modules, strict=True))
                ],
                "path": [source, target, source],
                "count": sum(chain[3] for chain in group),
                "seconds": sum(chain[4] for chain in group) / 1e9,
            }
        )
    return sorted(made, key=lambda chain: -chain["seconds"])


def grouped_recast(found: list[tuple[Any, ...]]) -> list[dict[str, Any]]:
    """Tensors that were cast to one dtype more than once, those of modules that are alike as one.

    Those in float8 are meant to be cast each time: a copy would take the memory that they save (D49).
    """

    def alike(entry: tuple[Any, ...]) -> Any:
        (maker, module), sites, source, target, *_ = entry
        wanting = tuple(sorted({(op, _starred(where)) for op, where in sites}))
        return maker, _starred(module), wanting, source, target

    made = []
    for group in grouped([entry for entry in found if entry[2] != "float8"], alike):
        (maker, _), sites, source, target, *_ = group[0]
        module = pattern(entry[0][1] for entry in group)
        wanted = sorted({where for entry in group for _, where in entry[1] if where})
        tensor = f"output of {maker}" + (f" in {module}" if module else "")
        if not maker:
            tensor = f"a weight or an input of {sites[0][0]}" + (f" in {pattern(wanted)}" if wanted else "")
        made.append(
            {
                "tensor": tensor,
                "from": source,
                "to": target,
                "times": sum(entry[4] for entry in group),
                "needed": sum(entry[5] for entry in group),
                "ops": sorted({op for op, _ in sites}),
                "modules": wanted[:16],
                "bytes": sum(entry[6] for entry in group),
                "seconds": sum(entry[7] for entry in group) / 1e9,
            }
        )
    return sorted(made, key=lambda entry: -entry["seconds"])


def never_seen(rows: list[dict[str, Any]], policies: list[Policy]) -> list[dict[str, str]]:
    """The names in the lists of the policies that no call was decided by."""
    seen = {(row["policy"], row["rule"].partition(": ")[2].partition(",")[0].partition("@")[0]) for row in rows}
    found: dict[tuple[str, str], dict[str, str]] = {}  # one policy may be there twice, for both front ends
    for policy in policies:
        for entry in sorted(policy._core.entries, key=lambda each: _core.LISTS.index(each.list)):
            if not entry.modules and (policy.name, entry.op) not in seen:
                rule = policy._core.rule_text(entry).replace(OWN_FILES, "")
                found[policy.name, rule] = {"op": str(entry), "list": entry.list, "rule": rule}
    return list(found.values())
