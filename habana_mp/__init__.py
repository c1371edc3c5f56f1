"""Mixed precision for PyTorch, decided, shown and undone from plain text lists of op names.

>>> from habana_mp import hmp
>>> hmp.convert()
>>> ...
>>> with hmp.disable_casts():
...     optimizer.step()
"""

import torch as _torch

try:
    from habana_mp._built_against import TORCH_VERSION as _TORCH_VERSION
except ModuleNotFoundError:
    raise ImportError("habana_mp is not built: run `make build` in its source tree, or install it with pip.") from None

if _torch.__version__.split(".")[:2] != _TORCH_VERSION.split(".")[:2]:
    raise ImportError(
        f"habana_mp was built against torch {_TORCH_VERSION} and torch {_torch.__version__} is installed. "
        "Build it again (pip install --no-build-isolation .) or install that torch."
    )

try:
    import habana_mp._core as _core  # noqa: F401
except ModuleNotFoundError:
    raise ImportError("habana_mp was built for another Python: run `make build` in its source tree again.") from None

from habana_mp import _old_pickles, hmp  # noqa: F401
from habana_mp._watch import error_note as _error_note  # noqa: F401 - registers itself with the core
from habana_mp._watch import where as _where  # noqa: F401 - registers itself with the core
from habana_mp.hmp import *  # noqa: F403
from habana_mp.hmp import __all__ as __all__  # so that mypy takes it for public


def __dir__() -> list[str]:
    return [*__all__, "hmp"]
