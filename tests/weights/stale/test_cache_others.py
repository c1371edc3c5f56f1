"""The weight cache and other tensors: aliases of their memory end no copy, and a hold that ends leaves none that is old."""

import copy
import io
import pickle

import pytest
import torch
from cached_weight import ROW, N, is_fresh, use, weight
from torch import nn
from torch.utils.data import DataLoader
from torch.utils.dlpack import to_dlpack

from habana_mp import hmp

pytestmark = pytest.mark.usefixtures("empty_cache", "in_every_layout")


def saved_and_loaded(tensor):
    file = io.BytesIO()
    torch.save({"tensor": tensor}, file)
    file.seek(0)
    return torch.load(file)["tensor"]


def failed_set(tensor):
    with pytest.raises(TypeError):
        torch.empty(0).set_(tensor, "nowhere")


# Of a tensor that is no weight: what takes an alias of its memory.
OF_ANOTHER = {
    "deepcopy": copy.deepcopy,
    "deepcopy-of-a-parameter": lambda t: copy.deepcopy(nn.Parameter(t)),
    "copy": copy.copy,
    "pickle": lambda t: pickle.loads(pickle.dumps(t)),
    "save": saved_and_loaded,
    "batches": lambda t: list(DataLoader(list(t))),
    "set_": lambda t: torch.empty(0).set_(t),
    "set_-of-storage": lambda t: torch.empty(0).set_(t.untyped_storage()),
    "set_-that-fails": failed_set,
    "set_-looked-at": lambda t: t.set_.__name__,
    "data": lambda t: t.data,
    "numpy": lambda t: t.numpy(),
}


class TestOtherTensors:
    @pytest.mark.parametrize("way", OF_ANOTHER)
    def test_an_alias_of_one_ends_no_copy(self, way):
        hmp.convert()
        p, other = weight(), torch.zeros(3)
        use(p)
        OF_ANOTHER[way](other)
        use(p)
        info = hmp.cache.info()
        assert (info.misses + info.refreshed, info.hits, info.invalidated) == (1, 1, {})

    def test_an_alias_by_a_method_that_was_kept(self):
        hmp.convert()
        p, other = weight(), torch.empty(0)
        method = other.set_
        use(p)
        method(p.detach())
        other[ROW] = 3
        del method, other
        assert is_fresh(p)

    def test_an_alias_by_names(self):
        hmp.convert()
        p, other = weight(), torch.empty(0)
        detached = p.detach()
        use(p)
        other.set_(source=detached)
        other[ROW] = 3
        del other, detached
        assert is_fresh(p)

    def test_an_alias_by_a_tensor_that_stands_for_another(self):
        class Wrapper(torch.Tensor):
            @staticmethod
            def __new__(cls, inner):
                made = torch.Tensor._make_wrapper_subclass(cls, inner.shape)
                made.inner = inner
                return made

            @classmethod
            def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
                assert function is torch.ops.aten.set_.source_Tensor
                function(args[0].inner, *args[1:])
                return args[0]

        hmp.convert()
        p = weight()
        wrapper = Wrapper(torch.empty(0))
        use(p)
        wrapper.set_(p.detach())
        wrapper.inner[ROW] = 3
        del wrapper
        assert is_fresh(p)


def test_a_capsule_that_was_there_first_and_is_let_go():
    p = weight(frozen=True)
    capsule = to_dlpack(p)
    p.requires_grad_()
    hmp.convert()
    alias = torch._C._from_dlpack(capsule)
    use(p)
    alias[ROW] = torch.full((N,), 3.0)
    del alias, capsule
    assert is_fresh(p)
    assert is_fresh(p)
