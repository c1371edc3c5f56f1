"""hmp.cast of tensors: gradients, subclasses, other devices and layouts, out, and traced code."""

import pytest
import torch

from habana_mp import hmp

TORCH = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
PAIRS = [(a, b) for a in TORCH for b in TORCH if a != b]


def test_the_cast_of_a_tensor_is_differentiable():
    x = torch.randn(300, 200).t().requires_grad_()
    weight = torch.randn(200, 300)
    (hmp.cast(x, "bfloat16") * weight).sum().backward()
    assert x.grad.dtype == torch.float32
    assert torch.equal(x.grad, weight.bfloat16().float())


def test_a_subclass_keeps_its_type():
    class Mine(torch.Tensor):
        pass

    assert type(hmp.cast(torch.ones(3).as_subclass(Mine), "bfloat16")) is Mine
    parameter = torch.nn.Parameter(torch.ones(3))
    assert type(hmp.cast(parameter, "bfloat16")) is torch.Tensor
    out = torch.zeros(3, dtype=torch.bfloat16).as_subclass(Mine)
    assert hmp.cast(torch.ones(3), "bfloat16", out=out) is out
    assert out.sum() == 3


def test_tensors_elsewhere_and_sparse_ones():
    meta = hmp.cast(torch.ones(3, device="meta"), "bfloat16")
    assert (meta.device.type, meta.dtype) == ("meta", torch.bfloat16)
    out = torch.ones(3, device="meta").half()
    assert hmp.cast(torch.ones(3, device="meta"), "float16", out=out) is out
    assert hmp.cast(torch.eye(3).to_sparse(), "bfloat16").to_dense().equal(torch.eye(3).bfloat16())


@pytest.mark.parametrize("shape", [(5,), (64, 40), (3, 100, 1001), ()], ids=str)
def test_a_tensor_is_cast_into_out(shape):
    for source, to in [*PAIRS, ("float32", "float32")]:
        x = torch.randn(shape).to(TORCH[source])
        wide = torch.zeros((*shape, 2), dtype=TORCH[to])
        for out in (torch.zeros(shape, dtype=TORCH[to]), wide[..., 0]):
            version = out._version
            assert hmp.cast(x, to, out=out) is out
            assert out.equal(x.to(TORCH[to]))
            assert out._version > version, "autograd knows that out was written"
        assert not wide[..., 1].any()


def test_without_grad_out_may_require_it():
    x, out = torch.ones(3, requires_grad=True), torch.zeros(3).half().requires_grad_()
    with torch.no_grad():
        assert hmp.cast(x, "float16", out=out) is out
    assert out.equal(torch.ones(3).half())


def test_policies_and_disable_casts_have_no_say():
    hmp.convert(policy=hmp.Policy.from_ops(fp32=["to", "copy_"], rest="fp32"))
    x = torch.ones(3)
    out = torch.zeros(3).half().as_subclass(type("Mine", (torch.Tensor,), {}))
    assert hmp.cast(x, "bfloat16").dtype == torch.bfloat16
    hmp.cast(x, "float16", out=out)
    assert out.sum() == 3
    with hmp.disable_casts():
        assert hmp.cast(x, "bfloat16").dtype == torch.bfloat16


def test_traced_code_casts():
    def f(x):
        return hmp.cast(hmp.cast(x, "bfloat16") * 2, torch.float32)

    x = torch.randn(4, 5)
    assert torch.compile(f, backend="eager", fullgraph=True)(x).equal(f(x))
    assert torch.jit.trace(f, x)(x + 1).equal(f(x + 1))
    assert torch.func.vmap(f)(x).equal(f(x))
    assert torch.func.grad(lambda x: f(x).sum())(x).equal(torch.full_like(x, 2))
    assert torch.fx.experimental.proxy_tensor.make_fx(f)(x)(x + 1).equal(f(x + 1))

    def g(x, out):
        return hmp.cast(x, "float16", out=out)

    out = torch.zeros(4, 5).half()
    assert torch.compile(g, backend="eager", fullgraph=True)(x, out).equal(x.half())
    assert out.equal(x.half())
