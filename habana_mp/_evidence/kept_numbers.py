"""The numbers of a tensor or an array, put back in place where they are others."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

import habana_mp._core as _core
from habana_mp._torch_private import VERSION_OF

_PART = 1 << 22
_COMPRESSED = {
    torch.sparse_csr: ("crow_indices", "col_indices", "values"),
    torch.sparse_bsr: ("crow_indices", "col_indices", "values"),
    torch.sparse_csc: ("ccol_indices", "row_indices", "values"),
    torch.sparse_bsc: ("ccol_indices", "row_indices", "values"),
}


@dataclass
class Check:
    """How parts find that they have changed: by all their numbers; or ``by_version``, at once, which sees no writes of NumPy or to ``.data``."""

    by_version: bool = False


def kept_numbers(tensor: torch.Tensor, name: str, check: Check, *, copied: bool = True) -> list[KeptPart]:
    """``copied`` is False where a copy would take too much memory: then ``put_back`` raises if the numbers have changed."""
    return [KeptPart(part, name, check, copied) for part in _parts(tensor)]


class KeptPart:
    def __init__(self, tensor: torch.Tensor, name: str, check: Check, copied: bool) -> None:
        self._tensor, self._name, self._check = tensor, name, check
        self._hashed = _core.hash_of_numbers if copied else _hash_by_parts
        self._hash = self._hashed(tensor)
        # What was never filled, and has no memory, has no numbers.
        is_other_kind = tensor.is_quantized or tensor.is_mkldnn or tensor.is_nested
        self._copy = _core.copied_unseen(tensor) if copied and (self._hash or is_other_kind) else None
        self._coalesced = tensor.is_sparse and tensor.is_coalesced()
        self._seen: object = None

    def put_back(self) -> None:
        """Where they are the same, nothing is written: that would end the graphs that want the tensor as it was."""
        if self._check.by_version and self._seen == _mark_of(self._tensor):
            return
        if not self._is_same():
            self._write()
        self._seen = _mark_of(self._tensor)

    def _write(self) -> None:
        tensor, own = self._tensor, self._copy
        if own is None:
            raise RuntimeError(_too_large(self._name))
        plain = not tensor.is_sparse and not tensor.is_nested  # the sizes of the others are no numbers, or change
        if plain and (tensor.dtype != own.dtype or tensor.shape != own.shape):
            tensor.data = own.clone()
        elif tensor.is_inference():
            with torch.inference_mode():
                tensor.copy_(own)
        else:
            tensor.copy_(own)

    def _is_same(self) -> bool:
        if not self._hash:
            return self._copy is None
        tensor, own = self._tensor, self._copy
        if own is not None and tensor.dtype != own.dtype:
            return False
        # Zeros that were added take memory and change no sum.
        same_kind = self._coalesced == (tensor.is_sparse and tensor.is_coalesced())
        return same_kind and self._hashed(tensor) == self._hash


def _mark_of(tensor: torch.Tensor) -> object:
    """Another one after each change that torch sees; of a tensor that has none, a new one each time."""
    if (
        tensor.is_nested
        or tensor.is_inference()
        or tensor.layout != torch.strided
        or type(tensor) not in (torch.Tensor, torch.nn.Parameter)
    ):
        return object()
    return VERSION_OF.of(tensor, "version", object()), tensor.shape, tensor.dtype


def kept_array(array: Any, name: str, *, copied: bool) -> Callable[[], None]:
    """The same of an array of NumPy: what puts it back."""
    own_hash, own = _hash_of_array(array), array.copy() if copied else None

    def put_back() -> None:
        if _hash_of_array(array) == own_hash:
            return
        if own is None:
            raise RuntimeError(_too_large(name))
        array[...] = own

    return put_back


def size_of(tensor: torch.Tensor) -> int:
    """Bytes of the numbers that it has."""
    if tensor.layout == torch.sparse_coo:
        return sum(size_of(part) for part in (tensor._indices(), tensor._values()))
    return sum(part.numel() * part.element_size() for part in _parts(tensor))


def _too_large(name: str) -> str:
    return f"the step changes {name}, which is too large to be copied and restored. Give the step a copy of it"


def _hash_by_parts(tensor: torch.Tensor) -> int:
    """The hash of all at once takes a copy in 64 bits."""
    if tensor.layout != torch.strided or tensor.is_nested:
        return _core.hash_of_numbers(tensor)
    rows = tensor.detach().flatten() if tensor.is_contiguous() else tensor.detach()
    return hash(
        (tensor.shape, *map(_core.hash_of_numbers, rows.chunk(rows.numel() // _PART + 1) if rows.dim() else [rows]))
    )


def _hash_of_array(array: Any) -> bytes:
    """Without a copy of all of it."""
    hashed = hashlib.blake2b(repr(array.shape).encode())
    flat = array.reshape(-1) if array.flags.c_contiguous else array.flat
    for start in range(0, array.size, _PART):
        hashed.update(flat[start : start + _PART].tobytes())
    return hashed.digest()


def _parts(tensor: torch.Tensor, outer: tuple[torch.Tensor, ...] = ()) -> list[torch.Tensor]:
    """The tensors that hold its numbers, of which each is plain."""
    if hasattr(tensor, "__tensor_flatten__"):  # a subclass that wraps others
        names, _ = tensor.__tensor_flatten__()
        return [part for name in names for part in _parts(getattr(tensor, name))]
    if tensor.layout in _COMPRESSED:
        own = tensor.detach()
        return [getattr(own, name)() for name in _COMPRESSED[tensor.layout]]
    inside = (*outer, tensor)
    if type(tensor) is not torch.Tensor and not _core.hash_of_numbers(tensor):  # a wrapper that names no others
        held = [each for each in vars(tensor).values() if isinstance(each, torch.Tensor)]
        return [
            tensor,
            *(part for each in held if all(each is not own for own in inside) for part in _parts(each, inside)),
        ]
    return [tensor]
