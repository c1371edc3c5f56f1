"""Which layout the copy of a weight has that ops read in several ways, and when it changes."""

import pytest
import torch
import torch.nn.functional as F
from cached_weight import BF16, BYTES, N, X, casts, packs, use, weight

from habana_mp import hmp

pytestmark = [
    pytest.mark.usefixtures("empty_cache"),
    packs,
]


def packed():
    return hmp.cache.info().packed


class TestLayouts:
    """One copy for each weight. One that is needed plain as well stays so until packed uses are many times more."""

    @pytest.fixture
    def w(self):
        hmp.convert()
        return weight()

    def infer(self, w, times=1):
        with torch.no_grad():
            for _ in range(times):
                use(w)

    def test_it_takes_the_place_of_the_plain_one(self, w):
        self.infer(w, 3)
        info = hmp.cache.info()
        assert (info.entries, info.packed, info.bytes, info.misses, info.hits) == (1, 1, BYTES, 1, 2)

    def test_training_between_evaluations_casts_once_a_step(self, w):
        optimizer = torch.optim.SGD([w], lr=0.1)
        for _ in range(4):
            self.infer(w)
            use(w).sum().backward()
            optimizer.step()
        assert casts() == (5, 3)  # the first evaluation knows nothing of the training
        assert packed() == 0

    def test_a_long_evaluation_is_packed(self, w):
        use(w)
        self.infer(w, 20)
        assert packed() == 1
        assert casts() == (2, 19)

    @pytest.mark.parametrize(("plain", "packable", "most"), [(1, 1, 1), (2, 2, 1), (1, 3, 7), (1, 20, 9), (1, 100, 13)])
    def test_a_weight_that_is_used_both_ways_comes_to_rest(self, w, plain, packable, most):
        for _ in range(100):
            with torch.no_grad():
                for _ in range(plain):
                    torch.mm(X, w)
            self.infer(w, packable)
        assert casts()[0] <= most

    def test_two_ops_that_pack_it_in_their_own_ways(self, w):
        with torch.no_grad():
            for _ in range(3):
                assert torch.equal(F.linear(X, w), F.linear(X.to(BF16), w.to(BF16)))
                assert torch.equal(
                    torch.addmm(torch.zeros(N), X, w), torch.addmm(torch.zeros(N, dtype=BF16), X.to(BF16), w.to(BF16))
                )
        assert hmp.cache.info().entries == 1

    def test_the_limit_holds(self, monkeypatch):
        monkeypatch.setenv("HABANA_MP_CACHE_BYTES", str(BYTES))
        hmp.convert()
        first, second = weight(), weight()
        for _ in range(2):
            self.infer(first)
            self.infer(second)
        assert (hmp.cache.info().entries, packed()) == (1, 1)

    def test_clear_and_revert_free_it(self, w):
        self.infer(w)
        hmp.cache.clear()
        assert hmp.cache.info().bytes == 0
        self.infer(w)
        hmp.revert()
        assert (hmp.cache.info().entries, packed()) == (0, 0)
