"""The autograd node of a cast and the memory of its result: as Tensor.to in all that can be seen but the name (D34), and the gradient of a
leaf in the leaf's own layout.
"""

import gc
import itertools
import subprocess
import sys
import threading
import warnings
import weakref

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.autograd import forward_ad
from torch.func import functional_call, grad, hessian, jacfwd, jacrev, jvp, vjp, vmap

from habana_mp import hmp

BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32
PAIRS = [(FP32, BF16), (FP32, FP16), (BF16, FP32), (FP16, FP32), (BF16, FP16), (FP16, BF16)]
LARGE = 1 << 24  # elements: 32 MiB in a low dtype, from where memory is reused

pairs = pytest.mark.parametrize(("source", "to"), PAIRS, ids=lambda dtype: str(dtype).removeprefix("torch."))


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)
    hmp.cache.clear()


def theirs(x, to):
    return x.to(to)


def numbers(*sizes):
    return torch.linspace(-3, 5, max(1, torch.Size(sizes).numel()))[: torch.Size(sizes).numel()].view(sizes)


class TestName:
    """D34: what draws a graph prints type(node).__name__ or node.name()."""

    def test_the_node_of_a_cast(self):
        node = hmp.cast(numbers(3).requires_grad_(), BF16).grad_fn
        assert type(node).__name__ == "CopyBackwards"
        assert node.name() == "CopyBackwards"
        assert repr(node).startswith("<CopyBackwards object at 0x")

    @pytest.mark.parametrize("size", [4, 128], ids=["small-weight", "cached-weight"])
    def test_the_nodes_below_an_op(self, size):
        """Input, weight and bias of a linear, as torchviz would print them; nothing for what needs no gradient."""
        hmp.convert()
        layer = nn.Linear(size, size)
        for x, expected in (
            (numbers(2, size).requires_grad_(), ["CopyBackwards", "CopyBackwards", "TBackward0"]),
            (numbers(2, size), ["CopyBackwards", "None", "TBackward0"]),
        ):
            node = layer(x).grad_fn
            names = [type(next_node).__name__.removesuffix("Type") for next_node, _ in node.next_functions]
            assert names == expected
            (below,) = node.next_functions[2][0].next_functions
            assert type(below[0]).__name__ == "CopyBackwards"
            assert below[0].next_functions[0][0].variable is layer.weight

    def test_it_has_what_a_node_of_torch_has(self):
        x = numbers(3).requires_grad_()
        node, other = hmp.cast(x, BF16).grad_fn, x.to(BF16).grad_fn
        assert set(dir(other)) <= set(dir(node))
        assert node.metadata == {}
        node.metadata["key"] = 1
        assert node.metadata == {"key": 1}
        assert node.requires_grad
        assert isinstance(node._sequence_nr(), int)
        assert node.next_functions[0][0].variable is x
        assert [tuple(meta.shape) for meta in node._input_metadata] == [(3,)]
        assert isinstance(node, torch.autograd.graph.Node)

    def test_one_type_and_one_object_for_a_node(self):
        y = hmp.cast(numbers(3).requires_grad_(), BF16)
        z = hmp.cast(numbers(3).requires_grad_(), FP16)
        assert type(y.grad_fn) is type(z.grad_fn)
        assert y.grad_fn is y.grad_fn
        assert y.grad_fn is not z.grad_fn

    @pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
    def test_no_node_where_none_is_needed(self, mode):
        x = numbers(3).requires_grad_()
        with mode():
            y = hmp.cast(x, BF16)
        assert y.grad_fn is None
        assert not y.requires_grad
        assert y.is_inference() == x.detach().to(BF16).is_inference() or mode is torch.inference_mode
        assert not hmp.cast(numbers(3), BF16).requires_grad

    def test_a_node_goes_with_its_graph(self):
        x = numbers(3).requires_grad_()
        gone = weakref.ref(x)
        y = hmp.cast(x, BF16)
        y.sum().backward()
        del x, y
        gc.collect()
        assert gone() is None


