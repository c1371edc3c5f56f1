"""The weight cache: a weight is cast once, and no change of it is missed.

Each way to change a weight touches one row that none of the cache's samples lies in, and what is computed from then on is held against
the cast by hand, or against the same program without the cache.
"""

import contextlib
import copy
import ctypes
import gc
import io
import itertools
import multiprocessing
import os
import pickle
import subprocess
import sys
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from safetensors.torch import load_file, safe_open, save_file
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.func import functional_call
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import parametrize, prune, weight_norm
from torch.utils.checkpoint import checkpoint

from habana_mp import hmp

BF16, FP32 = torch.bfloat16, torch.float32
N = 128  # a weight is N x N: more than the smallest that is cached
ROW = 5  # the row that is changed; the samples lie in rows 0, 8, 16, ... and in the last one
BYTES = 2 * N * N  # of a copy
X = torch.linspace(-1, 1, 2 * N).view(2, N)

fork = multiprocessing.get_context("fork")
# Python 3.12 warns of every fork of a process with threads.
may_fork = pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")


@pytest.fixture(autouse=True)
def _fresh():
    torch.manual_seed(0)
    hmp.cache.clear()


def weight(frozen=False):
    return nn.Parameter(torch.randn(N, N), requires_grad=not frozen)


def use(p):
    return F.linear(X, p)


def by_hand(p):
    with torch.no_grad():
        return F.linear(X.to(BF16), p.to(BF16))


def is_fresh(p):
    return torch.equal(use(p), by_hand(p))


def casts():
    """Casts of cached weights since the counts began, and uses of a copy without one."""
    info = hmp.cache.info()
    return info.misses + info.refreshed, info.hits


def off(monkeypatch):
    """A conversion without the cache."""
    monkeypatch.setenv("HABANA_MP_CACHE_BYTES", "0")
    hmp.convert()
    monkeypatch.delenv("HABANA_MP_CACHE_BYTES")


MODES = {"grad": contextlib.nullcontext, "no_grad": torch.no_grad, "inference_mode": torch.inference_mode}


class TestCounts:
    def test_a_weight_is_cast_once(self):
        hmp.convert()
        p = weight()
        for _ in range(5):
            assert is_fresh(p)
        info = hmp.cache.info()
        assert (info.entries, info.bytes, info.hits, info.misses, info.refreshed) == (1, BYTES, 4, 1, 0)
        assert info.invalidated == {}

    def test_grad_no_grad_and_inference_mode_share_a_copy(self):
        hmp.convert()
        p = weight()
        for mode in itertools.chain(*itertools.permutations(MODES.values())):
            with mode():
                assert is_fresh(p)
        assert casts() == (1, 17)

    @pytest.mark.parametrize("first", MODES)
    def test_a_copy_made_in_any_mode_gives_a_gradient(self, first):
        hmp.convert()
        p = weight()
        with MODES[first]():
            use(p)
        use(p).sum().backward()
        assert torch.equal(p.grad, X.to(BF16).sum(0).expand(N, N).float())
        assert casts() == (1, 1)

    def test_frozen_parameters_too(self):
        hmp.convert()
        p = weight(frozen=True)
        x = X.clone().requires_grad_()
        assert not use(p).requires_grad
        y = F.linear(x, p)
        y.sum().backward()
        assert torch.equal(x.grad, p.detach().to(BF16).sum(0).expand(2, N).float())
        assert casts() == (1, 1)

    @pytest.mark.parametrize("frozen", [False, True], ids=["trained", "frozen"])
    def test_requires_grad_may_change(self, frozen):
        hmp.convert()
        p = weight(frozen)
        use(p)
        p.requires_grad_(frozen)
        assert use(p).requires_grad == frozen
        if frozen:
            use(p).sum().backward()
            assert p.grad.dtype == FP32
        assert casts()[0] == 1

    @pytest.mark.parametrize(
        "made",
        [
            lambda: torch.randn(N, N),
            lambda: weight().clone(),
            lambda: weight().detach(),
            lambda: weight().double(),
            lambda: nn.Parameter(torch.randn(N, N, dtype=BF16)),
            lambda: nn.Parameter(torch.randn(N, 31)),
            lambda: nn.Parameter(torch.randn(1, N).expand(N, N)),
            lambda: nn.Parameter(torch.randn(N, 2 * N)[:, ::2]),
        ],
        ids=["no-parameter", "no-leaf", "detached", "float64", "bfloat16", "small", "expanded", "gaps"],
    )
    def test_what_is_not_cached(self, made):
        hmp.convert()
        p = made()
        x = torch.randn(3, p.shape[1])
        for _ in range(2):
            if p.dtype != torch.float64:
                F.linear(x, p)
        info = hmp.cache.info()
        assert (info.entries, info.hits, info.misses) == (0, 0, 0)

    @pytest.mark.parametrize(("columns", "entries"), [(31, 0), (32, 1)], ids=["3968-elements", "4096-elements"])
    def test_the_smallest_that_is_cached(self, columns, entries):
        hmp.convert()
        F.linear(torch.randn(1, columns), nn.Parameter(torch.randn(N, columns)))
        assert hmp.cache.info().misses == entries

    def test_casts_to_float32_are_not(self):
        hmp.convert(policy=hmp.Policy.from_ops(fp32=["linear"]))
        p = nn.Parameter(torch.randn(N, N, dtype=BF16))
        use(p)
        assert hmp.cache.info().misses == 0

    def test_hmp_cast_gives_memory_of_its_own(self):
        hmp.convert()
        p = weight()
        use(p)
        mine = hmp.cast(p.detach(), BF16)
        mine.zero_()
        hmp.cast(p, BF16).detach().zero_()
        assert is_fresh(p)
        assert hmp.cache.info().misses == 1

    def test_all_kinds_of_weights(self):
        """Convolution, embedding, recurrent layer, attention: the same as without the cache, each weight cast once."""
        hmp.convert(policy=hmp.Policy.from_ops(lower=["linear", "conv2d", "embedding", "matmul", "baddbmm", "addmm"]))
        conv, table = nn.Conv2d(64, 64, 3), nn.Embedding(64, 64)
        conv.to(memory_format=torch.channels_last)
        image, ids = torch.randn(2, 64, 5, 5), torch.arange(4)
        p = weight()
        for _ in range(3):
            assert torch.equal(conv(image), F.conv2d(image.to(BF16), conv.weight.to(BF16), conv.bias.to(BF16)))
            assert torch.equal(table(ids), table.weight.to(BF16)[ids])
            assert torch.equal(X @ p, X.to(BF16) @ p.to(BF16))
        assert casts() == (3, 6)

    def test_the_same_weight_twice_in_a_call(self):
        hmp.convert()
        p = weight()
        assert torch.equal(p @ p, p.to(BF16) @ p.to(BF16))
        assert casts() == (1, 0)

    def test_a_profiler_sees_one_cast(self):
        hmp.convert()
        p = weight()
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], record_shapes=True) as profile:
            for _ in range(4):
                y = use(p)
        shapes = [event.input_shapes[0] for event in profile.events() if event.name == "aten::_to_copy"]
        assert (shapes.count([N, N]), shapes.count([2, N])) == (1, 4)
        assert torch.equal(y, by_hand(p))
        assert is_fresh(p)
        assert casts() == (1, 4)


