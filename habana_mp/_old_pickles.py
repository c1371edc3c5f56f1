"""Pickles of before the package had folders name its modules of then. Here these names lead to what they named then.

Only what a checkpoint or a saved report may hold is here. It is imported when a pickle asks for it.
"""

import sys
from importlib import import_module
from types import ModuleType
from typing import Any

# A module of then, and the module that has its names now.
_MODULES = {
    "_advice": "_report.findings.advice",
    "_custom_function": "_autocast.custom_function",
    "_disable": "_scope.disable_casts",
    "_modules": "_autocast.set_policies",
    "_picture": "_draw.picture",
    "_policy_state": "_policy.checkpoint",
    "_rank_policies": "_ranks.check",
    "_report.diff": "_report.findings.diff",
    "_report_diff": "_report.findings.diff",
}
# What were modules are folders now: the names that pickles ask them for, and the module that has these.
_IN_FOLDERS = {
    "_autocast": ("_autocast.context", {"autocast"}),
    "_convert": ("_convert.conversion", {"convert", "is_converted", "revert"}),
    "_draw": ("_draw.drawing", {"draw"}),
    "_explain": ("_explain.explanation", {"Explanation", "explain"}),
    "_policy": ("_policy.policy", {"OpRule", "Policy", "_unpickle", "presets"}),
    "_report": ("_report.cast_report", {"CastReport", "report"}),
}


def _lead(module: ModuleType, target: str, names: set[str] | None) -> None:
    """Attributes of these names (None: all) that the module has not itself come from the other one."""

    def found(name: str) -> Any:
        if name.startswith("__") or (names is not None and name not in names):
            raise AttributeError(f"module {module.__name__!r} has no attribute {name!r}")
        return getattr(import_module(f"habana_mp.{target}"), name)

    module.__getattr__ = found  # type: ignore[method-assign]


for _name, _target in _MODULES.items():
    _module = sys.modules[f"habana_mp.{_name}"] = ModuleType(f"habana_mp.{_name}")
    _lead(_module, _target, None)
for _folder, (_target, _names) in _IN_FOLDERS.items():
    _lead(import_module(f"habana_mp.{_folder}"), _target, _names)
