"""The weight cache and what an op hands out of a weight: its caller may change that, and no copy changes with it."""

import itertools

import pytest
import torch
import torch.nn.functional as F
from cached_weight import BF16, MODES, ROW, N, X, casts, is_fresh, weight

from habana_mp import hmp

pytestmark = pytest.mark.usefixtures("empty_cache")

VIEWS = {
    "t": torch.t,
    "transpose": lambda w: w.transpose(0, 1),
    "dropout": lambda w: F.dropout(w, training=False),
    "view": lambda w: w.view(-1),
    "reshape": lambda w: torch.reshape(w, (-1,)),
    "reshape-same": lambda w: torch.reshape(w, (N, N)),
    "contiguous": lambda w: w.contiguous(),
    "flatten": torch.flatten,
    "squeeze": lambda w: w.squeeze(),
    "expand": lambda w: w.expand(N, N),
    "unbind": lambda w: torch.unbind(w)[ROW],
    "chunk": lambda w: torch.chunk(w, 2)[0],
    "split": lambda w: w.split(8)[0],
    "narrow": lambda w: torch.narrow(w, 0, ROW, 2),
    "broadcast_tensors": lambda w: torch.broadcast_tensors(w, w)[1],
    "atleast_2d": torch.atleast_2d,
    "einsum": lambda w: torch.einsum("ij->ji", w),
    "resolve_conj": torch.resolve_conj,
    "positive": torch.positive,
    "relu": torch.relu,
}


def written_view(op, mode, frozen):
    """What an op hands out, changed in place by its caller, between two graphs that use the weight."""
    torch.manual_seed(0)
    p = weight(frozen)
    x = X.clone().requires_grad_()
    y = F.linear(x, p)
    seen = []
    with MODES[mode]():
        view = VIEWS[op](p)
        seen += [view.dtype, view.requires_grad, view.is_leaf, view.shape, view.stride()]
    try:
        with torch.no_grad():
            view.mul_(2)
        view.detach()[0] = 3
        with MODES[mode]():
            view.data.add_(1)
        seen.append(view.detach().clone())
    except RuntimeError as error:
        seen.append(str(error))
    z = F.linear(x, p)
    y.sum().backward()
    seen += [y.detach(), z.detach(), x.grad]
    z.sum().backward()
    return [*seen, x.grad, p.grad, p.detach()]


def same(a, b):
    if isinstance(a, torch.Tensor):
        return isinstance(b, torch.Tensor) and torch.equal(a, b)
    return a == b


class TestHandedOut:
    """What an op returns is the caller's, also where it is the op's argument or a view of it."""

    @pytest.mark.parametrize("op", VIEWS)
    def test_a_view(self, op, monkeypatch):
        policy = hmp.Policy.from_ops(lower=["linear", op.partition("-")[0]])
        programs = list(itertools.product(MODES, [False, True]))
        monkeypatch.setenv("HABANA_MP_CACHE_BYTES", "0")
        hmp.convert(policy=policy)
        expected = [written_view(op, *program) for program in programs]
        monkeypatch.delenv("HABANA_MP_CACHE_BYTES")
        hmp.convert(policy=policy)
        for program, values in zip(programs, expected):
            result = written_view(op, *program)
            assert [same(a, b) for a, b in zip(result, values, strict=True)] == [True] * len(values), program
        assert casts()[0] > 0

    @pytest.mark.parametrize("mode", MODES)
    def test_a_view_that_is_never_changed_does_no_harm(self, mode):
        hmp.convert(policy=hmp.Policy.from_ops(lower=["linear", "t"]))
        p = weight()
        kept = []
        for value in range(3):
            with MODES[mode]():
                kept.append((torch.t(p), p.detach().clone()))
            with torch.no_grad():
                p[ROW] = value
            assert is_fresh(p)
        assert all(torch.equal(view.detach(), then.to(BF16).t()) for view, then in kept)

    @pytest.mark.parametrize("front_end", ["convert", "autocast"])
    @pytest.mark.parametrize("op", ["t", "dropout"])
    def test_without_grad_a_view_of_a_weight_requires_none(self, op, front_end):
        """Also where the weight shares its memory, so that the copy is the call's alone."""
        p = weight()
        _alias = p.detach()
        policy = hmp.Policy.from_ops(lower=["t", "dropout"])
        hmp.convert(policy=policy if front_end == "convert" else hmp.Policy.from_ops(lower=["mm"]))
        in_eval = (0.5, False) if op == "dropout" else ()
        with torch.no_grad(), hmp.autocast("cpu", policy=policy, enabled=front_end == "autocast"):
            view = getattr(torch, op)(p, *in_eval)
        assert view.dtype == BF16
        assert not view.requires_grad

    def test_views_in_containers(self):
        hmp.convert(
            policy=hmp.Policy.from_ops(lower=["linear", "meshgrid", "broadcast_tensors", "unbind", "atleast_1d"])
        )
        p, q = weight(), weight()
        for views in (torch.broadcast_tensors(p, q), torch.unbind(p), torch.atleast_1d([p, q]), torch.atleast_1d(p, q)):
            with torch.no_grad():
                for view in views:
                    view.data.zero_()
            assert is_fresh(p)
            assert is_fresh(q)