class TestDeadLeaves:
    def test_their_copies_do_not_pile_up(self):
        """An input that requires grad is a leaf, like a weight; each of these lives for one call."""
        hmp.convert()
        w = nn.Parameter(torch.randn(N, 1024))
        for _ in range(30):
            x = torch.randn(1024, 1024, requires_grad=True)  # a copy of 2 MiB
            torch.autograd.grad(F.linear(x, w).float().sum(), x)
        del x
        assert hmp.cache.info().bytes <= 2 * N * 1024
        assert hmp.cache.info().invalidated["freed"] == 30

    @pytest.mark.parametrize("why", ["cached", "shared", "over-the-limit"])
    def test_what_an_op_hands_out_requires_no_grad(self, why, monkeypatch):
        if why == "over-the-limit":
            monkeypatch.setenv("HABANA_MP_CACHE_BYTES", "1")
        hmp.convert(policy=hmp.Policy.from_ops(lower=["dropout"], rest="inputs"))
        p = weight(frozen=True)
        held = p.detach() if why == "shared" else None
        with torch.no_grad():
            for _ in range(2):
                y = F.dropout(p, training=False)
                assert (y.dtype, y.requires_grad) == (BF16, False)
        del held


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


def sparse_gradient(p):
    p.grad = torch.zeros_like(p)
    p.grad[ROW] = torch.linspace(1, 2, N)


OPTIMIZERS = {
    "sgd-loop": lambda ps: torch.optim.SGD(ps, lr=0.5, foreach=False),
    "sgd-foreach": lambda ps: torch.optim.SGD(ps, lr=0.5, momentum=0.9, foreach=True),
    "sgd-fused": lambda ps: torch.optim.SGD(ps, lr=0.5, fused=True),
    "sgd-fused-momentum": lambda ps: torch.optim.SGD(ps, lr=0.5, momentum=0.9, nesterov=True, fused=True),
    "adam-loop": lambda ps: torch.optim.Adam(ps, lr=0.5, foreach=False),
    "adam-foreach": lambda ps: torch.optim.Adam(ps, lr=0.5, foreach=True),
    "adam-fused": lambda ps: torch.optim.Adam(ps, lr=0.5, fused=True),
    "adam-differentiable": lambda ps: torch.optim.Adam(ps, lr=0.5, amsgrad=True),
    "adamw-fused": lambda ps: torch.optim.AdamW(ps, lr=0.5, weight_decay=0, fused=True),
    "adagrad-fused": lambda ps: torch.optim.Adagrad(ps, lr=0.5, fused=True),
    "adagrad-loop": lambda ps: torch.optim.Adagrad(ps, lr=0.5),
    "adadelta": lambda ps: torch.optim.Adadelta(ps, lr=50),
    "adafactor": lambda ps: torch.optim.Adafactor(ps, lr=0.5),
    "adamax": lambda ps: torch.optim.Adamax(ps, lr=0.5),
    "asgd": lambda ps: torch.optim.ASGD(ps, lr=0.5, lambd=0),
    "nadam": lambda ps: torch.optim.NAdam(ps, lr=0.5),
    "radam": lambda ps: torch.optim.RAdam(ps, lr=0.5),
    "rmsprop": lambda ps: torch.optim.RMSprop(ps, lr=0.5),
    "rprop": lambda ps: torch.optim.Rprop(ps, lr=0.5),
    "muon": lambda ps: torch.optim.Muon(ps, lr=0.5, weight_decay=0),
}


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


def module_of(p):
    module = nn.Linear(N, N, bias=False)
    module.weight = p
    return module


def written(p, value=3.0):
    """A copy with another row."""
    changed = p.detach().clone()
    changed[ROW] = value
    return changed


def write_bytes(address, value=3.0):
    row = np.full(N, value, np.float32)
    ctypes.memmove(address + 4 * N * ROW, row.ctypes.data, row.nbytes)


def load_state_dict(p, **kwargs):
    module = module_of(p)
    module.load_state_dict({"weight": written(p)}, **kwargs)
    return module.weight


def ema_swap(p):
    average = written(p)
    p.data, average = average, p.data
    assert is_fresh(p)
    average[ROW] = 7
    p.data, average = average, p.data


def storage_swap_unseen(p):
    """Other memory under the weight for a while, and the first one changed meanwhile."""
    held = p.detach()
    p.data = written(p)
    assert is_fresh(p)
    with torch.no_grad():
        held[ROW] = 9
    p.data = held


def swapped(p):
    other = nn.Parameter(written(p), requires_grad=p.requires_grad)
    torch.utils.swap_tensors(p, other)
    assert is_fresh(other)


def assigned_data(p):
    other = torch.empty(0)
    other.data = p
    return other


def resized(p):
    with torch.no_grad():
        storage = p.untyped_storage()
        kept = written(p)
        storage.resize_(0)
        storage.resize_(4 * N * N)
        p.data.copy_(kept)


def half_and_back(p):
    module = module_of(p)
    with torch.no_grad():
        module.half().weight[ROW] = 3
    return module.float().weight


def half_and_back_by_swapping(p):
    torch.__future__.set_swap_module_params_on_conversion(True)
    try:
        return half_and_back(p)
    finally:
        torch.__future__.set_swap_module_params_on_conversion(False)


def in_inference_mode(p):
    with torch.inference_mode():
        p[ROW] = 3


def no_grad(change):
    def changed(p):
        with torch.no_grad():
            change(p)

    return changed


def frozen_for_a_while(change):
    def changed(p):
        grad = p.requires_grad
        p.requires_grad_(False)
        change(p)
        p.requires_grad_(grad)

    return changed


@torch.library.custom_op("habana_mp_tests::write_row", mutates_args={"x"})
def write_row(x: torch.Tensor) -> None:
    x.detach().numpy()[ROW] = 3


