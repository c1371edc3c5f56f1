"""``cast``: float32, float16 and bfloat16 into each other, of torch tensors and of NumPy arrays.

NumPy and ml_dtypes are imported only where an array is cast; neither has to be installed.
"""

from __future__ import annotations

import functools
import sys
from typing import TYPE_CHECKING, Any, TypeVar, overload

import torch

import habana_mp._core as _core

if TYPE_CHECKING:
    import numpy as np

    _Array = TypeVar("_Array", bound=np.ndarray[Any, Any])

# As dtype_named of src/policy/dtype.h; a dict, which torch.compile can read.
_SPELLINGS = {
    spelling: name
    for name, short in _core.SHORT_DTYPE_NAMES.items()
    for spelling in (name, short)
    if hasattr(torch, name)
}
_TORCH = {name: getattr(torch, name) for name in _core.ELIGIBLE_DTYPES}
_NAMES = {dtype: name for name, dtype in _TORCH.items()}
_NUMBERS = {name: _core.DTYPES.index(name) for name in _TORCH}
LOW_DTYPES: tuple[torch.dtype, ...] = tuple(_TORCH[name] for name in _core.LOW_DTYPES)
_ACCEPTED = "float32, float16 or bfloat16"

_Tensor = TypeVar("_Tensor", bound=torch.Tensor)


@overload
def cast(x: _Tensor, dtype: object, *, out: None = None) -> _Tensor: ...
@overload
def cast(x: torch.Tensor, dtype: object, *, out: _Tensor) -> _Tensor: ...
@overload
def cast(x: np.ndarray[Any, Any], dtype: object, *, out: None = None) -> np.ndarray[Any, Any]: ...
@overload
def cast(x: np.ndarray[Any, Any], dtype: object, *, out: _Array) -> _Array: ...
def cast(x: Any, dtype: object, *, out: Any = None) -> Any:
    """Return ``x`` in another of the dtypes float32, float16 and bfloat16. ``x`` is a torch tensor or a NumPy array of any shape.

    If ``x`` has the dtype already, the result is ``x`` itself. For a tensor the result is that of ``x.to(dtype)``, and the cast is
    differentiable without ``out``. For an array the numbers are the same bit for bit, in the memory order of ``x``.

    NumPy has no bfloat16. The result is an array of ``ml_dtypes.bfloat16`` if that package is installed. Otherwise it holds the 16 bits of
    each number in the dtype ``np.dtype((np.uint16, [("bfloat16", np.uint16)]))``, and ``cast`` accepts such arrays. It does not accept
    plain uint16 arrays; ``bits.view([("bfloat16", np.uint16)])`` marks them as bfloat16.

    Args:
        x: the tensor or array.
        dtype: a dtype of torch, NumPy or ml_dtypes, or its name.
        out: a tensor or array for the result, with the shape and the dtype of the result. It may share memory with ``x``.

    Returns:
        The result, or ``out``.

    Raises:
        TypeError: ``x`` or ``out`` has another type or dtype, or ``dtype`` is not a dtype.
        ValueError: ``dtype`` is another dtype, or ``out`` has another shape or device or is read-only.
        RuntimeError: ``out`` is given and torch would record gradients.

    Example:
        >>> hmp.cast(torch.ones(3), "bfloat16")
        tensor([1., 1., 1.], dtype=torch.bfloat16)
        >>> hmp.cast(np.ones(3, np.float32), "bfloat16")
        array([1, 1, 1], dtype=bfloat16)
    """
    if isinstance(x, torch.Tensor):
        return _cast_tensor(x, _name_of(dtype), out)
    if _is_array(x):
        return _cast_array(x, dtype, out)
    _name_of(dtype)  # the first error, if both arguments are wrong
    raise TypeError(f"x must be a torch tensor or a NumPy array without a mask, not {type(x).__name__}")


def dtype_name(dtype: torch.dtype | str) -> str:
    """Torch's name of any dtype, without "torch." before it."""
    return str(dtype).removeprefix("torch.")


