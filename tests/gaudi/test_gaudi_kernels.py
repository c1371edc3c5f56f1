"""Habana's fused kernels by torch's own ops: attention, rotary positions, norms, moving averages, the embedding bag of DLRM, `torch.ops.hpu`."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from habana_mp import hmp
from habana_mp._gaudi import ops
from habana_mp._gaudi.hpex.kernels import (
    CustomSoftmax,
    EmbeddingBag,
    EmbeddingBagPreProc,
    EmbeddingBagPreproc,
    FusedSDPA,
    RotaryPosEmbeddingHelperV1,
    RotaryPosEmbeddingHelperV2,
    RotaryPosEmbeddingMode,
    apply_rotary_pos_emb,
)
from habana_mp._gaudi.hpex.moving_average import FusedEMA
from habana_mp._gaudi.hpex.normalization import FusedRMSNorm
from habana_mp._gaudi.hpex.sparse import SparseAdagrad, SparseSGD

F32 = torch.float32
torch.manual_seed(0)
Q, K, V = (torch.randn(2, 4, 6, 8) for _ in range(3))
MASK = torch.randn(2, 1, 6, 6)
CAUSAL = torch.ones(6, 6, dtype=torch.bool).tril()


def attention(q, k, v, mask=None, scale=None):
    """Written out; a mask of bools."""
    scores = q @ k.transpose(-2, -1) * (1 / math.sqrt(q.shape[-1]) if scale is None else scale)
    if mask is not None:
        scores = scores.masked_fill(~mask, -math.inf) if mask.dtype == torch.bool else scores + mask
    return torch.softmax(scores, -1) @ v


# id: arguments behind query, key and value, as published scripts give them, and what comes out
ATTENTION = {
    "three": ((), lambda: attention(Q, K, V)),
    "five": ((None, 0.0), lambda: attention(Q, K, V)),
    "mask": ((MASK, 0.0, False), lambda: attention(Q, K, V, MASK)),
    "causal, eight": ((None, 0.0, True, 0.5, "fast"), lambda: attention(Q, K, V, CAUSAL, 0.5)),
    "nine": ((MASK, 0.0, False, None, "fast", False), lambda: attention(Q, K, V, MASK)),
    "causal and a mask": ((MASK, 0.0, True), lambda: attention(Q, K, V, MASK.masked_fill(~CAUSAL, -math.inf))),
    "causal and bools": (
        (MASK.abs() > 0.1, 0.0, True),
        lambda: attention(Q, K, V, (MASK.abs() > 0.1) & CAUSAL | torch.zeros(6, 6, dtype=torch.bool)).nan_to_num(),
    ),
}


@pytest.mark.parametrize("case", ATTENTION)
def test_attention(case):
    arguments, expected = ATTENTION[case]
    torch.testing.assert_close(FusedSDPA.apply(Q, K, V, *arguments).nan_to_num(), expected())


@pytest.mark.parametrize("side", ["left", "right"])
def test_attention_with_padding(side):
    """What is padding plays no part in the others; eleven arguments."""
    valid = torch.tensor([4, 6], dtype=torch.int32)
    ours = FusedSDPA.apply(Q, K, V, None, 0.0, True, None, "None", True, valid, side)
    for i, length in enumerate(valid.tolist()):
        used = slice(6 - length, 6) if side == "left" else slice(0, length)
        one = [t[i, :, used] for t in (Q, K, V)]
        torch.testing.assert_close(ours[i, :, used], attention(*one, CAUSAL[:length, :length]))
    assert ours.isfinite().all()


def test_attention_with_fewer_heads_of_keys():
    ours = FusedSDPA.apply(Q, K[:, :2], V[:, :2], None, 0.0, True)
    torch.testing.assert_close(
        ours, attention(Q, K[:, :2].repeat_interleave(2, 1), V[:, :2].repeat_interleave(2, 1), CAUSAL)
    )


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"sink": torch.zeros(4)}, NotImplementedError, "FusedSDPA has no sink here"),
        ({"window_size": (2, 0)}, NotImplementedError, "FusedSDPA has no window_size here"),
        ({"return_attn_probs": True}, NotImplementedError, "FusedSDPA has no return_attn_probs here"),
        ({"valid_seq_len": torch.tensor([1, 1])}, ValueError, "only with is_causal=True"),
        ({"seq_padding_type": "top"}, ValueError, 'seq_padding_type must be "left" or "right", not \'top\''),
    ],
)
def test_attention_refuses(options, error, message):
    with pytest.raises(error, match=message):
        FusedSDPA.apply(Q, K, V, **options)


def test_attention_is_ruled_as_torch_s():
    hmp.convert(policy="torch-cpu")
    assert FusedSDPA.apply(Q, K, V).dtype == torch.bfloat16


# --- Rotary positions: each pair of numbers turns by its angle

POSITIONS, WIDTH = 10, 8
ANGLES = torch.outer(torch.arange(POSITIONS, dtype=torch.float32), 10000.0 ** (-torch.arange(0, WIDTH, 2) / WIDTH))


def turned(p, places, pairs):
    """By complex numbers."""
    first, second = (p[..., : WIDTH // 2], p[..., WIDTH // 2 :]) if pairs == "halves" else (p[..., ::2], p[..., 1::2])
    z = torch.complex(first, second) * torch.polar(torch.ones_like(ANGLES[places]), ANGLES[places])
    return torch.cat([z.real, z.imag], -1) if pairs == "halves" else torch.stack([z.real, z.imag], -1).flatten(-2)


HALVES = torch.cat([ANGLES, ANGLES], -1)
NEIGHBOURS = ANGLES.repeat_interleave(2, -1)
PLACES = torch.tensor([[3, 4, 5, 6, 7, 8], [0, 1, 2, 3, 4, 9]])


def test_rotary_positions_by_an_offset():
    ours = RotaryPosEmbeddingHelperV1.apply(Q, HALVES.cos(), HALVES.sin(), 2)
    torch.testing.assert_close(ours, turned(Q, slice(2, 8), "halves"))
    rows = HALVES[:6]
    torch.testing.assert_close(
        RotaryPosEmbeddingHelperV1.apply(Q, rows.cos(), rows.sin(), 0), turned(Q, slice(0, 6), "halves")
    )


@pytest.mark.parametrize("leading", [(), (1, 1)])
def test_rotary_positions_by_place(leading):
    tables = [t.reshape(*leading, POSITIONS, WIDTH) for t in (HALVES.cos(), HALVES.sin())]
    expected = torch.stack([turned(Q[i], PLACES[i], "halves") for i in range(2)])
    torch.testing.assert_close(RotaryPosEmbeddingHelperV2.apply(Q, *tables, PLACES), expected)


def test_rotary_positions_of_neighbours():
    ours = apply_rotary_pos_emb(Q, NEIGHBOURS.cos(), NEIGHBOURS.sin(), None, 1, RotaryPosEmbeddingMode.PAIRWISE)
    torch.testing.assert_close(ours, turned(Q, slice(1, 7), "neighbours"))


# --- The others


@pytest.mark.parametrize("flavor", [0, 1, 2])
def test_softmax(flavor):
    assert torch.equal(CustomSoftmax.apply(Q, flavor), torch.softmax(Q, -1))


def test_rms_norm():
    weight = torch.randn(8)
    expected = Q * torch.rsqrt(Q.square().mean(-1, keepdim=True) + 1e-5) * weight
    torch.testing.assert_close(FusedRMSNorm.apply(Q, weight, 1e-5), expected)


def test_moving_average():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    ema = FusedEMA(model, decay=0.9, updates=1999)
    start = {name: t.clone() for name, t in model.state_dict().items()}
    with torch.no_grad():
        for p in model.parameters():
            p.add_(1.0)
    hmp.convert(policy="hmp")
    ema.update(model)
    hmp.revert()
    d = 0.9 * (1 - math.exp(-1))
    assert ema.updates == 2000
    for name, average in ema.ema.state_dict().items():
        now = model.state_dict()[name]
        expected = d * start[name] + (1 - d) * now if now.is_floating_point() else start[name]
        torch.testing.assert_close(average, expected)
    assert not ema.ema.training
    assert not any(p.requires_grad for p in ema.ema.parameters())


@pytest.mark.parametrize("converted", [False, True], ids=["plain", "converted"])
@pytest.mark.parametrize("step", [SparseSGD, SparseAdagrad])
def test_the_sparse_step_of_dlrm(step, converted):
    """Forward, backward and step of its embedding bags are those of torch's modules with a dense gradient."""
    if converted:
        hmp.convert(policy=hmp.Policy.from_ops(lower=["mul", "div", "sqrt", "add"], rest="first_input"))
    torch.manual_seed(0)
    weights, lr = torch.randn(10, 4), 0.1
    indices, begins = torch.tensor([3, 1, 3, 7, 1, 3, 9], dtype=torch.int32), torch.tensor([0, 2, 2, 5])
    plain = nn.EmbeddingBag.from_pretrained(weights.clone(), freeze=False, mode="sum")
    make = torch.optim.SGD if step is SparseSGD else torch.optim.Adagrad
    optimizer = make(plain.parameters(), lr=lr)

    ours, moments, weight_grad = weights.clone(), torch.zeros(10, 4), torch.zeros(10, 4)
    for _ in range(3):
        expected = plain(indices.long(), begins)
        grad = torch.randn_like(expected)
        expected.backward(grad)

        offsets = torch.cat([begins, torch.tensor([indices.numel()])]).int()
        count, unique, bags, rows = EmbeddingBagPreproc.forward(indices, offsets, 4)
        out = EmbeddingBag.forward(ours, indices, offsets, torch.tensor([offsets.numel(), indices.numel()]), 1)
        torch.testing.assert_close(out, expected.detach())
        used = torch.tensor([count.item() + 1, bags.numel()])
        EmbeddingBag.backward(weight_grad, grad, bags, rows[: used[0]], used, 1)
        step.forward(weight_grad, ours, moments, unique, torch.tensor([lr]), count)
        optimizer.step()
        optimizer.zero_grad()
        torch.testing.assert_close(ours, plain.weight.detach())
    assert (count.item(), unique[:4].tolist(), rows[:5].tolist()) == (4, [1, 3, 7, 9], [0, 2, 5, 6, 7])