CHANGES = {
    "row": no_grad(lambda p: p[ROW].fill_(3)),
    "setitem": no_grad(lambda p: p.__setitem__(ROW, 3.0)),
    "inference-mode": in_inference_mode,
    "copy_": no_grad(lambda p: p.copy_(written(p))),
    "index_fill_": no_grad(lambda p: p.index_fill_(0, torch.tensor([ROW]), 3)),
    "out=": no_grad(lambda p: torch.add(written(p), 0, out=p)),
    "foreach": no_grad(lambda p: torch._foreach_copy_([p], [written(p)])),
    "init": no_grad(lambda p: nn.init.constant_(p[ROW], 3)),
    "apply_": frozen_for_a_while(lambda p: p.data.apply_(lambda value: value + 1)),
    "data-row": lambda p: p.data[ROW].fill_(3),
    "data-copy": lambda p: p.data.copy_(written(p)),
    "data-assigned": lambda p: setattr(p, "data", written(p)),
    "data-assigned-twice": storage_swap_unseen,
    "data-of-detached": lambda p: p.detach().data[ROW].fill_(3),
    "data-of-view": lambda p: p.view(-1).data[ROW * N].fill_(3),
    "data-of-data": lambda p: p.data.data.data[ROW].fill_(3),
    "data-by-getattr": lambda p: getattr(p, "data")[ROW].fill_(3),  # noqa: B009
    "detach": lambda p: p.detach()[ROW].fill_(3),
    "set_": no_grad(lambda p: p.set_(written(p))),
    "set_-of-another": no_grad(lambda p: torch.empty(0).set_(p.detach())[ROW].fill_(3)),
    "data-of-another": no_grad(lambda p: assigned_data(p)[ROW].fill_(3)),
    "numpy": lambda p: p.detach().numpy().__setitem__(ROW, 3),
    "numpy-by-class": lambda p: torch.Tensor.numpy(p.detach()).__setitem__(ROW, 3),
    "frozen-numpy": frozen_for_a_while(lambda p: p.numpy().__setitem__(ROW, 3)),
    "asarray": frozen_for_a_while(lambda p: np.asarray(p).__setitem__(ROW, 3)),
    "dlpack": lambda p: torch.from_dlpack(p.detach())[ROW].fill_(3),
    "frozen-dlpack": frozen_for_a_while(lambda p: torch.from_dlpack(p)[ROW].fill_(3)),
    "storage-copy": lambda p: p.untyped_storage().copy_(written(p).untyped_storage()),
    "storage-fill": lambda p: p.untyped_storage().fill_(0),
    "storage-item": lambda p: p.untyped_storage().__setitem__(4 * N * ROW + 3, 77),
    "storage-slice": lambda p: (
        torch.tensor([]).set_(p.untyped_storage()[4 * N * ROW : 4 * N * (ROW + 1)], 0, (N,)).fill_(3)
    ),
    "address": lambda p: write_bytes(p.data_ptr()),
    "address-of-storage": lambda p: write_bytes(p.untyped_storage().data_ptr()),
    "load_state_dict": load_state_dict,
    "load_state_dict-assign": lambda p: load_state_dict(p, assign=True),
    "ema-swap": ema_swap,
    "swap_tensors": swapped,
    "resize": resized,
    "half-and-back": half_and_back,
    "half-and-back-swapped": half_and_back_by_swapping,
    "custom-op": no_grad(write_row),
    "parameters_to_vector": lambda p: nn.utils.vector_to_parameters(written(p).view(-1), [p]),
}


def changed(p, change):
    """The weight after a change: another one where that is what the change gives. No alias is held."""
    result = change(p)
    return result if isinstance(result, nn.Parameter) else p


def is_fresh_in_every_mode(p):
    return all(is_fresh_in(mode, p) for mode in MODES.values())


def is_fresh_in(mode, p):
    with mode():
        return is_fresh(p)


class TestNeverStale:
    @pytest.mark.parametrize("change", CHANGES)
    def test_a_change(self, change):
        hmp.convert()
        for frozen in (False, True):
            hmp.cache.clear()
            p = weight(frozen)
            assert is_fresh_in_every_mode(p)
            assert casts() == (1, 2)
            before = by_hand(p)
            for _ in range(2):
                p = changed(p, CHANGES[change])
                assert is_fresh_in_every_mode(p)
                assert not torch.equal(before, by_hand(p))


def write_numpy(array, value):
    write_row_at(array.ctypes.data, value)


def write_row_at(address, value):
    row = np.full(N, value, np.float32)
    ctypes.memmove(address + 4 * N * ROW, row.ctypes.data, row.nbytes)


def setitem(alias, value):
    alias[ROW] = value


# How an alias of a weight's memory is taken, and how a row is written through it. Some take a frozen weight.
ALIASES = {
    "data": (lambda p: p.data, setitem),
    "data-of-detached": (lambda p: p.detach().data, setitem),
    "detach": (lambda p: p.detach(), setitem),
    "row": (lambda p: p.data[ROW], lambda alias, value: alias.fill_(value)),
    "state_dict": (lambda p: module_of(p).state_dict()["weight"], setitem),
    "parameter": (nn.Parameter, lambda alias, value: setitem(alias.data, value)),
    "storage": (
        lambda p: p.untyped_storage(),
        lambda alias, value: setitem(torch.tensor([]).set_(alias, 0, (N, N)), value),
    ),
    "set_": (lambda p: torch.tensor([]).set_(p.untyped_storage(), 0, (N, N)), setitem),
    "numpy": (lambda p: p.detach().numpy(), setitem),
    "from_dlpack-detached": (lambda p: torch.from_dlpack(p.detach()), setitem),
    "to_dlpack-detached": (lambda p: torch.utils.dlpack.from_dlpack(torch.utils.dlpack.to_dlpack(p.detach())), setitem),
    "frozen-numpy": (lambda p: p.numpy(), setitem),
    "frozen-asarray": (np.asarray, setitem),
    "frozen-from_dlpack": (torch.from_dlpack, setitem),
    "frozen-numpy-from_dlpack": (np.from_dlpack, write_numpy),
}

# A weight over memory that somebody else has, and who.
OWNERS = {
    "from_numpy": torch.from_numpy,
    "as_tensor": torch.as_tensor,
    "from_dlpack": torch.from_dlpack,
    "frombuffer": lambda array: torch.frombuffer(memoryview(array).cast("B"), dtype=FP32).view(N, N),
    "asarray": torch.asarray,
    "view": lambda array: torch.from_numpy(array).view(-1)[: N * N].view(N, N),
}


