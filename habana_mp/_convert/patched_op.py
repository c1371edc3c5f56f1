"""Patched ops on the Python side: the two types that torch's namespaces hold, and one instance for each original.

The interpreter calls the C slot (src/convert/call.cpp). ``__call__`` is the same rule in Python: torch.compile does not know the
slot, sees ``__call__`` and traces it. The tests hold the two against each other on every op.
"""

from __future__ import annotations

import copy
import operator
import types
from collections.abc import Callable
from typing import Any

import torch

import habana_mp._core as _core
from habana_mp._convert.call_form import CallForm, call_form, override_function
from habana_mp._convert.rule import Rule
from habana_mp._convert.traced_weights import (
    WEIGHTS,
    WeightOp,
    constant,
    find_exports,
    is_parameter,
    places,
)
from habana_mp._policy.homes import Home
from habana_mp._policy.names import listed_name
from habana_mp._scope import traced
from habana_mp._scope.disable_casts import convert_off
from habana_mp._scope.without_casts import CastsSwitched
from habana_mp._torch_private import MKLDNN, run_while_traced

# Enums of src/policy cross the border as numbers, in the order that the core defines.
DTYPES = tuple(getattr(torch, name, None) if name != "int8" else None for name in _core.DTYPES)
SOURCES = tuple(_core.DTYPES.index(name) for name in _core.SOURCE_DTYPES)
_FLOAT8 = (torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz)
FIRST_INPUT_NAMES, STATISTIC_NAMES = _core.FIRST_INPUT_NAMES, _core.STATISTIC_NAMES
_MKLDNN_LAYOUT = MKLDNN.layout if MKLDNN.works else None
LOWER, FP32, INPUTS, ERROR = (_core.ACTIONS.index(action) for action in ("lower", "fp32", "inputs", "error"))
INT8 = tuple(_core.ACTIONS.index(action) for action in _core.OPTIONAL_LISTS)


_LOW = tuple(_core.DTYPES.index(name) for name in ("bfloat16", "float16"))
_caches_size, _may_be_recast = constant(_core.caches_size), constant(_core.may_be_recast)
_in_region, _in_region_of_int8 = constant(_core.in_region), constant(_core.in_region_of_int8)
_decide, _role_of, _refusal = constant(_core.decide), constant(_core.role_of), constant(_core.refusal)