# A leaf, and the strides of its gradient: those of the leaf where its elements lie without gaps and without overlaps, as torch promises.
LEAVES = {
    "contiguous": lambda: numbers(6, 4),
    "transposed": lambda: numbers(6, 4).t(),
    "permuted": lambda: numbers(2, 3, 4).permute(2, 0, 1),
    "channels-last": lambda: numbers(2, 3, 4, 5).to(memory_format=torch.channels_last),
    "channels-last-1x1": lambda: numbers(4, 3, 1, 1).to(memory_format=torch.channels_last),
    "channels-last-3d": lambda: numbers(2, 3, 2, 2, 2).to(memory_format=torch.channels_last_3d),
    "vector": lambda: numbers(7),
    "scalar": lambda: numbers(1)[0],
    "empty": lambda: numbers(0, 3),
    "size-1": numbers(3, 4)[:, :1].t,
    "gaps": lambda: numbers(3, 8)[:, ::2],
    "rows-apart": lambda: numbers(6, 4)[::2],
    "expanded": lambda: numbers(1, 4).expand(3, 4),
    "expanded-inside": lambda: numbers(3, 1).expand(3, 4),
    "expanded-scalar": lambda: numbers(1).expand(3, 4),
    "overlapping": lambda: numbers(12).as_strided((3, 4), (2, 1)),
    "unaligned": lambda: numbers(13)[1:].view(3, 4),
    "large": lambda: numbers(300, 400).t(),
}