class TestHeldAliases:
    """Whoever holds an alias of a weight's memory may write through it at any time, again and again."""

    @pytest.mark.parametrize(
        ("alias", "taken"),
        [
            (alias, taken)
            for alias in ALIASES
            for taken in ("before-convert", "before-the-first-use", "after-it")
            # A capsule of DLPack holds the very tensor, which nobody sees who was not there: a limit, told in docs/limits.md.
            if not (taken == "before-convert" and alias in ("frozen-from_dlpack", "frozen-numpy-from_dlpack"))
        ],
    )
    def test_an_alias(self, alias, taken):
        take, write = ALIASES[alias]
        p = weight(frozen=alias.startswith("frozen"))
        held = take(p) if taken == "before-convert" else None
        hmp.convert()
        held = take(p) if taken == "before-the-first-use" else held
        assert is_fresh(p)
        assert is_fresh(p)
        held = take(p) if taken == "after-it" else held
        for value in range(3):
            write(held, float(value))
            assert p[ROW, 1] == value
            assert is_fresh_in_every_mode(p)

    @pytest.mark.parametrize("taken", ["before-convert", "after-the-first-use"])
    @pytest.mark.parametrize("alias", ["data", "detach", "parameter", "set_"])
    def test_a_weight_is_cached_again_when_the_alias_is_gone(self, alias, taken):
        take, write = ALIASES[alias]
        p = weight()
        held = take(p) if taken == "before-convert" else None
        hmp.convert()
        use(p)
        held = take(p) if held is None else held
        write(held, 3.0)
        assert is_fresh(p)
        del held
        assert is_fresh(p)
        count, hits = casts()
        assert is_fresh(p)
        assert casts() == (count, hits + 1)

    @pytest.mark.parametrize("owner", OWNERS)
    @pytest.mark.parametrize("made", ["before-convert", "after-it"])
    def test_memory_of_somebody_else(self, owner, made):
        array = np.random.default_rng(0).standard_normal((N, N), np.float32)
        p = nn.Parameter(OWNERS[owner](array)) if made == "before-convert" else None
        hmp.convert()
        p = nn.Parameter(OWNERS[owner](array)) if p is None else p
        assert is_fresh(p)
        for value in range(3):
            array[ROW] = value
            assert is_fresh_in_every_mode(p)
        assert hmp.cache.info().hits == 0

    def test_a_shared_file(self, tmp_path):
        path = str(tmp_path / "weights")
        hmp.convert()
        p = nn.Parameter(torch.from_file(path, shared=True, size=N * N).view(N, N))
        q = torch.from_file(path, shared=True, size=N * N).view(N, N)
        assert is_fresh(p)
        for value in range(3):
            q[ROW] = value
            assert is_fresh(p)

    @pytest.mark.parametrize("shared", ["before-convert", "before-the-first-use", "after-it"])
    @may_fork
    def test_another_process(self, shared):
        p = weight()
        if shared == "before-convert":
            p.share_memory_()
        hmp.convert()
        if shared == "before-the-first-use":
            p.share_memory_()
        assert is_fresh(p)
        assert is_fresh(p)
        if shared == "after-it":
            p.share_memory_()
        for value in range(2):
            process = fork.Process(target=lambda value=value: p.data[ROW].fill_(value))
            process.start()
            process.join()
            assert process.exitcode == 0
            assert p[ROW, 0] == value
            assert is_fresh(p)


def saved(tmp_path):
    p = weight()
    torch.save({"weight": p.detach()}, tmp_path / "weight.pt")
    save_file({"weight": p.detach()}, tmp_path / "weight.safetensors")
    return p


def opened(path):
    with safe_open(path, "pt") as file:
        return {"weight": file.get_tensor("weight")}


FILES = {
    "torch.load": lambda path: torch.load(path / "weight.pt"),
    "torch.load-mmap": lambda path: torch.load(path / "weight.pt", mmap=True),
    "safetensors": lambda path: load_file(path / "weight.safetensors"),
    "safe_open": lambda path: opened(path / "weight.safetensors"),
}
HARMLESS = {
    "state_dict": lambda p: module_of(p).state_dict(),
    "torch.save": lambda p: torch.save(p, io.BytesIO()),
    "pickle": pickle.dumps,
    "deepcopy": copy.deepcopy,
    "repr": repr,
    "norm": lambda p: p.norm().item(),
    "data_ptr": lambda p: p.data_ptr(),
    "address-of-storage": lambda p: p.untyped_storage().data_ptr(),
    "storage": lambda p: hash(p.untyped_storage()),
    "data": lambda p: p.data,
    "detach": lambda p: p.detach(),
    "clone": lambda p: p.clone(),
    "hash": hash,
    "double": lambda p: p.double(),
    "weakref": weakref.ref,
    "same-dtype": lambda p: p.float(),
    "load_state_dict": lambda p: module_of(p).load_state_dict({"weight": p}),
    "zero_grad": lambda p: module_of(p).zero_grad(),
    "optimizer": lambda p: torch.optim.SGD([p], lr=1.0),
    "view": lambda p: p.view(-1),
    "backward": lambda p: use(p).sum().backward() if p.requires_grad else None,
}


class TestKept:
    """What does not change a weight costs one cast at most; then the copy serves again."""

    @pytest.mark.parametrize("way", HARMLESS)
    def test_a_look_at_a_weight(self, way):
        hmp.convert()
        for frozen in (False, True):
            hmp.cache.clear()
            p = weight(frozen)
            use(p)
            HARMLESS[way](p)
            use(p)
            count, hits = casts()
            assert count <= 2
            use(p)
            assert casts() == (count, hits + 1)

    @pytest.mark.parametrize("how", ["assigned", "copied", "parameter"])
    @pytest.mark.parametrize("file", FILES)
    def test_weights_of_a_file(self, file, how, tmp_path):
        expected = by_hand(saved(tmp_path))
        state = FILES[file](tmp_path)
        if how == "parameter":
            p = nn.Parameter(state["weight"])
        else:
            module = module_of(weight())
            module.load_state_dict(state, assign=how == "assigned")
            p = module.weight
        del state
        hmp.convert()
        for _ in range(3):
            with torch.inference_mode():
                assert torch.equal(use(p), expected)
        assert casts() == (1, 2)
        with torch.no_grad():
            p[ROW] = 3
        assert is_fresh(p)
        del p

    def test_a_pretrained_model(self, tmp_path):
        import transformers

        config = transformers.LlamaConfig(
            hidden_size=64,
            intermediate_size=128,
            num_hidden_layers=2,
            num_attention_heads=2,
            num_key_value_heads=2,
            vocab_size=96,
        )
        transformers.LlamaForCausalLM(config).save_pretrained(tmp_path)
        model = transformers.LlamaForCausalLM.from_pretrained(tmp_path, dtype=FP32).eval()
        ids = torch.arange(6)[None]
        linears = sum(isinstance(module, nn.Linear) for module in model.modules())
        hmp.convert(opt_level="O1")
        with torch.inference_mode():
            first = model(ids).logits
            assert casts() == (linears, 0)
            assert torch.equal(model(ids).logits, first)
        assert casts() == (linears, linears)

    def test_the_pages_of_a_mapped_file_are_not_touched(self, tmp_path):
        """A weight that is served from its copy is not read but for some samples."""
        saved(tmp_path)
        hmp.convert()
        p = nn.Parameter(torch.load(tmp_path / "weight.pt", mmap=True)["weight"])
        first = use(p)
        assert torch.equal(use(p), first)
        assert casts() == (1, 1)


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


