"""hmp.cache.offload: float32 weights in a file work as those in memory do, bit for bit."""

import copy
import ctypes
import gc
import itertools
import threading
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from cached_weight import BF16, OPTIMIZERS, casts, copied, fork, may_fork
from offloaded import N, X, all_in_file, bits, is_in_file, net, same, weights_of
from torch import nn

from habana_mp import hmp

pytestmark = pytest.mark.usefixtures("empty_cache")


class TestNumbers:
    def test_they_stay_bit_for_bit_in_the_same_objects_at_the_same_addresses(self):
        model = net()
        with torch.no_grad():
            model[0].weight.view(torch.int32).random_()
            model[1].weight[0] = -0.0
            model[1].weight[1] = torch.nan
        before = bits(model)
        places = [(id(p), p.data_ptr(), p._version) for p in model.parameters()]
        moved = hmp.cache.offload(model)
        assert (moved.weights, moved.left) == (3, {})
        assert 3 * (4 * N * N - 2 * 4096) <= moved.bytes <= 3 * 4 * N * N
        assert all_in_file(model) == [True] * 3
        assert same(bits(model), before)
        assert [(id(p), p.data_ptr(), p._version) for p in model.parameters()] == places
        hmp.cache.restore(model)
        assert all_in_file(model) == [False] * 3
        assert same(bits(model), before)
        assert [(id(p), p.data_ptr(), p._version) for p in model.parameters()] == places

    def test_what_is_moved(self):
        """Float32 weights of at least 65536 numbers; not buffers, and nothing of another dtype."""
        model = net(1)
        model.register_buffer("table", torch.randn(N, N))
        model.half = nn.Linear(N, N).to(torch.float16)
        model.double = nn.Linear(N, N).double()
        model.small = nn.Parameter(torch.randn(N, N - 1))
        model.frozen = nn.Parameter(torch.randn(N, N), requires_grad=False)
        model.counts = nn.Parameter(torch.zeros(N, N, dtype=torch.int64), requires_grad=False)
        assert hmp.cache.offload(model)[::2] == (2, {})
        assert [
            name for name, p in [*model.named_parameters(), *model.named_buffers()] if p.ndim == 2 and is_in_file(p)
        ] == [
            "frozen",
            "0.weight",
        ]

    def test_a_model_without_large_weights(self):
        assert hmp.cache.offload(nn.Linear(4, 4)) == (0, 0, {})
        assert hmp.cache.offload(nn.Module()) == (0, 0, {})
        hmp.cache.restore(nn.Linear(4, 4))

    def test_memory_that_is_given_back_is_ordinary_again(self):
        """An allocator may take what is freed for pages of its own, and hand it out for zeros."""
        for _ in range(50):
            model = net(2)
            hmp.cache.offload(model)
            del model
            fresh = [torch.zeros(N, N) for _ in range(4)]
            assert not any(map(is_in_file, fresh))
            assert all(t.count_nonzero() == 0 for t in fresh)
            assert torch.equal(fresh[0].fill_(3), torch.full((N, N), 3.0))


