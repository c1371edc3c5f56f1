"""The autograd node of a cast: as that of Tensor.to in all that can be seen but the name (D34), and the gradient of a leaf in the leaf's
own layout.
"""

import gc
import itertools
import weakref

import pytest
import torch
import torch.nn.functional as F
from cast_leaves import BF16, FP16, FP32, LEAVES, dense, numbers, pairs, theirs
from torch import nn

from habana_mp import hmp

pytestmark = pytest.mark.usefixtures("empty_cache")


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


def test_every_pair_of_dtypes_in_a_graph():
    """A chain through all pairs: the gradient of each link is cast back to the dtype of its source."""
    for order in itertools.permutations([FP32, BF16, FP16]):
        x = numbers(8).to(order[0]).requires_grad_()
        y = hmp.cast(hmp.cast(x, order[1]), order[2])
        y.backward(dense(y))
        assert x.grad.dtype == order[0]
        assert torch.equal(x.grad, dense(y).to(order[1]).to(order[0]))