def test_an_embedding_bag_is_a_module_still():
    bag = EmbeddingBag(4, 2)
    expected = F.embedding_bag(torch.tensor([0, 1]), bag.weight, torch.tensor([0]), mode="sum")
    assert torch.equal(bag(torch.tensor([0, 1]), torch.tensor([0])), expected)


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64], ids=str)
@pytest.mark.parametrize("options", [{}, {"mode": "mean"}, {"mode": "max"}], ids=["sum", "mean", "max"])
def test_embedding_bag(dtype, options):
    torch.manual_seed(0)
    bag = EmbeddingBag(10, 3, **options)
    indices, offsets = torch.tensor([1, 2, 4, 5, 4, 3], dtype=dtype), torch.tensor([0, 2, 2], dtype=dtype)
    found = bag(*EmbeddingBagPreProc()(indices, offsets))
    rows = [[1, 2], [], [4, 5, 4, 3]]
    fold = {"sum": lambda t: t.sum(0), "mean": lambda t: t.mean(0), "max": lambda t: t.amax(0)}[
        options.get("mode", "sum")
    ]
    expected = torch.stack([fold(bag.weight[row]) if row else torch.zeros(3) for row in rows])
    torch.testing.assert_close(found, expected)
    found.sum().backward()
    assert bag.weight.grad.abs().sum() > 0


