"""`torch.ops.hpu`: Gaudi's ops that published scripts and libraries call, by torch's own ops. Fused steps of optimizers cast nothing.

Products of 8-bit floats are computed in float32, and nothing is rounded stochastically.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch.nn import functional
from torch.nn.utils import get_total_norm

from habana_mp._gaudi.hpex.kernels import RotaryPosEmbeddingMode, apply_rotary_pos_emb
from habana_mp.hmp import disable_casts

__all__ = ["cast_to_fp8_v2"]

_Tensor = torch.Tensor
_TensorOrNumber = torch.Tensor | float


@disable_casts()
def _lamb_norm(grad: Sequence[_Tensor], max_grad_norm: float) -> _Tensor:
    """What all gradients are divided by, so that their norm together is ``max_grad_norm`` at most; shape (1,)."""
    return (get_total_norm([each.float() for each in grad]) / max_grad_norm).clamp(min=1.0).reshape(1)


@torch.no_grad()
@disable_casts()
def _adamw(  # noqa: PLR0917 - Habana's arguments
    gradient_vec: Sequence[_Tensor],
    weight_vec: Sequence[_Tensor],
    exp_avg_vec: Sequence[_Tensor],
    exp_avg_sq_vec: Sequence[_Tensor],
    neg_step: _Tensor,
    beta1: float,
    beta2: float,
    epsilon: float,
    weight_decay: _TensorOrNumber,
    is_wd_modified: bool = True,
) -> None:
    """One step of AdamW in place. ``neg_step`` is minus the step with its bias corrected, ``weight_decay`` what weights are multiplied by."""
    for grad, weight, average, square in zip(gradient_vec, weight_vec, exp_avg_vec, exp_avg_sq_vec, strict=True):
        grad = grad.to(average.dtype)
        average.lerp_(grad, 1 - beta1)
        square.mul_(beta2).addcmul_(grad, grad, value=1 - beta2)
        if is_wd_modified:
            weight.mul_(weight_decay)
        weight.add_(average / (square.sqrt() + epsilon) * neg_step)


def cast_to_fp8_v2(
    input: _Tensor,  # noqa: A002
    scale: _TensorOrNumber | None = None,
    stochastic_rounding: bool = False,  # noqa: ARG001 - it rounds to nearest
    is_amax: bool = False,
    dtype: torch.dtype | None = None,
) -> tuple[_Tensor, _Tensor]:
    """``input * scale`` in 8 bits, what is too large as the largest number, and the largest magnitude of ``input`` if asked for."""
    to = dtype or torch.float8_e5m2
    most = torch.finfo(to).max
    amax = input.detach().abs().amax().float() if is_amax else input.new_empty(0, dtype=torch.float32)
    return _wide(input, scale).clamp(-most, most).to(to), amax


def _from_fp8(input: _Tensor, scale: _TensorOrNumber | None, out_dtype: torch.dtype) -> _Tensor:  # noqa: A002
    """``input * scale`` in another dtype."""
    return _wide(input, scale).to(out_dtype)


def _gemm(  # noqa: PLR0917 - Habana's arguments
    a: _Tensor,
    trans_a: bool,
    b: _Tensor,
    trans_b: bool,
    d: _Tensor | None,
    out_dtype: torch.dtype,
    a_scale_inv: _TensorOrNumber | None = None,
    b_scale_inv: _TensorOrNumber | None = None,
    bias: _Tensor | None = None,
    accumulate: bool = False,
) -> _Tensor:
    """The product of two 8-bit matrices, in float32 and then in ``out_dtype``; ``d`` is added if ``accumulate``."""
    left, right = _wide(a, a_scale_inv), _wide(b, b_scale_inv)
    result = (left.mT if trans_a else left) @ (right.mT if trans_b else right)
    if bias is not None:
        result = result + bias
    if accumulate and d is not None:
        result = result + d
    return result.to(out_dtype)


def _wide(tensor: _Tensor, scale: _TensorOrNumber | None) -> _Tensor:
    return tensor.float() if scale is None else tensor.float() * scale


def _rotary(  # noqa: PLR0917 - Habana's arguments
    input: _Tensor,  # noqa: A002
    sin: _Tensor,
    cos: _Tensor,
    position_ids: _Tensor | None = None,
    offset: int = 0,
    mode: int = 0,
) -> _Tensor:
    return apply_rotary_pos_emb(input, cos, sin, position_ids, offset, RotaryPosEmbeddingMode(mode))


def _softmax(
    input: _Tensor,  # noqa: A002
    dim: int,
    input_scale: _Tensor | None = None,
    output_scale: _Tensor | None = None,
    inv_attn_heads: _Tensor | None = None,
) -> _Tensor:
    """The softmax of ``input * inv_attn_heads``, in the dtype of ``input``."""
    if input_scale is not None or output_scale is not None:
        raise NotImplementedError(
            "softmax_fp8 accepts no input_scale and no output_scale here: it computes in the dtype of its input"
        )
    scaled = input if inv_attn_heads is None else input * inv_attn_heads
    return torch.softmax(scaled, dim).to(input.dtype)


_ACTIVATIONS: dict[str, Callable[[_Tensor], _Tensor]] = {
    "gelu": functional.gelu,
    "relu": functional.relu,
    "silu": functional.silu,
}


def _mixture(  # noqa: PLR0917 - Habana's arguments
    hidden_states: _Tensor,
    expert_routing_table: _Tensor,
    router_weights: _Tensor,
    w1: Sequence[_Tensor],
    w2: Sequence[_Tensor],
    w3: Sequence[_Tensor],
    permuted_weights: bool = True,
    activation: str = "silu",
    experts_min: int = 0,
    experts_max: int = 8,  # noqa: ARG001 - the lists of weights have their own end
) -> _Tensor:
    """The sum of ``router_weights * (activation(x @ w1.T) * (x @ w2.T)) @ w3.T`` over the experts of each token. The lists begin with
    ``experts_min``. Weights are as ``torch.nn.Linear`` has them, as published scripts pass them.
    """
    if not permuted_weights:
        raise NotImplementedError(
            "mixture_of_experts needs permuted_weights=True here: weights as torch.nn.Linear has them"
        )
    if activation not in _ACTIVATIONS:
        raise ValueError(f"mixture_of_experts: activation must be one of {[*_ACTIVATIONS]}, not {activation!r}")
    result = torch.zeros_like(hidden_states)
    for expert, weights in enumerate(zip(w1, w2, w3, strict=True), experts_min):
        gate, up, down = weights
        tokens, slots = (expert_routing_table == expert).nonzero(as_tuple=True)
        x = hidden_states[tokens]
        inner = _ACTIVATIONS[activation](functional.linear(x, gate)) * functional.linear(x, up)
        out = functional.linear(inner, down) * router_weights[tokens, slots, None]
        result = result.index_add(0, tokens, out.to(result.dtype))
    return result


def _from_uint4(
    input: _Tensor,  # noqa: A002
    scale: _Tensor,
    zero_point: _Tensor | None,
    out_dtype: torch.dtype,
    g_idx: _Tensor | None = None,
) -> _Tensor:
    """``(input - zero_point) * scale``, of shape (inputs, outputs), where ``input`` has 8 outputs in each int32, the first in its lowest bits.

    ``scale`` is (groups, outputs); ``zero_point`` has the same shape or is packed as ``input`` is. A group is that of ``g_idx``, or as many
    rows as there are for each.
    """
    numbers = _unpacked(input)
    if g_idx is None:
        if scale.dim() != 2 or len(numbers) % len(scale):
            raise ValueError(
                f"convert_from_uint4: {len(numbers)} rows are no multiple of the groups of scale {[*scale.shape]}"
            )
        g_idx = torch.arange(len(scale), device=scale.device).repeat_interleave(len(numbers) // len(scale))
    numbers = numbers.float()
    if zero_point is not None:
        zeros = zero_point if zero_point.is_floating_point() else _unpacked(zero_point)
        numbers -= zeros[g_idx]
    return (numbers * scale[g_idx]).to(out_dtype)


def _unpacked(packed: _Tensor) -> _Tensor:
    if packed.dim() != 2 or packed.dtype != torch.int32:
        raise ValueError(
            f"convert_from_uint4: expected a packed matrix of int32, not {packed.dtype} of {[*packed.shape]}"
        )
    return ((packed.unsqueeze(2) >> torch.arange(0, 32, 4, device=packed.device)) & 15).flatten(1)


# A scale may be a tensor or a number.
_SCALES = (("", "Tensor"), (".scalar", "float"))
_ADAMW = (
    "optimizer_adamw{}(Tensor[] gradient_vec, Tensor(a!)[] weight_vec, Tensor(b!)[] exp_avg_vec, Tensor(c!)[] exp_avg_sq_vec,"
    " Tensor neg_step, float beta1, float beta2, float epsilon, {} weight_decay{}) -> ()"
)
_TO_FP8 = (
    "cast_to_fp8_v2{}(Tensor input, {}? scale=None, bool stochastic_rounding=False, bool is_amax=False,"
    " ScalarType? dtype=None) -> (Tensor, Tensor)"
)
_FROM_FP8 = "cast_from_fp8{}(Tensor input, {}? scale, ScalarType out_dtype) -> Tensor"
_GEMM = (
    "fp8_gemm_v2{0}(Tensor A, bool trans_A, Tensor B, bool trans_B, Tensor? D, ScalarType out_dtype,"
    " {1}? A_scale_inv=None, {1}? B_scale_inv=None, Tensor? bias=None, bool accumulate=False) -> Tensor"
)
_MIXTURE = (
    "mixture_of_experts(Tensor hidden_states, Tensor expert_routing_table, Tensor router_weights, Tensor[] w1, Tensor[] w2, Tensor[] w3,"
    ' bool permuted_weights=True, str activation="silu", int experts_min=0, int experts_max=8) -> Tensor'
)
OPS: dict[str, Callable[..., object]] = {
    "optimizer_lamb_fused_norm(Tensor[] grad, float max_grad_norm) -> Tensor": _lamb_norm,
    _ADAMW.format("", "float", ""): _adamw,
    _ADAMW.format(".tensor", "Tensor", ", bool is_wd_modified=True"): _adamw,
    **{_TO_FP8.format(*each): cast_to_fp8_v2 for each in _SCALES},
    **{_FROM_FP8.format(*each): _from_fp8 for each in _SCALES},
    **{_GEMM.format(*each): _gemm for each in _SCALES},
    "rotary_pos_embedding(Tensor input, Tensor sin, Tensor cos, Tensor? position_ids=None, int offset=0, int mode=0) -> Tensor": _rotary,
    "softmax_fp8(Tensor input, int dim, Tensor? input_scale=None, Tensor? output_scale=None, Tensor? inv_attn_heads=None) -> Tensor": _softmax,
    _MIXTURE: _mixture,
    "convert_from_uint4(Tensor input, Tensor scale, Tensor? zero_point, ScalarType out_dtype, Tensor? g_idx=None) -> Tensor": _from_uint4,
}
_defined: list[torch.library.Library] = []


def define() -> None:
    """Make the ops. A second call does nothing."""
    if _defined:
        return
    library = torch.library.Library("hpu", "FRAGMENT")  # type: ignore[no-untyped-call]
    for schema, function in OPS.items():
        library.define(schema)  # type: ignore[no-untyped-call]
        library.impl(schema.partition("(")[0], function, "CompositeImplicitAutograd")  # type: ignore[no-untyped-call]
    _defined.append(library)
