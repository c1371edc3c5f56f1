"""The watches over a weight's memory: attributes of torch.Tensor that do as torch's own, and go with revert."""

import numpy as np
import pytest
import torch
from cached_weight import ROW, N, is_fresh, listed, use, weight
from torch import nn

from habana_mp import hmp

pytestmark = pytest.mark.usefixtures("empty_cache", "in_every_layout")


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

    @pytest.mark.parametrize("first", ["region", "convert"])
    def test_revert_takes_off_those_of_a_region_too(self, first):
        hmp.convert()
        hmp.revert()
        owners = (torch.Tensor, torch.cuda.CUDAGraph)
        before = [dict(vars(owner)) for owner in owners]
        if first == "convert":
            hmp.convert()
        with hmp.autocast("cpu"):
            assert [dict(vars(owner)) for owner in owners] != before
        hmp.convert()
        hmp.revert()
        assert [dict(vars(owner)) for owner in owners] == before

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

    def test_listed_by_a_policy(self, in_every_layout):
        """A policy that lists one of these names takes its place, and both go."""
        before = dict(vars(torch.Tensor))
        hmp.convert(policy=listed(in_every_layout, "numpy", "untyped_storage", "data_ptr"))
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