class TestLifetime:
    def test_a_cached_weight_is_freed_at_once(self):
        hmp.convert()
        gc.disable()
        try:
            for frozen in (False, True):
                p = weight(frozen)
                use(p)
                gone = weakref.ref(p)
                del p
                assert gone() is None
        finally:
            gc.enable()

    def test_entries_of_deleted_models_vanish(self):
        hmp.convert()
        model = nn.Sequential(*(nn.Linear(N, N) for _ in range(5)))
        model(X)
        kept = model[0]
        assert hmp.cache.info()[:2] == (5, 5 * BYTES)
        del model
        info = hmp.cache.info()
        assert (info.entries, info.bytes, info.invalidated) == (1, BYTES, {"freed": 4})
        assert is_fresh(kept.weight)
        assert hmp.cache.info().hits == 1

    def test_a_copy_outlives_the_cache_in_a_graph(self):
        hmp.convert()
        p = weight()
        x = X.clone().requires_grad_()
        y = F.linear(x, p)
        expected = p.detach().to(BF16).sum(0).expand(2, N).float()
        hmp.revert()
        del p
        y.sum().backward()
        assert torch.equal(x.grad, expected)

    def test_many_models_one_after_the_other(self):
        """Dead weights go without being asked for: what is kept of them does not grow."""
        hmp.convert()
        for _ in range(300):
            assert is_fresh(weight())
        info = hmp.cache.info()
        assert (info.entries, info.bytes, info.misses) == (0, 0, 300)

    @pytest.mark.parametrize("way", ["deepcopy", "copy", "pickle", "torch.save"])
    def test_a_copy_of_a_model_has_copies_of_its_own(self, way):
        def through(model):
            if way == "torch.save":
                file = io.BytesIO()
                torch.save(model, file)
                file.seek(0)
                return torch.load(file, weights_only=False)
            return pickle.loads(pickle.dumps(model)) if way == "pickle" else getattr(copy, way)(model)

        hmp.convert()
        model = module_of(weight())
        use(model.weight)
        other = through(model)
        with torch.no_grad():
            other.weight[ROW] = 3
        assert is_fresh(other.weight)
        assert is_fresh(model.weight)
        assert (other.weight is model.weight) == (way == "copy")

    def test_swap_tensors_after_use(self):
        hmp.convert()
        p, q = weight(), weight()
        use(p)
        use(q)
        expected = by_hand(q), by_hand(p)
        torch.utils.swap_tensors(p, q)
        assert torch.equal(use(p), expected[0])
        assert torch.equal(use(q), expected[1])

    @pytest.mark.parametrize("low", [torch.float16, BF16], ids=str)
    def test_another_conversion(self, low):
        hmp.convert(low_precision_type=torch.float16)
        p = weight()
        use(p)
        hmp.convert(low_precision_type=low)
        assert torch.equal(use(p), F.linear(X.to(low), p.to(low)))

    def test_revert_and_clear_empty_it(self):
        p = weight()
        for empty in (hmp.revert, hmp.cache.clear):
            hmp.convert()
            use(p)
            assert hmp.cache.info().entries == 1
            empty()
            info = hmp.cache.info()
            assert (info.entries, info.bytes, info.hits, info.misses, info.refreshed) == (0, 0, 0, 0, 0)
            assert info.invalidated == {}
        assert is_fresh(p)


class TestLimit:
    def test_it_is_a_quarter_of_the_memory(self):
        hmp.convert()
        assert hmp.cache.info().limit == os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 4
        hmp.revert()
        assert hmp.cache.info().limit == 0

    @pytest.mark.parametrize(
        ("limit", "entries"),
        [(0, 0), (1, 0), (BYTES - 1, 0), (BYTES, 1), (2 * BYTES + 1, 2), (10**18 - 1, 3)],
    )
    def test_copies_stay_below_it(self, limit, entries, monkeypatch):
        monkeypatch.setenv("HABANA_MP_CACHE_BYTES", str(limit))
        hmp.convert()
        weights = [weight(), weight(), weight(True)]
        for _ in range(3):
            assert all(map(is_fresh, weights))
            info = hmp.cache.info()
            assert (info.entries, info.bytes, info.limit) == (entries, entries * BYTES, limit)
        assert info.hits == 2 * entries
        with torch.no_grad():
            for p in weights:
                p[ROW] += 1
        assert all(map(is_fresh, weights))

    def test_dead_copies_make_room(self, monkeypatch):
        monkeypatch.setenv("HABANA_MP_CACHE_BYTES", str(BYTES))
        hmp.convert()
        for _ in range(3):
            p = weight()
            use(p)
            use(p)
            del p
        assert hmp.cache.info().hits == 3

    def test_another_conversion_may_lower_it(self, monkeypatch):
        hmp.convert()
        weights = [weight() for _ in range(3)]
        assert all(map(is_fresh, weights))
        monkeypatch.setenv("HABANA_MP_CACHE_BYTES", str(BYTES))
        hmp.convert()
        assert hmp.cache.info().bytes <= BYTES
        assert all(map(is_fresh, weights))

    @pytest.mark.parametrize("text", ["x", "-1", "1.5", "1e9", "0x10", "1G", " ", "9" * 19, "\u0661"])
    def test_a_bad_limit_converts_nothing(self, text, monkeypatch):
        originals = dict(vars(torch.Tensor))
        monkeypatch.setenv("HABANA_MP_CACHE_BYTES", text)
        with pytest.raises(ValueError, match=r"HABANA_MP_CACHE_BYTES is .*whole number of bytes"):
            hmp.convert()
        assert not hmp.is_converted()
        assert dict(vars(torch.Tensor)) == originals

    def test_a_bad_limit_leaves_a_conversion_in_force(self, monkeypatch):
        hmp.convert(low_precision_type=torch.float16)
        p = weight()
        use(p)
        before = hmp.cache.info()
        monkeypatch.setenv("HABANA_MP_CACHE_BYTES", "x")
        with pytest.raises(ValueError, match="HABANA_MP_CACHE_BYTES"):
            hmp.convert()
        assert hmp.cache.info() == before
        assert use(p).dtype == torch.float16
        assert hmp.cache.info().hits == before.hits + 1


class TestWatches:
    NAMES = ("data", "untyped_storage", "data_ptr", "set_", "numpy", "__dlpack__")

    @pytest.mark.parametrize("conversions", [1, 2, 5])
    def test_the_class_gives_torchs_own(self, conversions):
        originals = [getattr(torch.Tensor, name) for name in self.NAMES]
        for _ in range(conversions):
            hmp.convert()
        for name, original in zip(self.NAMES, originals):
            assert getattr(torch.Tensor, name) is original
            assert getattr(nn.Parameter, name) is original
        p = weight(frozen=True)
        assert torch.equal(torch.Tensor.data.__get__(p), p)
        assert np.array_equal(torch.Tensor.numpy(p), p.numpy())
        assert torch.Tensor.data_ptr(p) == p.data_ptr()
        assert torch.Tensor.untyped_storage(p).nbytes() == p.untyped_storage().nbytes()

    def test_revert_leaves_torch_as_it_was(self):
        before = dict(vars(torch.Tensor))
        hmp.convert()
        hmp.convert(policy=hmp.Policy.from_ops(lower=["linear"]))
        hmp.revert()
        assert dict(vars(torch.Tensor)) == before

    def test_a_convert_that_fails_leaves_torch_as_it_was(self, tmp_path):
        before = dict(vars(torch.Tensor))
        with pytest.raises(FileNotFoundError):
            hmp.convert(bf16_file_path=tmp_path / "none")
        assert dict(vars(torch.Tensor)) == before

    def test_they_do_what_the_originals_do(self):
        hmp.convert()
        p = weight()
        assert p.data.shape == (N, N)
        assert not p.data.requires_grad
        p.data = torch.ones(N, N)
        assert p.sum() == N * N
        with pytest.raises(TypeError):
            p.data = 3
        with pytest.raises(RuntimeError, match="Can't call numpy"):
            p.numpy()
        with pytest.raises(TypeError):
            p.data_ptr(3)
        with pytest.raises(RuntimeError):
            del p.data
        assert p.numpy.__name__ == "numpy"
        assert callable(torch.Tensor.numpy)

    def test_attributes_of_these_names_on_a_subclass(self):
        class Named(torch.Tensor):
            data_ptr = 5

        hmp.convert()
        t = torch.ones(2).as_subclass(Named)
        assert t.data_ptr == 5
        plain = torch.ones(2)
        plain.numpy = 3
        assert plain.numpy == 3

    def test_listed_by_a_policy(self):
        """A policy that lists one of these names takes its place, and both go."""
        before = dict(vars(torch.Tensor))
        hmp.convert(policy=hmp.Policy.from_ops(lower=["linear", "numpy", "untyped_storage", "data_ptr"]))
        p = weight(frozen=True)
        assert is_fresh(p)
        assert p.numpy().dtype == np.float32
        p.numpy()[ROW] = 3
        assert is_fresh(p)
        hmp.revert()
        assert dict(vars(torch.Tensor)) == before

    def test_a_torch_function_mode_sees_the_read(self):
        seen = []

        class Mode(torch.overrides.TorchFunctionMode):
            def __torch_function__(self, func, types, args=(), kwargs=None):
                seen.append(func)
                return func(*args, **(kwargs or {}))

        hmp.convert()
        p = weight()
        use(p)
        with Mode():
            p.data[ROW] = 3
        assert torch.Tensor.data.__get__ in seen
        assert is_fresh(p)


