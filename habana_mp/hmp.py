"""The public names, also under the name that HMP's scripts use: ``from habana_mp import hmp``.

What reports, draws, explains and measures is imported when it is first used: that is most of the package, and a script that only converts
needs none of it.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from torch.amp import GradScaler, is_autocast_available

from habana_mp import cache
from habana_mp._autocast.context import autocast
from habana_mp._autocast.custom_function import custom_bwd, custom_fwd
from habana_mp._autocast.registered_op import register_op
from habana_mp._autocast.set_policies import set_policies
from habana_mp._cast import cast
from habana_mp._convert.conversion import convert, is_converted, revert
from habana_mp._policy.checkpoint import PolicyState
from habana_mp._policy.folder import presets
from habana_mp._policy.policy import Policy
from habana_mp._ranks.check import check_ranks
from habana_mp._scope.disable_casts import disable_casts

if TYPE_CHECKING:
    from habana_mp._draw.drawing import draw
    from habana_mp._evidence.compare import assert_same, compare
    from habana_mp._evidence.comparison import Comparison
    from habana_mp._evidence.nonfinite import find_nonfinite
    from habana_mp._evidence.recordings.record import record
    from habana_mp._evidence.tune.tune import tune
    from habana_mp._evidence.tune.tuned import Tuned
    from habana_mp._explain.explanation import explain
    from habana_mp._report.cast_report import CastReport, report

__all__ = [
    "CastReport",
    "Comparison",
    "GradScaler",
    "Policy",
    "PolicyState",
    "Tuned",
    "assert_same",
    "autocast",
    "cache",
    "cast",
    "check_ranks",
    "compare",
    "convert",
    "custom_bwd",
    "custom_fwd",
    "disable_casts",
    "draw",
    "explain",
    "find_nonfinite",
    "is_autocast_available",
    "is_converted",
    "presets",
    "record",
    "register_op",
    "report",
    "revert",
    "set_policies",
    "tune",
]


# A public name and the module that has it.
_AT_FIRST_USE = {
    "CastReport": "_report.cast_report",
    "Comparison": "_evidence.comparison",
    "Tuned": "_evidence.tune.tuned",
    "assert_same": "_evidence.compare",
    "compare": "_evidence.compare",
    "draw": "_draw.drawing",
    "explain": "_explain.explanation",
    "find_nonfinite": "_evidence.nonfinite",
    "record": "_evidence.recordings.record",
    "report": "_report.cast_report",
    "tune": "_evidence.tune.tune",
}


def __getattr__(name: str) -> Any:
    if name not in _AT_FIRST_USE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"habana_mp.{_AT_FIRST_USE[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