def gradient(cast, make, source, to, weights):
    leaf = make().to(source).detach().requires_grad_()
    if make().to(source).stride() != make().stride():  # a cast of a view with gaps has none
        storage = torch.empty(make().untyped_storage().nbytes() // 4, dtype=source).copy_(
            make().as_strided((make().untyped_storage().nbytes() // 4,), (1,), 0)
        )
        leaf = storage.as_strided(make().shape, make().stride(), make().storage_offset()).detach().requires_grad_()
    assert leaf.is_leaf
    assert leaf.stride() == make().stride()
    y = cast(leaf, to)
    for _ in range(2):  # the second is added to the first
        y.backward(weights(y), retain_graph=True)
    return leaf


def strides(x):
    """Those that say something."""
    return [stride for stride, size in zip(x.stride(), x.shape) if size > 1]


def dense(y):
    return (torch.arange(y.numel(), device=y.device).view(y.shape) % 7).to(y.dtype)


INCOMING = {
    "dense": dense,
    "transposed": lambda y: dense(y.mT).mT if y.dim() > 1 else dense(y),
    "expanded": lambda y: torch.ones((), dtype=y.dtype).expand(y.shape),
    "gaps": lambda y: torch.stack([dense(y), dense(y)], -1)[..., 0],
}


class TestLeaves:
    @pairs
    @pytest.mark.parametrize("leaf", LEAVES)
    def test_a_gradient(self, leaf, source, to):
        for incoming in INCOMING.values():
            result = gradient(hmp.cast, LEAVES[leaf], source, to, incoming)
            expected = gradient(theirs, LEAVES[leaf], source, to, incoming)
            assert result.grad.dtype == source
            assert torch.equal(result.grad, expected.grad)
            assert strides(result.grad) == strides(expected.grad)

    @pytest.mark.parametrize("leaf", [name for name in LEAVES if name not in ("gaps", "rows-apart", "size-1")])
    def test_the_first_gradient_of_a_dense_leaf_lies_as_the_leaf(self, leaf):
        made = LEAVES[leaf]()
        if not made.is_contiguous() and torch.empty_like(made).stride() != made.stride():
            made = made.clone()
        x = made.detach().requires_grad_()
        for incoming in INCOMING.values():
            x.grad = None
            y = hmp.cast(x, BF16)
            y.backward(incoming(y))
            assert x.grad.stride() == x.stride()
            assert torch.equal(x.grad, incoming(y).float())

    def test_weights_of_layers(self):
        """The gradients that matrix products and convolutions make, transposed or channels-last, reach the weights in their layout."""
        linear, conv = nn.Linear(64, 96), nn.Conv2d(64, 64, 3)
        conv.to(memory_format=torch.channels_last)
        turned = nn.Parameter(torch.randn(96, 64).t())
        image = torch.randn(2, 64, 5, 5).to(memory_format=torch.channels_last)
        x = torch.randn(4, 64)
        hmp.convert()
        (linear(x).float().sum() + conv(image).float().sum() + (x @ turned).float().sum()).backward()
        for p in (linear.weight, linear.bias, conv.weight, conv.bias, turned):
            assert p.grad.stride() == p.stride()
            assert p.grad.dtype == FP32

    def test_a_gradient_is_not_shared(self):
        """Two leaves, or a leaf and the incoming gradient, never get one memory."""
        x, y = numbers(4, 4).requires_grad_(), numbers(4, 4).requires_grad_()
        incoming = torch.ones(4, 4, dtype=BF16)
        (hmp.cast(x, BF16) + hmp.cast(y, BF16)).backward(incoming)
        x.grad.zero_()
        assert y.grad.eq(1).all()
        assert incoming.eq(1).all()

    def test_sparse_gradients(self):
        """Torch's own node refuses them."""
        table = torch.randn(10, 4, requires_grad=True)
        y = F.embedding(torch.tensor([1, 3, 1]), hmp.cast(table, BF16), sparse=True)
        y.backward(dense(y))
        assert table.grad.is_sparse
        assert table.grad.dtype == FP32
        assert table.grad.to_dense()[[1, 3]].tolist() == [[1, 3, 5, 7], [4, 5, 6, 0]]

    def test_undefined_gradients(self):
        x, y = numbers(3).requires_grad_(), numbers(3).requires_grad_()

        class First(torch.autograd.Function):
            @staticmethod
            def forward(ctx, a, b):
                return a + b

            @staticmethod
            def backward(ctx, g):
                return g, None

        First.apply(hmp.cast(x, BF16), hmp.cast(y, BF16)).sum().backward()
        assert x.grad.eq(1).all()
        assert y.grad is None

    def test_only_what_is_asked_for(self):
        x, y = numbers(3).requires_grad_(), numbers(3).requires_grad_()
        (hmp.cast(x, BF16) * hmp.cast(y, BF16)).sum().backward(inputs=[x])
        assert torch.equal(x.grad, y.detach().to(BF16).float())
        assert y.grad is None

    def test_a_non_leaf_and_a_cast_of_a_cast(self):
        results = []
        for cast in (hmp.cast, theirs):
            x = numbers(6, 4).requires_grad_()
            y = cast(cast(cast((x * 2).t(), BF16), FP32), FP16)
            results += torch.autograd.grad(y, x, dense(y))
        assert torch.equal(*results)
        assert results[0].stride() == results[1].stride()

    def test_a_view_as_source_that_is_changed_in_place_later(self):
        x = numbers(6, 4).requires_grad_()
        results = []
        for cast in (hmp.cast, theirs):
            z = x * 1
            low = cast(z[1:], BF16)
            z[1:].mul_(3)  # the cast needs nothing of its source in backward
            (low.sum() + z.sum()).backward()
            results.append(x.grad)
            x.grad = None
        assert torch.equal(*results)

    def test_the_result_may_be_changed_in_place(self):
        x = numbers(6, 4).requires_grad_()
        results = []
        for cast in (hmp.cast, theirs):
            y = cast(x, BF16)
            assert y._version == 0
            y[1:].mul_(3)
            y.add_(1)
            y.sum().backward()
            results += [y.detach(), x.grad]
            x.grad = None
        assert torch.equal(results[0], results[2])
        assert torch.equal(results[1], results[3])


def cube(cast):
    return lambda x: (cast(torch.tanh(cast(x, BF16)), FP32) ** 3).sum()


ours, their_own = cube(hmp.cast), cube(theirs)
TRANSFORMS = {
    "grad": lambda f, x, v: grad(f)(x),
    "grad-of-grad": lambda f, x, v: grad(lambda x: grad(f)(x).square().sum())(x),
    "vjp": lambda f, x, v: vjp(f, x)[1](torch.ones(())),
    "jvp": lambda f, x, v: jvp(f, (x,), (v,)),
    "jvp-of-grad": lambda f, x, v: jvp(grad(f), (x,), (v,)),
    "jacrev": lambda f, x, v: jacrev(f)(x),
    "jacfwd": lambda f, x, v: jacfwd(f)(x),
    "hessian": lambda f, x, v: hessian(f)(x),
    "vmap": lambda f, x, v: vmap(f)(x),
    "vmap-of-grad": lambda f, x, v: vmap(grad(f), in_dims=1)(x),
    "grad-of-vmap": lambda f, x, v: grad(lambda x: vmap(f)(x).sum())(x),
    "functional.hessian": lambda f, x, v: torch.autograd.functional.hessian(f, x),
    "functional.hvp": torch.autograd.functional.hvp,
    "functional.jacobian-vectorized": lambda f, x, v: torch.autograd.functional.jacobian(
        lambda x: cast_of(f)(x, BF16) ** 2, x, vectorize=True
    ),
}


def cast_of(f):
    return hmp.cast if f is ours else theirs


def flat(value):
    return [value] if isinstance(value, torch.Tensor) else [t for item in value for t in flat(item)]


class TestBackward:
    @pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
    @pytest.mark.parametrize("transform", TRANSFORMS)
    def test_transforms(self, transform):
        x, v = numbers(3, 4), dense(numbers(3, 4))
        result, expected = (flat(TRANSFORMS[transform](f, x, v)) for f in (ours, their_own))
        assert len(result) == len(expected) > 0
        for a, b in zip(result, expected):
            assert a.dtype == b.dtype
            assert torch.equal(a, b)
            assert a.stride() == b.stride()

    @pytest.mark.parametrize("leaf", ["contiguous", "transposed", "channels-last"])
    @pytest.mark.parametrize(("source", "to"), [(FP32, BF16), (BF16, FP32)], ids=str)
    def test_second_derivatives(self, leaf, source, to):
        results = []
        for cast in (hmp.cast, theirs):
            x = LEAVES[leaf]().to(source).detach().requires_grad_()
            (first,) = torch.autograd.grad((cast(x, to) ** 3).sum(), x, create_graph=True)
            (second,) = torch.autograd.grad((first**2).sum(), x, create_graph=True)
            second.sum().backward()
            results.append((first, second, x.grad))
        for a, b in zip(*results):
            assert torch.equal(a, b)
            assert a.dtype == source
        assert any(type(node[0]).__name__ == "CopyBackwards" for node in below(results[0][1].grad_fn))

    def test_gradgradcheck(self):
        """The casts of a call with float64 are none, so it is the node itself that is checked: its backward is linear."""
        x = numbers(3, 4).requires_grad_()
        y = hmp.cast(x, BF16)
        a, b = torch.ones(3, 4, dtype=BF16, requires_grad=True), dense(y).requires_grad_()
        (ga,) = torch.autograd.grad(y, x, a, create_graph=True, retain_graph=True)
        (gb,) = torch.autograd.grad(y, x, b, create_graph=True, retain_graph=True)
        (gab,) = torch.autograd.grad(y, x, a + b, create_graph=True)
        assert torch.equal(ga + gb, gab)
        (back,) = torch.autograd.grad(gb, b, dense(numbers(3, 4)))
        assert back.dtype == BF16
        assert torch.equal(back, dense(y))

    def test_retained_graphs(self):
        x = numbers(3, 4).t().requires_grad_()
        y = hmp.cast(x, BF16)
        first = torch.autograd.grad(y.sum(), x, retain_graph=True)[0]
        second = torch.autograd.grad(y.sum(), x)[0]
        assert torch.equal(first, second)
        assert first.data_ptr() != second.data_ptr()

    def test_batched_gradients(self):
        x = numbers(3, 4).requires_grad_()
        batch = torch.stack([dense(numbers(3, 4)) * k for k in range(5)]).to(BF16)
        results = [
            torch.autograd.grad(cast(x, BF16), x, batch, is_grads_batched=True)[0] for cast in (hmp.cast, theirs)
        ]
        assert torch.equal(*results)
        assert results[0].dtype == FP32

    def test_forward_mode(self):
        x, v = numbers(3, 4), dense(numbers(3, 4))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            with forward_ad.dual_level():
                primal, tangent = forward_ad.unpack_dual(hmp.cast(forward_ad.make_dual(x, v), BF16))
        assert torch.equal(primal, x.to(BF16))
        assert torch.equal(tangent, v.to(BF16))

    def test_anomaly_mode(self):
        x = numbers(3).requires_grad_()
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            with torch.autograd.detect_anomaly():
                y = hmp.cast(x, BF16)
                with pytest.raises(RuntimeError, match="'CopyBackwards' returned nan values"):
                    y.backward(torch.full((3,), float("nan"), dtype=BF16))
        assert any("Traceback of forward call" in str(warning.message) for warning in told)

    def test_hooks_of_tensors_and_nodes(self):
        seen = []
        results = []
        for cast in (hmp.cast, theirs):
            x = numbers(3).requires_grad_()
            x.register_hook(lambda g: seen.append(("x", g.dtype)) or g * 2)
            x.register_post_accumulate_grad_hook(lambda p: seen.append(("post", p.grad.dtype)))
            y = cast(x, BF16)
            y.register_hook(lambda g: seen.append(("y", g.dtype)) or g * 3)
            y.retain_grad()
            y.grad_fn.register_prehook(lambda grads: seen.append(("pre", grads[0].dtype)) or (grads[0] * 5,))
            y.grad_fn.register_hook(
                lambda inputs, outputs: seen.append(("node", inputs[0].dtype, outputs[0].dtype)) or (inputs[0] * 7,)
            )
            y.sum().backward()
            results += [x.grad, y.grad]
        assert seen[:5] == seen[5:]
        assert {event[0]: event[1:] for event in seen[:5]} == {
            "x": (FP32,),
            "post": (FP32,),
            "y": (BF16,),
            "pre": (BF16,),
            "node": (FP32, BF16),
        }
        assert torch.equal(results[0], results[2])
        assert torch.equal(results[1], results[3])
        assert results[0].eq(2 * 3 * 5 * 7).all()

    def test_hooks_of_a_removed_handle_and_of_many_gradients(self):
        x, y = numbers(3).requires_grad_(), numbers(3).requires_grad_()
        seen = []
        low = [hmp.cast(x, BF16), hmp.cast(y, BF16)]
        low[0].grad_fn.register_hook(lambda *_: seen.append("removed")).remove()
        torch.autograd.graph.register_multi_grad_hook(low, lambda grads: seen.append([g is None for g in grads]))
        low[0].sum().backward()
        (low[0].sum() + low[1].sum()).backward()
        assert seen == [[False, True], [False, False]]

    def test_saved_tensors_hooks_see_nothing_of_it(self):
        packed = []
        with torch.autograd.graph.saved_tensors_hooks(lambda t: packed.append(t) or t, lambda t: t):
            hmp.cast(numbers(3).requires_grad_(), BF16).sum().backward()
        assert packed == []

    def test_gradient_edges(self):
        x = numbers(3).requires_grad_()
        y = hmp.cast(x, BF16)
        edge = torch.autograd.graph.get_gradient_edge(y)
        assert edge.node is y.grad_fn
        (g,) = torch.autograd.grad([edge], [x], grad_outputs=[torch.ones(3, dtype=BF16)])
        assert g.eq(1).all()

    def test_threads(self):
        """Backward passes of several threads through one node."""
        x = numbers(64, 64).requires_grad_()
        y = hmp.cast(x, BF16)
        results = []

        def work():
            results.append(torch.autograd.grad(y.sum(), x, retain_graph=True)[0])

        workers = [threading.Thread(target=work) for _ in range(8)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        assert len(results) == 8
        assert all(result.eq(1).all() for result in results)

    @pytest.mark.filterwarnings(
        "ignore:`torch.jit:DeprecationWarning", "ignore:The .grad attribute of a Tensor that:UserWarning"
    )
    def test_compiled_autograd(self):
        from torch._dynamo import compiled_autograd

        def compiler(graph):
            return torch.compile(graph, backend="eager")

        results = []
        for cast in (theirs, hmp.cast, theirs):
            x, w = numbers(6, 4).t().detach().requires_grad_(), numbers(3, 4).requires_grad_()
            loss = (cast(w, BF16) @ cast(x, BF16)).float().square().sum()
            with compiled_autograd._enable(compiler):
                loss.backward()
            results.append((x.grad, w.grad))
        for expected, *others in zip(*results):
            for other in others:
                assert torch.equal(other, expected)
                assert other.stride() == expected.stride()

    def test_a_model_under_functional_call(self):
        hmp.convert()
        model = nn.Linear(4, 4)
        parameters = {name: p.detach() for name, p in model.named_parameters()}
        x = numbers(3, 4)
        result = grad(lambda parameters: functional_call(model, parameters, x).float().square().sum())(parameters)
        model(x).float().square().sum().backward()
        assert torch.equal(result["weight"], model.weight.grad)
        assert torch.equal(result["bias"], model.bias.grad)


def below(node):
    """The edges of all nodes from here on."""
    seen, todo = [], [(node, 0)]
    while todo:
        edge = todo.pop()
        if edge[0] is not None and edge not in seen:
            seen.append(edge)
            todo += edge[0].next_functions
    return seen


SOURCES = {
    **LEAVES,
    "sliced-columns": lambda: numbers(6, 9)[:, 2:5],
    "negative-free-flip": lambda: numbers(6, 4).flip(0),
    "windows": lambda: numbers(10).unfold(0, 4, 2),
    "diagonal": lambda: numbers(5, 5).diagonal(),
    "batch-transposed": lambda: numbers(2, 3, 4).transpose(0, 1),
    "zero-dims": lambda: numbers(0),
    "expanded-empty": lambda: numbers(1, 0, 2).expand(5, 0, 2),
    "conj-free": lambda: torch.view_as_real(torch.complex(numbers(4), numbers(4)))[..., 1],
}


class TestResults:
    @pairs
    @pytest.mark.parametrize("layout", SOURCES)
    def test_numbers_and_strides(self, layout, source, to):
        x = SOURCES[layout]().to(source)
        result, expected = hmp.cast(x, to), x.to(to)
        assert result.dtype == to
        assert (result.shape, result.stride()) == (expected.shape, expected.stride())
        assert torch.equal(result, expected)
        assert result.storage_offset() == 0
        assert result.untyped_storage().nbytes() == expected.untyped_storage().nbytes()

    @pytest.mark.parametrize("layout", SOURCES)
    def test_views_as_they_lie(self, layout):
        """Not cast to another dtype first, which would straighten them."""
        x = SOURCES[layout]()
        for to in (BF16, FP16):
            result, expected = hmp.cast(x, to), x.to(to)
            assert torch.equal(result, expected)
            assert result.stride() == expected.stride()

    def test_a_result_may_be_resized_and_shared(self):
        y = hmp.cast(numbers(6), BF16)
        y.resize_(100)
        assert torch.equal(y[:6], numbers(6).to(BF16))
        y.share_memory_()
        assert y.is_shared()


@pytest.fixture
def large():
    x = torch.linspace(-3, 5, LARGE)
    yield x
    hmp.cache.clear()


class TestLargeResults:
    """From 1 MiB on the memory of a freed result serves the next one, of the same size or down to half of it."""

    def test_numbers(self, large):
        expected = large.to(BF16)
        for _ in range(3):
            assert torch.equal(hmp.cast(large, BF16), expected)
        assert torch.equal(hmp.cast(large.view(1 << 12, -1).t(), BF16), expected.view(1 << 12, -1).t())

    def test_live_results_have_memory_of_their_own(self, large):
        results = [hmp.cast(large, BF16) for _ in range(3)]
        assert len({result.data_ptr() for result in results}) == 3
        results[0].zero_()
        assert torch.equal(results[1], results[2])
        kept = results[1]
        view = results[2][5:]
        del results
        others = [hmp.cast(large, BF16) for _ in range(2)]
        assert not {other.data_ptr() for other in others} & {kept.data_ptr(), view.untyped_storage().data_ptr()}
        others[0].zero_()
        assert torch.equal(kept[5:], view)

    def test_freed_memory_is_used_again(self, large):
        first = hmp.cast(large, BF16)
        address = first.data_ptr()
        del first
        small = hmp.cast(large[: LARGE // 4], FP16)  # it would waste the rest
        assert small.data_ptr() != address
        del small
        second = hmp.cast(large[: LARGE - 5].flip(0), FP16)
        assert second.data_ptr() == address
        del second
        third = hmp.cast(large, FP16)
        assert third.data_ptr() == address
        assert torch.equal(third, large.to(FP16))

    def test_clear_gives_it_back(self, large):
        def resident():
            with open("/proc/self/statm") as file:  # noqa: PTH123
                return int(file.read().split()[1]) * 4096

        hmp.cast(large, BF16)
        before = resident()
        hmp.cache.clear()
        assert resident() < before - (24 << 20)

    @pytest.mark.parametrize("elements", [1, LARGE // 2, 2 * LARGE + 7])
    def test_a_result_may_be_resized(self, large, elements):
        y = hmp.cast(large, BF16)
        expected = y[: min(elements, LARGE)].clone()
        y.resize_(elements)
        assert torch.equal(y[: min(elements, LARGE)], expected)
        y.fill_(1)
        del y
        assert torch.equal(hmp.cast(large, BF16), large.to(BF16))

    def test_a_storage_may_be_resized_to_nothing_and_back(self, large):
        y = hmp.cast(large, BF16)
        y.untyped_storage().resize_(0)
        z = hmp.cast(large, BF16)
        y.untyped_storage().resize_(2 * LARGE)
        y.fill_(0)
        assert torch.equal(z, large.to(BF16))

    def test_copies_pickles_and_shared_memory(self, large):
        import copy

        y = hmp.cast(large, BF16)
        assert torch.equal(copy.deepcopy(y), y)
        assert torch.equal(y.clone(), y)
        y.share_memory_()
        assert torch.equal(y, large.to(BF16))

    def test_numpy_keeps_it(self, large):
        array = hmp.cast(large, FP16).numpy()
        expected = array.copy()
        for _ in range(2):
            hmp.cast(large, FP16).zero_()
        assert (array == expected).all()

    def test_freed_in_another_thread(self, large):
        box = [hmp.cast(large, BF16)]
        address = box[0].data_ptr()
        thread = threading.Thread(target=box.clear)
        thread.start()
        thread.join()
        assert hmp.cast(large, BF16).data_ptr() == address

    def test_gradients(self):
        """A large gradient lies in memory that is reused, until the leaf lets it go."""
        x = torch.ones(LARGE, dtype=BF16, requires_grad=True)
        y = hmp.cast(x, FP32)
        y.backward(torch.full((LARGE,), 3.0))
        grad_of_x = x.grad
        hmp.cast(y.detach(), BF16).zero_()
        assert grad_of_x.eq(3).all()
        x.grad = None
        assert grad_of_x.eq(3).all()

    def test_conversion_and_inference(self):
        """What ops get lies there as well."""
        hmp.convert(policy=hmp.Policy.from_ops(lower=["relu"]))
        x = torch.linspace(-1, 1, LARGE)
        expected = x.to(BF16).relu()
        for _ in range(2):
            with torch.inference_mode():
                assert torch.equal(torch.relu(x), expected)


SIZES = [0, 1, 32, 33, 64, 1000, 4096, 4097, 1 << 16]  # elements: around those of the memory that is kept


@pytest.mark.parametrize("size", SIZES)
class TestSmallResults:
    """Below, memory is kept by sizes; no two live results share any of it."""

    def test_live_results_have_memory_of_their_own(self, size):
        x = numbers(size)
        kept = []
        for turn in range(100):
            kept.append(hmp.cast(x, BF16 if turn % 2 else FP16).fill_(turn))
            if turn % 3 == 0:
                kept.pop(turn // 4)
        assert all(result.eq(result[:1]).all() for result in kept)
        begins = sorted(result.data_ptr() for result in kept if size)
        assert all(end - begin >= 2 * size for begin, end in itertools.pairwise(begins))
        assert all(begin % 64 == 0 for begin in begins)
        values = [result[0].item() for result in kept if size]
        assert len(set(values)) == len(values)

    def test_a_result_may_be_resized(self, size):
        x = numbers(size)
        y, other = hmp.cast(x, BF16), hmp.cast(x, BF16)
        for elements in (2 * size + 50, 5, 5000):
            y.resize_(elements).fill_(7)
        del y
        assert torch.equal(other, x.to(BF16))
        assert torch.equal(hmp.cast(x, BF16), other)

    def test_views_numpy_and_graphs_keep_it(self, size):
        x = numbers(size).requires_grad_()
        low = hmp.cast(x, FP16)
        array, view, squared = low.detach().numpy(), low.detach()[size // 2 :], low**2
        del low
        expected = x.detach().to(FP16)
        for _ in range(20):
            hmp.cast(x.detach(), FP16).fill_(9)
        assert torch.equal(torch.from_numpy(array.copy()), expected)
        assert torch.equal(view, expected[size // 2 :])
        (grad_of_x,) = torch.autograd.grad(squared.sum(), x)
        assert torch.equal(grad_of_x, (2 * expected).float())

    def test_freed_by_other_threads_and_after_their_end(self, size):
        x = numbers(size)
        box = []

        def make():
            box.extend(hmp.cast(x, BF16) for _ in range(40))
            del box[::2]

        for _ in range(3):
            thread = threading.Thread(target=make)
            thread.start()
            thread.join()
        fresh = [hmp.cast(x, BF16).zero_() for _ in range(40)]
        assert all(torch.equal(result, x.to(BF16)) for result in box)
        box.clear()
        fresh += [hmp.cast(x, BF16) for _ in range(40)]
        assert all(result.eq(0).all() for result in fresh[:40])


def test_results_that_live_to_the_end_of_the_process():
    program = """
import threading, torch
from habana_mp import hmp
class Kept(threading.local): pass
local, kept = Kept(), [hmp.cast(torch.ones(n), "bfloat16") for n in (1, 100, 4096, 1 << 24)]
local.tensors = [hmp.cast(torch.ones(n), "float16") for n in (1, 100, 4096, 1 << 24)]
def work():
    local.tensors = [hmp.cast(torch.ones(n), "float16") for n in (1, 100, 4096, 1 << 24)]
thread = threading.Thread(target=work); thread.start(); thread.join()
torch.kept = kept
print("end")
"""
    done = subprocess.run([sys.executable, "-W", "error", "-c", program], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "end\n", "")


TURNS = {
    "3d-swapped-batch": lambda: torch.randn(5, 3, 8).transpose(0, 1),
    "3d-transposed": lambda: torch.randn(3, 8, 5).transpose(1, 2),
    "3d-rotated": lambda: torch.randn(8, 3, 5).permute(1, 2, 0),
    "4d-heads": lambda: torch.randn(2, 5, 3, 8).transpose(1, 2),
    "4d-heads-turned": lambda: torch.randn(2, 5, 8, 3).permute(0, 3, 1, 2),
    "4d-channels-last": lambda: torch.randn(2, 3, 5, 8).to(memory_format=torch.channels_last),
    "3d-gaps": lambda: torch.randn(3, 5, 16)[..., ::2],
    "3d-expanded": lambda: torch.randn(1, 5, 8).expand(3, 5, 8),
    "3d-contiguous": lambda: torch.randn(3, 5, 8),
    "2d-transposed": lambda: torch.randn(8, 5).t(),
    "5d": lambda: torch.randn(2, 5, 2, 3, 8).permute(2, 0, 3, 1, 4),
}


class TestMatmulInputs:
    """Activations that matmul would copy are cast to contiguous ones; what comes out has the numbers and strides of torch."""

    @pytest.mark.parametrize("mode", [torch.enable_grad, torch.no_grad])
    @pytest.mark.parametrize("turn", TURNS)
    def test_a_product(self, turn, mode):
        x = TURNS[turn]().requires_grad_()
        layer = nn.Linear(8, 4)
        low = [p.detach().to(BF16) for p in layer.parameters()]
        # Torch's own way with what is not contiguous differs by a rounding. It reads transposed matrices as they are.
        straight = x.to(BF16) if turn == "3d-transposed" else x.to(BF16).contiguous()
        right = torch.randn(*x.shape[:-2], 8, 6) if x.dim() > 2 else torch.randn(8, 6)
        with mode():
            expected = [
                F.linear(straight, *low),
                x.to(BF16) @ right.to(BF16),
                torch.matmul(right.mT.to(BF16), x.mT.to(BF16)),
            ]
            lie = [F.linear(x.to(BF16), *low).stride(), expected[1].stride(), expected[2].stride()]
            hmp.convert()
            results = [layer(x), x @ right, torch.matmul(right.mT, x.mT)]
            hmp.revert()
        assert [result.dtype for result in results] == [BF16] * 3
        assert all(map(torch.equal, results, expected))
        assert [result.stride() for result in results] == lie

    @pytest.mark.parametrize("turn", TURNS)
    def test_its_gradient(self, turn):
        leaf = TURNS[turn]().detach().requires_grad_()
        weight = torch.randn(4, 8)
        grads = []
        for low in (lambda t: t.to(BF16).contiguous(), lambda t: t):
            if grads:
                hmp.convert()
            for x in (leaf, leaf * 2):
                y = F.linear(low(x), low(weight))
                grads.append(torch.autograd.grad(y, x, dense(y))[0])
        assert torch.equal(grads[0], grads[2])
        assert torch.equal(grads[1], grads[3])

    def test_the_caller_sees_his_own_strides(self):
        """Only products get contiguous casts: what hands out its input gives it as it lies."""
        hmp.convert(policy=hmp.Policy.from_ops(lower=["resolve_conj", "linear"]))
        x = TURNS["4d-heads"]()
        assert torch.resolve_conj(x).stride() == x.to(BF16).stride()
        assert hmp.cast(x, BF16).stride() == x.to(BF16).stride()

    @pytest.mark.parametrize("cast_to_float", [False, True])
    def test_convolutions_keep_channels_last(self, cast_to_float):
        conv = nn.Conv2d(8, 8, 3).to(memory_format=torch.channels_last)
        x = torch.randn(2, 8, 6, 6).to(memory_format=torch.channels_last).requires_grad_()
        expected = F.conv2d(x.to(BF16), conv.weight.to(BF16), conv.bias.to(BF16))
        hmp.convert()
        result = conv(x)
        assert torch.equal(result, expected)
        assert result.is_contiguous(memory_format=torch.channels_last)
        result.float().sum().backward() if cast_to_float else result.sum().backward()
        assert x.grad.is_contiguous(memory_format=torch.channels_last)
        assert conv.weight.grad.stride() == conv.weight.stride()

    def test_attention(self):
        """Heads turned out of the embedding: bit for bit what casts by hand give."""
        x = torch.randn(2, 6, 16)
        layer = nn.Linear(16, 48)

        def attend(x, low):
            q, k, v = F.linear(low(x), low(layer.weight), low(layer.bias)).float().chunk(3, -1)
            q, k, v = (t.view(2, 6, 4, 4).transpose(1, 2) for t in (q, k, v))
            scores = (low(q) @ low(k.mT)).float().softmax(-1)
            return (low(scores) @ low(v)).transpose(1, 2).reshape(2, 6, 16)

        expected = attend(x, lambda t: t.to(BF16))
        hmp.convert()
        assert torch.equal(attend(x, lambda t: t), expected)


def test_every_pair_of_dtypes_in_a_graph():
    """A chain through all pairs: the gradient of each link is cast back to the dtype of its source."""
    for order in itertools.permutations([FP32, BF16, FP16]):
        x = numbers(8).to(order[0]).requires_grad_()
        y = hmp.cast(hmp.cast(x, order[1]), order[2])
        y.backward(dense(y))
        assert x.grad.dtype == order[0]
        assert torch.equal(x.grad, dense(y).to(order[1]).to(order[0]))
