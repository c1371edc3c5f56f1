"""A test in which "hpu" stands for the CPU, and which leaves torch as it found it."""

import copy

import pytest
import torch
import torch.distributed as dist

from habana_mp._hpu.mapping import map_hpu, unmap_hpu

# What map_hpu gives to torch: (owner, name).
GIVEN = [
    *((torch, name) for name in ("hpu", "habana")),
    *((torch.Tensor, name) for name in ("is_hpu", "hpu", "pin_memory")),
    (torch.nn.Module, "hpu"),
    (torch.autocast, "__init__"),
    *((owner, "custom_fwd") for owner in (torch.amp, torch.amp.autocast_mode)),
    (torch.serialization, "_package_registry"),
    *((owner, "init_process_group") for owner in (dist, dist.distributed_c10d)),
    *((torch.device, name) for name in ("type", "index", "__new__", "__str__", "__repr__")),
]
NOTHING = object()


def held() -> list[object]:
    copiers = [copy._copy_dispatch.get(torch.device), copy._deepcopy_dispatch.get(torch.device)]
    return [*(vars(owner).get(name, NOTHING) for owner, name in GIVEN), *copiers]


@pytest.fixture
def mapped():
    before = held()
    assert map_hpu()
    yield
    unmap_hpu()
    assert all(now is then for now, then in zip(held(), before, strict=True))
