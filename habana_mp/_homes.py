"""Where the ops of torch live: every name through which Python code reaches one (D16), and how its calls are written.

A home is an owner (a module, or torch.Tensor) and an attribute name. Knows nothing of policies; which names carry the rule of a home is
told by `candidates` in src/policy/names.h.
"""

from __future__ import annotations

import functools
import sys
import types
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F  # noqa: N812 - as everybody calls it

from habana_mp import _core
from habana_mp._patched import CallForm, PatchedOp


class Home(NamedTuple):
    """One name under which an op is reached. ``prefix`` is "linalg_", "fft_", "special_" or empty: torch's own name for the op has it."""

    owner: Any
    attribute: str
    prefix: str

    @property
    def path(self) -> str:
        """As pkgutil.resolve_name takes it: "torch.nn.functional:gelu", "torch:Tensor.mm"."""
        if self.owner is torch.Tensor:
            return f"torch:Tensor.{self.attribute}"
        return f"{self.owner.__name__}:{self.attribute}"

    @property
    def label(self) -> str:
        """As people write it: "torch.nn.functional.gelu"."""
        return self.path.replace(":", ".")

    @property
    def name(self) -> str:
        """The name that `candidates` is asked with."""
        own = self.attribute
        return own if own.startswith(self.prefix) else self.prefix + own

    @property
    def in_place(self) -> bool:
        """Whether the name says that argument 0 is written to: relu_, __iadd__ (D12)."""
        return is_in_place(self.attribute)

    def function(self) -> Callable[..., Any]:
        """What torch itself has there, also while converted."""
        value = getattr(self.owner, self.attribute)
        return value.original if isinstance(value, PatchedOp) else value


_ARITHMETIC = "add sub mul matmul truediv div floordiv mod pow"
_BITWISE = "and or xor lshift rshift"

# Operators of Tensor that are ops; every other dunder method is the object protocol.
_OPERATORS = frozenset(
    [f"__{form}{op}__" for op in f"{_ARITHMETIC} {_BITWISE}".split() for form in ("", "r", "i")]
    + [f"__{op}__" for op in "eq ne lt le gt ge neg pos abs invert getitem setitem contains".split()]
)
_IN_PLACE_OPERATORS = frozenset([f"__i{op}__" for op in f"{_ARITHMETIC} {_BITWISE}".split()] + ["__setitem__"])


def is_in_place(op: str) -> bool:
    """Whether the name of an op says that it writes to its first argument: relu_, __iadd__, iadd."""
    operator = op in _IN_PLACE_OPERATORS or f"__{op}__" in _IN_PLACE_OPERATORS
    return operator or (op.endswith("_") and not op.endswith("__"))


# Functions of torch.nn.functional that are no ops but helpers of its source.
_F_HELPERS = frozenset(
    "boolean_dispatch handle_torch_function has_torch_function has_torch_function_unary has_torch_function_variadic"
    " assert_int_or_pair".split()
)

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
_STATISTICS_OF_F = (1, 2)


@functools.cache
def homes() -> tuple[Home, ...]:
    """Every home in the installed torch. Names only: what they hold is asked anew at each conversion."""
    return tuple(_find_homes())


def _is_function(value: object) -> bool:
    return isinstance(value, (types.BuiltinFunctionType, types.FunctionType, PatchedOp))


