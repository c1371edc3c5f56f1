"""Policy: in which precision every op runs, as a frozen value; where policies come from; and the policy of a call of convert.

The value itself, its checks and its look-up are src/policy/policy.h. Knows nothing of patches, tensors or what is in force.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

import habana_mp._core as core
from habana_mp._cast import dtype_named
from habana_mp._policy.folder import LISTS, SHIPPED, read_folder
from habana_mp._policy.gaudi_config import gaudi_config_at, read_gaudi_config
from habana_mp._policy.list_file import (
    Claims,
    Entry,
    Limited,
    ListFile,
    ListPath,
    comment_of,
    less,
    less_limited,
    merged_limited,
    merged_lists,
    read_list,
    whole_op,
)
from habana_mp._policy.names import check_known
from habana_mp._show.html import render

LOW_DTYPES: tuple[torch.dtype, ...] = tuple(getattr(torch, name) for name in core.LOW_DTYPES)
_ALIASES = {"cuda": "torch-cuda", "cpu": "torch-cpu"}  # D32


@dataclass(frozen=True)
class OpRule:
    """The rule of a policy for one op, and the list line that it comes from. Made by ``Policy.rule``.

    ``action`` is "lower", "fp32", "promote" or "error" where a list names the op; else "rest", and ``rest`` is what happens then.
    ``listed_as`` is the entry that decides, with the low dtype that it is for, if it has one: "layer_norm@float16".
    """

    op: str
    action: str
    low_dtype: torch.dtype
    rest: str
    listed_as: str | None
    file: str | None
    line: int | None

    @property
    def comment(self) -> str:
        """What the file says behind the name; "" where it says nothing."""
        return comment_of(self.file, self.line, self.listed_as)

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
    they say the same: the name, and the files that the lists came from, do not count.

    A list holds names of ops, and names for one low dtype: "layer_norm@float16" is in its list only while the low dtype of the policy
    is float16. Then it wins over names of that op without a dtype, in whatever list: "pow@float16" over "pow" and "pow.Tensor_Scalar",
    and "pow.Tensor_Scalar@float16" over "pow" for that overload, which for ``convert`` is the whole op (D17). Other names of an op
    ("multiply" beside "mul") have rules of their own, as ever (D16).

    A name may be limited to modules of a model: "mul in *.rotary_emb" is in its list inside the modules whose paths the pattern matches (``*``
    stands for any characters but a dot, ``**`` for any), and in what is inside of them. ``set_policies(model, policy)`` puts such names on a model.
    They win over names for the whole model; those for the module deeper in the model win over others.

    >>> policy = Policy.from_ops(lower=["mm", "linear"], fp32=["softmax"])
    >>> Policy.load(str(policy)) == policy
    True

    See Also:
        presets, convert, explain
    """

    _core: core.Policy

    _text: str = field(init=False)  # what torch.compile can read of it

    def __post_init__(self) -> None:
        if not isinstance(self._core, core.Policy):
            raise TypeError(f"a policy is made by Policy.load, from_files or from_ops, not of {self._core!r}")
        object.__setattr__(self, "_text", self._core.text())

    @classmethod
    def load(cls, name_or_path: str | os.PathLike[str]) -> Policy:
        """A preset by its name, a folder that holds one in the form of the presets, a gaudi_config.json, or what ``str(policy)`` gave.

        A folder has ``policy.toml`` (low_dtype, rest, and name, error, low_dtypes and cache where it wants) and the lists
        ``lower.txt``, ``fp32.txt`` and ``promote.txt``. ``presets()`` returns the names; "cuda" and "cpu" are short for "torch-cuda"
        and "torch-cpu".

        A path that ends in ``.json`` is a gaudi_config.json of optimum-habana. Where it says ``use_habana_mixed_precision``, the lists
        hmp_bf16_ops and hmp_fp32_ops take the place of those of "hmp", and with the hmp_opt_level "O2" it is "hmp-o2"; where it says
        ``use_torch_autocast``, autocast_bf16_ops and autocast_fp32_ops take the place of those of "hpu-autocast". A file that has neither
        key is taken by the lists that it has; without any, and where the key is false, nothing is cast. Keys of other things are passed
        over. A folder that holds such a file may be named instead.

        Raises:
            ValueError: no preset, folder, file or text of a policy, or one with a mistake in it.
            OSError: a file that cannot be read.
            TypeError: neither a string nor a path.
        """
        if not isinstance(name_or_path, (str, os.PathLike)):
            raise TypeError(f"a policy is loaded by its name, its path or its text, not by {name_or_path!r}")
        text = os.fspath(name_or_path)
        if isinstance(name_or_path, str):
            if text.startswith("name=") and " low_dtype=" in text:
                return cls(core.Policy.parse(text))
            name = _ALIASES.get(text, text)
            if name in _replaced:
                return _replaced[name]
            if name in presets():
                return cls(read_folder(SHIPPED / name, shipped=True))
        if (config := gaudi_config_at(text)) is not None:
            return cls._of_gaudi_config(config)
        if isinstance(name_or_path, str) and not os.path.isdir(text):  # noqa: PTH112 - Path raises for names that are too long
            raise ValueError(
                f"{text!r} is no policy: accepted are a preset ({', '.join(presets())}), a folder with policy.toml, "
                "a gaudi_config.json, and the text of a policy"
            )
        return cls(read_folder(Path(text), shipped=False))

    @classmethod
    def _of_gaudi_config(cls, path: Path) -> Policy:
        config = read_gaudi_config(path)
        if config.base is None:
            return cls.from_ops(name="float32")
        return cls(with_files(cls.load(config.base), config.lists, None, strict=False))

    @classmethod
    def from_files(
        cls,
        lower: ListPath | None = None,
        fp32: ListPath | None = None,
        promote: ListPath | None = None,
        *,
        base: str | os.PathLike[str] | Policy = "hmp",
        low_dtype: torch.dtype | str | None = None,
        strict: bool = False,
    ) -> Policy:
        """The policy ``base`` with some of its lists replaced, or edited by a file whose names all begin with + or -.

        What is not given (``None`` or "") stays as in ``base``, the rest and the low dtype too; but an op that the lower or fp32
        file names leaves the other list (D6). What a file says of an op for one low dtype, "+mm@float16" or "-mm@float16", changes
        nothing for the other. A name that torch does not have triggers a warning, or with ``strict`` a ValueError.

        Raises:
            ValueError: ``path:line`` of a line that is no op name, or of an op that both files name.
            OSError: a file that cannot be read.
        """
        files = {name: read_list(path) for name, path in zip(LISTS, (lower, fp32, promote), strict=True) if path}
        start = base if isinstance(base, Policy) else cls.load(base)
        return cls(with_files(start, files, low_dtype, strict=strict))

    @classmethod
    def from_ops(
        cls,
        lower: Iterable[str] = (),
        fp32: Iterable[str] = (),
        promote: Iterable[str] = (),
        *,
        low_dtype: torch.dtype | str = torch.bfloat16,
        rest: str = "inputs",
        name: str = "custom",
        strict: bool = False,
    ) -> Policy:
        """A policy of these ops alone.

        ``rest`` says what happens to all others: "inputs" leaves them alone, "first_input" gives them the dtype of their first input,
        "fp32" runs them in float32. A name that torch does not have triggers a warning, or with ``strict`` a ValueError.
        """
        named: dict[str, list[tuple[str, str]]] = {}
        for title, ops in zip(LISTS, (lower, fp32, promote), strict=True):
            if isinstance(ops, str):
                raise TypeError(f"{title} is a list of op names, not the one name {ops!r}")
            named[title] = [_parted(op) for op in ops]
        low = low_name(low_dtype, "low_dtype")
        lists: dict[str, Any] = {
            title: [(op, "", 0) for op, within in ops if not within] for title, ops in named.items()
        }
        limited = [(title, op, within, "", 0) for title, ops in named.items() for op, within in ops if within]
        made = core.Policy(name, low, rest, **lists, error=[], limited=limited)
        for title, parted in named.items():
            check_known([(op, "", 0) for op, _ in parted], f"the {title} list", strict=strict)
        return cls(made)

    def with_edits(self, *edits: str, strict: bool = False) -> Policy:
        """The same policy with some ops listed otherwise.

        "+layer_norm:lower" puts an op into a list ("lower", "fp32", "promote" or "error") and takes it out of the others, "-mm" takes
        it out of all; the later edit wins. "+layer_norm@float16:fp32" and "-mm@bfloat16" do so for one low dtype, and change nothing for the other;
        "+mul in *.rotary_emb:fp32" and "-mul in *.rotary_emb" for these modules. A name
        that torch does not have triggers a warning, or with ``strict`` a ValueError.

        >>> Policy.load("torch-cuda").with_edits("+layer_norm:lower", "-mm").rule("layer_norm").action
        'lower'
        """
        lists: dict[str, Any] = {title: getattr(self._core, title) for title in (*LISTS, "error")}
        limited = self._core.limited
        entries: list[Entry] = []
        for edit in edits:
            if not isinstance(edit, str):
                raise TypeError(f"an edit of a policy is a string such as '+layer_norm:lower', not {edit!r}")
            sign, (entry, colon, title) = edit[:1], edit[1:].partition(":")
            read = core.read_entry(entry)
            if read is None or (title not in lists if sign == "+" else sign != "-" or colon):
                raise ValueError(
                    f"{edit!r} is no edit of a policy: '+op:list' and '-op' are accepted, with a list of {', '.join(lists)}, "
                    "and op@float16 or op@bfloat16 for op, with ' in modules' behind it where it is for some modules alone"
                )
            named, modules = read
            entries.append((named, "", 0))
            if modules:
                if title == "error":
                    raise ValueError(
                        f"{edit!r}: the error list is for the whole model; names for modules go to {', '.join(LISTS)}"
                    )
                limited = less_limited(limited, named, modules)
                limited += [(title, named, modules, "", 0)] if sign == "+" else []
                continue
            # Where it is in no list, the ops that it is made of would decide it.
            claims = Claims([named], with_insides=sign == "-")
            lists = {other: less(listed, claims) for other, listed in lists.items()}
            if sign == "+":
                lists[title].append((named, "", 0))
        name = self.name if self.name.endswith("+edits") else f"{self.name}+edits"
        made = core.Policy(
            name,
            self._core.low,
            self._core.rest,
            **lists,
            low_dtypes=self._core.low_dtypes,
            cached=self._core.cached,
            limited=limited,
        )
        check_known(entries, "the edits", strict=strict)
        return Policy(made)

    def with_low_dtype(self, low_dtype: torch.dtype | str) -> Policy:
        """The same policy with another dtype for its lower list, and with the entries that are for that one."""
        same = low_name(low_dtype, "low_dtype") == self._core.low
        return self if same else Policy(with_files(self, {}, low_dtype, strict=True))

    @property
    def name(self) -> str:
        return self._core.name

    @property
    def low_dtype(self) -> torch.dtype:
        """``torch.bfloat16`` or ``torch.float16``: what ops of the lower list run in."""
        dtype: torch.dtype = getattr(torch, self._core.low)
        return dtype

    @property
    def low_dtypes(self) -> tuple[torch.dtype, ...]:
        """The low dtypes that the policy is made for: ``autocast`` refuses others; ``convert`` and ``with_low_dtype`` take either."""
        return tuple(getattr(torch, low) for low in self._core.low_dtypes)

    @property
    def cached(self) -> bool:
        """Whether casts of weights may be kept between calls."""
        return self._core.cached

    @property
    def rest(self) -> str:
        """What happens to an op that no list names: "inputs", "first_input" or "fp32"."""
        return self._core.rest

    @property
    def lists(self) -> dict[str, tuple[str, ...]]:
        """The names in "lower", "fp32", "promote" and "error", each sorted; those for one low dtype as written: "layer_norm@float16"."""
        return {name: tuple(op for op, _, _ in getattr(self._core, name)) for name in (*LISTS, "error")}

    @property
    def limited(self) -> dict[str, tuple[str, ...]]:
        """The names that are limited to modules, in "lower", "fp32" and "promote": "mul in *.rotary_emb"."""
        names: dict[str, tuple[str, ...]] = dict.fromkeys(LISTS, ())
        for title, entry, modules, _, _ in self._core.limited:
            names[title] += (f"{entry} in {modules}",)
        return names

    def rule(self, op: str) -> OpRule:
        """The rule of this policy for an op, by any of its names: "mm", "__matmul__", "linalg_solve", "pow.Tensor_Scalar"."""
        action, _, listed, listed_as, file, line = self._core.resolve(op)
        action_name = core.ACTIONS[action] if listed else "rest"
        return OpRule(op, action_name, self.low_dtype, self.rest, listed_as or None, file or None, line or None)

    def __str__(self) -> str:
        return self._core.text()

    def __repr__(self) -> str:
        sizes = [f"{len(ops)} {name}" for name, ops in self.lists.items() if ops]
        sizes += [f"{len(ops)} {name} in some modules" for name, ops in self.limited.items() if ops]
        return f"<Policy {self.name}: {self._core.low}, {', '.join(sizes) or 'no lists'}, rest={self.rest}>"

    def _repr_html_(self) -> str:
        lists = {title: [*getattr(self._core, title)] for title in (*LISTS, "error")}
        for title, entry, modules, file, line in self._core.limited:
            lists[title].append((f"{entry} in {modules}", file, line))
        return render("policy.html", policy=self, low=self._core.low, lists=lists)

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


