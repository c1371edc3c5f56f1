"""torch.hpu, and what torch does by a device type: memory, random numbers, streams, distributed, data loaders, the profiler."""

import mmap
import operator

import pytest
import torch
import torch.distributed as dist

pytestmark = pytest.mark.usefixtures("mapped")
X = torch.arange(12.0).reshape(3, 4)
TRUTH = torch.device("cpu")


FIGURES = [
    "memory_allocated",
    "max_memory_allocated",
    "memory_reserved",
    "max_memory_reserved",
    "memory_cached",
    "max_memory_cached",
]


@pytest.mark.parametrize("name", FIGURES)
@pytest.mark.parametrize("device", [None, "hpu", 0, "device"], ids=str)
def test_memory_figures(name: str, device: str | int | None) -> None:
    assert getattr(torch.hpu, name)(torch.device("hpu") if device == "device" else device) > 1 << 20


@pytest.mark.parametrize("name", ["reset_max_memory_allocated", "reset_max_memory_cached"])
def test_the_peak_is_forgotten_by_older_names_too(name: str) -> None:
    assert getattr(torch.hpu, name) is getattr(torch.hpu.memory, name) is torch.hpu.reset_peak_memory_stats
    assert getattr(torch.hpu, name)("hpu:0") is None
    assert name in dir(torch.hpu)


# What DeepSpeed's accelerator for "hpu" takes from the module.
DEEPSPEED = """
    Stream current_device current_stream default_stream device_count graph HPUGraph is_available max_memory_allocated max_memory_cached
    max_memory_reserved memory_allocated memory_cached memory_reserved memory_stats random reset_max_memory_allocated reset_peak_memory_stats
    set_device stream synchronize random.default_generators random.get_rng_state random.initial_seed random.manual_seed random.manual_seed_all
    random.set_rng_state
""".split()


@pytest.mark.parametrize("name", DEEPSPEED)
def test_what_deepspeed_asks_for_is_there(name: str) -> None:
    assert operator.attrgetter(name)(torch.hpu) is not None


def test_memory_peak() -> None:
    torch.hpu.reset_peak_memory_stats()
    before = torch.hpu.max_memory_allocated()
    # Pages of its own: malloc may serve a tensor from what the process has freed and still has resident.
    torch.frombuffer(mmap.mmap(-1, 64 << 20), dtype=torch.uint8).fill_(1)
    assert torch.hpu.max_memory_allocated() > before
    torch.hpu.reset_peak_memory_stats()
    stats = torch.hpu.memory_stats()
    assert stats["InUse"] <= stats["Limit"]
    assert list(stats) == ["Limit", "InUse", "MaxInUse"]
    assert "MaxInUse" in torch.hpu.memory_summary()
    free, total = torch.hpu.mem_get_info("hpu:0")
    assert 0 < free < total


def test_the_module_of_the_device() -> None:
    import torch.hpu as module

    assert module is torch.hpu is torch.get_device_module("hpu") is torch.get_device_module(torch.device("hpu"))
    assert (module.is_available(), module.is_initialized(), module.device_count(), module.current_device()) == (
        True,
        True,
        1,
        0,
    )
    for nothing in (module.synchronize, module.empty_cache, module.init, module.reset_accumulated_memory_stats):
        assert nothing() is None
    assert module.set_device("hpu:0") is None
    assert module.synchronize(torch.device("hpu")) is None
    assert module.get_device_name() == "cpu"
    with module.stream(module.current_stream()):
        pass
    assert isinstance(module.default_stream(), module.Stream)
    start, end = torch.hpu.Event(enable_timing=True), torch.hpu.Event(enable_timing=True)
    start.record()
    end.record()
    end.synchronize()
    assert start.elapsed_time(end) > 0
    with pytest.raises(AttributeError, match=r"torch\.hpu\.quant: hpu is a name of cpu here, and torch\.cpu has no"):
        module.quant  # noqa: B018
    assert not hasattr(module, "quant")


def test_random_numbers() -> None:
    torch.hpu.manual_seed(3)
    state = torch.hpu.get_rng_state("hpu:0")
    first = torch.rand(2, device="hpu")
    torch.hpu.set_rng_state(state)
    assert torch.equal(torch.rand(2), first)
    torch.hpu.set_rng_state_all([state])
    assert torch.equal(torch.rand(2), first)
    torch.hpu.manual_seed_all(3)
    assert torch.equal(torch.rand(2), first)
    assert torch.hpu.initial_seed() == 3
    with torch.random.fork_rng(devices=[0], device_type="hpu"):
        torch.hpu.seed()
        torch.hpu.seed_all()
    assert torch.hpu.get_rng_state_all()[0].equal(torch.get_rng_state())


# torch.distributed


@pytest.fixture
def one_process(mapped):
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1, device_id=torch.device("hpu:0"))
    yield
    dist.destroy_process_group()


@pytest.mark.usefixtures("one_process")
def test_distributed() -> None:
    x = X.to("hpu")
    dist.all_reduce(x)
    mesh = dist.init_device_mesh("hpu", (1,))
    assert dist.DeviceMesh("hpu", mesh=[0]).device_type == mesh.device_type
    from torch.distributed.tensor import Shard, distribute_tensor

    shards = distribute_tensor(X, mesh, [Shard(0)])
    assert torch.equal(shards.full_tensor(), X)
    assert mesh.device_type == TRUTH.type
    with pytest.warns(
        UserWarning, match="random operators may not have complete support on cpu"
    ):  # ways of its own for "hpu"
        torch.nn.functional.dropout(shards)
    device = torch.device("hpu:0")
    for ids in ({}, {"device_ids": [device], "output_device": device}, {"device_ids": [0]}):
        model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 2).to("hpu"), **ids)
        model(x).sum().backward()


def test_streams() -> None:
    stream = torch.hpu.Stream()
    with torch.hpu.stream(stream):
        assert torch.hpu.current_stream() is stream
        event = stream.record_event()
    stream.synchronize()
    stream.wait_event(event)
    stream.wait_stream(torch.hpu.default_stream())
    torch.hpu.current_stream().synchronize()
    assert torch.hpu.current_stream() is torch.hpu.default_stream()
    assert stream.query()
    with torch.hpu.device(0), torch.hpu.device_of(X):
        assert torch.hpu.get_device_properties().total_memory > 2**30


def test_data_loader() -> None:
    data = torch.utils.data.TensorDataset(X)
    with pytest.warns(UserWarning, match="pin_memory"):
        (batch,) = next(iter(torch.utils.data.DataLoader(data, batch_size=3, pin_memory=True, pin_memory_device="hpu")))
    assert batch.to("hpu").device == torch.device("hpu")


def test_the_profiler() -> None:
    activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.HPU]
    with (
        pytest.warns(UserWarning, match="HPU is not available, disabling HPU profiling"),
        torch.profiler.profile(activities=activities) as profile,
    ):
        torch.ones(2, device="hpu").add_(1)
    assert "aten::add_" in [event.key for event in profile.key_averages()]
