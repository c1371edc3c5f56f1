"""Names of a policy that are limited to modules ("mul in *.rotary_emb"): which of them hold in which module of a model."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

import torch

from habana_mp._core import Entry
from habana_mp._policy.edit import Edit, without_model
from habana_mp._policy.folder import SHIPPED
from habana_mp._policy.list_file import after_edits
from habana_mp._policy.policy import Policy
from habana_mp._show.did_you_mean import near

# What torch.compile, DistributedDataParallel and activation checkpointing put between a model and its names.
_WRAPPERS = frozenset(["_orig_mod", "module", "_fsdp_wrapped_module", "_checkpoint_wrapped_module"])


def path_pattern(text: str) -> re.Pattern[str]:
    """``*`` stands for any characters but a dot, ``**`` for any."""
    parts = re.split(r"(\*\*|\*)", text)
    return re.compile("".join({"**": ".*", "*": "[^.]*"}.get(part) or re.escape(part) for part in parts))


def classes_by_path(model: torch.nn.Module) -> dict[str, str]:
    """The name of the class of each module of a model, by each of its paths."""
    return {path: type(module).__name__ for path, module in model.named_modules(remove_duplicate=False)}


_MOST_SHOWN = 3


def hint_for(pattern: str, modules: Mapping[str, str]) -> str:
    """The end of the message about a pattern that names none of these modules, which are the names of classes by their paths."""
    if paths := [path for path, name in modules.items() if path and name == pattern.rpartition(".")[2]]:
        shown = ", ".join(paths[:_MOST_SHOWN]) + (", ..." if len(paths) > _MOST_SHOWN else "")
        return f": paths are matched, not classes. Modules of this class: {shown}"
    if shorter := without_model(pattern):
        return f". A path has no name of a model before it. Write {shorter!r}"
    inside = f"**.{pattern}"
    if paths := [*filter(path_pattern(inside).fullmatch, modules)]:
        return f", but modules inside others match {inside!r}, such as {paths[0]!r}"
    return near(pattern, filter(None, modules))


def _depth(pattern: re.Pattern[str], names: list[str]) -> int:
    """How deep the innermost module of a path lies that a pattern names; -1 for none."""
    return max((depth for depth in range(len(names)) if pattern.fullmatch(".".join(names[: depth + 1]))), default=-1)


def lines_of(policy: Policy) -> ModuleLines:
    """Kept with the policy, as are the policies of modules that are made of it: they are ready for the dispatcher after their first call."""
    lines: ModuleLines = policy.__dict__.setdefault("_module_lines", ModuleLines(policy))
    return lines


class ModuleLines:
    """The names of one policy that are limited to modules."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self._lines = [(line, path_pattern(line.modules)) for line in policy._core.entries if line.modules]
        self._policies: dict[tuple[Entry, ...], Policy] = {}
        self._named: set[Entry] = set()

    def __bool__(self) -> bool:
        return bool(self._lines)

    def of(self, path: str) -> tuple[Entry, ...]:
        """Those that hold in a module: they name it, or one that it is inside of. What wins comes last: the deeper module, then a path without ``*``."""
        names = path.split(".") if path else []
        bare = [name for name in names if name not in _WRAPPERS]
        found = []
        for line, pattern in self._lines:
            depth = max(_depth(pattern, bare), _depth(pattern, names))
            if depth >= 0:
                self._named.add(line)
                found.append((depth, "*" not in line.modules, len(line.modules.replace("*", "")), line))
        return tuple(line for *_, line in sorted(found, key=lambda each: each[:3]))

    def policy_of(self, lines: tuple[Entry, ...]) -> Policy:
        """The policy of a part of a model, in which these hold."""
        if lines not in self._policies:
            # They are listed as if they were for the whole model, and each wins over those before it.
            edits = [Edit(line.replaced(modules=""), removed=False) for line in lines]
            whole = [entry for entry in self._policy._core.entries if not entry.modules]
            self._policies[lines] = Policy(self._policy._core.replaced(entries=after_edits(whole, edits)))
        return self._policies[lines]

    def idle(self, modules_called: Mapping[str, str]) -> Iterator[str]:
        """What to say of lines that have named no module yet, but for those of presets: they are for models of all kinds."""
        for line, _ in self._lines:
            if line in self._named or line.file.startswith(str(SHIPPED)):
                continue
            place = f"{line.place}: " if line.place else ""
            yield f"{place}{str(line)!r} names no module{hint_for(line.modules, modules_called)}"
