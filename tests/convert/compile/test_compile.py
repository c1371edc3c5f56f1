"""torch.compile, export and fake tensors under convert: no graph break, and the same results."""

import copy

import pytest
import torch
import torch._dynamo
import torch.nn.functional as F
import transformers
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from habana_mp import hmp
from habana_mp._torch_private import VERSION

BF16, FP32 = torch.bfloat16, torch.float32


def block():
    return nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True), torch.randn(2, 6, 16)


def bert():
    config = transformers.BertConfig(
        vocab_size=50, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32,
        max_position_embeddings=16, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    return transformers.BertModel(config), torch.randint(0, 50, (2, 6))


MODELS = {"block": block, "bert": bert}


def flat(result):
    if isinstance(result, torch.Tensor):
        return [result]
    return [t for part in (result.values() if isinstance(result, dict) else result) for t in flat(part)]


def step(model, run, x):
    """Results and gradients of one step."""
    model.zero_grad()
    results = flat(run(x))
    torch.stack([t.float().square().sum() for t in results]).sum().backward()
    return [t.detach() for t in results] + [
        parameter.grad for parameter in model.parameters() if parameter.grad is not None
    ]


def assert_same(ours, expected):
    assert [t.dtype for t in ours] == [t.dtype for t in expected]
    assert all(map(torch.equal, ours, expected))


class TestFullGraph:
    @pytest.mark.parametrize(
        ("name", "policy", "backend"),
        [
            ("block", "hmp", "eager"),
            ("block", "hmp", "aot_eager"),
            ("block", "hmp-o1", "aot_eager"),
            ("block", "hmp-resnet50", "aot_eager"),
            ("block", "hmp-o2", "aot_eager"),
            ("bert", "hmp", "eager"),
            ("bert", "hmp-o2", "aot_eager"),
        ],
    )
    def test_equals_eager(self, name, policy, backend):
        model, x = MODELS[name]()
        hmp.convert(policy=policy)
        expected = step(model, model, x)
        assert_same(step(model, torch.compile(model, backend=backend, fullgraph=True), x), expected)

    def test_inductor(self):
        layer, x = nn.Linear(4, 4), torch.randn(2, 4)
        hmp.convert()
        with torch.no_grad():
            expected = [F.gelu(layer(x)), x.mm(x.t())]
            ours = torch.compile(lambda x: [F.gelu(layer(x)), x.mm(x.t())], fullgraph=True)(x)
        assert [t.dtype for t in ours] == [t.dtype for t in expected] == [BF16, BF16]
        for our, other in zip(ours, expected, strict=True):
            torch.testing.assert_close(our, other)

    def test_evaluation(self):
        model, x = block()
        model.eval()
        hmp.convert()
        with torch.no_grad():
            expected = flat(model(x))
            assert_same(flat(torch.compile(model, backend="aot_eager", fullgraph=True)(x)), expected)

    @pytest.mark.parametrize("backend", ["eager", "aot_eager"])
    def test_every_way_to_call_an_op_f134(self, backend):
        a, b = torch.randn(4, 4), torch.randn(4, 4)
        layer, norm = nn.Linear(4, 4), nn.LayerNorm(4)

        def model(a, b):
            low = torch.mm(a, b)
            c = a.clone()
            c += low
            unbound = (
                torch.mm if VERSION < (2, 12) else torch.Tensor.mm
            )  # which breaks the graph there (docs/limits.md)
            return (
                low, a.mm(b), a @ b, unbound(a, b), layer(a), F.linear(input=a, weight=b), norm(low),
                F.softmax(low, -1), low.softmax(-1), torch.cat([low, a]), torch.stack((a, low)), low + a, a * low, 1 / low, low / 2,
                2 - low, F.mse_loss(low, a), F.normalize(a), torch.where(a > 0, low, a), F.relu(low.clone(), inplace=True), c,
                F.dropout(a, 0.5, training=False), torch.bmm(a[None], b[None]), F.softmax(low, -1, dtype=torch.float32),
                torch.mm(a.double(), b.double()), torch.einsum("ij,jk->ik", low, b), F.pad(low, (1, 1)),
            )  # fmt: skip

        hmp.convert()
        expected = model(a, b)
        assert_same(torch.compile(model, backend=backend, fullgraph=True)(a, b), expected)

    @pytest.mark.parametrize(
        "layer",
        [
            lambda: nn.Sequential(
                nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.ReLU(inplace=True), nn.MaxPool2d(2), nn.Flatten()
            ),
            lambda: nn.Sequential(nn.ConvTranspose2d(2, 4, 3), nn.GroupNorm(2, 4), nn.LeakyReLU(inplace=True)),
            lambda: nn.Sequential(
                nn.Conv2d(2, 4, 3), nn.InstanceNorm2d(4, affine=True), nn.GELU(), nn.AdaptiveAvgPool2d(1)
            ),
        ],
        ids=["conv-batch_norm", "conv_transpose-group_norm", "conv-instance_norm"],
    )
    def test_layers(self, layer):
        model, x = layer(), torch.randn(2, 2, 8, 8)
        other = copy.deepcopy(model)
        hmp.convert()
        expected = step(model, model, x)
        assert_same(step(other, torch.compile(other, backend="aot_eager", fullgraph=True), x), expected)
        assert_same(list(other.buffers()), list(model.buffers()))

    def test_the_training_step_with_the_optimizer(self):
        layer = nn.Linear(4, 4)
        optimizer = torch.optim.SGD(layer.parameters(), 0.1)
        x = torch.randn(2, 4)

        def training_step(x):
            optimizer.zero_grad()
            loss = F.mse_loss(layer(x), torch.zeros(2, 4))
            loss.backward()
            with hmp.disable_casts():
                optimizer.step()
            return loss

        hmp.convert()
        start = copy.deepcopy(layer.state_dict())
        expected = [training_step(x).dtype, *(p.detach().clone() for p in layer.parameters())]
        layer.load_state_dict(start)
        ours = [torch.compile(training_step, backend="eager")(x).dtype, *layer.parameters()]
        assert ours[0] == expected[0] == BF16
        assert all(map(torch.equal, ours[1:], expected[1:]))


class TestDisableCastsInside:
    @pytest.mark.parametrize("backend", ["eager", "aot_eager"])
    def test_a_region(self, backend):
        def function(a):
            before = torch.mm(a, a)
            with hmp.disable_casts():
                inside = torch.mm(a, a), a @ a, F.softmax(a.bfloat16(), -1)
                with hmp.disable_casts():
                    inside = (*inside, torch.mm(a, a))
                inside = (*inside, torch.mm(a, a))
            return before, *inside, a @ a

        a = torch.randn(4, 4)
        hmp.convert()
        expected = function(a)
        assert [t.dtype for t in expected] == [BF16, FP32, FP32, BF16, FP32, FP32, BF16]
        assert_same(torch.compile(function, backend=backend, fullgraph=True)(a), expected)
        assert torch.mm(a, a).dtype == BF16

    def test_a_decorated_function(self):
        @hmp.disable_casts()
        def off(a):
            return torch.mm(a, a)

        def function(a):
            return off(a), torch.mm(a, a)

        hmp.convert()
        compiled = torch.compile(function, backend="eager", fullgraph=True)
        for _ in range(3):
            assert [t.dtype for t in compiled(torch.ones(2, 2))] == [FP32, BF16]

    def test_compiled_function_decorated_outside(self):
        hmp.convert()
        compiled = torch.compile(lambda a: torch.mm(a, a), backend="eager", fullgraph=True)
        assert hmp.disable_casts()(compiled)(torch.ones(2, 2)).dtype == FP32
        assert compiled(torch.ones(2, 2)).dtype == BF16

    def test_an_instance_made_outside(self):
        """Dynamo takes no context manager that was made outside: the function runs as it is."""
        off = hmp.disable_casts()

        def function(a):
            with off:
                return torch.mm(a, a)

        hmp.convert()
        compiled = torch.compile(function, backend="eager")
        for _ in range(3):
            assert compiled(torch.ones(2, 2)).dtype == FP32
        assert torch.mm(torch.ones(2, 2), torch.ones(2, 2)).dtype == BF16

    def test_an_exception_inside(self):
        @torch.compile(backend="eager", fullgraph=True)
        def function(a):
            try:
                with hmp.disable_casts():
                    int("none")
            except ValueError:
                return torch.mm(a, a)

        hmp.convert()
        assert function(torch.ones(2, 2)).dtype == BF16

    def test_a_graph_break_inside(self):
        seen = []

        @torch._dynamo.disable
        def look(a):
            seen.append(torch.mm(a, a).dtype)

        def function(a):
            with hmp.disable_casts():
                first = torch.mm(a, a)
                look(a)
                second = torch.mm(a, a)
            look(a)
            return first, second, torch.mm(a, a)

        hmp.convert()
        compiled = torch.compile(function, backend="eager")
        for _ in range(2):
            assert [t.dtype for t in compiled(torch.ones(2, 2))] == [FP32, FP32, BF16]
        assert seen == [FP32, BF16] * 2

    def test_without_a_conversion(self):
        def function(a):
            with hmp.disable_casts():
                return torch.mm(a, a)

        assert torch.compile(function, backend="eager", fullgraph=True)(torch.ones(2, 2)).dtype == FP32


def kinds(graph):
    return [node.target for node in graph.nodes if node.op == "call_function"]


class TestOtherTracers:
    CASTS = torch.ops.aten._to_copy.default

    def test_make_fx(self):
        a, b = torch.randn(4, 4), torch.randn(4, 4)

        def function(a, b):
            low = a @ b
            with hmp.disable_casts():
                return F.softmax(low, -1) + a

        hmp.convert()
        expected = function(a, b)
        for mode in ("real", "fake", "symbolic"):
            traced = make_fx(function, tracing_mode=mode)(a, b)
            assert kinds(traced.graph).count(self.CASTS) == 2, mode
            hmp.revert()
            assert_same([traced(a, b)], [expected])
            hmp.convert()

    @pytest.mark.filterwarnings("ignore:`isinstance.treespec:FutureWarning")  # torch.export's own
    @pytest.mark.parametrize("strict", [False, True], ids=["non-strict", "strict"])
    def test_export(self, strict):
        model, x = (
            nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.ReLU(), nn.Linear(8, 2), nn.Softmax(-1)),
            torch.randn(3, 4),
        )
        hmp.convert()
        expected = model(x)
        exported = torch.export.export(model, (x,), strict=strict)
        lowered = exported.run_decompositions()
        hmp.revert()
        for program in (exported, lowered):
            assert_same([program.module()(x)], [expected])

    def test_fake_tensors_d35(self):
        hmp.convert()
        layer = nn.Linear(4, 4)
        with FakeTensorMode(allow_non_fake_inputs=True):
            x = torch.randn(2, 4)
            with torch.device("meta"):
                meta = nn.Linear(4, 4)(torch.empty(2, 4))
            seen = [layer(x), x @ x.t(), F.softmax(layer(x), -1), x.mm(x.t())]
            with hmp.disable_casts():
                seen.append(x @ x.t())
        assert [t.dtype for t in seen] == [BF16, BF16, FP32, BF16, FP32]
        assert (meta.dtype, meta.device.type) == (BF16, "meta")

    def test_fake_step(self):
        hmp.convert()
        with FakeTensorMode():
            model = nn.Sequential(
                nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(inplace=True), nn.Flatten(), nn.Linear(144, 2)
            )
            F.cross_entropy(model(torch.randn(2, 3, 8, 8)), torch.zeros(2, dtype=torch.long)).backward()
        assert {parameter.grad.dtype for parameter in model.parameters()} == {FP32}

    def test_symbolic_trace_of_fx(self):
        """fx records the call of torch's op, which casts where the graph runs."""
        hmp.convert()
        traced = torch.fx.symbolic_trace(nn.Sequential(nn.Linear(4, 4), nn.Softmax(-1)))
        x = torch.randn(2, 4)
        assert traced(x).dtype == FP32

        def function(a, b):
            return torch.mm(a, b) + a.mm(b) + F.linear(a, b)

        a = torch.randn(4, 4)
        expected = function(a, a)
        traced = torch.fx.symbolic_trace(function)
        assert torch.equal(traced(a, a), expected)
        hmp.revert()
        assert traced(a, a).dtype == FP32
