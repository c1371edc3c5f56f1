"""The weight cache misses no change of a weight.

Each way to change a weight touches one row that none of the cache's samples lies in, and what is computed from then on is held against
the cast by hand.
"""

import numpy as np
import pytest
import torch
from cached_weight import (
    MODES,
    ROW,
    N,
    by_hand,
    casts,
    is_fresh,
    is_fresh_in_every_mode,
    module_of,
    weight,
    write_bytes,
    written,
)
from torch import nn

from habana_mp import hmp

pytestmark = pytest.mark.usefixtures("empty_cache", "in_every_layout")


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


class TestNeverStale:
    @pytest.mark.parametrize("change", CHANGES)
    def test_a_change(self, change, in_every_layout):
        packed = in_every_layout != "plain"
        hmp.convert()
        for frozen in (False, True):
            hmp.cache.clear()
            p = weight(frozen)
            assert is_fresh_in_every_mode(p)
            assert casts() == (1, len(MODES) - 1)
            assert hmp.cache.info().packed == packed
            before = by_hand(p)
            for _ in range(2):
                p = changed(p, CHANGES[change])
                assert is_fresh_in_every_mode(p)
                assert not torch.equal(before, by_hand(p))
