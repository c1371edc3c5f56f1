"""Policy: in which precision every op runs, as a frozen value; where policies come from; and the policy of a call of convert.

The value itself, its checks and its look-up are src/policy/policy.h. Knows nothing of patches, tensors or what is in force.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import torch

import habana_mp._core as core
from habana_mp._cast import dtype_name, low_name
from habana_mp._policy.edit import ALL_LISTS, LISTS, Edit, edits_of, listed, read_edit
from habana_mp._policy.folder import SHIPPED, hint_of_file, hint_of_name, presets, read_folder
from habana_mp._policy.gaudi_config import gaudi_config_at, read_gaudi_config
from habana_mp._policy.list_file import ListFile, ListPath, after_edits, after_files, read_argument
from habana_mp._policy.names import check_known, plain_name
from habana_mp._show.html import render
from habana_mp._show.short import brief
from habana_mp._show.units import encodable

ALIASES = {"cuda": "torch-cuda", "cpu": "torch-cpu"}  # D32


class ReportedEdit(Protocol):
    """An edit that a report has found."""

    text: str


@dataclass(frozen=True)
class OpRule:
    """The rule of a policy for one op, and the line of the list that it comes from. ``Policy.rule`` makes it.

    Attributes:
        op: the op.
        action: "lower", "fp32", "promote", "weight_int8", "int8" or "error" if a list names the op, else "rest".
        low_dtype: the low dtype of the policy.
        rest: the rule of the policy for ops that no list names: "inputs", "first_input" or "fp32".
        listed_as: the name that decides, with its low dtype if it has one ("layer_norm@float16"); None if no list names the op.
        file: the file of the list, or None.
        line: the line in the file, or None.
        comment: the comment behind the name in the file, or "".

    Example:
        >>> rule = hmp.Policy.load("torch-cuda").rule("softmax")
        >>> rule.action, rule.listed_as
        ('fp32', 'softmax')
    """

    op: str
    action: str
    low_dtype: torch.dtype
    rest: str
    listed_as: str | None
    file: str | None
    line: int | None
    comment: str

    @property
    def _text(self) -> str:
        if self.listed_as is None:
            return f"in no list, rest={self.rest}"
        dtype = f" ({dtype_name(self.low_dtype)})" if self.action in {"lower", "weight_int8"} else ""
        place = f" in {self.file}" if self.file else " in code"
        return f"{self.action}{dtype}, listed as {self.listed_as}{place}{f':{self.line}' if self.line else ''}"

    def __str__(self) -> str:
        return f"{self.op}: {self._text}"


@dataclass(frozen=True, eq=False, repr=False)
class Policy:
    """The precision of every op: lists of ops, the low dtype, and a rule for the ops that no list names. It cannot be changed.

    ``Policy.load``, ``Policy.from_files`` and ``Policy.from_ops`` make a policy, and ``convert`` returns the one that is in force. ``str``
    returns one line of text that ``Policy.load`` reads back. Two policies are equal if all their lists and settings
    are; their names, and the files and comments of the lists, do not matter. Equal policies have the same hash, in every process.

    A list holds names of ops. A name may be for one low dtype: "layer_norm@float16" counts only while the low dtype of the policy is
    float16. It then takes precedence over names of that op without a dtype, in any list: "pow@float16" over "pow" and "pow.Tensor_Scalar".
    "pow.Tensor_Scalar@float16" takes precedence over "pow" for that overload, which ``convert`` treats as the whole op. Other names
    of an op, such as "multiply" for "mul", have their own rules.

    A name may be limited to modules of a model: "mul in *.rotary_emb" counts inside the modules whose path matches the pattern (``*``
    matches any characters but a dot, ``**`` matches any characters), and inside the modules that these contain.
    ``set_policies(model, policy)`` applies such names to a model. They take precedence over names for the whole model, and a name for a
    deeper module takes precedence over one for a module around it.

    Example:
        >>> policy = Policy.from_ops(lower=["mm", "linear"], fp32=["softmax"])
        >>> policy.rule("softmax").action
        'fp32'
        >>> Policy.load(str(policy)) == policy
        True

    See Also:
        presets, convert, explain
    """  # (D17, D16)

    _core: core.Policy

    _text: str = field(init=False)  # what torch.compile can read of it

    def __post_init__(self) -> None:
        if not isinstance(self._core, core.Policy):
            raise TypeError(f"make a policy with Policy.load, from_files or from_ops, not from {self._core!r}")
        object.__setattr__(self, "_text", self._core.text())

    @classmethod
    def load(cls, name_or_path: str | os.PathLike[str], *, strict: bool = False) -> Policy:
        """Load a policy: a preset by its name, a folder, a gaudi_config.json, or the text that ``str(policy)`` returned.

        A folder has the lists ``lower.txt``, ``fp32.txt`` and ``promote.txt``, and ``policy.toml`` with the keys low_dtype and rest. It may have
        ``weight_int8.txt`` and ``int8.txt``, and the keys name, error, low_dtypes, cache and compiled. ``presets()`` returns the names of the
        presets; "cuda" and "cpu" are short for "torch-cuda" and "torch-cpu".

        A path that ends in ``.json`` is a gaudi_config.json of optimum-habana; the folder that holds a gaudi_config.json works, too. With
        ``use_habana_mixed_precision``, the lists hmp_bf16_ops and hmp_fp32_ops replace those of "hmp", and the hmp_opt_level "O2" selects
        "hmp-o2". With ``use_torch_autocast``, autocast_bf16_ops and autocast_fp32_ops replace those of "hpu-autocast". If the file has neither
        key, its lists decide which of the two it is. If it has no lists either, or if the key is false, nothing is cast. Keys of
        other settings are ignored.

        Args:
            name_or_path: the name, the path or the text.
            strict: raise ValueError for names that torch does not have. By default those in files trigger a warning.

        Raises:
            ValueError: there is no preset or folder of this name, or the policy has an error in it, such as a misspelled key.
            OSError: a file cannot be read, or a ``Path`` or a .json file does not exist.
            TypeError: the argument is neither a string nor a path.
        """
        if not isinstance(name_or_path, (str, os.PathLike)):
            raise TypeError(f"Policy.load takes a name, a path or a text, not {name_or_path!r}")
        text = os.fspath(name_or_path)
        if isinstance(name_or_path, str):
            name = ALIASES.get(text, text)
            if cls is Policy and name in _loaded:
                return _loaded[name]
            if text.startswith("name=") and " low_dtype=" in text:
                return cls(core.Policy.parse(encodable(text)))._checked(strict)
            if name in presets():
                made = cls(read_folder(SHIPPED / name, shipped=True))
                return _loaded.setdefault(name, made) if cls is Policy else made
        if (config := gaudi_config_at(text)) is not None:
            read = read_gaudi_config(config)
            if read.base is None:
                return cls.from_ops(name="float32")
            return with_files(cls.load(read.base), read.lists, None, strict=strict)
        is_file = os.path.isfile(text)  # noqa: PTH113 - Path raises for names that are too long
        if is_file or (isinstance(name_or_path, str) and not os.path.isdir(text)):  # noqa: PTH112
            hint = hint_of_file(text) if is_file else hint_of_name(text)
            raise ValueError(
                f"Unknown policy {text!r}.{hint} Accepted are a preset ({', '.join(presets())}), a folder with policy.toml, "
                "a gaudi_config.json, and the text of a policy"
            )
        return cls(read_folder(Path(text), shipped=False, strict=strict))

    def _checked(self, strict: bool) -> Policy:
        if strict:
            check_known(self._core.entries, self.name, strict=True)
        return self

    @classmethod
    def from_files(
        cls,
        lower: ListPath | None = None,
        fp32: ListPath | None = None,
        promote: ListPath | None = None,
        *,
        weight_int8: ListPath | None = None,
        int8: ListPath | None = None,
        base: str | os.PathLike[str] | Policy = "hmp",
        low_dtype: torch.dtype | str | None = None,
        strict: bool = False,
    ) -> Policy:
        """Make a policy from ``base`` with some of its lists replaced or edited.

        A file whose names all begin with + or - edits the list of ``base``; any other file replaces it. What is not given (``None`` or "")
        stays as in ``base``. An op that a file names leaves the other lists. A name for one low dtype, "+mm@float16" or
        "-mm@float16", changes nothing for the other low dtype.

        Args:
            lower: the path of the list for the lower precision, one op per line.
            fp32: the path of the list for float32.
            promote: the path of the list for the widest dtype of the inputs.
            weight_int8: the path of the list for the lower precision with weights in 8 bits.
            int8: the path of the list for products in 8 bits.
            base: a ``Policy``, or its name or path.
            low_dtype: ``torch.bfloat16`` or ``torch.float16``, or its name. The default is that of ``base``.
            strict: raise ValueError for names that torch does not have. By default they trigger a warning.

        Raises:
            ValueError: a line is not an op name, or both files name the same op. The message has ``path:line``.
            OSError: a file cannot be read.
        """  # (D6)
        given = {"lower": lower, "fp32": fp32, "promote": promote, "weight_int8": weight_int8, "int8": int8}
        files = {
            name: read_argument(path, name, name, "Policy.load takes a folder") for name, path in given.items() if path
        }
        start = base if isinstance(base, Policy) else cls.load(base)
        return with_files(start, files, low_dtype, strict=strict)._checked(strict)

    @classmethod
    def from_ops(
        cls,
        lower: Iterable[str] = (),
        fp32: Iterable[str] = (),
        promote: Iterable[str] = (),
        *,
        weight_int8: Iterable[str] = (),
        int8: Iterable[str] = (),
        low_dtype: torch.dtype | str = torch.bfloat16,
        rest: str = "inputs",
        compiled: str = "exact",
        name: str = "custom",
        strict: bool = False,
    ) -> Policy:
        """Make a policy of these ops alone.

        Args:
            lower: names of ops for the low dtype.
            fp32: names of ops for float32.
            promote: names of ops for the widest dtype of their inputs.
            weight_int8: names of ops for the low dtype with weights in 8 bits.
            int8: names of ops whose weights and activations are multiplied in 8 bits.
            rest: the rule for all other ops: "inputs" does not cast them, "first_input" casts to the dtype of the first input, "fp32" runs
                them in float32.
            low_dtype: ``torch.bfloat16`` or ``torch.float16``, or its name.
            compiled: "exact" if code of ``torch.compile`` rounds where the lists say, "fused" if the compiler may keep float32 instead.
            name: the name of the policy.
            strict: raise ValueError for names that torch does not have. By default they trigger a warning.

        Raises:
            ValueError: a name is not an op name, an op cannot be in its list or is in two (promote may have one of another list), or
                ``rest``, ``compiled`` or ``low_dtype`` is another value.
            TypeError: a list is a single string, or has in it what is no string; ``rest``, ``compiled`` or ``name`` is no string.
        """
        named: dict[str, list[core.Entry]] = {}
        lists = {"lower": lower, "fp32": fp32, "promote": promote, "weight_int8": weight_int8, "int8": int8}
        for title, ops in lists.items():
            if isinstance(ops, str):
                raise TypeError(f"{title} must be a list of op names, not the one name {ops!r}")
            named[title] = [listed(op, title) for op in ops]
        low = low_name(low_dtype, "low_dtype")
        for key, text in (("rest", rest), ("compiled", compiled), ("name", name)):
            if not isinstance(text, str):
                raise TypeError(f"{key} must be a string, not {brief(text)}")
        entries = [entry for each in named.values() for entry in each]
        rest, compiled = encodable(rest), encodable(compiled)
        made = core.Policy(name=encodable(name), low_dtype=low, rest=rest, compiled=compiled, entries=entries)
        for title, each in named.items():
            check_known(each, f"the {title} list", strict=strict)
        return cls(made)

    def with_edits(self, *edits: str | Edit | ReportedEdit | os.PathLike[str], strict: bool = False) -> Policy:
        """Return the same policy with edits of its lists.

        Args:
            *edits: the edits, as text or as ``CastReport.edits`` returns them; a later one takes precedence. "+layer_norm:lower" puts an op
                into one of ``lists`` and removes it from the others, "-mm" removes it from all. "+layer_norm@float16:fp32" and "-mm@bfloat16"
                edit the lists for one low dtype alone, "+mul in *.rotary_emb:fp32" and "-mul in *.rotary_emb" for these modules. A ``Path`` is
                a file with an edit on each line, such as ``habana-mp report --write-edits`` writes.
            strict: raise ValueError for names that torch does not have. By default they trigger a warning.

        Raises:
            ValueError: a text is not an edit, or its list cannot have the op. For one of a file, the message begins with the file and the line.
            TypeError: an edit is neither a string, nor an edit of a report, nor a path.
            OSError: a file cannot be read.

        Example:
            >>> Policy.load("torch-cuda").with_edits("+layer_norm:lower", "-mm").rule("layer_norm").action
            'lower'
        """
        read: list[Edit] = []
        for edit in edits:
            read += (each for _, each in edits_of(edit)) if isinstance(edit, os.PathLike) else [read_edit(edit)]
        name = self.name if self.name.endswith("+edits") else f"{self.name}+edits"
        made = Policy(self._core.replaced(name=name, entries=after_edits(self._core.entries, read)))
        check_known([edit.entry for edit in read], "the edits", strict=strict)
        return made

    def with_low_dtype(self, low_dtype: torch.dtype | str) -> Policy:
        """Return the same policy with another low dtype. Names for one low dtype ("layer_norm@float16") then count or not by the new one."""
        low = low_name(low_dtype, "low_dtype")
        return self if low == self._core.low_dtype else Policy(self._core.replaced(low_dtype=low))

    @property
    def name(self) -> str:
        return self._core.name

    @property
    def low_dtype(self) -> torch.dtype:
        """The dtype of ops in the lower list: ``torch.bfloat16`` or ``torch.float16``."""
        dtype: torch.dtype = getattr(torch, self._core.low_dtype)
        return dtype

    @property
    def low_dtypes(self) -> tuple[torch.dtype, ...]:
        """The low dtypes that the policy is made for. ``autocast`` accepts only these; ``convert`` and ``with_low_dtype`` accept both."""
        return tuple(getattr(torch, low) for low in self._core.low_dtypes)

    @property
    def cached(self) -> bool:
        """True if casts of weights may be kept between calls."""
        return self._core.cache

    @property
    def rest(self) -> str:
        """The rule for ops that no list names: "inputs", "first_input" or "fp32"."""
        return self._core.rest

    @property
    def compiled(self) -> str:
        """How code of ``torch.compile`` rounds: "exact" is as uncompiled code does, "fused" is as the compiler likes."""
        return self._core.compiled

    @property
    def lists(self) -> dict[str, tuple[str, ...]]:
        """The sorted names in "lower", "fp32", "promote", "weight_int8", "int8" and "error"; for one low dtype as written: "layer_norm@float16"."""
        return self._written(ALL_LISTS, limited=False)

    @property
    def limited(self) -> dict[str, tuple[str, ...]]:
        """The names that are limited to modules, such as "mul in *.rotary_emb", by their lists."""
        return self._written(LISTS, limited=True)

    def _written(self, titles: Iterable[str], *, limited: bool) -> dict[str, tuple[str, ...]]:
        entries = [entry for entry in self._core.entries if bool(entry.modules) is limited]
        return {title: tuple(str(entry) for entry in entries if entry.list == title) for title in titles}

    def rule(self, op: str) -> OpRule:
        """Return the rule of this policy for an op.

        Args:
            op: any name of the op: "mm", "__matmul__", "linalg_solve", "pow.Tensor_Scalar".

        Raises:
            TypeError: ``op`` is not a string.
            ValueError: torch has no such op. The message has the nearest names.
        """
        if not isinstance(op, str):
            raise TypeError(f"rule takes the name of an op, such as 'mm', not {brief(op)}")
        return self._rule(plain_name(op))

    def _rule(self, op: str) -> OpRule:
        """Of a name that a list may have and torch does not."""
        entry = self._core.resolve(encodable(op)).entry
        if entry is None:
            return OpRule(op, "rest", self.low_dtype, self.rest, None, None, None, "")
        place = entry.file or None, entry.line or None
        return OpRule(op, entry.list, self.low_dtype, self.rest, str(entry), *place, entry.comment)

    def __str__(self) -> str:
        return self._core.text()

    def __repr__(self) -> str:
        sizes = [f"{len(ops)} {name}" for name, ops in self.lists.items() if ops]
        sizes += [f"{len(ops)} {name} in some modules" for name, ops in self.limited.items() if ops]
        return f"<Policy {self.name}: {self._core.low_dtype}, {', '.join(sizes) or 'no lists'}, rest={self.rest}>"

    def _repr_html_(self) -> str:
        entries = self._core.entries
        lists = {title: [entry for entry in entries if entry.list == title] for title in ALL_LISTS}
        return render("policy.html", policy=self, low=self._core.low_dtype, lists=lists)

    def __eq__(self, other: object) -> bool:
        return self._core == other._core if isinstance(other, Policy) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._core)

    def __copy__(self) -> Policy:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Policy:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return Policy, (self._core,)


_loaded: dict[str, Policy] = {}  # presets by their names: a region is made in every step of a training loop


def replace_preset(name: str, policy: Policy | None) -> None:
    """From now on the name of a preset loads this policy, or with None the one that is shipped."""  # (D30)
    if policy is None:
        _loaded.pop(name, None)
    else:
        _loaded[name] = policy


def with_files(
    base: Policy, files: dict[str, ListFile], low_dtype: torch.dtype | str | None, *, strict: bool
) -> Policy:
    made = base if low_dtype is None else base.with_low_dtype(low_dtype)
    if files:
        name = base.name if base.name.endswith("+files") else f"{base.name}+files"
        made = Policy(made._core.replaced(name=name, entries=after_files(base._core.entries, files)))
    for file in files.values():
        check_known([*file.named, *file.removed], file.path, strict=strict)
    return made