def run(program, monkeypatch, cached):
    """What a program gives under convert, with or without the cache: tensors."""
    if cached:
        hmp.convert()
    else:
        off(monkeypatch)
    torch.manual_seed(0)
    return [value.detach().clone() for value in program()]


def agree(program, monkeypatch):
    """Whether a program gives the same bits with the cache, of which it makes use, as without."""
    expected = run(program, monkeypatch, cached=False)
    result = run(program, monkeypatch, cached=True)
    assert (hmp.cache.info().hits > 0) == (program is not tied_by_storage)
    assert all(torch.isfinite(value).all() for value in expected)
    return [torch.equal(a, b) for a, b in zip(result, expected, strict=True)] == [True] * len(expected)


def net():
    return nn.Sequential(nn.Linear(N, N), nn.ReLU(), nn.Linear(N, N))


def train(model, optimizer, forward=None):
    for _ in range(3):
        for _ in range(2):
            (forward or model)(torch.randn(4, N)).float().square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    return [*model.parameters(), model(X)]


def gan():
    generator, critic = net(), net()
    first = torch.optim.Adam(generator.parameters(), lr=0.01, fused=True)
    second = torch.optim.Adam(critic.parameters(), lr=0.01)
    for _ in range(3):
        second.zero_grad()
        (
            critic(torch.randn(4, N)).float().mean() - critic(generator(torch.randn(4, N)).detach()).float().mean()
        ).backward()
        second.step()
        first.zero_grad()
        critic(generator(torch.randn(4, N))).float().mean().backward()
        first.step()
    return [*generator.parameters(), *critic.parameters()]


class LowRank(nn.Module):
    """A frozen layer and a trained correction of low rank."""

    def __init__(self):
        super().__init__()
        self.base = nn.Linear(N, N).requires_grad_(False)
        self.down, self.up = nn.Linear(N, 32, bias=False), nn.Linear(32, N, bias=False)

    def forward(self, x):
        return self.base(x) + self.up(self.down(x))


def low_rank():
    model = LowRank()
    values = train(model, torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=0.1))
    with torch.no_grad():  # merged for inference, and taken apart again
        model.base.weight += model.up.weight @ model.down.weight
        values.append(model.base(X))
        model.base.weight -= model.up.weight @ model.down.weight
        return [*values, model.base(X)]


def tied():
    model = nn.Sequential(nn.Linear(N, N), nn.Tanh(), nn.Linear(N, N))
    model[2].weight = model[0].weight
    values = train(model, torch.optim.SGD(model.parameters(), lr=0.1))
    return [*values, model[0].weight.data.mul_(2), model(X)]


def tied_by_storage():
    model = nn.Sequential(nn.Linear(N, N), nn.Tanh(), nn.Linear(N, N))
    model[2].weight = nn.Parameter(model[0].weight.detach())
    return train(model, torch.optim.SGD(model.parameters(), lr=0.1))


def averaged(multi_avg):
    def program():
        model = net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        average = torch.optim.swa_utils.AveragedModel(model, multi_avg_fn=multi_avg)
        values = []
        for _ in range(3):
            model(torch.randn(4, N)).float().square().mean().backward()
            optimizer.step()
            average.update_parameters(model)
            values += [average(X), average(X)]
        return values

    return program


def ema_swapped():
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, fused=True)
    shadow = [p.detach().clone() for p in model.parameters()]
    values = []
    for _ in range(3):
        model(torch.randn(4, N)).float().square().mean().backward()
        optimizer.step()
        torch._foreach_lerp_(shadow, [p.detach() for p in model.parameters()], 0.5)
        backup = [p.data for p in model.parameters()]
        for p, ema in zip(model.parameters(), shadow):
            p.data = ema
        values += [model(X), model(X)]
        for p, own in zip(model.parameters(), backup):
            p.data = own
        del backup, p, own
        values += [model(X), model(X)]
    return values


def functional():
    model = net()
    parameters = {name: nn.Parameter(torch.randn_like(p)) for name, p in model.named_parameters()}
    values = [model(X), functional_call(model, parameters, X), functional_call(model, parameters, X), model(X)]
    with torch.no_grad():
        parameters["0.weight"][ROW] = 3
    return [*values, functional_call(model, parameters, X)]


def through_transforms():
    model = net()
    parameters = dict(model.named_parameters())
    batch = torch.randn(3, 2, N)
    loss = lambda parameters, x: functional_call(model, parameters, x).float().square().mean()  # noqa: E731
    each = torch.func.vmap(torch.func.grad(loss), (None, 0))(parameters, batch)
    return [model(X), *each.values(), torch.func.vmap(model)(batch), model(X)]


class Symmetric(nn.Module):
    def forward(self, x):
        return x.triu() + x.triu(1).transpose(-1, -2)


def parametrized():
    model = net()
    parametrize.register_parametrization(model[0], "weight", Symmetric())
    values = train(model, torch.optim.SGD(model.parameters(), lr=0.1))
    with parametrize.cached():
        values += [model(X), model(X)]
    parametrize.remove_parametrizations(model[0], "weight")
    return [*values, model(X), model(X)]


def pruned():
    model = net()
    values = [model(X)]
    prune.random_unstructured(model[0], "weight", amount=0.5)
    values += train(model, torch.optim.SGD(model.parameters(), lr=0.1))
    prune.remove(model[0], "weight")
    return [*values, model(X), model(X)]


def reparametrized():
    model = net()
    weight_norm(model[0])
    return train(model, torch.optim.SGD(model.parameters(), lr=0.1))