@pytest.mark.parametrize("dtype", [F32, torch.complex64, torch.bool], ids=str)
def test_indices_are_integers(dtype):
    with pytest.raises(TypeError, match=f"indices are integers, not {dtype}"):
        EmbeddingBagPreProc()(torch.zeros(2).to(dtype), torch.zeros(1, dtype=torch.int64))


# --- torch.ops.hpu


@pytest.fixture
def hpu():
    ops.define()
    return torch.ops.hpu


@pytest.mark.parametrize(("most", "divisor"), [(1.0, 10.0), (4.0, 2.5), (10.0, 1.0), (50.0, 1.0)])
@pytest.mark.parametrize("dtype", [F32, torch.bfloat16], ids=str)
def test_the_norm_that_lamb_divides_by(hpu, most, divisor, dtype):
    """As BERT's gradient buffer is clipped: ``buffer.div_(norm)``."""
    gradients = [torch.tensor([6.0, 0.0], dtype=dtype), torch.tensor([[8.0]], dtype=dtype)]
    found = hpu.optimizer_lamb_fused_norm(gradients, most)
    assert (found.shape, found.dtype, found.item()) == ((1,), F32, divisor)


@pytest.mark.parametrize("decay", [0.0, 0.1])
@pytest.mark.parametrize("form", ["number", "tensor"])
def test_adamw_steps_as_torch_s(hpu, decay, form):
    """The arguments are those of DeepSpeed's fused Adam; its epsilon is added before the bias is corrected, so none is left here."""
    torch.manual_seed(0)
    weights = [nn.Parameter(torch.randn(3, 2)), nn.Parameter(torch.randn(4))]
    copies = [w.detach().clone() for w in weights]
    averages, squares = ([torch.zeros_like(w) for w in copies] for _ in range(2))
    optimizer = torch.optim.AdamW(weights, lr=0.1, eps=0, weight_decay=decay)
    for step in range(1, 4):
        gradients = [torch.randn_like(w) for w in copies]
        for weight, gradient in zip(weights, gradients, strict=True):
            weight.grad = gradient
        optimizer.step()
        size = torch.tensor([-0.1 * (1 - 0.999**step) ** 0.5 / (1 - 0.9**step)])
        factor = 1 - 0.1 * decay
        rest = (factor,) if form == "number" else (torch.tensor([factor]), factor != 1)
        hpu.optimizer_adamw(gradients, copies, averages, squares, size, 0.9, 0.999, 0.0, *rest)
    torch.testing.assert_close(copies, [w.detach() for w in weights])


