"""Compiled and exported inference takes its weights from the weight cache: nothing is cast per call, and every change is seen."""

from __future__ import annotations

import collections
import contextlib
import copy

import pytest
import torch
import torch._dynamo
from torch import nn
from torch._dynamo.backends.common import aot_autograd
from torch._functorch.aot_autograd import make_boxed_func

from habana_mp import hmp

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch's own, of Inductor
SIZE = 128


class Products(nn.Module):
    """Every product with a weight that has an op of ours."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(SIZE, SIZE)
        self.square = nn.Parameter(torch.randn(SIZE, SIZE) / 11)
        self.bias = nn.Parameter(torch.randn(SIZE))
        self.stack = nn.Parameter(torch.randn(8, SIZE, 32))
        self.conv1d = nn.Conv1d(SIZE, 64, 3, padding=1)
        self.conv2d = nn.Conv2d(16, 32, 3, padding=1)
        self.conv3d = nn.Conv3d(8, 32, 3, padding=1)
        self.transposed = nn.ConvTranspose2d(32, 16, 3)

    def forward(self, x):
        x = self.linear(x) @ self.square
        x = torch.mm(x, self.square) + x.matmul(self.square)
        x = torch.addmm(self.bias, x, self.square)
        signal = self.conv1d(x.t().unsqueeze(0).contiguous())
        batch = torch.bmm(x.expand(8, *x.shape), self.stack)
        image = self.transposed(self.conv2d(x.reshape(1, 16, -1, 8)))
        return x, signal, batch, image, self.conv3d(x.reshape(1, 8, 4, -1, 4))


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(64, 2, SIZE, dropout=0.0, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)

    def forward(self, x):
        return self.layers(x.reshape(2, -1, 64))


MODELS = {"products": Products, "attention": Attention}
FRONT_ENDS = {
    "convert": lambda: hmp.convert() and contextlib.nullcontext(),
    "autocast": lambda: hmp.autocast("cpu"),
    "autocast-hmp": lambda: hmp.autocast("cpu", policy="hmp"),
}
MODES = {"no_grad": torch.no_grad, "inference_mode": torch.inference_mode, "frozen": contextlib.nullcontext}

front_ends = pytest.mark.parametrize("front_end", FRONT_ENDS.values(), ids=FRONT_ENDS)
models = pytest.mark.parametrize("model", MODELS.values(), ids=MODELS)


@pytest.fixture(autouse=True)
def _no_fast_path():
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    yield
    hmp.revert()  # which puts back what it found
    torch.backends.mha.set_fastpath_enabled(before)


def x(rows: int = 16) -> torch.Tensor:
    return torch.randn(rows, SIZE)


def tensors(result):
    return result if isinstance(result, tuple) else (result,)


def assert_same(found, expected) -> None:
    for ours, theirs in zip(tensors(found), tensors(expected), strict=True):
        assert ours.dtype == theirs.dtype
        assert torch.equal(ours, theirs)
        assert ours.stride() == theirs.stride()


class Graphs:
    """A backend that keeps what AOTAutograd has traced, and runs it."""

    def __init__(self) -> None:
        self.all: list[torch.fx.GraphModule] = []
        self.backend = aot_autograd(fw_compiler=self.keep)

    def keep(self, graph, _):
        self.all.append(graph)
        return make_boxed_func(graph.forward)

    def ops(self) -> collections.Counter[str]:
        return collections.Counter(
            str(node.target) for graph in self.all for node in graph.graph.nodes if node.op == "call_function"
        )

    def casts_of_inputs(self) -> list[torch.fx.Node]:
        return [
            node
            for graph in self.all
            for node in graph.graph.nodes
            if node.target is torch.ops.aten._to_copy.default
            and node.args[0].op == "placeholder"
            and node.args[0].meta["val"].numel() >= 4096
        ]


@front_ends
@models
@pytest.mark.parametrize("mode", MODES.values(), ids=MODES)
def test_no_weight_is_cast_in_a_graph(front_end, model, mode):
    graphs, model = Graphs(), model().eval().requires_grad_(mode is not contextlib.nullcontext)
    batch = x(8)  # smaller than any weight
    with front_end(), mode():
        expected = model(batch)
        assert_same(torch.compile(model, backend=graphs.backend, fullgraph=True)(batch), expected)
    assert graphs.casts_of_inputs() == []
    assert any(op.startswith("habana_mp.") for op in graphs.ops())
    assert not any(op.startswith("aten.bmm") for op in graphs.ops())


@front_ends
def test_a_graph_of_training_has_none_of_our_ops(front_end):
    graphs = Graphs()
    with front_end():
        torch.compile(Products(), backend=graphs.backend, fullgraph=True)(x())
    assert not any(op.startswith("habana_mp.") for op in graphs.ops())


@front_ends
@pytest.mark.parametrize("backend", ["eager", "aot_eager", "inductor"])
@pytest.mark.parametrize("dynamic", [None, True], ids=["automatic", "dynamic"])
def test_the_results_are_those_of_eager(front_end, backend, dynamic):
    model = Products().eval()
    with front_end(), torch.no_grad():
        compiled = torch.compile(model, backend=backend, dynamic=dynamic, fullgraph=True)
        for rows in (16, 32, 48):
            batch = x(rows)
            assert_same(compiled(batch), model(batch))


def in_place(model):
    with torch.no_grad():
        model.square.mul_(0.5)


def by_data(model):
    model.square.data.add_(0.25)


def by_state_dict(model):
    model.load_state_dict({name: value * 1.5 for name, value in model.state_dict().items()})


def by_optimizer(model):
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    torch.optim.AdamW(model.parameters(), lr=0.01).step()


def by_fused_optimizer(model):
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    torch.optim.AdamW(model.parameters(), lr=0.01, fused=True).step()


def by_numpy(model):
    model.square.detach().numpy()[:] = 0.125


def by_new_data(model):
    model.square.data = torch.randn(SIZE, SIZE)


CHANGES = [in_place, by_data, by_state_dict, by_optimizer, by_fused_optimizer, by_numpy, by_new_data]


@front_ends
@pytest.mark.parametrize("mode", MODES.values(), ids=MODES)
def test_copies_are_used_again_and_changes_are_seen(front_end, mode):
    model, batch = Products().eval().requires_grad_(mode is not contextlib.nullcontext), x()
    with front_end(), mode():
        compiled = torch.compile(model, fullgraph=True)
        compiled(batch)
        compiled(batch)
        before = hmp.cache.info()
        compiled(batch)
        after = hmp.cache.info()
        assert after.hits > before.hits
        assert (after.misses, after.refreshed) == (before.misses, before.refreshed)
        for change in CHANGES:
            with torch.inference_mode(False):
                change(model)
            assert_same(compiled(batch), model(batch))


@front_ends
def test_an_alias_taken_before_is_known(front_end):
    """In a graph nothing shows who else holds a weight."""
    model, batch = nn.Linear(SIZE, SIZE).requires_grad_(False), x()
    alias = model.weight.numpy()
    with front_end(), torch.no_grad():
        compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
        for value in (0.5, 0.25):
            alias[:] = value
            assert_same(compiled(batch), model(batch))


@front_ends
def test_the_cache_is_not_written_by_a_graph(front_end):
    """The memory of a dead buffer goes to the next result; what an op of ours returns is its own, and its weight no buffer."""

    class Square(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.randn(SIZE, SIZE))

        def forward(self, x):
            for _ in range(4):
                x = torch.relu(x @ self.weight).mul_(0.5).add_(1)
            return x

    model, batch = Square(), x(SIZE)  # all results have the size of the weight
    with front_end(), torch.no_grad():
        compiled = torch.compile(model, fullgraph=True)
        expected = compiled(batch)
        for _ in range(3):
            compiled(batch).zero_()
        assert_same(compiled(batch), expected)
        hmp.cache.clear()
        assert_same(compiled(batch), expected)


@front_ends
@pytest.mark.parametrize("strict", [False, True], ids=["not-strict", "strict"])
@pytest.mark.parametrize("mode", [torch.no_grad, contextlib.nullcontext], ids=["no_grad", "grad"])
@pytest.mark.filterwarnings("ignore")  # torch's own
def test_an_exported_program(front_end, strict, mode):
    model, batch = Products().eval(), x()
    with front_end():
        with mode():
            expected = model(batch)
            program = torch.export.export(model, (batch,), strict=strict)
        ours = str(program.graph).count("habana_mp.")
        assert (ours > 0) == (mode is torch.no_grad)
        run = program.module()
        with torch.no_grad():
            assert_same(run(batch), expected)
    hmp.revert()
    with torch.no_grad():
        assert_same(run(batch), expected)
        assert_same(program.run_decompositions().module()(batch), expected)
    # Also a graph of inference can be differentiated.
    sum(result.float().sum() for result in run(batch)).backward()
    assert all(parameter.grad is not None for parameter in run.parameters())


@front_ends
@pytest.mark.filterwarnings("ignore")  # torch's own
@pytest.mark.parametrize("how", ["config", "options"])
def test_freezing(front_end, how):
    from torch._inductor import config

    model, batch = nn.Sequential(nn.Linear(SIZE, SIZE), nn.ReLU(), nn.Linear(SIZE, SIZE)).eval(), x()
    with front_end(), torch.no_grad(), config.patch(freezing=how == "config"):
        expected = model(batch)
        compiled = torch.compile(model, fullgraph=True, options={"freezing": True} if how == "options" else None)
        torch.testing.assert_close(compiled(batch), expected, rtol=2e-2, atol=2e-2)
        torch.testing.assert_close(compiled(batch), expected, rtol=2e-2, atol=2e-2)


@front_ends
def test_vmap_takes_products_apart(front_end):
    model, batch = nn.Linear(SIZE, SIZE), torch.randn(3, 16, SIZE)
    with front_end(), torch.no_grad():
        compiled = torch.compile(torch.vmap(model), fullgraph=True, backend="aot_eager")
        assert_same(compiled(batch), torch.vmap(model)(batch))


def test_a_model_with_policies_of_its_own():
    graphs, model, batch = Graphs(), nn.Sequential(nn.ReLU(), nn.Linear(SIZE, SIZE)).eval(), x(8)
    hmp.convert()
    hmp.set_policies(model, {"1": "torch-cpu"})
    with torch.no_grad():
        expected = model(batch)
        assert_same(torch.compile(model, backend=graphs.backend, fullgraph=True)(batch), expected)
    assert graphs.casts_of_inputs() == []


def test_without_the_cache_casts_are_traced(monkeypatch):
    monkeypatch.setenv("HABANA_MP_CACHE_BYTES", "0")
    graphs, model, batch = Graphs(), Products().eval(), x(8)
    hmp.convert()
    with torch.no_grad():
        assert_same(torch.compile(model, backend=graphs.backend, fullgraph=True)(batch), model(batch))
    assert not any(op.startswith("habana_mp.") for op in graphs.ops())


def test_an_op_without_a_cache_casts_each_time():
    model, batch = nn.Linear(SIZE, SIZE), x().bfloat16()
    for change in (0.0, 1.0):
        with torch.no_grad():
            model.weight.add_(change)
            found = torch.ops.habana_mp.linear(
                batch, model.weight, model.bias, weight_dtype=torch.bfloat16, int8="", cached=True
            )
            assert_same(found, copy.deepcopy(model).bfloat16()(batch))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int32, torch.float8_e5m2])
def test_an_op_takes_low_dtypes_alone(dtype):
    with pytest.raises(TypeError, match=r"weight_dtype must be torch\.bfloat16 or torch\.float16, not"):
        torch.ops.habana_mp.linear(torch.randn(2, 3), torch.randn(4, 3), weight_dtype=dtype, int8="", cached=True)