def checkpointed(reentrant):
    def program():
        model = net()
        forward = lambda x: checkpoint(model, x.requires_grad_(), use_reentrant=reentrant)  # noqa: E731
        return train(model, torch.optim.Adam(model.parameters(), lr=0.1, fused=True), forward)

    return program


def clipped():
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, fused=True)
    for _ in range(3):
        model(torch.randn(4, N)).float().square().sum().backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        with hmp.disable_casts():
            optimizer.step()
        optimizer.zero_grad()
        nn.utils.clip_grads_with_norm_(model.parameters(), 1.0, torch.ones(()))
        for p in model.parameters():
            p.data.clamp_(-0.05, 0.05)
    return [*model.parameters(), model(X), model(X)]


def saved_on_cpu():
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with torch.autograd.graph.save_on_cpu():
        return train(model, optimizer)


def optimizer_in_backward():
    model = net()
    for p in model.parameters():
        optimizer = torch.optim.SGD([p], lr=0.1, fused=True)

        def update(p, optimizer=optimizer):
            optimizer.step()
            optimizer.zero_grad()

        p.register_post_accumulate_grad_hook(update)
    for _ in range(3):
        model(torch.randn(4, N)).float().square().mean().backward()
    return [*model.parameters(), model(X), model(X)]


def adversarial():
    """An input that requires grad is a leaf as weights are, and changes at every step."""
    model = net().requires_grad_(False)
    x = torch.randn(64, N, requires_grad=True)
    for _ in range(3):
        model(x).float().square().mean().backward()
        with torch.no_grad():
            x += x.grad.sign()
            x.grad = None
    return [x, model(x), model(x)]


def double_backward():
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        x = torch.randn(4, N, requires_grad=True)
        (grad,) = torch.autograd.grad(model(x).float().square().sum(), x, create_graph=True)
        grad.square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    return [*model.parameters(), model(X), model(X)]


def recurrent():
    model = nn.LSTM(N, 32, batch_first=True)
    optimizer = torch.optim.Adam(model.parameters(), fused=True)
    values = []
    for _ in range(3):
        out, (h, c) = model(torch.randn(2, 3, N))
        (out.float().sum() + h.float().sum() + c.float().sum()).backward()
        values.append(out)
        optimizer.step()
        with torch.no_grad():
            values.append(F.linear(torch.randn(2, N), model.weight_ih_l0))
            values.append(F.linear(torch.randn(2, N), model.weight_ih_l0))
    return values


def encoder():
    model = nn.TransformerEncoder(
        nn.TransformerEncoderLayer(64, 2, 128, 0.0, batch_first=True), 2, enable_nested_tensor=False
    )
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    values, x = [], torch.randn(2, 5, 64)
    for _ in range(2):
        model.train()(x).float().square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        with torch.inference_mode():
            values += [model.eval()(x), model(x)]
    return [*values, *model.parameters()]


PROGRAMS = {
    "sgd": lambda: train(model := net(), torch.optim.SGD(model.parameters(), lr=0.1)),
    "adam-fused": lambda: train(model := net(), torch.optim.Adam(model.parameters(), lr=0.1, fused=True)),
    "gan": gan,
    "low-rank": low_rank,
    "tied": tied,
    "tied-by-storage": tied_by_storage,
    "averaged": averaged(None),
    "averaged-ema": averaged(torch.optim.swa_utils.get_ema_multi_avg_fn(0.5)),
    "ema-swapped": ema_swapped,
    "functional_call": functional,
    "transforms": through_transforms,
    "parametrized": parametrized,
    "pruned": pruned,
    "weight_norm": reparametrized,
    "checkpoint": checkpointed(False),
    "checkpoint-reentrant": checkpointed(True),
    "clipped": clipped,
    "save_on_cpu": saved_on_cpu,
    "optimizer-in-backward": optimizer_in_backward,
    "adversarial": adversarial,
    "double-backward": double_backward,
    "recurrent": recurrent,
    "encoder": encoder,
}


class TestAsWithoutIt:
    """Whole programs give the same bits with the cache as without."""

    @pytest.mark.filterwarnings("ignore:`torch.nn.utils.weight_norm` is deprecated:FutureWarning")
    @pytest.mark.parametrize("program", PROGRAMS)
    def test_a_program(self, program, monkeypatch):
        assert agree(PROGRAMS[program], monkeypatch)

    @pytest.mark.parametrize("reentrant", [False, True])
    def test_checkpointing_adds_no_cast(self, reentrant):
        hmp.convert()
        model = net()
        checkpoint(model, X.clone().requires_grad_(), use_reentrant=reentrant).sum().backward()
        assert casts() == (2, 2)

    @pytest.mark.parametrize("way", ["ddp", "ddp-views", "fsdp2", "fsdp2-reshard-kept", "broadcast"])
    def test_distributed(self, way, monkeypatch, tmp_path):
        def program():
            model = net()
            if way.startswith("ddp"):
                model = DistributedDataParallel(model, gradient_as_bucket_view=way == "ddp-views")
            elif way.startswith("fsdp2"):
                mesh = init_device_mesh("cpu", (1,))
                for layer in (model[0], model[2], model):
                    fully_shard(layer, mesh=mesh, reshard_after_forward=way == "fsdp2")
            values = []
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1, fused=not way.startswith("fsdp2"))
            for _ in range(3):
                for _ in range(2):
                    y = model(torch.randn(4, N))
                    y.float().square().mean().backward()
                    values.append(y)
                optimizer.step()
                optimizer.zero_grad()
                if way == "broadcast":
                    dist.broadcast(model[0].weight.detach(), 0)
            return values

        dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
        try:
            expected = run(program, monkeypatch, cached=False)
            result = run(program, monkeypatch, cached=True)
        finally:
            dist.destroy_process_group()
            gc.collect()  # a child forked later would wait for ever for the threads of a group that it has to free
        assert all(map(torch.equal, result, expected))
        if not way.startswith("fsdp2"):
            assert hmp.cache.info().hits > 0

    @pytest.mark.parametrize("way", ["broadcast", "broadcast-parameter", "all_reduce", "recv", "ddp"])
    @may_fork
    def test_what_another_rank_sends(self, way, tmp_path):
        """One row comes from the first rank; the second has used the weight before."""
        p = weight()
        hmp.convert()
        queue = fork.SimpleQueue()

        def work(rank):
            gc.disable()
            torch.set_num_threads(1)
            dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=rank, world_size=2)
            before = is_fresh(p)
            if rank == 0:
                with torch.no_grad():
                    p[ROW] = 3
            with torch.no_grad():
                COLLECTIVES[way](p, rank)
            queue.put([before, bool(p[ROW].eq(3).all()), is_fresh(p)])
            dist.destroy_process_group()

        ranks = [fork.Process(target=work, args=(rank,)) for rank in range(2)]
        for rank in ranks:
            rank.start()
        results = [queue.get() for _ in ranks]
        for rank in ranks:
            rank.join()
        assert results == [[True, True, True]] * 2

    def test_a_collective_moves_version_counters_as_ever(self, tmp_path):
        """Autograd still sees that a tensor it saved was overwritten."""

        def version_after_gather():
            x = torch.ones(4)
            dist.all_gather([x], torch.zeros(4))
            return x._version

        dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
        try:
            expected = version_after_gather()
            hmp.convert()
            assert version_after_gather() == expected > 0
        finally:
            dist.destroy_process_group()
            gc.collect()