_replaced: dict[str, Policy] = {}


def replace_preset(name: str, policy: Policy | None) -> None:
    """From now on the name of a preset loads this policy (D30), or with None the one that is shipped."""
    if policy is None:
        _replaced.pop(name, None)
    else:
        _replaced[name] = policy


def presets() -> tuple[str, ...]:
    """The names of the policies that this package ships, for ``Policy.load`` and ``convert(policy=...)``."""
    return tuple(sorted(entry.name for entry in os.scandir(SHIPPED) if entry.is_dir()))


def low_name(dtype: object, argument: str) -> str:
    """The name of a low dtype, given as one of torch or by a name ("bfloat16", "bf16"). Raises ValueError for another."""
    name = dtype_named(dtype)
    if name not in core.LOW_DTYPES:
        raise ValueError(f"{argument} is {' or '.join(map(str, LOW_DTYPES))}, or its name, not {dtype!r}")
    return name


def _parts(
    policy: core.Policy,
) -> tuple[str, str, str, list[Entry], list[Entry], list[Entry], list[Entry], list[str], bool, list[Limited]]:
    lists = policy.lower, policy.fp32, policy.promote, policy.error
    return policy.name, policy.low, policy.rest, *lists, policy.low_dtypes, policy.cached, policy.limited


def _parted(written: str) -> tuple[str, str]:
    """The name and the modules of an entry given in code, such as "mul in *.rotary_emb". The core refuses an entry that is none."""
    return core.read_entry(written) or (written, "")


