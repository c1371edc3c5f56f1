"""hmp.autocast under torch.compile, make_fx, export, vmap and fake tensors: the same results, and no graph for two policies."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch._dynamo.testing import CompileCounter
from torch.fx.experimental.proxy_tensor import make_fx

from habana_mp import hmp

BF16, FP32 = torch.bfloat16, torch.float32
A = hmp.Policy.from_ops(lower=["mm", "add"], fp32=["softmax"], name="a")
B = hmp.Policy.from_ops(lower=["softmax"], fp32=["mm"], name="b")


@pytest.fixture(autouse=True)
def _fresh_dynamo():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()
    assert not torch._C._is_any_autocast_enabled()


def results(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return torch.mm(x, x), torch.add(x, x), torch.softmax(x, 0)


def dtypes(found) -> tuple[torch.dtype, ...]:
    return tuple(tensor.dtype for tensor in found)


def x() -> torch.Tensor:
    return torch.linspace(-1, 1, 16).reshape(4, 4)


REGIONS = {
    "none": (lambda: hmp.autocast("cpu", enabled=False), (FP32, FP32, FP32)),
    "torch": (lambda: torch.autocast("cpu", BF16), (BF16, FP32, FP32)),
    "a": (lambda: hmp.autocast("cpu", policy=A), (BF16, BF16, FP32)),
    "b": (lambda: hmp.autocast("cpu", policy=B), (FP32, FP32, BF16)),
    "preset": (lambda: hmp.autocast("hpu"), (BF16, FP32, BF16)),
}


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_regions_outside_never_share_a_graph(backend: str) -> None:
    compiled = torch.compile(results, fullgraph=True, backend=backend)
    for _ in range(2):
        for region, expected in REGIONS.values():
            with region():
                found = compiled(x())
                eager = results(x())
            assert dtypes(found) == expected
            assert all(map(torch.equal, found, eager))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch's own
def test_inductor() -> None:
    compiled = torch.compile(results, fullgraph=True)
    for region, expected in REGIONS.values():
        with region():
            assert dtypes(compiled(x())) == expected


def test_a_graph_is_used_again() -> None:
    counter = CompileCounter()
    compiled = torch.compile(results, fullgraph=True, backend=counter)
    for _ in range(3):
        for policy in (A, B):
            with hmp.autocast("cpu", policy=policy):
                compiled(x())
    assert counter.frame_count == 2


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("how", ["policy", "preset"])
def test_a_region_inside(backend: str, how: str) -> None:
    given = {"policy": B, "preset": "hpu-autocast"}[how]

    def function(t: torch.Tensor) -> tuple[torch.Tensor, ...]:
        before = results(t)
        with hmp.autocast("cpu", policy=given):
            inside = results(t)
        return *before, *inside, *results(t)

    compiled = torch.compile(function, fullgraph=True, backend=backend)
    eager = function(x())
    found = compiled(x())
    assert dtypes(found) == dtypes(eager)
    assert all(map(torch.equal, found, eager))
    with hmp.autocast("cpu", policy=A):
        assert dtypes(compiled(x())) == dtypes(function(x()))
    assert not torch._C._is_any_autocast_enabled()


def test_a_region_made_outside_and_entered_inside() -> None:
    """Dynamo enters only what it saw made: the graph breaks there, and the results are the same."""
    region = hmp.autocast("cpu", policy=A)

    def function(t: torch.Tensor) -> tuple[torch.Tensor, ...]:
        with region:
            inside = results(t)
        return *inside, *results(t)

    compiled = torch.compile(function, backend="aot_eager")
    assert dtypes(compiled(x())) == (BF16, BF16, FP32, FP32, FP32, FP32)


@pytest.mark.parametrize("dynamic", [None, True], ids=["automatic", "dynamic"])
def test_dynamic_shapes(dynamic) -> None:
    """Weights that are large enough for the weight cache, whose sizes are symbols in a trace."""
    model = torch.nn.Linear(128, 128)
    compiled = torch.compile(model, dynamic=dynamic, backend="aot_eager")
    with hmp.autocast("cpu"):
        for batch in (2, 3, 5):
            t = torch.randn(batch, 128)
            assert torch.equal(compiled(t), model(t))
        graph = make_fx(lambda t: torch.mm(t, t), tracing_mode="symbolic")(torch.randn(128, 128))
    assert graph(torch.randn(64, 64)).dtype == BF16


def test_a_graph_break_inside_a_region() -> None:
    def function(t: torch.Tensor) -> tuple[torch.Tensor, ...]:
        with hmp.autocast("cpu", policy=A):
            if t.sum() > 0:
                return results(t)
            raise ValueError("mine")

    @hmp.autocast("cpu", policy=A)
    def decorated(t: torch.Tensor) -> tuple[torch.Tensor, ...]:
        torch._dynamo.graph_break()
        return results(t)

    compiled = torch.compile(function, backend="aot_eager")
    assert dtypes(compiled(x().abs())) == (BF16, BF16, FP32)
    with pytest.raises(ValueError, match="mine"):
        compiled(-x().abs())
    assert dtypes(torch.compile(decorated, backend="aot_eager")(x())) == (BF16, BF16, FP32)


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_beside_torch_autocast_inside(backend: str) -> None:
    def torchs_in_ours(t: torch.Tensor) -> tuple[torch.Tensor, ...]:
        with hmp.autocast("cpu", policy=B), torch.autocast("cpu", torch.float16):
            return results(t)

    def ours_in_torchs(t: torch.Tensor) -> tuple[torch.Tensor, ...]:
        with torch.autocast("cpu"), hmp.autocast("cpu", policy=B):
            return results(t)

    for function in (torchs_in_ours, ours_in_torchs):
        assert dtypes(torch.compile(function, backend=backend)(x())) == dtypes(function(x()))


def test_higher_order_ops() -> None:
    def function(t: torch.Tensor) -> torch.Tensor:
        return torch.cond(t.sum() > 0, lambda u: u.mm(u), lambda u: u.mm(u).neg(), (t,))

    with hmp.autocast("cpu", policy=A):
        assert torch.compile(function, backend="aot_eager", fullgraph=True)(x()).dtype == BF16


def test_torchscript_casts_nothing_by_itself() -> None:
    """Its own autocast pass knows torch's lists only."""
    script = torch.jit.script(product)
    for _ in range(3):
        with hmp.autocast("cpu", policy=B):
            assert script(x().bfloat16()).dtype == FP32
        with hmp.autocast("cpu", policy=A), hmp.disable_casts():
            assert script(x()).dtype == FP32
        with torch.autocast("cpu"):
            assert script(x()).dtype == BF16


