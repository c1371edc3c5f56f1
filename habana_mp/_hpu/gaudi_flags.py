"""The runtime flags of Gaudi: what each did there and does here, and the log masks, which ask for the cast log.

On Gaudi a module mask and a level mask choose what is logged. The ops are one module of it, and their lines are our cast log: TRACE writes
its lines, DEBUG their details too. HABANA_MP_LOG wins. What another module would log does not happen here.
"""  # (F196 to F210)

from __future__ import annotations

import os
import warnings
from pathlib import Path
from typing import NamedTuple

from habana_mp._watch import log

_MODULES, _LEVELS, _CONSOLE = "PT_HPU_LOG_MOD_MASK", "PT_HPU_LOG_TYPE_MASK", "ENABLE_CONSOLE"
_OPS = 0x2
_TRACE, _DEBUG = 0x4, 0x8
_FOLDER = Path("~/.habana_logs")


class Flag(NamedTuple):
    name: str
    on_gaudi: str
    here: str


FLAGS = (
    Flag("PT_HPU_LAZY_MODE", "lazy execution", "each op runs when it is called; 1 is what is_lazy() asks for"),
    Flag("PT_USE_HCL_SYNC", "hosts wait for one another before a collective", "nothing: gloo and NCCL need none"),
    Flag(
        _MODULES,
        "bits of the modules that log; default: all",
        "0x2 (ops) is the cast log; 0x80 (CPU fallback) has no lines",
    ),
    Flag(
        _LEVELS,
        "bits of the levels: 1 FATAL, 2 WARNING, 4 TRACE, 8 DEBUG",
        f"of the ops, 4 is {log.VARIABLE}=casts and 8 is {log.VARIABLE}=detail, which win if set",
    ),
    Flag(_CONSOLE, f"true: logs go to the console, else to {_FOLDER}/", "the same, for what the two masks ask for"),
    Flag("LOG_LEVEL_ALL", "level of the device's libraries, 0 (verbose) to 6 (none)", "nothing: there are none"),
    Flag(
        "GRAPH_VISUALIZATION",
        "graphs are written to ./.graph_dumps",
        "nothing: see hmp.draw and habana-mp report --html",
    ),
)


def apply_log_masks() -> None:
    """Set HABANA_MP_LOG to what the masks ask for, unless it is set. A mask that is no number triggers a warning."""
    if os.environ.get(log.VARIABLE):
        return
    try:
        level = asked_level()
        if level:
            os.environ[log.VARIABLE] = level + _file()
    except ValueError as error:
        warnings.warn(f"{error}; it is not used", stacklevel=2)
    except (OSError, RuntimeError) as error:  # RuntimeError: there is no home folder
        warnings.warn(f"{_LEVELS} asks for a log, but there is no {_FOLDER} for it: {error}", stacklevel=2)


def asked_level() -> str:
    """The level of the cast log that the masks ask for, "" where they do not. Raises ValueError for one that is no number."""
    modules, levels = _mask(_MODULES, _OPS), _mask(_LEVELS, 0)
    if not modules & _OPS:
        return ""
    return "detail" if levels & _DEBUG else "casts" if levels & _TRACE else ""


def _file() -> str:
    """The end of HABANA_MP_LOG that names a file, "" for the console."""
    if os.environ.get(_CONSOLE, "").lower() in ("true", "1"):
        return ""
    folder = _FOLDER.expanduser()
    folder.mkdir(exist_ok=True)
    return f":{folder}/habana_mp.%p.log"


def _mask(name: str, default: int) -> int:
    value = os.environ.get(name)
    if not value:
        return default
    try:
        return int(value, 0)
    except ValueError:
        raise ValueError(f"{name}={value!r} is not a number such as 8 or 0x80") from None
