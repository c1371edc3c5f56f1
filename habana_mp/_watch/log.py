"""Where the cast log goes: HABANA_MP_LOG, convert's isVerbose, and sys.stdout.

The lines themselves are made in src/report/cast_log.cpp; nothing here runs while the log is off.

HABANA_MP_LOG is `off`, `casts` or `detail`, and may go on with filters, each behind a comma, and then with `:path`, a file that is appended
to: `detail,op=softmax,module=encoder.*,first=100:casts.log`. A `::` begins no path: `op=aten::mm` is a filter. In the path `~` is the home
folder, `%r` the rank and `%p` the id of the process, so that ranks and forked data loader workers can have files of their own. Set, it wins
over isVerbose. The lines of level casts are the guides' to the byte, so with several ranks it is the detail that names the rank (where.py).

A log that cannot be written warns once and stops; the program goes on.
"""  # (D25, D47)

from __future__ import annotations

import io
import os
import re
import sys
from typing import NamedTuple

import habana_mp._core as _core
from habana_mp._policy.names import names_of
from habana_mp._ranks.rank import rank
from habana_mp._show.stream import text_of
from habana_mp._show.warning import warn

VARIABLE = "HABANA_MP_LOG"
# The order of enum class Level in src/report/cast_log.h.
LEVELS = ("off", "casts", "detail")
_MOST_LINES = 2**63 - 1
_PATH_BEGINS = re.compile(r"(?<!:):(?!:)")


class Setting(NamedTuple):
    """What HABANA_MP_LOG says. ``path`` is "" for sys.stdout, ``first`` 0 for no end; without patterns every op and module has lines."""

    level: int
    path: str
    ops: tuple[str, ...] = ()
    modules: tuple[str, ...] = ()
    first: int = 0


# The open log where its path names the process; a forked child opens its own.
_of_process: Setting | None = None
# Whether the last log ended because it could not be written.
_has_failed = False


def open_log(is_verbose: bool) -> None:
    """Raises ValueError or OSError for a value of HABANA_MP_LOG that cannot be used, and then leaves the log as it was."""
    global _of_process, _has_failed  # noqa: PLW0603 - there is one log in a process
    value = os.environ.get(VARIABLE, "") or ("casts" if is_verbose else "off")
    setting = read_setting(value)
    try:
        _open(setting)
    except OSError as error:
        reason = f"{VARIABLE}={value!r}: cannot append to the log file: {error.strerror}"
        raise type(error)(error.errno, reason, error.filename) from None
    _of_process = setting if "%p" in setting.path else None
    _has_failed = False


def open_for_region() -> None:
    """As ``open_log`` without isVerbose, but a log that has failed stays closed: there is a region at every step."""
    if not _has_failed:
        open_log(False)


def _open(setting: Setting) -> None:
    path = os.fsencode(_of_this_process(setting.path))
    _core.open_log(setting.level, path, _write_to_stdout, _warn_of_failure, setting.ops, setting.modules, setting.first)


def read_setting(value: str) -> Setting:
    """Raises ValueError for a value of HABANA_MP_LOG that is not accepted."""
    words, *paths = _PATH_BEGINS.split(value, maxsplit=1)
    path = paths[0] if paths else ""
    name, *filters = words.split(",")
    if name not in LEVELS or (paths and not path):
        raise ValueError(
            f"{VARIABLE}={value!r}: accepted are {', '.join(LEVELS)}, and {LEVELS[1]}:path or {LEVELS[2]}:path "
            "to append to a file. Filters go before the path, as in detail,op=softmax,module=encoder.*,first=100:path"
        )
    ops: list[str] = []
    modules: list[str] = []
    first = 0
    for each in filters:
        key, _, text = each.partition("=")
        if key == "op" and text:
            ops += _op_names(value, text)
        elif key == "module" and text:
            modules.append(text)
        elif key == "first" and text.isascii() and text.isdigit() and 0 < int(text) <= _MOST_LINES:
            first = int(text)
        else:
            raise ValueError(
                f"{VARIABLE}={value!r}: {each!r} is not a filter. Accepted are op=NAME, module=PATH (* matches any text) and first=NUMBER"
            )
    # pathlib raises where there is no home folder.
    return Setting(LEVELS.index(name), os.path.expanduser(path), tuple(ops), tuple(modules), first)  # noqa: PTH111


def _op_names(value: str, op: str) -> list[str]:
    """The names that a line of an op may have; a pattern is as it is."""
    if set(op) & set("*?["):
        return [op]
    try:
        return sorted(names_of(op))
    except ValueError as error:
        raise ValueError(f"{VARIABLE}={value!r}: {error}") from None


def close_log() -> None:
    global _has_failed  # noqa: PLW0603 - there is one log in a process
    _core.close_log()
    _has_failed = False


def banner(opt_level: str) -> None:
    """The two lines of convert(isVerbose=True)."""  # (D8)
    _core.write_log_text("hmp:verbose_mode  True")
    _core.write_log_text(f"hmp:opt_level {opt_level}")


def _write_to_stdout(text: str) -> str:
    """Returns why the text could not be written, or "". Ctrl-C and sys.exit pass through."""
    # Looked up every time: redirect_stdout, pytest and notebooks put their own there.
    out = sys.stdout
    if out is None:
        return ""
    try:
        out.write(text)
        # A real stream keeps up to 8 KiB, breaks them off in mid-line, among the lines of the other processes on the same
        # pipe, and loses them in a crash. A notebook's stream is of another type, and its flush waits for another thread.
        if isinstance(out, io.TextIOWrapper):
            out.flush()
    except Exception as error:  # noqa: BLE001 - a stream of the user's may raise anything
        return f"sys.stdout: {text_of(error)}"
    return ""


def _warn_of_failure(why: str) -> None:
    global _has_failed  # noqa: PLW0603 - there is one log in a process
    _has_failed = True
    warn(f"the cast log cannot be written and stops: {why}")


def _of_this_process(path: str) -> str:
    return path.replace("%p", str(os.getpid())).replace("%r", str(rank()))


def _reopen_in_child() -> None:
    if _of_process is not None and _core.log_level():
        try:
            _open(_of_process)
        except OSError as error:
            _core.close_log()
            _warn_of_failure(f"{_of_this_process(_of_process.path)}: {error.strerror}")


os.register_at_fork(after_in_child=_reopen_in_child)
