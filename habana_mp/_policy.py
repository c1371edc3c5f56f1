"""Policy: in which precision every op runs, as a frozen value; where policies come from; and the policy of a call of convert.

The value itself, its checks and its look-up are src/policy/policy.h. Knows nothing of patches, tensors or what is in force.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from habana_mp import _core as core
from habana_mp._list_file import Entry, ListFile, ListPath, check_known, merged, read_list, warn, whole_op

_LISTS = ("lower", "fp32", "promote")
_SHIPPED = Path(__file__).parent / "lists"
_ALIASES = {"cuda": "torch-cuda", "cpu": "torch-cpu"}  # D32
_DESCRIPTION = "policy.toml"
_KEYS = frozenset(["name", "source", "low_dtype", "low_dtypes", "device", "rest", "error", "cache"])


@dataclass(frozen=True)
class OpRule:
    """What a policy says of one op, and where that was said. Made by ``Policy.rule``.

    ``action`` is "lower", "fp32", "promote" or "error" where a list names the op; else "rest", and ``rest`` says what that is.
    """

    op: str
    action: str
    low_dtype: torch.dtype
    rest: str
    listed_as: str | None
    file: str | None
    line: int | None

    def __str__(self) -> str:
        if self.listed_as is None:
            return f"{self.op}: in no list, rest={self.rest}"
        dtype = f" ({str(self.low_dtype).removeprefix('torch.')})" if self.action == "lower" else ""
        place = f" in {self.file}" if self.file else " in code"
        return (
            f"{self.op}: {self.action}{dtype}, listed as {self.listed_as}{place}{f':{self.line}' if self.line else ''}"
        )


@dataclass(frozen=True, eq=False, repr=False)
class Policy:
    """In which precision every op runs: lists of ops, the low dtype, and what happens to the rest. A frozen value.

    Made by ``Policy.load``, ``Policy.from_files`` or ``Policy.from_ops``; ``convert`` returns the one that it put in force.
    ``str`` gives one line of text that ``Policy.load`` reads back. Two policies are equal, and hash alike in every process, where
    they cast alike: the name, and the files that the lists came from, do not count.

    >>> policy = Policy.from_ops(lower=["mm", "linear"], fp32=["softmax"])
    >>> Policy.load(str(policy)) == policy
    True

    See Also:
        presets, convert, explain
    """

    _core: core.Policy

    @classmethod
    def load(cls, name_or_path: str | os.PathLike[str]) -> Policy:
        """A preset by its name, a folder that holds one in the form of the presets, or what ``str(policy)`` gave.

        A folder has ``policy.toml`` (low_dtype, rest, and name and error where it wants) and the lists ``lower.txt``, ``fp32.txt``
        and ``promote.txt``. ``presets()`` tells the names; "cuda" and "cpu" are short for "torch-cuda" and "torch-cpu".

        Raises:
            ValueError: no preset, folder or text of a policy, or one with a mistake in it.
            OSError: a file of the folder that cannot be read.
        """
        text = os.fspath(name_or_path)
        if isinstance(name_or_path, str):
            if text.startswith("name=") and " low_dtype=" in text:
                return cls(core.Policy.parse(text))
            name = _ALIASES.get(text, text)
            if name in presets():
                return cls(_read_folder(_SHIPPED / name, shipped=True))
            if not Path(text).is_dir():
                raise ValueError(
                    f"{text!r} is no policy: accepted are a preset ({', '.join(presets())}), a folder with {_DESCRIPTION}, "
                    "and the text of a policy"
                )
        return cls(_read_folder(Path(text), shipped=False))

    @classmethod
    def from_files(
        cls,
        lower: ListPath | None = None,
        fp32: ListPath | None = None,
        promote: ListPath | None = None,
        *,
        base: str | os.PathLike[str] | Policy = "hmp",
        low_dtype: torch.dtype | None = None,
        strict: bool = False,
    ) -> Policy:
        """The policy ``base`` with some of its lists replaced, or edited by a file whose names all begin with + or -.

        What is not given (``None`` or "") stays as in ``base``, the rest and the low dtype too; but an op that the lower or fp32
        file names leaves the other list (D6). A name that torch does not have is told in a warning, or with ``strict`` a ValueError.

        Raises:
            ValueError: ``path:line`` of a line that is no op name, or of an op that both files name.
            OSError: a file that cannot be read.
        """
        given = {name: read_list(path) for name, path in zip(_LISTS, (lower, fp32, promote), strict=True) if path}
        start = base if isinstance(base, Policy) else cls.load(base)
        return cls(_with_files(start, given, low_dtype, strict=strict))

    @classmethod
    def from_ops(
        cls,
        lower: Iterable[str] = (),
        fp32: Iterable[str] = (),
        promote: Iterable[str] = (),
        *,
        low_dtype: torch.dtype = torch.bfloat16,
        rest: str = "inputs",
        name: str = "custom",
        strict: bool = False,
    ) -> Policy:
        """A policy of these ops alone.

        ``rest`` says what happens to all others: "inputs" leaves them alone, "first_input" gives them the dtype of their first input,
        "fp32" runs them in float32. A name that torch does not have is told in a warning, or with ``strict`` a ValueError.
        """
        given: list[list[Entry]] = []
        for title, ops in zip(_LISTS, (lower, fp32, promote), strict=True):
            if isinstance(ops, str):
                raise TypeError(f"{title} is a list of op names, not the one name {ops!r}")
            given.append([(op, "", 0) for op in ops])
        made = core.Policy(name, _low_name(low_dtype, "low_dtype"), rest, *given, [])
        for title, entries in zip(_LISTS, given, strict=True):
            check_known(entries, f"the {title} list", strict=strict)
        return cls(made)

    @property
    def name(self) -> str:
        return self._core.name

    @property
    def low_dtype(self) -> torch.dtype:
        """``torch.bfloat16`` or ``torch.float16``: what ops of the lower list run in."""
        dtype: torch.dtype = getattr(torch, self._core.low)
        return dtype

    @property
    def rest(self) -> str:
        """What happens to an op that no list names: "inputs", "first_input" or "fp32"."""
        return self._core.rest

    @property
    def lists(self) -> dict[str, tuple[str, ...]]:
        """The names in "lower", "fp32", "promote" and "error", each sorted."""
        return {name: tuple(op for op, _, _ in getattr(self._core, name)) for name in (*_LISTS, "error")}

    def rule(self, op: str) -> OpRule:
        """What this policy says of an op, asked by any of its names: "mm", "__matmul__", "linalg_solve", "pow.Tensor_Scalar"."""
        action, _, listed, listed_as, file, line = self._core.resolve(op)
        said = core.ACTIONS[action] if listed else "rest"
        return OpRule(op, said, self.low_dtype, self.rest, listed_as or None, file or None, line or None)

    def __str__(self) -> str:
        return self._core.text()

    def __repr__(self) -> str:
        sizes = ", ".join(f"{len(ops)} {name}" for name, ops in self.lists.items() if ops)
        return f"<Policy {self.name}: {self._core.low}, {sizes or 'no lists'}, rest={self.rest}>"

    def __eq__(self, other: object) -> bool:
        return self._core == other._core if isinstance(other, Policy) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._core)

    def __copy__(self) -> Policy:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Policy:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return _unpickle, _parts(self._core)


def presets() -> tuple[str, ...]:
    """The names of the policies that this package ships, for ``Policy.load`` and ``convert(policy=...)``."""
    return tuple(sorted(entry.name for entry in os.scandir(_SHIPPED) if entry.is_dir()))


def policy_for_convert(  # noqa: PLR0917 - in the order of convert
    opt_level: str,
    bf16_file_path: ListPath | None,
    fp32_file_path: ListPath | None,
    fp16_file_path: ListPath | None,
    low_precision_type: torch.dtype,
    policy: Policy | str | os.PathLike[str] | None,
    strict: bool,
) -> Policy:
    """The policy that a call of convert asks for (D1 to D6, D9, D20 to D24)."""
    level = opt_level.upper() if isinstance(opt_level, str) else opt_level
    if level not in ("O1", "O2"):
        raise ValueError(
            f'opt_level is "O1" (lists) or "O2" (GEMM and convolution ops low, all others float32), not {opt_level!r}'
        )
    low = _low_name(low_precision_type, "low_precision_type")
    if fp16_file_path and low == "bfloat16":
        raise ValueError(
            f"fp16_file_path={os.fspath(fp16_file_path)!r} needs low_precision_type=torch.float16; for bfloat16 the list is bf16_file_path"
        )
    if fp16_file_path and bf16_file_path:
        raise ValueError(
            "both fp16_file_path and bf16_file_path are given: with low_precision_type=torch.float16 one of them is the lower list"
        )
    named = {"bf16_file_path": bf16_file_path, "fp32_file_path": fp32_file_path, "fp16_file_path": fp16_file_path}
    files = {name: os.fspath(path) for name, path in named.items() if path}
    told = ", ".join(f"{name}={path!r}" for name, path in files.items())

    if policy is not None:
        if files or level == "O2":
            raise ValueError(
                f"policy takes the place of opt_level and the list files: {told or 'opt_level O2'} cannot go with it; "
                "Policy.from_files(..., base=) joins lists to a policy"
            )
        start = policy if isinstance(policy, Policy) else Policy.load(policy)
        # bfloat16 is the default of the argument; a policy of float16 keeps its own.
        return start if low == "bfloat16" else Policy(_with_files(start, {}, low_precision_type, strict=strict))
    if level == "O2":
        if files:
            warn(f"opt_level O2 has lists of its own: {told} is not read")
        return Policy(_with_files(Policy.load("hmp-o2"), {}, low_precision_type, strict=strict))
    made = Policy.from_files(
        fp16_file_path or bf16_file_path, fp32_file_path, low_dtype=low_precision_type, strict=strict
    )
    _check_whole_ops(made)
    return made


def _check_whole_ops(policy: Policy) -> None:
    """D17: for convert an overload is the whole op, so D23 holds between ``pow`` and ``pow.Tensor_Scalar`` too."""
    fp32 = {whole_op(name): (name, file, line) for name, file, line in policy._core.fp32}
    for name, file, line in policy._core.lower:
        if other := fp32.get(whole_op(name)):
            raise ValueError(
                f"{name!r} is in the lower list ({file}:{line}) and {other[0]!r} in the fp32 list ({other[1]}:{other[2]}); "
                "convert takes an overload for the whole op, and an op can be in one of them only"
            )


def _low_name(dtype: object, argument: str) -> str:
    if dtype not in (torch.bfloat16, torch.float16):
        raise ValueError(f"{argument} is torch.bfloat16 or torch.float16, not {dtype!r}")
    return str(dtype).removeprefix("torch.")


def _parts(policy: core.Policy) -> tuple[str, str, str, list[Entry], list[Entry], list[Entry], list[Entry]]:
    return policy.name, policy.low, policy.rest, policy.lower, policy.fp32, policy.promote, policy.error


def _unpickle(*parts: Any) -> Policy:
    return Policy(core.Policy(*parts))


def _with_files(
    base: Policy, given: dict[str, ListFile], low_dtype: torch.dtype | None, *, strict: bool
) -> core.Policy:
    name, low, rest, lower, fp32, promote, error = _parts(base._core)
    if low_dtype is not None:
        low = _low_name(low_dtype, "low_dtype")
    if given and not name.endswith("+files"):
        name += "+files"
    made = core.Policy(
        name,
        low,
        rest,
        merged(lower, given.get("lower"), given.get("fp32")),
        merged(fp32, given.get("fp32"), given.get("lower")),
        merged(promote, given.get("promote")),
        error,
    )
    for file in given.values():
        check_known([*file.named, *file.removed], file.path, strict=strict)
    return made


def _read_folder(folder: Path, *, shipped: bool) -> core.Policy:
    described = _read_description(folder / _DESCRIPTION)
    lists = [read_list(folder / f"{name}.txt") for name in _LISTS]
    for file in lists:
        if file.edits:
            raise ValueError(
                f"{file.path}: names that begin with + or - edit a default list; the list of a policy has none"
            )
    error = [(op, str(folder / _DESCRIPTION), 0) for op in described.get("error", [])]
    made = core.Policy(
        described.get("name", folder.name),
        described["low_dtype"],
        described["rest"],
        *(file.named for file in lists),
        error,
    )
    if not shipped:
        for file in lists:
            check_known(file.named, file.path, strict=False)
    return made


def _read_description(path: Path) -> dict[str, Any]:
    try:
        import tomllib
    except ModuleNotFoundError:  # Python 3.10
        import tomli as tomllib

    try:
        described = tomllib.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:  # TOMLDecodeError and UnicodeDecodeError are ones
        raise ValueError(f"{path}: {error}") from None
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
    return described