class PatchedOp:
    """What both types share. Attributes: ``original``, ``form``, ``rule`` (None while no conversion concerns the op)."""

    original: Callable[..., Any]
    form: CallForm
    rule: Rule | None
    region_policy: _core.Policy  # of a function that a user registered, where its rule is that of a region
    home: str  # as pkgutil.resolve_name takes it: "torch.nn.functional:gelu"
    listed_name: str
    is_compound: bool  # made of other ops in C++, or calls what is
    weight_op: WeightOp | None = None  # that of ours in its place in a trace; None where there is none
    __wrapped__: Callable[..., Any]
    __name__: str
    __qualname__: str

    def __init__(self, original: Callable[..., Any], _: Callable[..., Any], name: str, **form: Any) -> None:
        # The types in C have made it of the same arguments.
        self.original, self.listed_name, self.form, self.rule = original, name, CallForm(**form), None
        self.is_compound = _core.is_compound(name)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_dynamo_compiling():
            return self._call(args, kwargs)
        try:
            return self._call(args, kwargs)
        except RuntimeError as error:
            return self._without_low_kernel(error, args, kwargs)

    def _call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        rule = self.rule
        if rule is None or convert_off():
            return self.original(*args, **kwargs)
        return self._call_by(rule, args, kwargs)

    def _call_by(self, rule: Rule, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if rule.action == ERROR:
            raise RuntimeError(_refusal(self.listed_name, rule.text))
        form = self.form
        action = rule.action
        if _in_region_of_int8(self.listed_name):  # that rounds the weight of the model, and no copy
            return self.original(*args, **kwargs)
        if action in INT8:
            if _in_region():
                action = LOWER
            else:  # computed at the dispatcher
                with _InsideCompound():
                    return self.original(*args, **kwargs)
        described = _described(form, args, kwargs)
        to, cause, roles = _decide(action, rule.low, rule.listed, described, _explicit(form, args, kwargs))
        # Traced code passes weights on uncast, to an op of ours.
        if cause and self.weight_op is not None and self._takes_weight(self.weight_op, args, kwargs, to):
            find_exports()
            args, kwargs = _cast_arguments(form, args, kwargs, to, roles, weights=False)
            return self.weight_op(args, kwargs, DTYPES[to])
        if cause:
            args, kwargs = _cast_arguments(form, args, kwargs, to, roles)
        if form.python and rule.listed and action in (LOWER, FP32):
            with CastsSwitched(off=True):  # D19
                return self.original(*args, **kwargs)
        # torch.compile takes some of torch's Python functions for one op, which calls no patched op.
        if (form.compound or (self.is_compound and torch.compiler.is_dynamo_compiling())) and not rule.listed:
            with _InsideCompound():
                return self.original(*args, **kwargs)
        return self.original(*args, **kwargs)

    def _takes_weight(self, op: WeightOp, args: tuple[Any, ...], kwargs: dict[str, Any], to: int) -> bool:
        """Whether the traced call has a weight for the cache, records no graph, and is not cast to another dtype by autocast."""
        # The old forms of addmm have numbers before its matrices, and convolutions may have a word for the padding.
        if to not in _LOW or not all(isinstance(value, torch.Tensor) for value in args[:2]):
            return False
        given = places(args, kwargs)
        if any(isinstance(value, str) for _, value in given):
            return False
        # Torch's functions have other names of arguments, too, as in torch.mm(input=x, mat2=w).
        if not all(place in op.places for place, _ in given):
            return False
        tensors = [(place, value) for place, value in given if isinstance(value, torch.Tensor)]
        if torch.is_grad_enabled() and any(tensor.requires_grad for _, tensor in tensors):
            return False
        if _may_be_recast(self.listed_name, to):
            return False
        return any(
            place in WEIGHTS and is_parameter(tensor) and _caches_size(tensor.numel(), tensor.dim())
            for place, tensor in tensors
        )

    def _without_low_kernel(self, error: RuntimeError, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A call that has failed, in float32 where that helps: src/convert/without_low_kernel.cpp."""  # (D42)
        form, rule = self.form, self.rule
        if rule is None or convert_off() or not _core.blames_low_dtype(_text(error)):
            raise error
        if not (form.may_lack_low_kernel or rule.listed or rule.action != INPUTS):
            raise error
        described, explicit = _described(form, args, kwargs), _explicit(form, args, kwargs)
        to, cause, roles = _core.decide_without_low_kernel(rule.action, described, explicit)
        if not cause:
            raise error
        args, kwargs = _cast_arguments(form, args, kwargs, to, roles)
        try:
            with CastsSwitched(off=True):
                return self.original(*args, **kwargs)
        except RuntimeError:
            raise error from None

    def __repr__(self) -> str:
        return f"<habana_mp patched op around {self.original!r}>"

    def __reduce__(self) -> tuple[Any, ...]:
        # By name, so that it loads as whatever is there: the original, where nothing is converted (D36).
        import pkgutil

        return pkgutil.resolve_name, (self.home,)

    def __copy__(self, _: Any = None) -> PatchedOp:
        return self

    __deepcopy__ = __copy__


class PatchedFunction(PatchedOp, _core.PatchedFunctionBase):
    """Does not bind to instances, as builtin functions (torch.mm) do not."""


class PatchedMethod(PatchedOp, _core.PatchedMethodBase):
    """Binds to instances, as methods (Tensor.mm) and Python functions (F.layer_norm) do."""


_core.enable_vectorcall(PatchedFunction)
_core.enable_vectorcall(PatchedMethod)

patched_ops: dict[int, PatchedOp] = {}


def patched_op(home: Home, original: Callable[..., Any]) -> PatchedOp:
    """The one patched op of an original: it outlives conversions, so that what captured it follows the next one."""  # (D7)
    op = patched_ops.get(id(original))
    if op is None:
        name = listed_name(home.attribute)
        binds = not isinstance(original, types.BuiltinFunctionType)
        op = (PatchedMethod if binds else PatchedFunction)(
            original, override_function(home, original), name, **call_form(home, original)
        )
        op.__wrapped__ = original
        op.home = home.path
        # A call as aten has it: nothing written, and its arguments in their order.
        if name in _core.WEIGHT_OPS and not op.form.in_place and not op.form.python:
            op.weight_op = WeightOp(name)
        module, _, path = home.path.partition(":")
        op.__module__ = getattr(original, "__module__", None) or module  # methods have none
        op.__qualname__ = path
        op.__name__ = path.rpartition(".")[2]
        op.__doc__ = original.__doc__
        patched_ops[id(original)] = op
    return op


class _InsideCompound:
    """The rules of the conversion in force in C++ too, while a compound runs: src/scope/compound.h."""  # (D41)

    def __enter__(self) -> None:
        self.key = ""
        if torch.compiler.is_dynamo_compiling():
            self.key = _traced_compound()
            if self.key:
                traced.enter(self.key)
        else:
            self.region = _core.compound_region()
            if self.region is not None:
                _core.enter_autocast(self.region, self)

    def __exit__(self, *exc: object) -> None:
        if self.key:
            traced.leave(self.key)
        elif not torch.compiler.is_dynamo_compiling() and self.region is not None:
            _core.leave_autocast(self)


@run_while_traced
def _traced_compound() -> str:
    """Run by torch.compile while it traces: the name of the region, "" where there is none."""
    region = _core.compound_region()
    if region is None:
        return ""
    key = traced.remember(region)
    traced.keep(key, region)
    return key


def _in_place(form: CallForm, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether a parameter makes this call an in-place one: F.relu(x, inplace=True)."""  # (D12)
    if form.flag_name is None:
        return False
    value = args[form.flag] if form.flag < len(args) else kwargs.get(form.flag_name)
    return bool(value) if isinstance(value, int) else value is not None


def _explicit(form: CallForm, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether the call names its dtype or its output."""  # (D11)
    if kwargs.get("out") is not None or (0 <= form.out < len(args) and args[form.out] is not None):
        return True
    return any(isinstance(value, (torch.dtype, type)) for value in (*args, *kwargs.values()))


def _text(error: BaseException) -> str:
    """``message_of`` of src/call/errors.h."""
    try:
        return str(error).encode().decode()
    except Exception:  # noqa: BLE001 - whatever its __str__ raises
        return ""


def _number(tensor: torch.Tensor) -> int:
    """The dtype of a tensor as src/policy/dtype.h numbers it: `dtype_of` of src/cast/dtypes.h."""
    if tensor.layout == _MKLDNN_LAYOUT:
        return 0
    # D10: what computes in complex numbers is left alone, as what does in float64.
    dtype = torch.float64 if tensor.dtype.is_complex else tensor.dtype
    if dtype in _FLOAT8:
        return _core.DTYPES.index("float8")
    return DTYPES.index(dtype) if dtype in DTYPES else 0


def _role(form: CallForm, flagged: bool, place: int | str) -> int:
    first = place == 0 or place in FIRST_INPUT_NAMES
    written = (form.in_place and first) or (flagged and place in (form.flag_target, form.flag_target_name))
    statistic = bool(form.statistics >> place & 1) if isinstance(place, int) else place in STATISTIC_NAMES
    return _role_of(form.norm, first, written, statistic)


def _described(form: CallForm, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[int, bool, int], ...]:
    """What decide is to know of the tensors of a call: dtype, whether 0-dim, role."""
    flagged = _in_place(form, args, kwargs)
    # The first input by keyword, wherever it is in the call, then the others: the order of keywords must not change a
    # result (D15).
    first = [name for name in kwargs if name in FIRST_INPUT_NAMES]
    ordered = {name: kwargs[name] for name in (*first, *kwargs)}
    described = [
        (_number(item), item.dim() == 0, _role(form, flagged, place))
        for place, value in places(args, ordered)
        for item in (value if isinstance(value, (list, tuple)) else (value,))
        if isinstance(item, torch.Tensor)
    ]
    return tuple(described)


def _rebuilt(container: Any, items: list[Any]) -> Any:
    """A container of the same type with other items (rebuild_container in src/convert/cast_arguments.cpp)."""
    kind = type(container)
    # torch.fx has lists that nobody may change.
    if kind is list or (issubclass(kind, list) and kind.__setitem__ is not list.__setitem__):
        return items
    if isinstance(container, list):
        same = copy.copy(container)
        same[:] = items
        return same
    if kind is tuple:
        return tuple(items)
    if hasattr(kind, "_make"):
        return kind._make(items)
    try:
        return tuple.__new__(kind, items)
    except TypeError:  # torch.return_types and their like may be made by their own constructor alone
        return kind(items)


def _copied_by_matmul(tensor: torch.Tensor) -> bool:
    """Whether a matrix product would copy the batch before it reads it: src/call/cast_argument.cpp."""
    if tensor.dim() < 3 or tensor.layout != torch.strided or tensor.is_nested or tensor.is_contiguous():
        return False
    *outer, rows, columns = zip(tensor.shape, tensor.stride(), strict=True)
    expected = 1
    for size, stride in (rows, columns, *reversed(outer)):
        if stride != expected:
            return True
        expected *= max(size, 1)
    return False


def _cast_arguments(
    form: CallForm,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    to: int,
    roles: int,
    *,
    weights: bool = True,
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The call's arguments with the tensors of the given roles (a bit each) in dtype number ``to``; parameters too, if ``weights``."""
    flagged = _in_place(form, args, kwargs)
    done: list[tuple[Any, Any]] = []

    def cast(value: Any) -> Any:
        if not isinstance(value, torch.Tensor) or _number(value) not in SOURCES or value.dtype == DTYPES[to]:
            return value
        for source, result in done:
            if source is value:
                return result
        if form.contiguous and _copied_by_matmul(value):
            done.append((value, value.to(DTYPES[to], memory_format=torch.contiguous_format)))
        else:
            done.append((value, value.to(DTYPES[to])))
        return done[-1][1]

    def replace(place: int | str, value: Any) -> Any:
        if not roles >> _role(form, flagged, place) & 1:
            return value
        if not weights and place in WEIGHTS and isinstance(value, torch.Tensor) and is_parameter(value):
            return value
        if isinstance(value, (list, tuple)):
            items = [cast(item) for item in value]
            return _rebuilt(value, items) if any(map(operator.is_not, items, value)) else value
        return cast(value)

    given = [replace(place, value) for place, value in places(args, kwargs)]
    return tuple(given[: len(args)]), dict(zip(kwargs, given[len(args) :], strict=True))
