"""The lists of hpu-autocast that the environment names."""  # (D30)

from __future__ import annotations

import os

import habana_mp._core as core
from habana_mp._policy.list_file import ListFile, parse_list
from habana_mp._policy.policy import Policy, replace_preset, with_files
from habana_mp._policy.read_file import read_file, shown
from habana_mp._show.warning import warn

_HPU = "hpu-autocast"
# D30: what the lists of hpu-autocast are replaced with, by the names of HPU's releases, the newer ones first.
LIST_VARIABLES = {
    "lower": ("PT_HPU_AUTOCAST_LOWER_PRECISION_OPS_LIST", "LOWER_LIST"),
    "fp32": ("PT_HPU_AUTOCAST_FP32_OPS_LIST", "FP32_LIST"),
}
_read: dict[str, tuple[str, str, bytes | str]] = {}


def _content(path: str) -> bytes | str:
    """What the file holds, read once, or why it cannot be read."""
    try:
        return read_file(path, core.MAX_LIST_BYTES)
    except (OSError, ValueError) as error:
        return str(error)


def _parsed(content: bytes, path: str, title: str) -> ListFile | str:
    try:
        return parse_list(content, shown(path), title)
    except ValueError as error:
        return str(error)


def read_environment() -> None:
    """Read the lists that the environment names, where they are others than at the last time."""
    asked = {
        title: (variable, os.environ[variable], _content(os.environ[variable]))
        for title, variables in LIST_VARIABLES.items()
        if (variable := next(filter(os.environ.get, variables), None)) is not None
    }
    if asked == _read:
        return
    _read.clear()
    _read.update(asked)
    replace_preset(_HPU, None)
    files: dict[str, ListFile] = {}
    for title, (variable, path, content) in asked.items():
        found = content if isinstance(content, str) else _parsed(content, path, title)
        if isinstance(found, str):
            warn(f"{variable}={path!r} is not used. The default list of {_HPU} stays: {found}")
        else:
            files[title] = found
    if files:
        try:
            replace_preset(_HPU, with_files(Policy.load(_HPU), files, None, strict=False))
        except ValueError as error:
            warn(f"the lists of the environment are not used. Those of {_HPU} stay: {error}")