def dtype_named(dtype: object) -> str | None:
    """Torch's name of a floating dtype, of a dtype of torch or any name that the package accepts: "bfloat16", "bf16", "torch.bfloat16".

    None for anything else.
    """
    return _SPELLINGS.get(dtype_name(dtype)) if isinstance(dtype, (str, torch.dtype)) else None


def low_name(dtype: object, argument: str) -> str:
    """The name of a low dtype, given as one of torch or by a name ("bfloat16", "bf16"). Raises ValueError for another."""
    name = dtype_named(dtype)
    if name not in _core.LOW_DTYPES:
        raise ValueError(not_low(dtype, argument))
    return name


def not_low(dtype: object, argument: str) -> str:
    """The message for what is no low dtype, with all that is accepted."""
    named = [name for low in _core.LOW_DTYPES for name in (low, _core.SHORT_DTYPE_NAMES[low])]
    accepted = f"{', '.join(named[:-1])} or {named[-1]}"
    return f"{argument} must be {' or '.join(map(str, LOW_DTYPES))}, or its name ({accepted}), not {dtype!r}"


def _name_of(dtype: object) -> str:
    """One of the names in ``_TORCH``."""
    if isinstance(dtype, (torch.dtype, str)):
        name = dtype_named(dtype)
    else:
        found = _numpy_dtype(dtype)
        name = _name_of_array(found) if found.isnative else None
    if name not in _NUMBERS:
        raise ValueError(f"dtype must be {_ACCEPTED}, not {dtype!r}")
    return name


# Tensors


def _cast_tensor(x: Any, to: str, out: Any) -> Any:
    if x.dtype not in _NAMES:
        raise TypeError(f"x is {x.dtype}, and only {_ACCEPTED} can be cast")
    if out is not None:
        _check_tensor_out(x, to, out)
        # torch.compile traces no call of ours.
        if torch.compiler.is_compiling() or not _core.cast_into(x, out):
            out.copy_(x)
        return out
    if x.dtype == _TORCH[to]:
        return x
    if torch.compiler.is_compiling():
        return x.to(_TORCH[to])
    return _core.cast_tensor(x, _NUMBERS[to])


def _check_tensor_out(x: torch.Tensor, to: str, out: object) -> None:
    if not isinstance(out, torch.Tensor):
        raise TypeError(f"out must be a torch tensor, as x is, not {type(out).__name__}")
    if out.dtype != _TORCH[to]:
        raise TypeError(f"out is {out.dtype}, and the cast is to {_TORCH[to]}")
    if out.shape != x.shape:
        raise ValueError(f"out has the shape {tuple(out.shape)}, and x {tuple(x.shape)}")
    if out.device != x.device:
        raise ValueError(f"out is on {out.device}, and x on {x.device}")
    if torch.is_grad_enabled() and (x.requires_grad or out.requires_grad):
        raise RuntimeError(
            "cast(): out=... does not support automatic differentiation, but x or out requires grad; torch.no_grad() allows it"
        )


# Arrays


def _is_array(x: object) -> bool:
    numpy = sys.modules.get("numpy")  # without it there are no arrays
    if numpy is None or not isinstance(x, numpy.ndarray):
        return False
    return type(x) is numpy.ndarray or not isinstance(x, numpy.ma.MaskedArray)


def _numpy_dtype(dtype: object) -> np.dtype[Any]:
    numpy = sys.modules.get("numpy")
    try:
        if numpy is not None and dtype is not None:
            found: np.dtype[Any] = numpy.dtype(dtype)
            return found
    except TypeError:
        pass
    raise TypeError(f"dtype must be a dtype of torch, NumPy or ml_dtypes, or its name: {_ACCEPTED}, not {dtype!r}")


