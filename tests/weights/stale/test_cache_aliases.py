"""The weight cache and those who hold an alias of a weight's memory: what they write is never missed."""

import gc

import numpy as np
import pytest
import torch
import torch.distributed as dist
from cached_weight import (
    FP32,
    ROW,
    N,
    X,
    casts,
    fork,
    is_fresh,
    is_fresh_in_every_mode,
    listed,
    may_fork,
    module_of,
    net,
    use,
    weight,
    write_bytes,
)
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.dlpack import to_dlpack

from habana_mp import hmp

pytestmark = pytest.mark.usefixtures("empty_cache", "in_every_layout")


def write_numpy(array, value):
    write_bytes(array.ctypes.data, value)


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
    "capsule": (lambda p: torch.from_dlpack(to_dlpack(p)), setitem),
    "capsule-by-class": (lambda p: torch.from_dlpack(torch.Tensor.__dlpack__(p.detach())), setitem),
    "frozen-capsule-by-class": (lambda p: torch.from_dlpack(torch.Tensor.__dlpack__(p)), setitem),
}
# Those that give the memory away for good.
EXPORTS = [
    alias for alias in ALIASES if "numpy" in alias or "dlpack" in alias or "asarray" in alias or "capsule" in alias
]

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
        [(alias, taken) for alias in ALIASES for taken in ("before-convert", "before-the-first-use", "after-it")],
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

    @pytest.mark.parametrize("forgotten", ["clear", "revert", "limit"])
    @pytest.mark.parametrize("taken", ["before-convert", "after-the-first-use"])
    @pytest.mark.parametrize("alias", EXPORTS)
    def test_an_export_is_known_after(self, forgotten, taken, alias, monkeypatch):
        take, write = ALIASES[alias]
        p = weight(frozen=alias.startswith("frozen"))
        held = take(p) if taken == "before-convert" else None
        hmp.convert()
        use(p)
        held = take(p) if held is None else held
        if forgotten == "clear":
            hmp.cache.clear()
        elif forgotten == "limit":
            monkeypatch.setenv("HABANA_MP_CACHE_BYTES", "0")
            hmp.convert()
            monkeypatch.delenv("HABANA_MP_CACHE_BYTES")
        else:
            hmp.revert()
        hmp.convert()
        for value in range(3):
            assert is_fresh_in_every_mode(p)
            write(held, float(value))
            assert is_fresh_in_every_mode(p)

    @pytest.mark.parametrize("alias", EXPORTS)
    def test_an_export_before_the_first_region(self, alias, in_every_layout):
        take, write = ALIASES[alias]
        p = weight(frozen=alias.startswith("frozen"))
        held = take(p)
        with hmp.autocast("cpu", policy=listed(in_every_layout)):
            for value in range(3):
                assert is_fresh_in_every_mode(p)
                write(held, float(value))
                assert is_fresh_in_every_mode(p)

    @pytest.mark.parametrize("alias", ["frozen-numpy", "frozen-from_dlpack"])
    def test_an_export_of_a_weight_read_from_a_file(self, alias, tmp_path):
        """Its storage cannot be resized before either, by which NumPy's arrays are known."""
        take, write = ALIASES[alias]
        torch.save(torch.randn(N, N), tmp_path / "weight.pt")
        p = nn.Parameter(torch.load(tmp_path / "weight.pt"), requires_grad=False)
        hmp.convert()
        held = take(p)
        for forget in (hmp.cache.clear, hmp.revert):
            forget()
            hmp.convert()
            for value in range(3):
                assert is_fresh_in_every_mode(p)
                write(held, float(value))
                assert is_fresh_in_every_mode(p)

    # Once: what was scripted and run in a process before casts weights in places of its own.
    @pytest.mark.parametrize("in_every_layout", ["plain"], indirect=True)
    def test_weights_that_torch_holds_are_cached(self, tmp_path):
        """By a graph, by DistributedDataParallel, or by a scripted module: none of these is an export."""
        dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
        try:
            model = DistributedDataParallel(net())
            scripted_net = net()
            scripted = torch.jit.script(scripted_net)
            with hmp.autocast("cpu"):
                scripted(X)
                assert casts() == (2, 0)
                scripted_net(X)
            assert casts() == (2, 2)
            hmp.convert()
            hmp.cache.clear()
            for _ in range(3):
                model(X).float().sum().backward()
            assert casts() == (2, 4)
            graph = model(X)
            model(X)
            assert casts() == (2, 8)
            del graph
        finally:
            dist.destroy_process_group()
            gc.collect()  # a child forked later would wait for ever for the threads of a group that it has to free

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
