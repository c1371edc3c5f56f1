"""The device names hpu and habana where there is no such device: every way in which a script says them."""

import copy
import io
import pickle
import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import pytest
import torch
import torch.distributed as dist
from click.testing import CliRunner
from torch._subclasses.fake_tensor import FakeTensorMode

import habana_mp._core as _core
from habana_mp import hmp
from habana_mp._hpu.mapping import map_hpu, unmap_hpu
from habana_mp.cli import main

pytestmark = [pytest.mark.usefixtures("mapped"), pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")]
X = torch.arange(12.0).reshape(3, 4)
TRUTH = torch.device("cpu")
NAMES = ["hpu", "hpu:0", "hpu:1", "habana", "habana:0"]


# What map_hpu gives to torch: (owner, name).
GIVEN = [
    *((torch, name) for name in ("hpu", "habana", "compile")),
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


def test_torch_autocast_is_itself_again():
    unmap_hpu()
    with torch.autocast("cpu", torch.bfloat16):
        assert (X @ X.mT).dtype is torch.bfloat16
    assert map_hpu()


def saved(value: object) -> io.BytesIO:
    file = io.BytesIO()
    torch.save(value, file)
    file.seek(0)
    return file


MAKERS = {
    "zeros": lambda device: torch.zeros(3, device=device),
    "ones": lambda device: torch.ones(3, device=device),
    "empty": lambda device: torch.empty(3, device=device),
    "full": lambda device: torch.full((3,), 2.0, device=device),
    "randn": lambda device: torch.randn(3, device=device),
    "rand": lambda device: torch.rand(3, device=device),
    "randint": lambda device: torch.randint(5, (3,), device=device),
    "randperm": lambda device: torch.randperm(3, device=device),
    "arange": lambda device: torch.arange(3, device=device),
    "linspace": lambda device: torch.linspace(0, 1, 3, device=device),
    "eye": lambda device: torch.eye(3, device=device),
    "empty_strided": lambda device: torch.empty_strided((2,), (1,), device=device),
    "tensor": lambda device: torch.tensor([1, 2], device=device),
    "as_tensor": lambda device: torch.as_tensor([1, 2], device=device),
    "ones_like": lambda device: torch.ones_like(X, device=device),
    "new_zeros": lambda device: X.new_zeros(2, device=device),
    "new_tensor": lambda device: X.new_tensor([1], device=device),
    "generator": lambda device: torch.rand(2, generator=torch.Generator(device).manual_seed(1), device=device),
    "to": X.to,
    "to-keyword": lambda device: X.to(device=device, dtype=torch.bfloat16, non_blocking=True),
    "to-positional": lambda device: X.to(device, torch.float64),
    "hpu-method": lambda device: X.hpu(device, non_blocking=True),
    "nested": lambda device: torch.nested.nested_tensor([[1.0]], layout=torch.jagged, device=device),
    "sparse": lambda device: torch.sparse_coo_tensor([[0]], [1.0], (2,), device=device, check_invariants=True),
    "storage": lambda device: torch.tensor([]).set_(torch.UntypedStorage(4, device=device)),
    "linear": lambda device: torch.nn.Linear(2, 2, device=device).weight,
    "module-to": lambda device: torch.nn.Linear(2, 2).to(device).weight,
    "module-to-dtype": lambda device: torch.nn.Linear(2, 2).to(device, torch.bfloat16).weight,
    "module-to-empty": lambda device: torch.nn.Linear(2, 2, device="meta").to_empty(device=device).weight,
    "module-hpu": lambda device: torch.nn.Linear(2, 2).hpu(device).weight,
    "load": lambda device: torch.load(saved({"x": X}), map_location=device)["x"],
    "load-table": lambda device: torch.load(saved({"x": X}), map_location={"cpu": str(device)})["x"],
    "jit-load": lambda device: next(torch.jit.load(scripted(), map_location=device).parameters()),
    "packed": lambda device: torch.nn.utils.rnn.pack_sequence([X]).to(device).data,
}


def scripted() -> io.BytesIO:
    file = io.BytesIO()
    torch.jit.save(torch.jit.script(torch.nn.Linear(2, 2)), file)
    file.seek(0)
    return file


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS.keys())
def test_a_tensor_is_on_the_chosen_device(make, name: str) -> None:
    for device in (name, torch.device(name)):
        made = make(device)
        assert made.device == TRUTH == torch.device(name)
        assert made.is_hpu


CONTEXTS = {
    "with-device": lambda: torch.device("hpu"),
    "with-device-and-index": lambda: torch.device("hpu", 0),
}


@pytest.mark.parametrize("context", CONTEXTS.values(), ids=CONTEXTS.keys())
def test_a_device_as_context(context) -> None:
    with context():
        assert torch.zeros(2).device == TRUTH
        assert torch.get_default_device() == torch.device("hpu")


@pytest.mark.parametrize("name", NAMES)
def test_default_device(name: str) -> None:
    torch.set_default_device(name)
    try:
        assert torch.zeros(2).device == torch.get_default_device() == torch.device(name)
    finally:
        torch.set_default_device(None)


@pytest.mark.parametrize(
    ("device", "text", "kind", "index"),
    [
        pytest.param(lambda: torch.device("hpu"), "hpu", "hpu", None, id="hpu"),
        pytest.param(lambda: torch.device("hpu:0"), "hpu:0", "hpu", 0, id="hpu:0"),
        pytest.param(lambda: torch.device("hpu", 3), "hpu:3", "hpu", 3, id="index"),
        pytest.param(lambda: torch.device(type="hpu", index=3), "hpu:3", "hpu", 3, id="keywords"),
        pytest.param(lambda: torch.device(device="hpu:1"), "hpu:1", "hpu", 1, id="device="),
        pytest.param(lambda: torch.device("habana:1"), "habana:1", "habana", 1, id="habana"),
        pytest.param(lambda: torch.device(torch.device("hpu:1")), "hpu:1", "hpu", 1, id="of-a-device"),
        pytest.param(lambda: copy.deepcopy([torch.device("hpu")])[0], "hpu", "hpu", None, id="deep-copy"),
        pytest.param(lambda: copy.copy(torch.device("hpu")), "hpu", "hpu", None, id="copy"),
        pytest.param(lambda: torch.device("cpu"), "cpu", "cpu", None, id="cpu"),
        pytest.param(lambda: torch.device("cuda:1"), "cuda:1", "cuda", 1, id="cuda"),
        pytest.param(lambda: torch.device("hip"), "hip", "hip", None, id="hip"),
        pytest.param(lambda: X.device, "cpu", "cpu", None, id="of-a-tensor"),
    ],
)
def test_what_a_device_says(device, text: str, kind: str, index: int | None) -> None:
    made = device()
    assert (str(made), f"{made}", made.type, made.index) == (text, text, kind, index)
    assert eval(repr(made), {"device": torch.device}) == made
    assert type(made) is torch.device


def test_devices_that_are_equal() -> None:
    device = torch.device("hpu")
    assert device is torch.device("hpu")
    assert device == X.device
    assert X.device == device
    assert not X.device != device  # noqa: SIM202 - another slot
    assert {X.device: 1}[device] == 1
    assert device != torch.device("cuda")


@pytest.mark.parametrize(
    "name",
    ["hpu:x", "hpu:", "habana:x", "hpux", "habanero", "hpu:0:0", "HPU"],
)
def test_what_is_no_device_name_is_refused_by_torch(name: str) -> None:
    with pytest.raises(RuntimeError, match=r"nvalid device string|Expected one of cpu"):
        torch.device(name)
    with pytest.raises(RuntimeError, match=r"nvalid device string|Expected one of cpu"):
        torch.zeros(1, device=name)


def test_an_index_given_twice_is_refused() -> None:
    with pytest.raises(RuntimeError, match="must not include an index"):
        torch.device("hpu:0", 0)


@pytest.mark.parametrize(
    "move",
    [
        pytest.param(lambda x: x.to("hpu"), id="string"),
        pytest.param(lambda x: x.to(torch.device("hpu")), id="device"),
        pytest.param(lambda x: x.to("hpu:0", torch.float32), id="dtype"),
        pytest.param(lambda x: x.hpu(), id="method"),
        pytest.param(lambda x: x.hpu(0), id="method-index"),
        pytest.param(lambda x: x.to("hpu").to("cpu"), id="back"),
        pytest.param(lambda x: x.pin_memory(), id="pinned"),
        pytest.param(lambda x: x.pin_memory("hpu"), id="pinned-for-hpu"),
    ],
)
def test_what_is_there_already_is_not_copied(move) -> None:
    assert move(X) is X


# torch.hpu

FIGURES = [
    "memory_allocated",
    "max_memory_allocated",
    "memory_reserved",
    "max_memory_reserved",
]


@pytest.mark.parametrize("name", FIGURES)
@pytest.mark.parametrize("device", [None, "hpu", 0, "device"], ids=str)
def test_memory_figures(name: str, device: str | int | None) -> None:
    assert getattr(torch.hpu, name)(torch.device("hpu") if device == "device" else device) > 1 << 20


def test_memory_peak() -> None:
    torch.hpu.reset_peak_memory_stats()
    before = torch.hpu.max_memory_allocated()
    torch.zeros(16 << 20, device="hpu").add_(1)
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
    with pytest.raises(AttributeError, match=r"torch\.hpu\.quant: hpu stands for cpu here, and torch\.cpu has no"):
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


# Mixed precision


def product(x: torch.Tensor) -> torch.dtype:
    return (x @ x.t()).dtype


def test_autocast_casts_as_gaudi_does() -> None:
    with torch.autocast(device_type="hpu", dtype=torch.bfloat16) as region:
        assert product(X) is torch.bfloat16
        assert (X * X).dtype is torch.bfloat16  # torch's own lists leave mul alone
        assert torch.ones(2, dtype=torch.bfloat16).exp().dtype is torch.float32
        assert torch.is_autocast_enabled("hpu")
        assert torch.get_autocast_dtype("hpu") is torch.bfloat16
    assert product(X) is torch.float32
    assert isinstance(region, torch.autocast)
    assert isinstance(region, hmp.autocast)


def test_autocast_takes_an_index() -> None:
    """As torch.autocast("cpu:0") does."""
    with torch.autocast("hpu:0"):
        assert product(X) is torch.bfloat16
        assert torch.softmax(X, -1).dtype is torch.bfloat16, "Gaudi's lists"


def test_autocast_off_and_nested() -> None:
    with torch.autocast("hpu"):
        assert product(X) is torch.bfloat16
        with torch.autocast("hpu", enabled=False):
            assert product(X) is torch.float32
            with torch.autocast("cpu"):
                assert product(X) is torch.bfloat16
                assert (X * X).dtype is torch.float32
        with torch.autocast("cpu", enabled=False):
            assert product(X) is torch.float32
        assert product(X) is torch.bfloat16


def test_autocast_as_decorator() -> None:
    region = torch.autocast("hpu")
    assert region(product)(X) is torch.bfloat16
    assert torch.autocast("habana")(product)(X) is torch.bfloat16
    assert torch.autocast("cpu", enabled=False)(product)(X) is torch.float32
    assert product(X) is torch.float32
    assert torch.autocast("cpu").device == "cpu"
    assert (region.device, region.fast_dtype) == ("hpu", torch.bfloat16)


@pytest.mark.parametrize("arguments", [("hpu", torch.float32), ("habana", torch.float64)], ids=str)
def test_autocast_to_another_dtype_is_refused_with_a_warning(arguments) -> None:
    with pytest.warns(UserWarning, match="is not supported. Disabling autocast"):
        region = torch.autocast(*arguments)
    with region:
        assert product(X) is torch.float32


def test_custom_functions() -> None:
    class Double(torch.autograd.Function):
        @staticmethod
        @torch.amp.custom_fwd(device_type="hpu", cast_inputs=torch.float32)
        def forward(_, x: torch.Tensor) -> torch.Tensor:
            assert x.dtype is torch.float32
            assert product(x) is torch.float32
            return x * 2

        @staticmethod
        @torch.amp.custom_bwd(device_type="hpu")
        def backward(_, grad: torch.Tensor) -> torch.Tensor:
            return grad * 2

    x = torch.ones(2, 2, requires_grad=True)
    with torch.autocast("hpu"):
        Double.apply(x @ x).sum().backward()
    assert x.grad is not None


def test_a_training_step_with_a_scaler() -> None:
    device = torch.device("hpu")
    model = torch.nn.Linear(4, 2).to(device)
    optimizer = torch.optim.AdamW(model.parameters())
    scaler = torch.amp.GradScaler("hpu")
    before = model.weight.detach().clone()
    with torch.autocast("hpu"):
        loss = model(X.to(device)).sum()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    assert scaler.is_enabled()
    assert not torch.equal(before, model.weight)


# torch.compile, pickles


def says_hpu(x: torch.Tensor) -> torch.Tensor:
    device = torch.device("hpu")
    if x.device != device or device.type != "hpu" or not x.is_hpu:
        raise ValueError(x.device)
    with torch.autocast("hpu"):
        y = x.to(device) @ torch.ones(4, 4, device="hpu")
    return y.hpu() + torch.zeros(4, device=torch.device("hpu:0"))


def test_compiled_in_one_graph() -> None:
    compiled = torch.compile(says_hpu, fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(X), says_hpu(X))


@pytest.mark.parametrize("form", ["decorator", "made before"])
def test_compiled_with_a_region_from_outside(form: str) -> None:
    region = torch.autocast("hpu")

    def inside(x: torch.Tensor) -> torch.Tensor:
        with region:
            return x @ x.t()

    function = region(lambda x: x @ x.t()) if form == "decorator" else inside
    torch._dynamo.reset()
    compiled = torch.compile(function, fullgraph=True, backend="aot_eager")
    assert compiled(X).dtype is torch.bfloat16


def test_compiled_again_where_the_names_change() -> None:
    compiled = torch.compile(lambda x: x + torch.zeros(4, device="hpu"), backend="aot_eager")
    assert torch.equal(compiled(X), X)
    assert torch.compiler.config.cache_key_tag == "hpu:cpu "
    unmap_hpu()
    assert torch.compiler.config.cache_key_tag == ""
    with pytest.raises(RuntimeError, match=r"has no attribute .hpu"):
        compiled(X)


def test_compiled_by_the_backend_of_gaudi() -> None:
    model = torch.nn.Linear(4, 2)
    assert torch.allclose(torch.compile(model, backend="hpu_backend")(X), model(X))


class Model(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.to("hpu") + torch.zeros(4, device="hpu:0")


def test_what_was_made_meanwhile_is_for_the_device_in_truth() -> None:
    exported, traced = torch.export.export(Model(), (X,)), torch.jit.trace(Model(), (X,))
    file = saved({"model": torch.nn.Linear(2, 2, device="hpu").state_dict(), "x": X.to("hpu")})
    device = pickle.dumps(torch.device("hpu:0"))
    unmap_hpu()
    assert pickle.loads(device) == TRUTH
    assert torch.load(file)["x"].device == TRUTH
    assert torch.equal(exported.module()(X), X)
    assert torch.equal(traced(X), X)
    assert '"hpu' not in str(exported.graph) + str(traced.graph)


def test_scripts_may_say_hpu() -> None:
    class Scripted(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.to("hpu") + torch.zeros(4, device=torch.device("hpu:0"))

    assert torch.equal(torch.jit.script(Scripted())(X), X)


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


# What is not for HPU


def test_others_are_left_alone() -> None:
    with FakeTensorMode():  # which must not look for a device that is none
        assert torch.tensor([1.0], device="cuda").device.type == "cuda"
    assert not torch.accelerator.is_available()
    assert torch.autocast("cpu").__class__ is torch.autocast
    with torch.autocast("cpu"):
        assert (X @ X.t()).dtype is torch.bfloat16


def test_another_device_from_then_on() -> None:
    kept = torch.device("hpu:1")
    _core.map_hpu("cuda")  # there is none here to choose by map_hpu
    try:
        assert torch.device("hpu:1") == torch.device("cuda:1") != kept
        assert torch.device("hpu").index is None
        with FakeTensorMode():
            assert torch.zeros(1, device="hpu:1").device == torch.device("cuda:1")
            assert torch.zeros(1, device=torch.device("hpu")).device == torch.device("cuda:0")
    finally:
        assert map_hpu("cpu")
    assert torch.device("hpu:1") == TRUTH


def test_the_profiler() -> None:
    activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.HPU]
    with (
        pytest.warns(UserWarning, match="HPU is not available, disabling HPU profiling"),
        torch.profiler.profile(activities=activities) as profile,
    ):
        torch.ones(2, device="hpu").add_(1)
    assert "aten::add_" in [event.key for event in profile.key_averages()]


# Switching on and off


def test_off_again() -> None:
    device = torch.device("hpu")
    unmap_hpu()
    unmap_hpu()
    assert (str(device), device.type, repr(device)) == ("cpu", "cpu", "device(type='cpu')")
    assert X.to(device) is X
    assert torch.device("hpu") != TRUTH
    assert not hasattr(torch, "hpu")
    assert "torch.hpu" not in sys.modules
    with pytest.raises(RuntimeError, match="Expected one of"):
        torch.device("habana")
    with pytest.raises(ModuleNotFoundError, match=r"torch\.hpu"):
        torch.zeros(1, device="hpu")
    assert map_hpu()
    assert map_hpu()
    assert str(torch.device("hpu")) == "hpu"


@pytest.mark.parametrize(
    ("device", "error", "printed"),
    [
        pytest.param("hpu", ValueError, "not for 'hpu'", id="itself"),
        pytest.param("habana", ValueError, "not for 'habana'", id="habana"),
        pytest.param("cuda:1", ValueError, "not for 'cuda:1'", id="index"),
        pytest.param("gpu", ValueError, "no device type 'gpu'", id="unknown"),
        pytest.param("", ValueError, "no device type ''", id="empty"),
        pytest.param(None, ValueError, "not for None", id="none"),
        pytest.param(torch.device("cpu"), ValueError, "not for device", id="object"),
        pytest.param("xpu", RuntimeError, "'xpu' is not available here", id="absent"),
        pytest.param("meta", RuntimeError, "'meta' is not available here", id="meta"),
    ],
)
def test_what_hpu_cannot_stand_for(device, error: type[Exception], printed: str) -> None:
    with pytest.raises(error, match=printed):
        map_hpu(device)
    assert torch.zeros(1, device="hpu").device == TRUTH


def in_fresh_process(script: str, path: Path) -> str:
    first = f"import sys; sys.path.insert(0, {str(path)!r})\n"
    command = [sys.executable, "-c", first + dedent(script)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.parametrize(
    "real",
    [
        pytest.param("", id="package"),
        pytest.param("import types, torch; torch.hpu = types.ModuleType('torch.hpu')", id="torch.hpu"),
    ],
)
def test_a_real_hpu_is_left_alone(real: str, tmp_path: Path) -> None:
    if not real:
        (tmp_path / "habana_frameworks").mkdir()
        (tmp_path / "habana_frameworks" / "__init__.py").touch()
    printed = in_fresh_process(
        f"""
        {real}
        import torch
        from habana_mp._hpu.mapping import is_real, map_hpu
        before = dict(vars(torch))
        print(is_real(), map_hpu(), dict(vars(torch)) == before, torch.device("hpu") == torch.device("cpu"))
        """,
        tmp_path,
    )
    assert printed == "True False True False"


def test_the_stand_in_is_not_taken_for_real(tmp_path: Path) -> None:
    printed = in_fresh_process(
        """
        import habana_mp.gaudi, habana_frameworks.torch.core
        import torch
        from habana_mp._hpu.mapping import map_hpu
        print(map_hpu(), torch.hpu.is_available())
        from transformers.utils import is_torch_hpu_available
        print(is_torch_hpu_available())  # it would replace torch.gather, torch.compile and more
        """,
        tmp_path,
    )
    assert printed.split() == ["True", "True", "False"]


# habana-mp run --device

SAYS = """
import torch
device = torch.device("hpu")
print(device, torch.ones(2, device=device).device, torch.hpu.is_available(), torch.ones(1, 1, device="hpu").mm(torch.ones(1, 1)).dtype)
"""


@pytest.mark.parametrize(
    ("options", "code", "printed"),
    [
        pytest.param(["--device", "cpu"], 0, "hpu cpu True torch.bfloat16", id="cpu"),
        pytest.param(["--device", "xpu"], 2, "--device: 'xpu' is not available here", id="absent"),
        pytest.param(["--device", "gpu"], 2, "--device: torch has no device type 'gpu'", id="unknown"),
        pytest.param(["--device", "hpu"], 2, "not for 'hpu'", id="itself"),
    ],
)
def test_run(options: list[str], code: int, printed: str, place_for_scripts: Path) -> None:
    (place_for_scripts / "script.py").write_text(SAYS)
    done = CliRunner().invoke(main, ["run", *options, "script.py"])
    assert (done.exit_code, printed in done.output) == (code, True), done.output


def test_run_where_hpu_is_real(place_for_scripts: Path) -> None:
    (place_for_scripts / "habana_frameworks.py").touch()
    (place_for_scripts / "script.py").write_text("print('ran')")
    command = [sys.executable, "-m", "habana_mp", "run", "--device", "cpu", "script.py"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=place_for_scripts)
    assert (done.stdout, done.returncode) == ("ran\n", 0)
    assert "Warning: --device is not heeded" in done.stderr
