"""The policy that the arguments of ``convert`` ask for."""

from __future__ import annotations

import os

import torch

from habana_mp._cast import dtype_named, low_name
from habana_mp._policy.folder import presets
from habana_mp._policy.list_file import ListPath, read_argument
from habana_mp._policy.policy import ALIASES, Policy, with_files
from habana_mp._show.did_you_mean import near
from habana_mp._show.short import brief
from habana_mp._show.warning import warn


def policy_for_convert(  # noqa: PLR0917 - in the order of convert
    opt_level: str,
    bf16_file_path: ListPath | None,
    fp32_file_path: ListPath | None,
    fp16_file_path: ListPath | None,
    low_precision_type: torch.dtype | str,
    policy: Policy | str | os.PathLike[str] | None,
    strict: bool,
) -> Policy:
    """The policy that a call of convert asks for."""  # (D1 to D6, D9, D20 to D24)
    level = opt_level.upper() if isinstance(opt_level, str) else opt_level
    if level not in ("O1", "O2"):
        raise _no_level(opt_level)
    named = {"bf16_file_path": bf16_file_path, "fp32_file_path": fp32_file_path, "fp16_file_path": fp16_file_path}
    for name, path in named.items():
        if path is not None and not isinstance(path, (str, bytes, os.PathLike)):
            raise TypeError(f"{name} must be the path of a list file, not {path!r}")
    if policy is not None and not isinstance(policy, (Policy, str, os.PathLike)):
        raise TypeError(f"policy must be a Policy, the name of a preset or the path of a folder, not {brief(policy)}")
    low = low_name(low_precision_type, "low_precision_type")
    if fp16_file_path and low == "bfloat16":
        raise ValueError(
            f"fp16_file_path={os.fspath(fp16_file_path)!r} needs low_precision_type=torch.float16. For bfloat16 use bf16_file_path"
        )
    if fp16_file_path and bf16_file_path:
        raise ValueError(
            "fp16_file_path and bf16_file_path are both given. With low_precision_type=torch.float16 only one of them can be the lower list"
        )
    files = {name: os.fspath(path) for name, path in named.items() if path}
    named_files = ", ".join(f"{name}={path!r}" for name, path in files.items())

    if policy is not None:
        if files or level == "O2":
            raise ValueError(
                f"policy replaces opt_level and the list files and cannot be combined with {named_files or 'opt_level O2'}. "
                "To change the lists of a policy, use Policy.from_files(..., base=)"
            )
        start = policy._checked(strict) if isinstance(policy, Policy) else Policy.load(policy, strict=strict)
        # bfloat16 is the default of the argument; a policy of float16 keeps its own.
        return start if low == "bfloat16" else start.with_low_dtype(low)
    if level == "O2":
        if files:
            warn(f"opt_level O2 has its own lists and does not read {named_files}")
        return Policy.load("hmp-o2").with_low_dtype(low)
    lists = {"fp16_file_path": "lower", "bf16_file_path": "lower", "fp32_file_path": "fp32"}
    read = {
        lists[name]: read_argument(path, lists[name], name, "policy takes a folder") for name, path in files.items()
    }
    made = with_files(Policy.load("hmp"), read, low_precision_type, strict=strict)
    _check_whole_ops(made)
    return made


def _no_level(value: object) -> Exception:
    """The error for a first argument that is no level, with the argument that was meant."""
    if isinstance(value, torch.nn.Module):
        return TypeError(
            f"convert takes no model, and {type(value).__name__} is one. It converts the ops that all models call: "
            'hmp.convert(policy="balanced")'
        )
    meant = ""
    if isinstance(value, Policy):
        meant = ". To pass a policy, use policy="
    elif isinstance(value, (str, torch.device)):
        meant = _meant_by(str(value))
    elif isinstance(value, torch.dtype):
        meant = f". To pass a dtype, use low_precision_type={value}"
    return ValueError(
        f'opt_level must be "O1" (lists) or "O2" (GEMM and convolution ops low, all others float32), not {value!r:.200}{meant}'
    )


def _meant_by(text: str) -> str:
    if dtype_named(text) is not None:
        return f'. To pass a dtype, use low_precision_type="{text}"'
    preset = ALIASES.get(text, text)
    devices = ". convert takes no device: it converts the ops of all devices" if preset != text else ""
    if preset in presets():
        return f'. To pass a policy, use policy="{preset}"{devices}'
    return near(text, presets(), most=1, cutoff=0.8).replace("Did you mean ", "Did you mean policy=")


def _check_whole_ops(policy: Policy) -> None:
    """For convert an overload is the whole op: two lists may not have ``pow`` and ``pow.Tensor_Scalar`` either."""  # (D17, D23)
    whole = [entry for entry in policy._core.entries if not entry.modules]
    fp32 = {(entry.base, entry.low_dtype): entry for entry in whole if entry.list == "fp32"}
    for entry in whole:
        other = fp32.get((entry.base, entry.low_dtype))
        if entry.list == "lower" and other is not None:
            raise ValueError(
                f"{str(entry)!r} is in the lower list ({entry.place}) and {str(other)!r} in the fp32 list ({other.place}); "
                "for convert an overload means the whole op, and an op can be in only one of them"
            )
