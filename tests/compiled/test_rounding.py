"""D55: code that Inductor compiles under a policy gives the bits of uncompiled code, forward and backward; "fused" is Inductor's way."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

import pytest
import torch
import torch.nn.functional as F
from drawn_models import converted
from torch import nn
from torch._dynamo.utils import counters
from torch._inductor import compile_fx, config
from torch._inductor.utils import fresh_cache

from habana_mp import hmp
from habana_mp._compiled import formulas
from habana_mp._torch_private import VERSION

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch's own

BF16, FP32 = torch.bfloat16, torch.float32
LISTS = {"lower": ["mul", "gelu", "linear", "sum"], "fp32": ["softmax", "add"]}
EXACT = hmp.Policy.from_ops(**LISTS, name="exact")
FUSED = hmp.Policy.from_ops(**LISTS, compiled="fused", name="fused")


FRONT_ENDS: dict[str, Callable[[hmp.Policy | str], AbstractContextManager]] = {
    "convert": lambda policy: converted(policy=policy),
    "autocast": lambda policy: hmp.autocast("cpu", policy=policy),
}


def a(*shape: int) -> torch.Tensor:
    return torch.randn(*(shape or (16, 64)))


def with_gradients(function, *given: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """The result, and the gradients of what it is made of."""
    leaves = [tensor.detach().requires_grad_() for tensor in given]
    result = function(*leaves)
    weights = torch.linspace(-1, 1, result.numel()).view(result.shape)
    return result.detach(), *torch.autograd.grad((result.float() * weights).sum(), leaves)


# The chains of the lists above, all in one fused kernel. The last ones end in float32.
CHAINS: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "mul": torch.mul,
    "mul, gelu": lambda x, y: F.gelu(torch.mul(x, y)),
    "mul, add": lambda x, y: torch.add(torch.mul(x, y), y),
    "sum, mul": lambda x, y: torch.mul(torch.sum(x, -1, keepdim=True), y),
}


@pytest.mark.parametrize("chain", CHAINS)
@pytest.mark.parametrize("front_end", FRONT_ENDS)
def test_bits_of_a_chain(front_end: str, chain: str) -> None:
    function, given = CHAINS[chain], (a(), a())
    with FRONT_ENDS[front_end](EXACT):
        expected = with_gradients(function, *given)
        found = with_gradients(torch.compile(function, fullgraph=True), *given)
    # The tail of gelu's gradient is the rest of two terms: kernels of other CPUs take another erf and exp there.
    tail = 1e-7 if "gelu" in chain else 0.0
    for one, other in zip(found, expected, strict=True):
        assert one.dtype == other.dtype
        assert (one - other).abs().max() <= tail


@pytest.mark.parametrize("front_end", FRONT_ENDS)
def test_mul_under_hmp(front_end: str) -> None:
    """The residual product of two float32 tensors: without its roundings it was off by 0.0032."""
    given = (a(), a())
    with FRONT_ENDS[front_end]("hmp"):
        expected = torch.mul(*given)
        found = torch.compile(torch.mul)(*given)
    assert expected.dtype == BF16
    assert torch.equal(found, expected)


@pytest.mark.parametrize("front_end", FRONT_ENDS)
def test_mul_softmax_mul(front_end: str) -> None:
    """Softmax adds up in another order, so only its own error is left."""

    def function(x, y):
        return torch.mul(torch.softmax(torch.mul(x, y), -1), y).float()

    given = (a(), a())
    with FRONT_ENDS[front_end](EXACT):
        expected = with_gradients(function, *given)
        found = with_gradients(torch.compile(function, fullgraph=True), *given)
    for one, other in zip(found, expected, strict=True):
        assert (one != other).float().mean() < 0.01  # a number on the edge of two bfloat16 ones may take the other
        assert (one - other).norm() < 1e-3 * other.norm()


PRODUCTS = {"a row": ((8, 1, 8), (8, 8, 16)), "a column": ((8, 16, 8), (8, 8, 1)), "a number": ((8, 1, 8), (8, 8, 1))}


@pytest.mark.parametrize("shapes", PRODUCTS.values(), ids=PRODUCTS)
@pytest.mark.parametrize("front_end", FRONT_ENDS)
def test_a_product_of_one_row_is_rounded_once(front_end: str, shapes) -> None:
    """As attention has it for each token that is generated: Inductor has a product and a sum for it, and each product was rounded."""
    given = tuple(a(*shape) for shape in shapes)
    with FRONT_ENDS[front_end]("hmp"):
        expected = with_gradients(torch.bmm, *given)
        found = with_gradients(torch.compile(torch.bmm, fullgraph=True), *given)
    assert expected[0].dtype == BF16
    for one, other in zip(found, expected, strict=True):
        assert (one != other).float().mean() < 0.02  # a sum in another order may take the other of two neighbours
        assert (one.float() - other.float()).norm() < 1e-3 * other.float().norm()


@pytest.mark.parametrize("grad", [False, True], ids=["no_grad", "grad"])
@pytest.mark.parametrize("front_end", FRONT_ENDS)
def test_attention_by_hand_stays_what_it_is(front_end: str, grad: bool) -> None:
    """Inductor took it for attention, whose kernel keeps the scores in float32: pvt, canine and rembert were off by 0.003."""
    x = torch.randn(2, 64, 32, requires_grad=grad)
    projections = [torch.randn(32, 32) for _ in range(3)]

    def attention(x: torch.Tensor) -> torch.Tensor:
        q, k, v = (F.linear(x, weight).view(2, 64, 4, 8).transpose(1, 2) for weight in projections)
        scores = torch.matmul(q, k.transpose(-1, -2)) / 8**0.5
        return torch.matmul(F.softmax(scores, dim=-1), v).permute(0, 2, 1, 3).reshape(2, 64, 32)

    counters.clear()
    with FRONT_ENDS[front_end]("balanced"), torch.set_grad_enabled(grad), config.patch(fx_graph_cache=False):
        expected, found = attention(x), torch.compile(attention)(x)
    assert counters["inductor"]["fuse_attention"] == 0
    assert (found != expected).float().mean() < 0.01


@pytest.mark.parametrize("front_end", FRONT_ENDS)
def test_fused_leaves_roundings_out(front_end: str) -> None:
    function, given = CHAINS["mul, add"], (a(), a())
    with FRONT_ENDS[front_end](FUSED):
        expected = function(*given)
        found = torch.compile(function, fullgraph=True)(*given)
    with_torch_alone = torch.compile(lambda x, y: (x.bfloat16() * y.bfloat16()).float() + y)(*given)
    assert not torch.equal(found, expected)
    assert torch.equal(found, with_torch_alone)


def test_the_settings_of_torch_stay() -> None:
    function, given = CHAINS["mul"], (a(), a())
    seen = []

    def inner(graph, *args, **kwargs):
        seen.append(config.emulate_precision_casts)
        return torch._inductor.compile_fx.compile_fx_inner(graph, *args, **kwargs)

    def backend(graph, inputs):
        return torch._inductor.compile_fx.compile_fx(graph, inputs, inner_compile=inner)

    compiled = torch.compile(function, backend=backend)
    with fresh_cache():
        with hmp.autocast("cpu", policy=EXACT):
            result, *_ = with_gradients(compiled, *given)
        assert result.dtype == BF16
        assert not config.emulate_precision_casts
        with hmp.autocast("cpu", policy=FUSED):
            with_gradients(compiled, *given)
        with config.patch(emulate_precision_casts=True), hmp.autocast("cpu", policy=FUSED):
            torch._dynamo.reset()
            with_gradients(compiled, *given)
    assert seen == [True, True, False, False, True, True]


@pytest.mark.parametrize("scope", [nullcontext, lambda: torch.autocast("cpu")], ids=["none", "torch.autocast"])
def test_code_under_no_policy_of_ours_is_as_before(scope) -> None:
    """After a conversion and a region in this process."""
    with converted(policy=EXACT), hmp.autocast("cpu", policy=EXACT):
        pass

    def function(x, y):
        return (x.bfloat16() * y.bfloat16()).float() + torch.mm(x, y.t()).sum()

    given = (a(), a())
    with scope():
        found = torch.compile(function)(*given)
        torch._dynamo.reset()
        with config.patch(emulate_precision_casts=True):
            rounded = torch.compile(function)(*given)
    assert torch.equal(found, rounded) == (VERSION < (2, 13))  # whose setting leaves these roundings out, too


@pytest.mark.parametrize("policy", [EXACT, FUSED], ids=["exact", "fused"])
def test_a_region_inside(policy: hmp.Policy) -> None:
    def function(x, y):
        with hmp.autocast("cpu", policy=policy):
            return torch.add(torch.mul(x, y), y)

    given = (a(), a())
    found = with_gradients(torch.compile(function, fullgraph=True), *given)
    assert all(map(torch.equal, found, with_gradients(function, *given))) == (policy == EXACT)


def test_policies_of_modules_in_a_model_without_another() -> None:
    class Chain(nn.Module):
        def forward(self, x, y):
            return torch.add(torch.mul(x, y), y)

    model, given = Chain(), (a(), a())
    hmp.set_policies(model, {"": EXACT})
    for policy, same in ((EXACT, True), (FUSED, True)):  # one that wants its roundings is enough for a graph
        torch._dynamo.reset()
        wrapped = torch.compile(lambda x, y: model(x, y).clone(), fullgraph=True)
        with hmp.autocast("cpu", policy=policy):
            assert torch.equal(wrapped(*given), model(*given)) is same


def test_the_caches_on_disk_hold_both() -> None:
    function, given = CHAINS["mul, add"], (a(), a())

    def found(policy: hmp.Policy) -> tuple[torch.Tensor, int]:
        torch._dynamo.reset()
        counters.clear()
        with hmp.autocast("cpu", policy=policy):
            return torch.compile(function, fullgraph=True)(*given), counters["aot_autograd"]["autograd_cache_hit"]

    with fresh_cache():
        exact, fused, exact_again, fused_again = (found(policy) for policy in (EXACT, FUSED, EXACT, FUSED))
    assert [hits for _, hits in (exact, fused, exact_again, fused_again)] == [0, 0, 1, 1]
    assert not torch.equal(exact[0], fused[0])
    assert torch.equal(exact[0], exact_again[0])
    assert torch.equal(fused[0], fused_again[0])


def test_the_gradient_of_overlapping_windows_is_rounded_once() -> None:
    """The uncompiled kernel of max_pool2d adds them in bfloat16. No list asks for that."""
    x = a(2, 8, 28, 28).bfloat16()

    def pool(x: torch.Tensor) -> torch.Tensor:
        return F.max_pool2d(x, 3, 2, 1)

    _, in_float64 = with_gradients(pool, x.double())
    with hmp.autocast("cpu", policy=EXACT):
        _, found = with_gradients(torch.compile(pool), x)
        _, uncompiled = with_gradients(pool, x)
    assert 0 < (found.float() - uncompiled.float()).norm() < 0.004 * uncompiled.float().norm()
    assert (found != in_float64.bfloat16()).sum() < (uncompiled != in_float64.bfloat16()).sum()


def block() -> nn.Module:
    return nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, activation="gelu", batch_first=True, norm_first=True)


def test_the_caches_of_a_backward_pass() -> None:
    """It is compiled later, and its keys have the tag of our formulas, too."""
    tags = {}

    def inner(graph, *args, is_backward=False, **kwargs):
        tags[is_backward] = torch.compiler.config.cache_key_tag
        return compile_fx.compile_fx_inner(graph, *args, is_backward=is_backward, **kwargs)

    def backend(graph, example):
        return compile_fx.compile_fx(graph, example, inner_compile=inner)

    x = a().requires_grad_()
    with hmp.autocast("cpu", policy=EXACT), torch._functorch.config.patch(enable_autograd_cache=False):
        torch.compile(lambda x: F.gelu(torch.mul(x, x)), backend=backend)(x).sum().backward()
    assert {backward: tag.endswith(formulas._tag()) for backward, tag in tags.items()} == {False: True, True: True}
    assert torch.compiler.config.cache_key_tag == ""


def test_caches_on_disk_of_another_version_are_not_taken(monkeypatch) -> None:
    """Their keys do not have the formulas: gradients were off by 0.0024 after an older version, or torch alone, had compiled the same graph."""
    norm, x = nn.LayerNorm(64), a(16, 64).bfloat16()

    def step() -> tuple[torch.Tensor, int]:
        torch._dynamo.reset()
        counters.clear()
        result, *_ = with_gradients(torch.compile(lambda x: norm(x).float(), fullgraph=True), x)
        return result, counters["aot_autograd"]["autograd_cache_hit"]

    with fresh_cache(), hmp.autocast("cpu", policy=EXACT):
        with monkeypatch.context() as patch:
            patch.setattr(formulas, "exact", nullcontext)
            of_torch = [step() for _ in range(2)]
        ours = [step() for _ in range(2)]
        with monkeypatch.context() as patch:
            patch.setattr(formulas, "_tag", lambda: " another version")
            other = step()
    assert [hits for _, hits in (*of_torch, *ours, other)] == [0, 1, 0, 1, 0]


def test_with_fused_too_another_version_is_not_taken(monkeypatch) -> None:
    """Kernels decide what a graph has: casts of a weight, or an op of ours. Code of an older build was taken."""
    layer, x, hits = nn.Linear(64, 64), a(16, 64), []
    with fresh_cache(), torch.no_grad(), hmp.autocast("cpu", policy=FUSED):
        for version in (None, None, " another version"):
            with monkeypatch.context() as patch:
                if version:
                    patch.setattr(formulas, "_tag", lambda: " another version")
                torch._dynamo.reset()
                counters.clear()
                torch.compile(lambda x: F.gelu(layer(x)), fullgraph=True)(x)
                hits.append(counters["aot_autograd"]["autograd_cache_hit"])
    assert hits == [0, 1, 0]


@pytest.mark.parametrize("policy", ["hmp", "balanced"])
@pytest.mark.parametrize("front_end", FRONT_ENDS)
def test_a_transformer_block(front_end: str, policy: str) -> None:
    model, x = block(), a(2, 8, 32)

    def step(run) -> dict[str, torch.Tensor]:
        model.zero_grad()
        result = run(x)
        result.float().square().mean().backward()
        return {
            "result": result.detach().float(),
            **{name: each.grad.clone() for name, each in model.named_parameters()},
        }

    def error(found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor], of_norms: bool) -> float:
        names = [name for name in expected if name.startswith("norm") == of_norms]
        return max(float((found[name] - expected[name]).norm() / expected[name].norm()) for name in names)

    exact = hmp.Policy.load(policy)
    fused = hmp.Policy.load(str(exact).replace(" lower=", " compiled=fused lower=", 1))
    errors, of_norms = {}, {}
    for each in (exact, fused):
        torch._dynamo.reset()
        with FRONT_ENDS[front_end](each):
            expected, found = step(model), step(torch.compile(model, fullgraph=True))
        errors[each.compiled], of_norms[each.compiled] = (error(found, expected, norms) for norms in (False, True))
        if each.compiled == "exact":
            assert policy == "balanced" or torch.equal(found["result"], expected["result"])
    assert errors["exact"] < 1e-5
    assert errors["exact"] <= errors["fused"]
    # The uncompiled kernel adds up the gradients of a layer_norm in bfloat16, which hmp lowers; compiled code does it in float32.
    assert of_norms["exact"] < (1e-5 if policy == "balanced" else 1e-2)
