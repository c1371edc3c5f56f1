"""Mixed precision for PyTorch, decided, shown and undone from plain text lists of op names.

>>> from habana_mp import hmp
>>> hmp.convert()
>>> ...
>>> with hmp.disable_casts():
...     optimizer.step()
"""

import torch as _torch

from habana_mp._built_against import TORCH_VERSION as _TORCH_VERSION

if _torch.__version__.split(".")[:2] != _TORCH_VERSION.split(".")[:2]:
    raise ImportError(
        f"habana_mp was built against torch {_TORCH_VERSION} and torch {_torch.__version__} is installed. "
        "Build it again (pip install --no-build-isolation .) or install that torch."
    )

from torch.amp import GradScaler, is_autocast_available

from habana_mp import cache
from habana_mp._autocast import autocast
from habana_mp._cast import cast
from habana_mp._convert import convert, is_converted, revert
from habana_mp._custom_function import custom_bwd, custom_fwd
from habana_mp._disable import disable_casts
from habana_mp._draw import draw
from habana_mp._explain import explain
from habana_mp._modules import set_policies
from habana_mp._policy import Policy, presets
from habana_mp._policy_state import PolicyState
from habana_mp._rank_policies import check_ranks
from habana_mp._report import CastReport, report

__all__ = [
    "CastReport",
    "GradScaler",
    "Policy",
    "PolicyState",
    "autocast",
    "cache",
    "cast",
    "check_ranks",
    "convert",
    "custom_bwd",
    "custom_fwd",
    "disable_casts",
    "draw",
    "explain",
    "is_autocast_available",
    "is_converted",
    "presets",
    "report",
    "revert",
    "set_policies",
]


def __dir__() -> list[str]:
    return [*__all__, "hmp"]