class TestCalls:
    @pytest.mark.usefixtures("in_every_layout")
    def test_copies_outlive_the_move(self, in_every_layout):
        hmp.convert()
        model = net()
        grad = torch.enable_grad if in_every_layout == "plain" else torch.no_grad
        with grad():
            expected = model(X)
            hmp.cache.offload(model)
            assert torch.equal(model(X), expected)
            hmp.cache.restore(model)
            assert torch.equal(model(X), expected)
        assert casts() == (3, 6)

    @pytest.mark.parametrize("front_end", ["convert", "autocast"])
    def test_a_weight_that_was_moved_first_is_cast_once(self, front_end):
        model = net()
        x = X.to(BF16)
        with torch.no_grad():
            expected = copy.deepcopy(model).to(BF16)(x)
        hmp.cache.offload(model)
        if front_end == "convert":
            hmp.convert()
        with torch.inference_mode(), hmp.autocast("cpu"):
            for _ in range(3):
                assert torch.equal(model(x), expected)
        assert casts() == (3, 6)

    def test_without_a_conversion_it_is_the_float32_model(self):
        model = net()
        expected = model(X)
        hmp.cache.offload(model)
        assert torch.equal(model(X), expected)

    @pytest.mark.parametrize("when", ["before", "after"])
    def test_compiled(self, when):
        hmp.convert()
        model = net(1)
        compiled = torch.compile(model, backend="aot_eager")
        with torch.no_grad():
            expected = model(X)
            if when == "after":
                assert torch.equal(compiled(X), expected)
            assert hmp.cache.offload(compiled).weights == 1
            for _ in range(2):
                assert torch.equal(compiled(X), expected)
            hmp.cache.restore(model)
            assert torch.equal(compiled(X), expected)
            with torch.no_grad():
                model[0].weight.mul_(2)
            assert torch.equal(compiled(X), model(X))

    @pytest.mark.filterwarnings("ignore:Dynamo does not know how to trace the builtin:UserWarning")
    def test_inside_of_compiled_code(self):
        model = net(1)

        def step(x):
            hmp.cache.offload(model)
            y = model(x)
            hmp.cache.restore(model)
            return y

        with torch.no_grad():
            assert torch.equal(torch.compile(step, backend="aot_eager")(X), model(X))

    def test_while_a_report_listens(self):
        hmp.convert()
        model = net()
        with torch.no_grad(), hmp.report() as report:
            expected = model(X)
            hmp.cache.offload(model)
            assert torch.equal(model(X), expected)
            hmp.cache.restore(model)
        assert sum(row["calls"] for row in report.to_dict()["rows"] if row["op"] == "linear") == 6

    @pytest.mark.parametrize(
        "mode", [torch.inference_mode, torch.no_grad, torch.enable_grad, lambda: torch.autocast("cpu")]
    )
    def test_in_every_mode(self, mode):
        model = net()
        before = bits(model)
        with mode():
            assert hmp.cache.offload(model).weights == 3
            assert same(bits(model), before)
            hmp.cache.restore(model)
            assert same(bits(model), before)

    def test_other_threads_call_the_model_meanwhile(self):
        hmp.convert()
        model = net()
        with torch.no_grad():
            expected = model(X)
        wrong, stop = [], threading.Event()

        def calls():
            with torch.no_grad():
                while not stop.is_set():
                    if not torch.equal(model(X), expected):
                        wrong.append(1)

        threads = [threading.Thread(target=calls) for _ in range(2)]
        for thread in threads:
            thread.start()
        try:
            for _ in range(20):
                hmp.cache.offload(model)
                hmp.cache.clear()
                hmp.cache.restore(model)
        finally:
            stop.set()
            for thread in threads:
                thread.join()
        assert wrong == []


