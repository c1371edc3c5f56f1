"""What ops do with their tensors: which compute, and on how many (D15), and which are norms (D14)."""

from __future__ import annotations

import functools
import types
from collections.abc import Callable
from typing import Any

import torch.nn.functional as F  # noqa: N812 - as everybody calls it

import habana_mp._core as _core
from habana_mp._policy.homes import OPERATORS, Home

# D14: the norms, by the positions of running_mean and running_var below torch.nn.functional, which has its own order (F132).
NORMS = {
    "layer_norm": (),
    "group_norm": (),
    "native_layer_norm": (),
    "native_group_norm": (),
    "batch_norm": (3, 4),
    "instance_norm": (3, 4),
    "native_batch_norm": (3, 4),
    "cudnn_batch_norm": (3, 4),
    "miopen_batch_norm": (3, 4),
    "_batch_norm_impl_index": (3, 4),
    "_native_batch_norm_legit": (3, 4),
    "_native_batch_norm_legit_no_training": (3, 4),
}


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


# What D15 leaves out of the rest, by reason. In-place twins (name_) go with their base.
NOT_COMPUTING = {
    "conversion": _names(
        "to type type_as to_dense to_sparse to_sparse_coo to_sparse_csr to_sparse_csc to_sparse_bsr to_sparse_bsc to_mkldnn"
        " to_padded_tensor dequantize int_repr float double half bfloat16 int long short char byte bool cfloat cdouble chalf"
        " cpu cuda xpu ipu mtia result_type can_cast promote_types"
    ),
    "view or shape": _names(
        "view view_as view_as_real view_as_complex view_copy reshape reshape_as expand expand_as expand_copy permute"
        " permute_copy transpose transpose_copy t t_copy swapaxes swapdims squeeze squeeze_copy unsqueeze unsqueeze_copy"
        " flatten unflatten ravel narrow narrow_copy select select_copy slice_copy slice_inverse split split_copy"
        " split_with_sizes split_with_sizes_copy chunk tensor_split hsplit vsplit dsplit unsafe_chunk unsafe_split"
        " unsafe_split_with_sizes unbind unbind_copy unfold unfold_copy diagonal diagonal_copy movedim moveaxis as_strided"
        " as_strided_copy detach detach_copy real imag adjoint conj conj_physical resolve_conj resolve_neg"
        " positive __pos__ broadcast_to broadcast_tensors atleast_1d atleast_2d atleast_3d meshgrid contiguous"
        " values values_copy indices indices_copy crow_indices crow_indices_copy col_indices col_indices_copy"
        " ccol_indices ccol_indices_copy row_indices row_indices_copy view_as_real_copy view_as_complex_copy alias_copy"
        " __getitem__ pixel_shuffle pixel_unshuffle fftshift ifftshift"
        " channel_shuffle native_channel_shuffle pad constant_pad_nd roll flip fliplr flipud rot90 repeat repeat_interleave"
        " tile gather index index_select masked_select take take_along_dim tril triu diag diag_embed diagflat one_hot im2col"
        " unique unique_consecutive unique_dim tril_indices triu_indices unravel_index pad_sequence flatten_dense_tensors"
        " unflatten_dense_tensors block_diag combinations cartesian_prod sparse_mask coalesce resize resize_as"
        " resize_as_sparse sparse_resize sparse_resize_and_clear set"
    ),
    "constructor": _names(
        "arange range linspace logspace eye empty empty_like empty_permuted empty_strided empty_quantized ones ones_like zeros"
        " zeros_like full full_like new_empty new_empty_strided new_full new_ones new_tensor new_zeros tensor as_tensor asarray"
        " scalar_tensor from_numpy frombuffer from_file bartlett_window blackman_window hamming_window hann_window"
        " kaiser_window sparse_coo_tensor sparse_csr_tensor sparse_csc_tensor sparse_bsr_tensor sparse_bsc_tensor"
        " sparse_compressed_tensor fill zero"
    ),
    "random": _names(
        "rand randn rand_like randn_like randint randint_like randperm bernoulli multinomial normal poisson binomial uniform"
        " cauchy exponential geometric log_normal random rrelu_with_noise gumbel_softmax"
    ),
    "comparison or test": _names(
        "eq ne lt le gt ge greater greater_equal less less_equal not_equal equal allclose isclose isin is_same_size is_set_to"
        " __eq__ __ne__ __lt__ __le__ __gt__ __ge__ __contains__ isnan isinf isfinite isposinf isneginf isreal signbit"
        " is_complex is_floating_point is_nonzero is_conj is_neg is_inference is_signed is_coalesced is_pinned is_distributed"
        " is_shared all any argmax argmin argsort argwhere nonzero nonzero_static count_nonzero logical_and logical_or"
        " logical_xor logical_not bitwise_and bitwise_or bitwise_xor bitwise_not bitwise_left_shift bitwise_right_shift"
        " __and__ __or__ __xor__ __lshift__ __rshift__ __rand__ __ror__ __rxor__ __rlshift__ __rrshift__ __iand__ __ior__"
        " __ixor__ __ilshift__ __irshift__ __invert__ gcd lcm bincount"
    ),
    "copy or query": _names(
        "copy clone numel item size stride storage_offset dim is_contiguous retain_grad requires_grad pin_memory record_stream"
        " get_device element_size q_scale q_zero_point q_per_channel_scales q_per_channel_zero_points q_per_channel_axis"
        " qscheme sparse_dim dense_dim backward apply map map2 hash_tensor share_memory"
    ),
}


# Ops with kernels of their own behind them: their callers decide what they take.
_LOW_LEVEL = (
    "_",
    "fused_moving",
    "scaled_mm",
    "scaled_grouped_mm",
    "cudnn_",
    "miopen_",
    "mkldnn_",
    "native_",
    "batch_norm_",
    "fbgemm_",
)


# Tensor methods and functions of torch.functional that are written in Python and compute; the others are protocol and shape.
_PYTHON_COMPUTING = _names(
    "norm stft istft lu cdist chain_matmul einsum tensordot pca_lowrank svd_lowrank __rsub__ __rdiv__ __rtruediv__ __pow__"
    " __rpow__ __ipow__ __floordiv__ __rfloordiv__ __mod__ __rmod__ __matmul__ __rmatmul__ __idiv__ __itruediv__"
)


@functools.cache
def aten_tensor_arguments() -> dict[str, int]:
    return _core.aten_tensor_arguments()


@functools.cache
def _not_computing() -> frozenset[str]:
    return frozenset().union(*NOT_COMPUTING.values())


def computes_on(home: Home, original: Callable[..., Any]) -> int:
    """How many tensors the op computes on, at most: 0 for what D15 leaves out of the rest, 2 for "two or more"."""
    name, own = home.name, home.attribute.removeprefix(home.prefix)
    base = own[:-1] if own.endswith("_") and not own.endswith("__") else own
    if base in _not_computing() or "quantize" in name:
        return 0
    if own in OPERATORS:
        return 2 if own not in ("__neg__", "__abs__") else 1
    if own.startswith(_LOW_LEVEL):
        return 0
    if isinstance(original, types.FunctionType):
        return 2 if home.owner is F or own in _PYTHON_COMPUTING else 0
    return min(aten_tensor_arguments().get(name, aten_tensor_arguments().get(own, 0)), 2)