@functools.lru_cache(maxsize=64)  # NumPy takes microseconds to format the name of a dtype
def _name_of_array(dtype: np.dtype[Any]) -> str | None:
    if dtype.names == ("bfloat16",):
        return "bfloat16" if dtype.itemsize == 2 and dtype["bfloat16"].kind == "u" else None
    return dtype.name if dtype.name in _NUMBERS else None


@functools.cache
def _bfloat16() -> np.dtype[Any]:
    import numpy as np

    try:
        from ml_dtypes import bfloat16
    except ImportError:
        return np.dtype((np.uint16, [("bfloat16", np.uint16)]))
    return _numpy_dtype(bfloat16)


@functools.lru_cache(maxsize=64)
def _named_array(dtype: str | torch.dtype) -> tuple[str, np.dtype[Any]]:
    """The name and the dtype of an array that is cast to a dtype of torch, or to one that is named."""
    name = _name_of(dtype)
    return name, _bfloat16() if name == "bfloat16" else _numpy_dtype(name)


def _bits(x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """The array under a dtype that NumPy computes with: uint16 for bfloat16. A view, so in the byte order that it has."""
    import numpy as np

    if _name_of_array(x.dtype) != "bfloat16":
        return x.view(np.ndarray)
    carrier = x.dtype["bfloat16"] if x.dtype.names else np.dtype(np.uint16).newbyteorder(x.dtype.byteorder)
    return x.view(carrier, np.ndarray)


def _is_direct(x: np.ndarray[Any, Any]) -> bool:
    """Whether the kernels can walk it: in the byte order of the machine, whole elements apart."""
    return x.dtype.isnative and (x.flags.c_contiguous or not any(stride % x.itemsize for stride in x.strides))


def _native(x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    if _is_direct(x):
        return x
    bits = _bits(x)
    return bits.astype(bits.dtype.newbyteorder("="))


def _cast_array(x: Any, to_dtype: object, out: Any) -> Any:
    import numpy as np

    if type(to_dtype) is str or isinstance(to_dtype, torch.dtype):  # a subclass may have another hash, or none
        to, dtype = _named_array(to_dtype)
    else:
        to = _name_of(to_dtype)
        dtype = _named_array(to)[1] if isinstance(to_dtype, str) else _numpy_dtype(to_dtype)
    source = _name_of_array(x.dtype)
    if source is None:
        raise TypeError(f"x is {x.dtype}, and only {_ACCEPTED} can be cast{_uint16_hint(x.dtype, 'x')}")
    if out is not None:
        _check_array_out(x, to, out)
        if source == to:
            np.copyto(_bits(out), _bits(x))
        elif _is_direct(out) and not np.may_share_memory(x, out):
            _core.cast_array(_native(x), _NUMBERS[source], out, _NUMBERS[to], False)
        else:
            np.copyto(_bits(out), _bits(_cast_array(x, to_dtype, None)))
        return out
    if source == to:
        return x if x.dtype == dtype else _bits(_native(x)).view(dtype)
    result = np.empty_like(x, dtype=dtype, subok=False)
    _core.cast_array(_native(x), _NUMBERS[source], result, _NUMBERS[to], True)
    return result


def _check_array_out(x: np.ndarray[Any, Any], to: str, out: Any) -> None:
    if not _is_array(out):
        raise TypeError(f"out must be a NumPy array without a mask, as x is, not {type(out).__name__}")
    if _name_of_array(out.dtype) != to:
        raise TypeError(f"out is {out.dtype}, and the cast is to {to}{_uint16_hint(out.dtype, 'out')}")
    if out.shape != x.shape:
        raise ValueError(f"out has the shape {out.shape}, and x {x.shape}")
    if not out.flags.writeable:
        raise ValueError("out is read-only")


def _uint16_hint(dtype: np.dtype[Any], argument: str) -> str:
    if dtype.names or dtype.kind != "u" or dtype.itemsize != 2:
        return ""
    return f'. If these are the bits of bfloat16, mark them: {argument}.view([("bfloat16", np.uint16)])'
