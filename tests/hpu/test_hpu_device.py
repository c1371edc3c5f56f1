"""The device names hpu and habana where there is no such device: every way in which a script says them."""

import copy
import io
import pickle

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from habana_mp._hpu.mapping import unmap_hpu

pytestmark = pytest.mark.usefixtures("mapped")
X = torch.arange(12.0).reshape(3, 4)
TRUTH = torch.device("cpu")
NAMES = ["hpu", "hpu:0", "hpu:1", "habana", "habana:0"]


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


def test_others_are_left_alone() -> None:
    with FakeTensorMode():  # which must not look for a device that is none
        assert torch.tensor([1.0], device="cuda").device.type == "cuda"
    assert not torch.accelerator.is_available()
    assert torch.autocast("cpu").__class__ is torch.autocast
    with torch.autocast("cpu"):
        assert (X @ X.t()).dtype is torch.bfloat16