class TestWrites:
    @pytest.mark.parametrize("optimizer", ["sgd-loop", "sgd-fused-momentum", "adam-foreach", "adamw-fused", "muon"])
    def test_training_is_that_of_a_model_in_memory(self, optimizer):
        hmp.convert()
        results = []
        for moved in (False, True):
            torch.manual_seed(0)
            model = net()
            if moved:
                hmp.cache.offload(model)
            steps = OPTIMIZERS[optimizer](weights_of(model))
            losses = []
            for _ in range(4):
                loss = model(X).float().square().mean()
                loss.backward()
                steps.step()
                steps.zero_grad()
                losses.append(loss.item())
                if moved:
                    hmp.cache.offload(model)
            results.append((losses, bits(model)))
        assert results[0][0] == results[1][0]
        assert len(set(results[0][0])) == 4
        assert same(results[0][1], results[1][1])

    def test_a_graph_outlives_the_move(self):
        hmp.convert()
        model = net()
        model(X).float().square().sum().backward()
        expected = [p.grad.clone() for p in model.parameters()]
        model.zero_grad()
        loss = model(X).float().square().sum()
        hmp.cache.offload(model)
        loss.backward()
        assert all(map(torch.equal, [p.grad for p in model.parameters()], expected))

    @pytest.mark.parametrize("way", ["in-place", "data", "numpy", "ctypes", "load_state_dict"])
    def test_a_write_counts(self, way):
        """Also for the copy in the cache, and after another move, and after restore."""
        hmp.convert()
        model = net(1)
        p = model[0].weight
        hmp.cache.offload(model)
        with torch.no_grad():
            model(X)
            if way == "in-place":
                p[0] = 3
            elif way == "data":
                p.data[0] = 3
            elif way == "numpy":
                p.detach().numpy()[0] = 3
            elif way == "ctypes":
                row = np.full(N, 3, np.float32)
                ctypes.memmove(p.data_ptr(), row.ctypes.data, row.nbytes)
            else:
                model.load_state_dict({**model.state_dict(), "0.weight": torch.full((N, N), 3.0)})
            expected = bits(model)
            for change in (lambda: None, lambda: hmp.cache.offload(model), lambda: hmp.cache.restore(model)):
                change()
                assert same(bits(model), expected)
                assert (p[0] == 3).all()
                y = F.linear(X.to(BF16), p.to(BF16), model[0].bias.to(BF16))
                assert torch.equal(model(X), y)

    def test_aliases_stay_aliases(self):
        model = net(1)
        p = model[0].weight
        hmp.cache.offload(model)
        alias, array = p.detach(), p.detach().numpy()
        with torch.no_grad():
            p[3] = 5
        hmp.cache.restore(model)
        with torch.no_grad():
            p[4] = 6
        assert (alias[3] == 5).all()
        assert (array[4] == 6).all()
        array[5] = 7
        assert (p[5] == 7).all()

    def test_the_second_call_moves_what_was_written(self):
        model = net(2)
        first = hmp.cache.offload(model)
        with torch.no_grad():
            model[0].weight.zero_()
        assert hmp.cache.offload(model) == first
        assert model[0].weight.count_nonzero() == 0
        assert all_in_file(model) == [True] * 2


class TestOtherHolders:
    def test_a_tied_weight_is_moved_once(self):
        model = net(2)
        model[1].weight = model[0].weight
        assert hmp.cache.offload(model)[::2] == (1, {})
        assert model[1].weight is model[0].weight

    def test_weights_that_are_cast_each_time_are_left(self):
        """Their numbers are read at every use."""
        model = net(5)
        flat = torch.randn(2 * N * N)
        model[0].weight = nn.Parameter(flat[: N * N].view(N, N))
        model[1].weight = nn.Parameter(flat[N * N :].view(N, N))
        array = model[2].weight.detach().numpy()
        capsule = torch.utils.dlpack.to_dlpack(model[3].weight.detach())
        moved = hmp.cache.offload(model)
        assert moved.left == {"0.weight": "shared", "1.weight": "shared", "2.weight": "shared", "3.weight": "shared"}
        assert moved.weights == 1
        assert repr(moved).endswith("left={shared: 4 weights, such as 0.weight, 1.weight, 2.weight})")
        assert all_in_file(model) == [False] * 4 + [True]
        del array, capsule

    def test_an_array_that_is_gone(self):
        hmp.convert()
        model = net(1)
        model[0].weight.detach().numpy()
        assert hmp.cache.offload(model) == (0, 0, {"0.weight": "foreign"})

    def test_a_state_dict_that_is_kept(self):
        model = net(1)
        state = model.state_dict()
        assert hmp.cache.offload(model) == (0, 0, {"0.weight": "shared"})
        del state
        assert hmp.cache.offload(model).weights == 1

    def test_weights_of_a_mapped_file(self, tmp_path):
        torch.save(net(1).state_dict(), tmp_path / "model.pt")
        model = net(1)
        model.load_state_dict(torch.load(tmp_path / "model.pt", mmap=True), assign=True)
        assert hmp.cache.offload(model) == (0, 0, {"0.weight": "mapped"})

    @pytest.mark.parametrize("way", ["deepcopy", "pickle", "torch.save"])
    def test_a_copy_of_the_model_lies_in_memory(self, way):
        model = net(1)
        hmp.cache.offload(model)
        other = copied(model, way)
        assert same(bits(other), bits(model))
        assert not is_in_file(other[0].weight)
        with torch.no_grad():
            other[0].weight.zero_()
        assert model[0].weight.count_nonzero() > 0

    @pytest.mark.parametrize(
        "change",
        [
            lambda model: model.share_memory(),
            lambda model: model.double().float(),
            lambda model: setattr(model[0].weight, "data", model[0].weight.data.clone()),
            lambda model: model[0].weight.untyped_storage().resize_(8 * N * N),
        ],
        ids=["share_memory", "dtype", "data", "resize"],
    )
    def test_memory_that_is_replaced(self, change):
        model = net(1)
        before = bits(model)
        hmp.cache.offload(model)
        change(model)
        assert same(bits(model), before)
        assert not all_in_file(model)[0] or "shm" in Path("/proc/self/maps").read_text()
        hmp.cache.restore(model)
        assert same(bits(model), before)

    @may_fork
    def test_a_forked_process_has_weights_of_its_own(self):
        hmp.convert()
        torch.set_num_threads(1)
        model = net(1)
        expected = bits(model)
        hmp.cache.offload(model)
        with torch.no_grad():
            y = model(X)

        def child():
            torch.set_num_threads(1)
            right = same(bits(model), expected) and torch.equal(model(X), y)
            with torch.no_grad():
                model[0].weight.zero_()
            hmp.cache.offload(model)
            hmp.revert()
            assert right
            assert all_in_file(model) == [False]
            assert model[0].weight.count_nonzero() == 0

        process = fork.Process(target=child)
        process.start()
        process.join()
        assert process.exitcode == 0
        assert same(bits(model), expected)
        assert all_in_file(model) == [True]