E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2


@pytest.mark.parametrize("scale", [None, 4.0, torch.tensor(4.0)], ids=["", "number", "tensor"])
@pytest.mark.parametrize(("dtype", "most"), [(None, 57344.0), (E4M3, 448.0)], ids=["e5m2", "e4m3"])
def test_to_8_bits_and_back(hpu, scale, dtype, most):
    x = torch.tensor([1.0, -0.5, 1e6])
    low, amax = hpu.cast_to_fp8_v2(x, scale, False, True, dtype=dtype)
    by = 1.0 if scale is None else 4.0
    assert (low.dtype, amax.item()) == (dtype or E5M2, 1e6)
    back = hpu.cast_from_fp8(low, None if scale is None else 1 / scale, torch.bfloat16)
    assert (back.dtype, back.tolist()) == (torch.bfloat16, [1.0, -0.5, most / by])


def test_a_product_of_8_bits(hpu):
    a, b, bias, d = torch.eye(2), torch.tensor([[1.0, 2.0], [3.0, 4.0]]), torch.tensor([10.0, 20.0]), torch.ones(2, 2)
    low = [t.to(E4M3) for t in (a, b)]
    found = hpu.fp8_gemm_v2(low[0], False, low[1], True, d, F32, torch.tensor(2.0), torch.tensor(0.5), bias, True)
    assert torch.equal(found, b.t() + bias + d)
    assert hpu.fp8_gemm_v2(*(low[0], True, low[1], False, None), torch.bfloat16, 2.0, 1.0).tolist() == (2 * b).tolist()


def test_rotary_positions_and_softmax_as_ops(hpu):
    cos, sin = torch.randn(1, 1, 6, 8), torch.randn(1, 1, 6, 8)
    pairs = apply_rotary_pos_emb(Q, cos, sin, mode=RotaryPosEmbeddingMode.PAIRWISE)
    assert torch.equal(hpu.rotary_pos_embedding(Q, sin, cos, None, 0, 1), pairs)
    assert torch.equal(hpu.rotary_pos_embedding(Q, sin, cos, None, 0, 0), apply_rotary_pos_emb(Q, cos, sin))
    low = Q.bfloat16()
    found = hpu.softmax_fp8(low, -1, None, None, torch.tensor(0.5))
    assert found.dtype == torch.bfloat16
    assert torch.equal(found, torch.softmax(low * torch.tensor(0.5), -1))
    with pytest.raises(NotImplementedError, match="accepts no input_scale"):
        hpu.softmax_fp8(low, -1, torch.tensor(1.0))


