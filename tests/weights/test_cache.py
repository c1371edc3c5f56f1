"""The weight cache: what is cached and how often it is cast, its limit, and how long its entries live."""

import gc
import itertools
import os
import subprocess
import sys
import weakref

import pytest
import torch
import torch.nn.functional as F
from cached_weight import BF16, BYTES, FP32, MODES, ROW, N, X, by_hand, casts, copied, is_fresh, module_of, use, weight
from torch import nn

from habana_mp import hmp

pytestmark = pytest.mark.usefixtures("empty_cache")


class TestCounts:
    def test_a_weight_is_cast_once(self):
        hmp.convert()
        p = weight()
        for _ in range(5):
            assert is_fresh(p)
        info = hmp.cache.info()
        assert (info.entries, info.bytes, info.hits, info.misses, info.refreshed) == (1, BYTES, 4, 1, 0)
        assert info.invalidated == {}

    @pytest.mark.usefixtures("plain_copies")
    def test_grad_no_grad_and_inference_mode_share_a_copy(self):
        hmp.convert()
        p = weight()
        for mode in itertools.chain(*itertools.permutations(MODES.values())):
            with mode():
                assert is_fresh(p)
        assert casts() == (1, 17)

    @pytest.mark.usefixtures("plain_copies")
    @pytest.mark.parametrize("first", MODES)
    def test_a_copy_made_in_any_mode_gives_a_gradient(self, first):
        hmp.convert()
        p = weight()
        with MODES[first]():
            use(p)
        use(p).sum().backward()
        assert torch.equal(p.grad, X.to(BF16).sum(0).expand(N, N).float())
        assert casts() == (1, 1)

    @pytest.mark.usefixtures("plain_copies")
    def test_frozen_parameters_too(self):
        hmp.convert()
        p = weight(frozen=True)
        x = X.clone().requires_grad_()
        assert not use(p).requires_grad
        y = F.linear(x, p)
        y.sum().backward()
        assert torch.equal(x.grad, p.detach().to(BF16).sum(0).expand(2, N).float())
        assert casts() == (1, 1)

    @pytest.mark.usefixtures("plain_copies")
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
        hmp.convert()
        model = module_of(weight())
        use(model.weight)
        other = copied(model, way)
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