def _find_homes() -> Iterator[Home]:
    aten = [name for name in dir(torch._C._VariableFunctions) if not name.startswith("__")]
    # torch.nn.functional comes first, so that an op that lives there too is named as users write it.
    for name, value in vars(F).items():
        if _is_function(value) and not name.startswith("_") and name not in _F_HELPERS:
            yield Home(F, name, "")
    for name in torch.functional.__all__:
        yield Home(torch, name, "")
        yield Home(torch.functional, name, "")
    for name in aten:
        if _is_function(getattr(torch, name, None)) and name not in torch.functional.__all__:
            yield Home(torch, name, "")
        yield Home(torch._VF, name, "")
    for owner, prefix in (
        (torch.linalg, "linalg_"),
        (sys.modules["torch._C._linalg"], "linalg_"),
        (torch.fft, "fft_"),
        (sys.modules["torch._C._fft"], "fft_"),
        (torch.special, "special_"),
        (sys.modules["torch._C._special"], "special_"),
        (torch._C._nn, ""),
    ):
        for name, value in vars(owner).items():
            if _is_function(value) and not name.startswith("__"):
                yield Home(owner, name, prefix)
    for name in dir(torch.Tensor):
        value = getattr(torch.Tensor, name)
        if name in _OPERATORS or (not name.startswith("__") and callable(value) and not isinstance(value, type)):
            yield Home(torch.Tensor, name, "")


# The operators of which torch tells __torch_function__ by the name of a method.
_TOLD_AS = {
    "__add__": "add", "__radd__": "add", "__iadd__": "add_", "__sub__": "sub", "__isub__": "sub_", "__mul__": "mul", "__rmul__": "mul",
    "__imul__": "mul_", "__truediv__": "div", "__itruediv__": "div_", "__div__": "div", "__idiv__": "div_", "__mod__": "remainder",
    "__imod__": "remainder_", "__ifloordiv__": "floor_divide_", "__matmul__": "matmul", "__ne__": "ne", "__lt__": "lt", "__le__": "le",
    "__gt__": "gt", "__ge__": "ge", "__rand__": "bitwise_and", "__ror__": "bitwise_or", "__rxor__": "bitwise_xor",
}  # fmt: skip


def told_of(home: Home, original: Callable[..., Any]) -> Callable[..., Any]:
    """What torch tells ``__torch_function__`` of when the op is called."""
    if home.owner is not torch.Tensor or isinstance(original, types.FunctionType) or home.attribute not in _TOLD_AS:
        return original
    return Home(torch.Tensor, _TOLD_AS[home.attribute], "").function()


def call_form(home: Home, original: Callable[..., Any]) -> CallForm:
    """How calls of an op are written, read off its name and, of Python functions, its parameters."""
    plain = home.attribute
    form: dict[str, Any] = {
        "in_place": home.in_place,
        "norm": plain in NORMS,
        "overridable": original in torch.overrides.get_testing_overrides(),
        "contiguous": plain in ("linear", "matmul", "__matmul__", "__rmatmul__"),
    }
    if plain in NORMS:
        places = _STATISTICS_OF_F if home.owner is F and NORMS[plain] else NORMS[plain]
        form["statistics"] = sum(1 << place for place in places)
    if isinstance(original, types.FunctionType):
        form["python"] = True
        code = original.__code__
        parameters = code.co_varnames[: code.co_argcount]
        if "out" in parameters:
            form["out"] = parameters.index("out")
        # max_norm makes F.embedding renormalise its weight in place.
        for flag, target in (("inplace", "input"), ("max_norm", "weight")):
            if flag in parameters and target in parameters:
                form |= {
                    "flag": parameters.index(flag),
                    "flag_name": flag,
                    "flag_target": parameters.index(target),
                    "flag_target_name": target,
                }
    return CallForm(**form)


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

# Ops with kernels of their own behind them: what they take is the business of who calls them.
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
def _aten() -> dict[str, int]:
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
    if own in _OPERATORS:
        return 2 if own not in ("__neg__", "__abs__") else 1
    if own.startswith(_LOW_LEVEL):
        return 0
    if isinstance(original, types.FunctionType):
        return 2 if home.owner is F or own in _PYTHON_COMPUTING else 0
    return min(_aten().get(name, _aten().get(own, 0)), 2)


@functools.cache
def known_names() -> frozenset[str]:
    """Every name that a list may hold (D17, D22): of homes, of operators without their underscores, of aten ops and overloads."""
    own = {home.attribute for home in homes()} | {home.name for home in homes()}
    operators = {name.strip("_") for name in _OPERATORS & own}
    return frozenset(own | operators | set(_aten()) | {"GRUCell", "LSTMCell", "RNNCell"})
