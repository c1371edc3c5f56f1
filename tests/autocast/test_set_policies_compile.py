"""hmp.set_policies: compiled models keep the policies of their modules."""

from __future__ import annotations

import pytest
import torch

from habana_mp import hmp

BF16, FP32 = torch.bfloat16, torch.float32
LOW = hmp.Policy.from_ops(lower=["linear"], name="low")
HIGH = hmp.Policy.from_ops(fp32=["linear"], name="high")


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "inductor"])
def test_compiled_models_keep_them_under_convert(backend: str) -> None:
    torch._dynamo.reset()
    model = torch.nn.Sequential(*(torch.nn.Linear(4, 4) for _ in range(4)))
    hmp.set_policies(model, {"1": "fp32", "2": HIGH, "3": LOW})
    hmp.convert(policy=LOW)
    t = torch.ones(2, 4)
    compiled = torch.compile(model, fullgraph=True, backend=backend)
    expected = model(t)
    assert expected.dtype == BF16
    assert compiled(t).dtype == BF16
    assert torch.allclose(compiled(t), expected, atol=0.01)
    assert torch.nn.functional.linear(t, torch.ones(4, 4)).dtype == BF16
    hmp.revert()
    assert compiled(t).dtype == FP32
    torch._dynamo.reset()


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_compiled_models_keep_them(backend: str) -> None:
    torch._dynamo.reset()
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 4), torch.nn.Linear(4, 4))
    hmp.set_policies(model, {"1": "fp32", "2": HIGH})
    compiled = torch.compile(model, fullgraph=True, backend=backend)
    t = torch.ones(2, 4)
    with hmp.autocast("cpu", policy=LOW):
        expected = model(t)
        assert torch.equal(compiled(t), expected)
    assert expected.dtype == FP32
    assert torch.equal(compiled(t), model(t))


def test_a_graph_break_in_a_module() -> None:
    class Breaks(torch.nn.Module):
        def forward(self, t):
            torch._dynamo.graph_break()
            return torch.mm(t, t)

    model = torch.nn.Sequential(Breaks())
    hmp.set_policies(model, {"0": HIGH})
    compiled = torch.compile(model, backend="eager")
    with hmp.autocast("cpu", policy=LOW):
        for _ in range(2):
            assert compiled(torch.ones(4, 4)).dtype == model(torch.ones(4, 4)).dtype
        assert torch.nn.functional.linear(torch.ones(2, 4), torch.ones(4, 4)).dtype == BF16
    assert not torch._C._is_any_autocast_enabled()
