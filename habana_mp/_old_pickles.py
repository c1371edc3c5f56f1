"""Pickles of before the package had folders name its modules of then. Here these names lead to what they named then.

Only what a checkpoint or a saved report may hold is here.
"""

import importlib
import sys
from types import ModuleType
from typing import Any

from habana_mp import _autocast, _convert, _draw, _explain, _policy, _report
from habana_mp._autocast import custom_function, set_policies
from habana_mp._autocast.context import autocast
from habana_mp._convert.conversion import convert, is_converted, revert
from habana_mp._draw.drawing import draw
from habana_mp._explain.explanation import Explanation, explain
from habana_mp._policy import checkpoint
from habana_mp._policy.policy import OpRule, Policy, _unpickle, presets
from habana_mp._ranks import check
from habana_mp._report.cast_report import CastReport, report
from habana_mp._report.findings import advice
from habana_mp._report.findings import diff as report_diff
from habana_mp._scope import disable_casts


def _picture(name: str) -> Any:
    return getattr(importlib.import_module("habana_mp._draw.picture"), name)


# A drawing is no reason to import the module before it is asked for.
_drawings = ModuleType("habana_mp._picture")
_drawings.__getattr__ = _picture  # type: ignore[method-assign]

_MODULES = {
    "_advice": advice,
    "_custom_function": custom_function,
    "_disable": disable_casts,
    "_modules": set_policies,
    "_picture": _drawings,
    "_policy_state": checkpoint,
    "_rank_policies": check,
    "_report.diff": report_diff,
    "_report_diff": report_diff,
}
# What were modules are folders now.
_IN_FOLDERS = {
    _autocast: (autocast,),
    _convert: (convert, is_converted, revert),
    _policy: (OpRule, Policy, _unpickle, presets),
    _draw: (draw,),
    _explain: (Explanation, explain),
    _report: (CastReport, report),
}

for _name, _module in _MODULES.items():
    sys.modules[f"habana_mp.{_name}"] = _module
for _folder, _values in _IN_FOLDERS.items():
    for _value in _values:
        setattr(_folder, _value.__name__, _value)