def product(t: torch.Tensor) -> torch.Tensor:
    return torch.mm(t, t)


def test_a_trace_that_fails_inside_a_region_leaves_nothing_behind() -> None:
    def function(t: torch.Tensor) -> torch.Tensor:
        with hmp.autocast("cpu", policy=A):
            torch._dynamo.graph_break()
            return torch.mm(t, t)

    with pytest.raises(torch._dynamo.exc.Unsupported):
        torch.compile(function, fullgraph=True, backend="aot_eager")(x())
    assert dtypes(results(x())) == (FP32, FP32, FP32)
    with torch.autocast("cpu", BF16):
        assert dtypes(results(x())) == (BF16, FP32, FP32)
    assert not torch._C._dispatch_tls_is_dispatch_key_included("TESTING_ONLY_GenericMode")


def test_a_decorated_function_inside() -> None:
    @hmp.autocast("cpu", policy=A)
    def part(t: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return results(t)

    compiled = torch.compile(lambda t: (*part(t), *results(t)), fullgraph=True, backend="aot_eager")
    assert dtypes(compiled(x())) == (BF16, BF16, FP32, FP32, FP32, FP32)


def test_disable_casts_inside() -> None:
    def function(t: torch.Tensor) -> tuple[torch.Tensor, ...]:
        with hmp.disable_casts():
            inside = results(t)
        return *inside, *results(t)

    compiled = torch.compile(function, fullgraph=True, backend="aot_eager")
    with hmp.autocast("cpu", policy=A):
        assert dtypes(compiled(x())) == (FP32, FP32, FP32, BF16, BF16, FP32)


def test_training_gives_the_gradients_of_eager() -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.LayerNorm(8), torch.nn.GELU(), torch.nn.Linear(8, 2))
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    gradients = []
    for run in (model, compiled):
        model.zero_grad()
        with hmp.autocast("hpu"):
            out = run(x())
            loss = torch.nn.functional.mse_loss(out, torch.zeros_like(out))
        loss.backward()
        gradients.append([parameter.grad.clone() for parameter in model.parameters()])
    for ours, theirs in zip(*gradients):
        torch.testing.assert_close(ours, theirs, rtol=2e-2, atol=2e-3)


CACHED = """
import torch
from habana_mp import hmp
def function(t):
    return torch.softmax(torch.mm(t, t), 0)
policy = hmp.Policy.from_ops(lower=[{op!r}])
compiled = torch.compile(function, fullgraph=True)
with hmp.autocast("cpu", policy=policy):
    print(compiled(torch.ones(4, 4)).dtype)
"""


