"""Backward passes through the node of a cast: transforms, second derivatives, hooks and threads, as through that of Tensor.to."""

import threading
import warnings

import pytest
import torch
from cast_leaves import BF16, FP32, LEAVES, dense, numbers, theirs
from torch import nn
from torch.autograd import forward_ad
from torch.func import functional_call, grad, hessian, jacfwd, jacrev, jvp, vjp, vmap

from habana_mp import hmp

pytestmark = pytest.mark.usefixtures("empty_cache")


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
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            with torch.autograd.detect_anomaly():
                y = hmp.cast(x, BF16)
                with pytest.raises(RuntimeError, match="'CopyBackwards' returned nan values"):
                    y.backward(torch.full((3,), float("nan"), dtype=BF16))
        assert any("Traceback of forward call" in str(warning.message) for warning in caught)

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

    @pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that:UserWarning")
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
