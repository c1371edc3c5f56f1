"""torch.compile and TorchScript of code that names the device "hpu"."""

import subprocess
import sys
from collections.abc import Callable

import pytest
import torch

from habana_mp._hpu.mapping import unmap_hpu

pytestmark = pytest.mark.usefixtures("mapped")
X = torch.arange(12.0).reshape(3, 4)


def says_hpu(x: torch.Tensor) -> torch.Tensor:
    device = torch.device("hpu")
    if x.device != device or device.type != "hpu" or not x.is_hpu:
        raise ValueError(x.device)
    with torch.autocast("hpu"):
        y = x.to(device) @ torch.ones(4, 4, device="hpu")
    return y.hpu() + torch.zeros(4, device=torch.device("hpu:0"))


def test_compiled_in_one_graph() -> None:
    compiled = torch.compile(says_hpu, fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(X), says_hpu(X))


@pytest.mark.parametrize("form", ["decorator", "made before"])
def test_compiled_with_a_region_from_outside(form: str) -> None:
    region = torch.autocast("hpu")

    def inside(x: torch.Tensor) -> torch.Tensor:
        with region:
            return x @ x.t()

    function = region(lambda x: x @ x.t()) if form == "decorator" else inside
    torch._dynamo.reset()
    compiled = torch.compile(function, fullgraph=True, backend="aot_eager")
    assert compiled(X).dtype is torch.bfloat16


def test_compiled_again_where_the_names_change() -> None:
    compiled = torch.compile(lambda x: x + torch.zeros(4, device="hpu"), backend="aot_eager")
    assert torch.equal(compiled(X), X)
    assert torch.compiler.config.cache_key_tag == "hpu:cpu "
    unmap_hpu()
    assert torch.compiler.config.cache_key_tag == ""
    with pytest.raises(RuntimeError, match=r"has no attribute .hpu"):
        compiled(X)


def test_compiled_by_the_backend_of_gaudi() -> None:
    model = torch.nn.Linear(4, 2)
    assert torch.allclose(torch.compile(model, backend="hpu_backend")(X), model(X))


BACKENDS = ["hpu_backend", "aot_hpu_training_backend"]


@pytest.mark.parametrize("backend", [*BACKENDS, "aot_hpu_inference_backend"])
def test_dynamo_knows_the_backends_of_gaudi(backend: str) -> None:
    """torch.compile alone knew them. DeepSpeed looks whether a backend is listed."""
    model = torch.nn.Linear(4, 2)
    assert torch.allclose(torch._dynamo.optimize(backend)(model)(X), model(X))
    assert backend in torch._dynamo.list_backends(exclude_tags=())
    unmap_hpu()
    assert backend not in torch._dynamo.list_backends(exclude_tags=())
    with pytest.raises(torch._dynamo.exc.InvalidBackend, match=backend):
        torch.compile(model, backend=backend)


def test_the_backends_of_gaudi_wait_for_dynamo() -> None:
    """Mapped before Dynamo is imported, which takes seconds; and a backend that somebody else has registered stays."""
    program = """
import sys, torch
from habana_mp._hpu.mapping import map_hpu, unmap_hpu
map_hpu()
assert "torch._dynamo" not in sys.modules
from torch._dynamo import list_backends, lookup_backend, register_backend
ours = lookup_backend("hpu_backend")
unmap_hpu()
own = register_backend(lambda graph, inputs: graph, "hpu_backend")
map_hpu()
assert lookup_backend("hpu_backend") is own
assert lookup_backend("aot_hpu_training_backend") is ours
unmap_hpu()
assert lookup_backend("hpu_backend") is own
assert "aot_hpu_training_backend" not in list_backends(exclude_tags=())
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_second_backward_pass_through_what_gaudi_s_backend_compiled(backend: str) -> None:
    """Inductor alone raises here: it gives the buffers of the first pass away. The options are Gaudi's."""
    torch.manual_seed(0)
    weight = torch.randn(4, 4)

    def loss(x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.gelu(x @ weight).tanh().sum()

    torch._dynamo.reset()
    compiled = torch.compile(loss, backend=backend, options={"keep_input_mutations": True})
    once, twice = X.clone().requires_grad_(), X.clone().requires_grad_()
    loss(once).backward()
    found = compiled(twice)
    found.backward(retain_graph=True)
    found.backward()
    assert twice.grad is not None
    assert once.grad is not None
    torch.testing.assert_close(twice.grad, 2 * once.grad)


def test_a_second_backward_pass_after_steps_without_one() -> None:
    """The same function compiled by torch's default before: its graph reuses saved tensors, and no cache hands it to Gaudi's backend."""
    torch.manual_seed(0)
    weight = torch.randn(4, 4)

    def loss(x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.gelu(x @ weight).tanh().sum()

    def gradient(of: Callable[[torch.Tensor], torch.Tensor], passes: int) -> torch.Tensor:
        x = X.clone().requires_grad_()
        found = of(x)
        for left in range(passes, 0, -1):
            found.backward(retain_graph=left > 1)
        assert x.grad is not None
        return x.grad / passes

    torch._dynamo.reset()
    plain = gradient(torch.compile(loss), 1)
    torch._dynamo.reset()
    compiled = torch.compile(loss, backend="hpu_backend")
    for passes in (1, 2, 1, 3):
        torch.testing.assert_close(gradient(compiled, passes), plain)


def test_scripts_may_say_hpu() -> None:
    class Scripted(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.to("hpu") + torch.zeros(4, device=torch.device("hpu:0"))

    assert torch.equal(torch.jit.script(Scripted())(X), X)