def test_the_cache_on_disk_tells_policies_apart(tmp_path: Path) -> None:
    import os

    found = [
        subprocess.run(
            [sys.executable, "-c", CACHED.format(op=op)],
            capture_output=True,
            text=True,
            check=True,
            env={**os.environ, "TORCHINDUCTOR_CACHE_DIR": str(tmp_path), "TORCHINDUCTOR_FX_GRAPH_CACHE": "1"},
        ).stdout.strip()
        for op in ("softmax", "exp", "softmax")
    ]
    assert found == ["torch.bfloat16", "torch.float32", "torch.bfloat16"]


@pytest.mark.parametrize("pre_dispatch", [False, True], ids=["post", "pre-dispatch"])
def test_make_fx(pre_dispatch: bool) -> None:
    with hmp.autocast("cpu", policy=A):
        graph = make_fx(results, pre_dispatch=pre_dispatch)(x())
    assert dtypes(graph(x())) == (BF16, BF16, FP32)


class Net(torch.nn.Module):
    def forward(self, t: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return results(t)


class NetWithRegion(torch.nn.Module):
    def forward(self, t: torch.Tensor) -> tuple[torch.Tensor, ...]:
        with hmp.autocast("cpu", policy=A):
            return results(t)


@pytest.mark.parametrize("strict", [False, True], ids=["not-strict", "strict"])
def test_export(strict: bool) -> None:
    with hmp.autocast("cpu", policy=A):
        exported = torch.export.export(Net(), (x(),), strict=strict)
    assert dtypes(exported.module()(x())) == (BF16, BF16, FP32)


@pytest.mark.parametrize("strict", [False, True], ids=["not-strict", "strict"])
def test_export_of_a_region(strict: bool) -> None:
    exported = torch.export.export(NetWithRegion(), (x(),), strict=strict)
    assert dtypes(exported.module()(x())) == (BF16, BF16, FP32)


class Attention(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = torch.nn.MultiheadAttention(8, 2, batch_first=True)

    def forward(self, t: torch.Tensor) -> torch.Tensor:
        return self.attention(t, t, t)[0]


class Cat(torch.nn.Module):
    def forward(self, t: torch.Tensor) -> torch.Tensor:
        return torch.cat([torch.mm(t, t), t])


@pytest.mark.parametrize("strict", [False, True], ids=["not-strict", "strict"])
@pytest.mark.parametrize(
    ("model", "given"),
    [(Attention().eval(), torch.randn(2, 4, 8)), (Cat(), torch.randn(4, 4))],
    ids=["python-function-of-torch", "list-of-tensors"],
)
def test_export_of_functions_that_call_others(model, given, strict: bool) -> None:
    with hmp.autocast("cpu"):
        expected = model(given)
        exported = torch.export.export(model, (given,), strict=strict)
    assert torch.equal(exported.module()(given), expected)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch's own, of jvp
def test_vmap_and_grad() -> None:
    """Under torch.func a policy meets the ops that the user called (to torch.autocast, softmax is _softmax and mm matmul there)."""
    batch = torch.stack([x(), x()])
    for policy in (A, B):
        with hmp.autocast("cpu", policy=policy):
            mapped, one_by_one = torch.vmap(results)(batch), [results(t) for t in batch]
        assert dtypes(mapped) == dtypes(one_by_one[0])
        for together, *alone in zip(mapped, *one_by_one, strict=True):
            torch.testing.assert_close(together, torch.stack(alone))
    with hmp.autocast("cpu", policy=A):
        gradient = torch.func.grad(lambda t: torch.mm(t, t).sum().float())(x())
        mapped = torch.vmap(torch.func.grad(lambda t: torch.mm(t, t).sum().float()))(batch)
        _, tangent = torch.func.jvp(lambda t: torch.mm(t, t), (x(),), (x(),))
    assert (gradient.dtype, mapped.dtype, tangent.dtype) == (FP32, FP32, BF16)


def test_jit_trace_and_freeze() -> None:
    """F169, F172, F174"""
    with hmp.autocast("cpu", policy=A, cache_enabled=False):
        traced = torch.jit.trace(Net().eval(), (x(),))
    torch._C._jit_set_autocast_mode(False)
    try:
        frozen = torch.jit.freeze(traced)
    finally:
        torch._C._jit_set_autocast_mode(True)
    assert dtypes(frozen(x())) == dtypes(traced(x())) == (BF16, BF16, FP32)