def renamed(policy: core.Policy, name: str) -> core.Policy:
    """The same policy under another name. Raises ValueError for what is no name of one."""
    return core.Policy(name, *_parts(policy)[1:])


def _unpickle(*parts: Any) -> Policy:
    return Policy(core.Policy(*parts))


def with_files(
    base: Policy, files: dict[str, ListFile], low_dtype: torch.dtype | str | None, *, strict: bool
) -> core.Policy:
    name, low, rest, lower, fp32, promote, error, low_dtypes, cached, limited = _parts(base._core)
    if low_dtype is not None:
        low = low_name(low_dtype, "low_dtype")
    if files and not name.endswith("+files"):
        name += "+files"
    lists = merged_lists(dict(zip(LISTS, (lower, fp32, promote), strict=True)), files)
    named = Claims(whole_op(entry) for file in files.values() for entry, _, _ in file.named)
    made = core.Policy(
        name,
        low,
        rest,
        **lists,
        error=less(error, named),
        low_dtypes=low_dtypes,
        cached=cached,
        limited=merged_limited(limited, files),
    )
    for file in files.values():
        limited_names = [entry for entry, _ in (*file.limited, *file.unlimited)]
        check_known([*file.named, *file.removed, *limited_names], file.path, strict=strict)
    return made
