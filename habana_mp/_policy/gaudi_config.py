"""gaudi_config.json, the file that optimum-habana keeps beside a model: what it says of mixed precision.

Knows the form of the file; a policy is made of it by ``Policy.load``.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, NamedTuple

import habana_mp._core as core
from habana_mp._policy.edit import listed, read_entry
from habana_mp._policy.list_file import ListFile
from habana_mp._policy.names import nearest
from habana_mp._policy.read_file import read_text
from habana_mp._show.did_you_mean import did_you_mean
from habana_mp._show.warning import warn

_HMP, _AUTOCAST = "use_habana_mixed_precision", "use_torch_autocast"
# The keys that are read here, and what each holds.
_KEYS = {
    _HMP: "true or false",
    "hmp_opt_level": '"O1" or "O2"',
    "hmp_bf16_ops": "a list of op names, or null for the built-in list",
    "hmp_fp32_ops": "a list of op names, or null for the built-in list",
    "hmp_is_verbose": "true or false",
    _AUTOCAST: "true or false",
    "autocast_bf16_ops": "a list of op names, or null for the built-in list",
    "autocast_fp32_ops": "a list of op names, or null for the built-in list",
}
# A key that begins so is of mixed precision; all others (use_fused_adam, transformers_version, ...) are for other parts of a trainer.
_OURS = ("hmp_", "autocast_", "use_habana", "use_torch_autocast")


class GaudiConfig(NamedTuple):
    """``base`` is the preset that the lists are to replace lists of; None where the file switches no mixed precision on."""

    base: str | None
    lists: dict[str, ListFile]
    verbose: bool


def gaudi_config_at(path: str | os.PathLike[str]) -> Path | None:
    """The file that a path names: itself, or the one in a folder that is no policy, as a model's folder has it."""
    text = os.fspath(path)
    if text.endswith(".json"):
        return Path(text)
    file = os.path.join(text, "gaudi_config.json")  # noqa: PTH118 - Path raises for names that are too long
    if os.path.isfile(file) and not os.path.exists(os.path.join(text, "policy.toml")):  # noqa: PTH110, PTH113, PTH118
        return Path(file)
    return None


def read_gaudi_config(path: Path) -> GaudiConfig:
    """Raises OSError, or ValueError with the file, the key and what is accepted there."""
    config = _read_keys(path)
    hmp, autocast = config.get(_HMP, False), config.get(_AUTOCAST, False)
    if _HMP not in config and _AUTOCAST not in config:
        # Later versions leave the switch to the arguments of the trainer: who loads the file has switched it on.
        autocast = any(config.get(f"autocast_{title}_ops") is not None for title in ("bf16", "fp32"))
        hmp = not autocast and any(config.get(f"hmp_{title}_ops") is not None for title in ("bf16", "fp32"))
        if not hmp and not autocast:
            warn(f"{path} has no setting for mixed precision: all ops run in float32")
    if hmp and autocast:
        raise ValueError(f"{path}: {_HMP} and {_AUTOCAST} are both true. Only one of them can be")
    if not hmp and not autocast:
        return GaudiConfig(None, {}, False)
    front_end = "hmp" if hmp else "autocast"
    lists = {}
    for title, key in {"lower": f"{front_end}_bf16_ops", "fp32": f"{front_end}_fp32_ops"}.items():
        if config.get(key) is not None:
            lists[title] = _list(path, key, title, config[key])
    if autocast:
        return GaudiConfig("hpu-autocast", lists, False)
    verbose = config.get("hmp_is_verbose", False)
    if config.get("hmp_opt_level", "O1").upper() == "O1":
        return GaudiConfig("hmp", lists, verbose)
    if lists:
        keys = " and ".join(f"hmp_{'bf16' if title == 'lower' else title}_ops" for title in lists)
        warn(f"{path}: hmp_opt_level O2 has its own lists and does not read {keys}")
    return GaudiConfig("hmp-o2", {}, verbose)


def _read_keys(path: Path) -> dict[str, Any]:
    text = read_text(path, core.MAX_LIST_BYTES)
    try:
        config = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path}: {error}") from None
    if not isinstance(config, dict):
        raise ValueError(f"{path}: a gaudi_config.json must be one object, {{...}}, not {config!r:.40}")  # noqa: TRY004 - of the file
    for key, value in config.items():
        if key in _KEYS:
            if not _is_fine(key, value):
                raise ValueError(f"{path}: {key} must be {_KEYS[key]}, not {value!r:.60}")
        elif key.startswith(_OURS):
            hint = did_you_mean(nearest(key, frozenset(_KEYS))[:1])
            raise ValueError(f"{path}: {key!r} is not a key of mixed precision. Accepted are {', '.join(_KEYS)}{hint}")
    return config


def _is_fine(key: str, value: object) -> bool:
    if key.endswith("_ops"):
        return value is None or (isinstance(value, list) and all(isinstance(op, str) for op in value))
    if key == "hmp_opt_level":
        return isinstance(value, str) and value.upper() in {"O1", "O2"}
    return isinstance(value, bool)


def _list(path: Path, key: str, title: str, ops: list[str]) -> ListFile:
    shown = f"{path}: {key}"
    ops = [op.strip() for op in ops]  # as the lines of a list file
    for op in ops:
        entry = read_entry(op)
        if entry is None or entry.modules:
            raise ValueError(f"{shown}: {op!r} is not an op name. Accepted are letters, digits, _ and one dot")
    return ListFile(shown, False, [listed(op, title, shown) for op in ops], [])
