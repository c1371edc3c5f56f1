"""The weight cache in training: one cast a step, and no step of an optimizer is missed."""

import pytest
import torch
import torch.nn.functional as F
from cached_weight import BF16, OPTIMIZERS, ROW, N, X, by_hand, casts, is_fresh, sparse_gradient, use, weight
from torch import nn

from habana_mp import hmp

pytestmark = pytest.mark.usefixtures("empty_cache")


class TestTraining:
    @pytest.mark.parametrize("micro_batches", [1, 4])
    def test_each_weight_is_cast_once_a_step(self, micro_batches):
        """Gradient accumulation casts a weight as often as a step without it."""
        hmp.convert()
        model = nn.Sequential(nn.Linear(N, N), nn.ReLU(), nn.Linear(N, N))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for step in range(3):
            for _ in range(micro_batches):
                model(torch.randn(4, N)).float().sum().backward()
            assert casts() == (2 * (step + 1), 2 * (micro_batches - 1) * (step + 1))
            optimizer.step()
            optimizer.zero_grad()

    def test_a_copy_goes_with_its_backward_pass_until_gradients_accumulate(self):
        """From the second step on a copy lives no longer than torch.autocast's would: a step takes no more memory."""
        hmp.convert()
        model = nn.Linear(N, N)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

        def step(micro_batches):
            for _ in range(micro_batches):
                model(X).float().sum().backward()
            entries = hmp.cache.info().entries
            optimizer.step()
            optimizer.zero_grad()
            return entries

        assert [step(1) for _ in range(3)] == [1, 0, 0]
        assert [step(2) for _ in range(3)] == [1, 1, 1]  # of the first one the copy was gone after one backward pass
        assert casts() == (3 + 4, 2)
        assert [step(1) for _ in range(3)] == [1, 0, 0]

    def test_evaluation_between_steps_adds_no_cast(self):
        hmp.convert()
        model = nn.Linear(N, N)
        optimizer = torch.optim.Adam(model.parameters())
        for _ in range(3):
            model(X).float().sum().backward()
            with hmp.disable_casts():
                optimizer.step()
            with torch.inference_mode():
                model.eval()(X)
            model.train()
        assert casts() == (4, 2)

    def test_two_steps_before_backward(self):
        """A graph that waits keeps the numbers it computed with."""
        hmp.convert()
        p = weight()
        x = X.clone().requires_grad_()
        before = p.detach().clone()
        waiting = F.linear(x, p)
        for _ in range(2):
            with torch.no_grad():
                p[ROW] += 1
            assert is_fresh(p)
        waiting.sum().backward()
        assert torch.equal(x.grad, before.to(BF16).sum(0).expand(2, N).float())
        assert hmp.cache.info().refreshed == 1

    def test_retained_graph(self):
        hmp.convert()
        p = weight()
        x = X.clone().requires_grad_()
        y = F.linear(x, p)
        (first,) = torch.autograd.grad(y.sum(), x, retain_graph=True)
        with torch.no_grad():
            p[ROW] = 0
        assert is_fresh(p)
        (second,) = torch.autograd.grad(y.sum(), x)
        assert torch.equal(first, second)

    def test_a_copy_that_a_detached_result_came_from(self):
        hmp.convert()
        p = weight()
        y = use(p)
        kept = y.clone()
        with torch.no_grad():
            p[ROW] = 0
        use(p)
        assert torch.equal(y, kept)


class Interrupted(torch.optim.SGD):
    """A step that fails after it has changed the weights."""

    def step(self, closure=None):
        super().step(closure)
        raise KeyError("no second group")


class TestOptimizers:
    @pytest.mark.parametrize("kind", OPTIMIZERS)
    def test_a_step(self, kind):
        hmp.convert()
        p = weight()
        optimizer = OPTIMIZERS[kind]([p])
        for _ in range(3):
            assert is_fresh(p)
            before = by_hand(p)
            sparse_gradient(p)
            optimizer.step()
            assert not torch.equal(before, by_hand(p))
            assert is_fresh(p)
        assert hmp.cache.info().misses == 1

    @pytest.mark.parametrize("kind", ["sgd-loop", "sgd-fused", "adam-fused"])
    def test_the_copy_of_a_frozen_weight_of_no_optimizer_stays(self, kind):
        """As that of a base under adapters."""
        hmp.convert()
        base, adapter = weight().requires_grad_(False), weight()
        optimizer = OPTIMIZERS[kind]([adapter])
        for _ in range(3):
            assert is_fresh(base)
            assert is_fresh(adapter)
            sparse_gradient(adapter)
            optimizer.step()
        info = hmp.cache.info()
        assert (info.hits, info.misses) == (2, 2)

    def test_the_copy_of_a_frozen_weight_of_the_optimizer_ends(self):
        """Nothing shows what the step has done to it."""
        hmp.convert()
        p, adapter = weight().requires_grad_(False), weight()
        optimizer = torch.optim.SGD([p, adapter], lr=0.5)
        assert is_fresh(p)
        sparse_gradient(adapter)
        optimizer.step()
        assert is_fresh(p)
        assert hmp.cache.info().invalidated == {"optimizer": 1}

    def test_closures(self):
        """LBFGS evaluates the model at many points in one step."""
        hmp.convert()
        p = weight()
        optimizer = torch.optim.LBFGS([p], lr=0.1, max_iter=3, line_search_fn="strong_wolfe")

        def closure():
            optimizer.zero_grad()
            assert is_fresh(p)
            loss = use(p).float().square().sum()
            loss.backward()
            return loss

        optimizer.step(closure)
        assert is_fresh(p)

    def test_sparse_adam(self):
        hmp.convert()
        p = weight()
        optimizer = torch.optim.SparseAdam([p], lr=0.5)
        assert is_fresh(p)
        p.grad = torch.sparse_coo_tensor([[ROW]], torch.ones(1, N), (N, N), check_invariants=True)
        optimizer.step()
        assert is_fresh(p)

    @pytest.mark.parametrize("kind", ["sgd-loop", "sgd-foreach", "sgd-fused", "adam-fused"])
    def test_in_disable_casts_with_scaler_and_scheduler(self, kind):
        hmp.convert()
        p = weight()
        optimizer = OPTIMIZERS[kind]([p])
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
        scaler = torch.amp.GradScaler("cpu")
        for _ in range(2):
            assert is_fresh(p)
            scaler.scale(use(p)[:, ROW].float().sum()).backward()
            with hmp.disable_casts():
                scaler.step(optimizer)
            scaler.update()
            scheduler.step()
            optimizer.zero_grad()
            assert is_fresh(p)

    def test_a_step_that_fails_halfway(self):
        hmp.convert()
        p = weight()
        optimizer = Interrupted([p], lr=0.5, fused=True)
        assert is_fresh(p)
        sparse_gradient(p)
        with pytest.raises(KeyError, match="no second group"):
            optimizer.step()
        assert is_fresh(p)

    def test_an_optimizer_made_before_convert_and_used_after_revert(self):
        p = weight()
        optimizer = torch.optim.SGD([p], lr=0.5, fused=True)
        for _ in range(2):
            hmp.convert()
            assert is_fresh(p)
            sparse_gradient(p)
            optimizer.step()
            assert is_fresh(p)
            hmp.revert()
            optimizer.step()

    def test_the_hook_goes_with_revert(self):
        from torch.optim.optimizer import _global_optimizer_post_hooks as hooks

        before = dict(hooks)
        hmp.convert()
        hmp.convert()
        assert len(hooks) == len(before) + 1
        hmp.revert()
        assert dict(hooks) == before