class TestRevert:
    def test_it_brings_all_weights_back(self):
        hmp.convert()
        models = [net(1), net(2)]
        before = list(map(bits, models))
        for model in models:
            hmp.cache.offload(model)
        hmp.revert()
        assert [all_in_file(model) for model in models] == [[False], [False, False]]
        assert all(map(same, map(bits, models), before))

    def test_it_keeps_no_model_alive(self):
        hmp.convert()
        gc.disable()
        try:
            model = net(1)
            kept = model[0].weight
            hmp.cache.offload(model)
            del model
            hmp.revert()
            assert not is_in_file(kept)
            for _ in range(3):
                hmp.convert()
                gone = net(1)
                hmp.cache.offload(gone)
                del gone
                hmp.revert()
        finally:
            gc.enable()

    def test_another_conversion_leaves_them_in_the_file(self):
        hmp.convert()
        model = net(1)
        hmp.cache.offload(model)
        hmp.convert(low_precision_type=torch.float16)
        assert all_in_file(model) == [True]

    def test_restore_of_what_lies_in_memory_does_nothing(self):
        model = net(1)
        hmp.cache.restore(model)
        hmp.cache.offload(model)
        hmp.cache.restore(model)
        hmp.cache.restore(model)
        assert hmp.cache.offload(model).weights == 1


def test_the_same_weights_many_times():
    """Moves, writes and calls in every order leave what they leave in memory."""
    hmp.convert()
    for order in itertools.permutations(range(4)):
        torch.manual_seed(1)
        model = net(1)
        plain = copy.deepcopy(model)
        actions = [
            lambda m, moved: hmp.cache.offload(m) if moved else None,
            lambda m, moved: m[0].weight.data.mul_(2),
            lambda m, moved: m(X).float().sum().backward(),
            lambda m, moved: hmp.cache.restore(m) if moved else None,
        ]
        for each in order:
            actions[each](model, True)
            actions[each](plain, False)
            assert same(bits(model), bits(plain))
        assert torch.equal(model[0].weight.grad, plain[0].weight.grad)