COLLECTIVES = {
    "broadcast": lambda p, rank: dist.broadcast(p.detach(), 0),
    "broadcast-parameter": lambda p, rank: dist.broadcast(p, 0),
    "all_reduce": lambda p, rank: dist.all_reduce(p, dist.ReduceOp.MAX),
    "recv": lambda p, rank: dist.recv(p, 0) if rank else dist.send(p, 1),
    "ddp": lambda p, rank: DistributedDataParallel(module_of(p)),
}


class TestTracers:
    @pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
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

    @pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
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


class TestThreads:
    def test_eight_threads_and_one_that_changes_the_weights(self):
        """Readers and the writer take turns; none sees numbers of an earlier turn."""
        hmp.convert()
        model, lock, wrong = net(), threading.Lock(), []
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, fused=True)

        def read(_):
            for _ in range(40):
                with lock, torch.inference_mode():
                    if not (is_fresh(model[0].weight) and is_fresh(model[2].weight)):
                        wrong.append(1)
                with torch.inference_mode():
                    model(X)

        def write(_):
            for turn in range(40):
                with lock:
                    if turn % 3 == 0:
                        for p in model.parameters():
                            p.grad = torch.zeros_like(p)
                            p.grad[ROW] = 1
                        optimizer.step()
                    elif turn % 3 == 1:
                        model[0].weight.data[ROW] = turn
                    else:
                        model[2].weight.data = written(model[2].weight, turn)

        with ThreadPoolExecutor(9) as pool:
            list(pool.map(lambda job: job(None), [write] + [read] * 8))
        assert not wrong
        info = hmp.cache.info()
        assert (info.entries, info.bytes) == (2, 2 * BYTES)

    def test_threads_with_models_of_their_own(self):
        hmp.convert()

        def work(seed):
            p = nn.Parameter(torch.randn(N, N, generator=torch.Generator().manual_seed(seed)))
            good = []
            for value in range(30):
                good += [is_fresh(p), is_fresh(p)]
                with torch.no_grad():
                    p[ROW] = value
            return all(good)

        with ThreadPoolExecutor(8) as pool:
            assert all(pool.map(work, range(8)))
        assert hmp.cache.info().entries == 0

    def test_a_write_while_another_thread_casts(self):
        """Who writes at the same time may miss this call, never all calls to come."""
        hmp.convert()
        x = torch.ones(1, 1024)
        for turn in range(30):
            p = nn.Parameter(torch.zeros(8192, 1024))
            if turn % 2:
                F.linear(x, p)
                with torch.no_grad():
                    p[1] = 1
            started = threading.Event()

            def cast(p=p, started=started):
                started.set()
                F.linear(x, p)

            thread = threading.Thread(target=cast)
            thread.start()
            started.wait()
            p.data[1:500] = 7  # between two samples
            p.data[-500:-1] = 7
            thread.join()
            assert torch.equal(F.linear(x, p), F.linear(x.to(BF16), p.detach().to(BF16)))

    def test_convert_clear_and_revert_while_threads_compute(self):
        hmp.convert()
        p, stop = weight(), threading.Event()

        def compute(_):
            with torch.inference_mode():
                while not stop.is_set():
                    use(p)

        with ThreadPoolExecutor(4) as pool:
            futures = [pool.submit(compute, None) for _ in range(4)]
            for _ in range(5):
                hmp.cache.clear()
                hmp.revert()
                hmp.convert()
                hmp.cache.info()
            stop.set()
            for future in futures:
                future.result()
        hmp.revert()
        info = hmp.cache.info()
        assert (info.entries, info.bytes) == (0, 0)

    def test_the_backward_thread(self):
        """A hook that runs the model in the engine's thread uses the same copies."""
        hmp.convert()
        p = weight()
        seen = []
        y = use(p)
        y.register_hook(lambda grad: seen.append(is_fresh(p)))
        y.sum().backward()
        assert seen == [True]

    @may_fork
    def test_a_forked_process_has_a_cache_of_its_own(self):
        hmp.convert()
        p = weight()
        assert is_fresh(p)
        queue = fork.SimpleQueue()

        def child():
            torch.set_num_threads(1)
            first = is_fresh(p)
            p.data[ROW] = 3
            queue.put([first, is_fresh(p), hmp.cache.info().hits])

        process = fork.Process(target=child)
        process.start()
        assert queue.get() == [True, True, 1]
        process.join()
        assert process.exitcode == 0
        assert is_fresh(p)
        assert casts() == (1, 1)

    @may_fork
    def test_a_fork_while_threads_cast(self):
        """The child does not wait for a lock that a thread of the parent held."""
        hmp.convert()
        big, stop = nn.Parameter(torch.randn(1024, 1024)), threading.Event()

        def cast():
            while not stop.is_set():
                big.data_ptr()
                F.linear(torch.ones(1, 1024), big)

        thread = threading.Thread(target=cast)
        thread.start()
        try:
            for _ in range(10):
                process = fork.Process(target=lambda: (torch.set_num_threads(1), use(weight()), hmp.cache.info()))
                process.start()
                process.join(60)
                assert process.exitcode == 0
        finally:
            stop.set()
            thread.join()


def test_the_cache_is_off_where_the_environment_says_so():
    """The same program in a process of its own, with the cache and without: the same bits."""
    program = """
import zlib
import torch
from habana_mp import hmp
hmp.convert()
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(128, 128), torch.nn.ReLU(), torch.nn.Linear(128, 128))
for _ in range(3):
    for _ in range(2):
        model(torch.randn(4, 128)).float().square().mean().backward()
    for p in model.parameters():
        p.data -= p.grad
    model[0].weight.data[5] = 1
    model[2].weight.detach().numpy()[5] = 1
print(hmp.cache.info().hits > 0)
numbers = [*model.parameters(), model(torch.ones(1, 128)).float()]
print([zlib.crc32(tensor.detach().numpy().tobytes()) for tensor in numbers])
"""
    lines = []
    for limit in ("", "0"):
        done = subprocess.run(
            [sys.executable, "-W", "error", "-c", program],
            env={**os.environ, "HABANA_MP_CACHE_BYTES": limit},
            capture_output=True,
            text=True,
            check=True,
        )
        lines.append(done.stdout.splitlines())
    assert [line[0] for line in lines] == ["True", "False"]
    assert lines[0][1] == lines[1][1]


def test_hpu_autocast_keeps_no_copies():
    """D29: under that policy a weight is cast at every call."""
    hmp.convert(policy="hpu-autocast")
    p = weight()
    for _ in range(3):
        assert is_fresh(p)
    assert hmp.cache.info()[:4] == (0, 0, 0, 0)
