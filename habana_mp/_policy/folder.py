"""Policies on disk: a folder with policy.toml, lower.txt, fp32.txt and promote.txt, as the presets under lists/ are.

Knows the form of the folder; what its values mean is checked by src/policy/policy.cpp.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import habana_mp._core as core
from habana_mp._policy.list_file import limited_of, read_list
from habana_mp._policy.names import check_known
from habana_mp._policy.read_file import read_text

LISTS = ("lower", "fp32", "promote")
SHIPPED = Path(__file__).parent.parent / "lists"
DESCRIPTION = "policy.toml"
_KEYS = frozenset(["name", "source", "low_dtype", "low_dtypes", "device", "rest", "error", "cache"])


def read_folder(folder: Path, *, shipped: bool) -> core.Policy:
    described = read_description(folder / DESCRIPTION)
    lower, fp32, promote = lists = [read_list(folder / f"{name}.txt") for name in LISTS]
    for file in lists:
        if file.edits:
            raise ValueError(
                f"{file.path}: names that begin with + or - edit a default list; the list of a policy has none"
            )
    error = [(op, str(folder / DESCRIPTION), 0) for op in described.get("error", [])]
    try:
        made = core.Policy(
            described.get("name", folder.name),
            described["low_dtype"],
            described["rest"],
            lower.named,
            fp32.named,
            promote.named,
            error,
            described["low_dtypes"],
            described["cache"],
            limited_of(dict(zip(LISTS, lists, strict=True))),
        )
    except ValueError as mistake:
        message = str(mistake)
        raise ValueError(message if str(folder) in message else f"{folder / DESCRIPTION}: {message}") from None
    if not shipped:
        for file in lists:
            check_known([*file.named, *(entry for entry, _ in file.limited)], file.path, strict=False)
        check_known(error, str(folder / DESCRIPTION), strict=False)
    return made


def write_folder(folder: Path, policy: core.Policy, source: str, comments: Mapping[str, str] | None = None) -> None:
    """The folder that ``read_folder`` reads back as this policy, with comments behind some names. The folder is there. Raises OSError."""
    comments = comments or {}
    described = {
        "name": policy.name,
        "source": source,
        "low_dtype": policy.low,
        "low_dtypes": policy.low_dtypes if policy.low in policy.low_dtypes else [policy.low, *policy.low_dtypes],
        "rest": policy.rest,
        "error": [op for op, _, _ in policy.error],
        "cache": policy.cached,
    }
    # JSON's strings, lists of strings and booleans are TOML's.
    text = "".join(f"{key} = {json.dumps(value)}\n" for key, value in described.items())
    (folder / DESCRIPTION).write_text(text, encoding="utf-8")
    for title in LISTS:
        names = [op for op, _, _ in getattr(policy, title)]
        names += [f"{op} in {modules}" for other, op, modules, _, _ in policy.limited if other == title]
        ops = "".join(f"{name}  # {comments[name]}\n" if name in comments else f"{name}\n" for name in names)
        (folder / f"{title}.txt").write_text(f"# Policy {policy.name}, {title}: {source}\n{ops}", encoding="utf-8")


def source_of(preset: str) -> str:
    """Which document the lists of a preset are from."""
    return str(read_description(SHIPPED / preset / DESCRIPTION)["source"])


def read_description(path: Path) -> dict[str, Any]:
    try:
        import tomllib
    except ModuleNotFoundError:  # Python 3.10
        import tomli as tomllib

    text = read_text(path, core.MAX_LIST_BYTES)
    try:
        described: dict[str, Any] = tomllib.loads(text)
    except ValueError as error:  # TOMLDecodeError is one
        raise ValueError(f"{path}: {error}") from None
    except RecursionError:
        raise ValueError(f"{path}: its values lie too deep in one another") from None
    if unknown := described.keys() - _KEYS:
        raise ValueError(f"{path}: {min(unknown)!r} is no key of a policy; accepted are {', '.join(sorted(_KEYS))}")
    for key in ("low_dtype", "rest"):
        if not isinstance(described.get(key), str):
            raise ValueError(f"{path}: {key} must be given, as a string")  # noqa: TRY004 - of the file, not of a call
    error_ops = described.get("error", [])
    if (
        not isinstance(described.get("name", ""), str)
        or not isinstance(error_ops, list)
        or not all(isinstance(op, str) for op in error_ops)
    ):
        raise ValueError(f"{path}: name is a string and error a list of op names")
    low_dtypes = described.setdefault("low_dtypes", [*core.LOW_DTYPES])
    if not isinstance(low_dtypes, list) or not low_dtypes or not all(low in core.LOW_DTYPES for low in low_dtypes):
        raise ValueError(f"{path}: low_dtypes is a list of {' and '.join(core.LOW_DTYPES)}, or of one of them")
    if described["low_dtype"] not in low_dtypes:
        raise ValueError(f"{path}: low_dtype is {' or '.join(low_dtypes)}, not {described['low_dtype']!r}")
    if not isinstance(described.setdefault("cache", True), bool):
        raise ValueError(f"{path}: cache is true or false")  # noqa: TRY004 - of the file
    return described
