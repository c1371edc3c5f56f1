"""The weight cache under what traces a program: graphs cast for themselves, and follow their weights."""

import pytest
import torch
import torch.nn.functional as F
from cached_weight import BF16, OPTIMIZERS, ROW, X, is_fresh, net, sparse_gradient, use, weight

from habana_mp import hmp

pytestmark = pytest.mark.usefixtures("empty_cache")


class TestTracers:
    def test_a_traced_model_follows_its_weights(self):
        hmp.convert()
        model = net()
        use(model[0].weight)
        traced = torch.jit.trace(model, X)
        assert str(traced.inlined_graph).count("aten::to(") >= 4
        model(X)
        with torch.no_grad():
            model[0].weight[ROW] = 3
        model[2].weight.data[ROW] = 4
        assert torch.equal(traced(X), model(X))
        assert is_fresh(model[0].weight)

    def test_exported_and_traced_graphs_cast(self):
        from torch.fx.experimental.proxy_tensor import make_fx

        hmp.convert()
        model = net()
        model(X)
        graph = make_fx(lambda p, x: F.linear(x, p))(model[0].weight, X)
        assert sum(node.target is torch.ops.aten._to_copy.default for node in graph.graph.nodes) == 2
        exported = torch.export.export(model, (X,)).module()
        expected = model(X)
        assert torch.equal(exported(X), expected)
        with torch.no_grad():
            exported.get_parameter("0.weight")[ROW] = 3
        assert not torch.equal(exported(X), expected)

    @pytest.mark.parametrize("warm", [False, True], ids=["cold", "warm"])
    def test_compiled_code_that_reads_data(self, warm):
        @torch.compile(fullgraph=True, backend="aot_eager")
        def step(p, x):
            p.data.mul_(2)
            return F.linear(x, p.data)

        hmp.convert()
        p = weight()
        if warm:
            use(p)
        before = p.detach().clone()
        for _ in range(2):
            before.mul_(2)
            assert torch.equal(step(p, X), F.linear(X.to(BF16), before.to(BF16)))
            assert is_fresh(p)
            assert torch.equal(p, before)

    @pytest.mark.parametrize("kind", ["sgd-foreach", "adam-foreach", "adam-loop"])
    def test_compiled_optimizers(self, kind):
        hmp.convert()
        p = weight()
        optimizer = OPTIMIZERS[kind]([p])
        step = torch.compile(optimizer.step, backend="aot_eager")  # torch breaks its graph before the update
        for _ in range(3):
            assert is_fresh(p)
            sparse_gradient(p)
            step()
            assert is_fresh(p)

    def test_a_compiled_model_follows_its_weights(self):
        hmp.convert()
        model = net()
        compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
        for value in range(3):
            assert torch.equal(compiled(X), model(X))
            model[0].weight.data[ROW] = value
            assert is_fresh(model[0].weight)

    def test_under_fake_tensors(self):
        from torch._subclasses.fake_tensor import FakeTensorMode

        hmp.convert()
        with FakeTensorMode() as mode:
            p = weight()
            assert F.linear(mode.from_tensor(X), p).dtype == BF16
        assert hmp.cache.info().entries == 0
        with torch.device("meta"):
            q = weight()
        assert F.linear(X.to("meta"), q).dtype == BF16