@pytest.mark.parametrize("form", ["keywords", "second half"])
def test_a_mixture_of_experts(hpu, form):
    torch.manual_seed(0)
    x, table, routing = torch.randn(5, 4), torch.tensor([[0, 3], [1, 2], [3, 0], [2, 1], [3, 2]]), torch.rand(5, 2)
    x.requires_grad_()
    w1, w2, w3 = ([torch.randn(size) for _ in range(4)] for size in ((6, 4), (6, 4), (4, 6)))
    first = 2 if form == "second half" else 0
    expected = torch.zeros(5, 4)
    for token in range(5):
        for slot in range(2):
            i = table[token, slot].item()
            if i >= first:
                inner = F.silu(w1[i] @ x[token]) * (w2[i] @ x[token])
                expected[token] += routing[token, slot] * (w3[i] @ inner)
    found = {
        "keywords": lambda: hpu.mixture_of_experts(
            hidden_states=x, expert_routing_table=table, router_weights=routing, w1=w1, w3=w3, w2=w2,
            permuted_weights=True, activation="silu", experts_min=0, experts_max=3,
        ),
        "second half": lambda: hpu.mixture_of_experts(x, table, routing, w1[2:], w2[2:], w3[2:], True, "silu", 2, 3),
    }[form]()  # fmt: skip
    torch.testing.assert_close(found, expected)
    gradient = torch.autograd.grad(found.sum(), x)[0]
    torch.testing.assert_close(gradient, torch.autograd.grad(expected.sum(), x)[0])
    with pytest.raises(ValueError, match=r"must be one of .*'silu'.*, not 'tape'"):
        hpu.mixture_of_experts(x, table, routing, w1, w2, w3, True, "tape")
    with pytest.raises(NotImplementedError, match="needs permuted_weights=True"):
        hpu.mixture_of_experts(x, table, routing, w1, w2, w3, False)


def _packed(numbers: torch.Tensor) -> torch.Tensor:
    """(rows, outputs) of 0 to 15 as (rows, outputs / 8) of int32, as AutoGPTQ, AutoAWQ and Neural Compressor pack them."""
    shifted = numbers.long().unflatten(1, (-1, 8)) << torch.arange(0, 32, 4)
    return shifted.sum(2).to(torch.int32)


@pytest.mark.parametrize("zeros", ["packed", "floats", "none"])
@pytest.mark.parametrize("groups", ["in turn", "by g_idx"])
@pytest.mark.parametrize("dtype", [F32, torch.bfloat16], ids=str)
def test_weights_of_4_bits(hpu, zeros, groups, dtype):
    generator = torch.Generator().manual_seed(0)
    numbers = torch.randint(0, 16, (12, 16), generator=generator)
    zero = torch.randint(0, 16, (3, 16), generator=generator)
    scale = torch.rand(3, 16, generator=generator)
    group = torch.tensor([0] * 4 + [1] * 4 + [2] * 4 if groups == "in turn" else [2, 0, 1] * 4, dtype=torch.int32)
    given = {"packed": _packed(zero), "floats": zero.float(), "none": None}[zeros]
    expected = (numbers - (0 if given is None else zero[group])).float() * scale[group]
    found = hpu.convert_from_uint4(_packed(numbers), scale, given, dtype, *([] if groups == "in turn" else [group]))
    assert found.dtype == dtype
    assert torch.equal(found, expected.to(dtype))


@pytest.mark.parametrize(
    ("packed", "groups", "text"),
    [
        (torch.zeros(12, 2), 3, "expected a packed matrix of int32, not torch.float32"),
        (torch.zeros(4, dtype=torch.int32), 1, r"expected a packed matrix of int32, not torch.int32 of \[4\]"),
        (torch.zeros(12, 2, dtype=torch.int32), 5, r"12 rows are no multiple of the groups of scale \[5, 16\]"),
    ],
    ids=["floats", "one dimension", "groups"],
)
def test_what_is_no_weight_of_4_bits(hpu, packed, groups, text):
    with pytest.raises(ValueError, match=text):
        hpu.convert_from_uint4(packed, torch.ones(groups, 16), None, F32)
