"""Mixed precision for "hpu": torch.autocast, custom functions and GradScaler by that name."""

import pytest
import torch

from habana_mp import hmp
from habana_mp._hpu.mapping import map_hpu, unmap_hpu

pytestmark = pytest.mark.usefixtures("mapped")
X = torch.arange(12.0).reshape(3, 4)


def test_torch_autocast_is_itself_again():
    unmap_hpu()
    with torch.autocast("cpu", torch.bfloat16):
        assert (X @ X.mT).dtype is torch.bfloat16
    assert map_hpu()


def product(x: torch.Tensor) -> torch.dtype:
    return (x @ x.t()).dtype


def test_autocast_casts_as_gaudi_does() -> None:
    with torch.autocast(device_type="hpu", dtype=torch.bfloat16) as region:
        assert product(X) is torch.bfloat16
        assert (X * X).dtype is torch.bfloat16  # torch's own lists leave mul alone
        assert torch.ones(2, dtype=torch.bfloat16).exp().dtype is torch.float32
        assert torch.is_autocast_enabled("hpu")
        assert torch.get_autocast_dtype("hpu") is torch.bfloat16
    assert product(X) is torch.float32
    assert isinstance(region, torch.autocast)
    assert isinstance(region, hmp.autocast)


def test_autocast_takes_an_index() -> None:
    """As torch.autocast("cpu:0") does."""
    with torch.autocast("hpu:0"):
        assert product(X) is torch.bfloat16
        assert torch.softmax(X, -1).dtype is torch.bfloat16, "Gaudi's lists"


def test_autocast_off_and_nested() -> None:
    with torch.autocast("hpu"):
        assert product(X) is torch.bfloat16
        with torch.autocast("hpu", enabled=False):
            assert product(X) is torch.float32
            with torch.autocast("cpu"):
                assert product(X) is torch.bfloat16
                assert (X * X).dtype is torch.float32
        with torch.autocast("cpu", enabled=False):
            assert product(X) is torch.float32
        assert product(X) is torch.bfloat16


def test_autocast_as_decorator() -> None:
    region = torch.autocast("hpu")
    assert region(product)(X) is torch.bfloat16
    assert torch.autocast("habana")(product)(X) is torch.bfloat16
    assert torch.autocast("cpu", enabled=False)(product)(X) is torch.float32
    assert product(X) is torch.float32
    assert torch.autocast("cpu").device == "cpu"
    assert (region.device, region.fast_dtype) == ("hpu", torch.bfloat16)


@pytest.mark.parametrize("arguments", [("hpu", torch.float32), ("habana", torch.float64)], ids=str)
def test_autocast_to_another_dtype_is_refused_with_a_warning(arguments) -> None:
    with pytest.warns(UserWarning, match="is not supported. Disabling autocast"):
        region = torch.autocast(*arguments)
    with region:
        assert product(X) is torch.float32


def test_custom_functions() -> None:
    class Double(torch.autograd.Function):
        @staticmethod
        @torch.amp.custom_fwd(device_type="hpu", cast_inputs=torch.float32)
        def forward(_, x: torch.Tensor) -> torch.Tensor:
            assert x.dtype is torch.float32
            assert product(x) is torch.float32
            return x * 2

        @staticmethod
        @torch.amp.custom_bwd(device_type="hpu")
        def backward(_, grad: torch.Tensor) -> torch.Tensor:
            return grad * 2

    x = torch.ones(2, 2, requires_grad=True)
    with torch.autocast("hpu"):
        Double.apply(x @ x).sum().backward()
    assert x.grad is not None


def test_a_training_step_with_a_scaler() -> None:
    device = torch.device("hpu")
    model = torch.nn.Linear(4, 2).to(device)
    optimizer = torch.optim.AdamW(model.parameters())
    scaler = torch.amp.GradScaler("hpu")
    before = model.weight.detach().clone()
    with torch.autocast("hpu"):
        loss = model(X.to(device)).sum()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    assert scaler.is_enabled()
    assert not torch.equal(before, model.weight)
