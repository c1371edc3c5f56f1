"""Mixed precision for PyTorch by plain text lists of op names.

Example:
    >>> from habana_mp import hmp
    >>> policy = hmp.convert(policy="balanced")
    >>> with hmp.disable_casts():
    ...     optimizer.step()
"""

from typing import TYPE_CHECKING, Any

from habana_mp import _loading

_loading.load_core(__path__)

from habana_mp import hmp
from habana_mp._watch import error_note as _error_note  # noqa: F401 - registers itself with the core
from habana_mp._watch import where as _where  # noqa: F401 - registers itself with the core
from habana_mp.hmp import __all__ as __all__  # so that mypy takes it for public

if TYPE_CHECKING:
    from habana_mp.hmp import *  # noqa: F403


# `import *` would import at once what hmp imports at first use.
def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(hmp, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return [*__all__, "hmp"]
