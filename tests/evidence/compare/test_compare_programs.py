"""hmp.compare on steps of all kinds: what they change is put back, what differs is never called the same, and nothing breaks."""

from __future__ import annotations

import copy
import threading

import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler

import habana_mp._core as _core
from habana_mp import hmp

X = torch.randn(4, 8, generator=torch.Generator().manual_seed(0))
LOW_MM = hmp.Policy.from_ops(lower=["mm"], name="low")


@pytest.fixture
def model():
    torch.manual_seed(0)
    return nn.Linear(8, 8)


# --- What a step changes


def zeroes_first(model, optimizer):
    optimizer.zero_grad()
    model(X).sum().backward()
    optimizer.step()


def steps_first(model, optimizer):
    optimizer.step()
    model(X)


def loads_first(model, _):
    model.load_state_dict({name: value * 0 for name, value in model.state_dict().items()})
    model(X)


def assigns_a_buffer(model, _):
    model.ema = 0.9 * model.ema + model(X).mean().detach()


def assigns_a_parameter(model, _):
    model(X)
    model.weight = nn.Parameter(model.weight.detach() * 2)


def switches(model, _):
    model.eval().requires_grad_(False)
    model(X)


def halves(model, _):
    model.to(torch.bfloat16)
    model(X.bfloat16())


@pytest.mark.parametrize(
    "change",
    [zeroes_first, steps_first, loads_first, assigns_a_buffer, assigns_a_parameter, switches, halves],
    ids=lambda each: each.__name__,
)
def test_models_and_optimizers_are_as_before(change, model):
    model.register_buffer("ema", torch.zeros(()))
    optimizer = torch.optim.Adam(model.parameters(), torch.tensor(0.1))
    model(X).sum().backward()
    optimizer.step()
    own = [(p, p.grad, p.data_ptr()) for p in model.parameters()]
    state = [*optimizer.state[model.weight].values()]
    before = copy.deepcopy((model.state_dict(), optimizer.state_dict(), [p.grad for p in model.parameters()]))
    found = hmp.compare(lambda: change(model, optimizer), None, None)
    assert found.same, str(found)
    after = model.state_dict(), optimizer.state_dict(), [p.grad for p in model.parameters()]
    for old, new in zip(tensors(before), tensors(after), strict=True):
        assert torch.equal(old, new)
        assert old.dtype == new.dtype
    assert all(p is own[i][0] and p.grad is own[i][1] for i, p in enumerate(model.parameters()))
    assert all(a is b for a, b in zip(state, optimizer.state[model.weight].values(), strict=True))
    assert model.training
    assert model.weight.requires_grad


def tensors(values):
    found = []
    torch.utils._pytree.tree_map_only(torch.Tensor, found.append, values)
    return found


def test_schedulers_scalers_and_generators_are_as_before(model):
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    schedule = lr_scheduler.StepLR(optimizer, 1)
    drawn = torch.Generator().manual_seed(7)
    before = schedule.state_dict(), drawn.get_state()

    def step():
        y = model(torch.randn(4, 8, generator=drawn))
        y.sum().backward()
        optimizer.step()
        schedule.step()
        return y

    assert hmp.compare(step, None, None).same
    assert schedule.state_dict() == before[0]
    assert torch.equal(drawn.get_state(), before[1])
    assert optimizer.param_groups[0]["lr"] == 0.1


@pytest.mark.parametrize("kind", ["attention", "lstm", "batch norm", "sparse gradient", "not a number", "inference"])
def test_kinds_of_modules(kind):
    torch.manual_seed(0)
    made = {
        "attention": lambda: nn.TransformerEncoderLayer(8, 2, 16, 0.0),
        "lstm": lambda: nn.LSTM(8, 8),
        "batch norm": lambda: nn.BatchNorm1d(8),
        "sparse gradient": lambda: nn.Embedding(5, 8, sparse=True),
        "not a number": lambda: nn.Linear(8, 8),
        "inference": lambda: nn.Linear(8, 8),
    }[kind]
    if kind == "inference":
        with torch.inference_mode():
            model = made()
    else:
        model = made()
    if kind == "not a number":
        with torch.no_grad():
            model.weight[0, 0] = torch.nan
    given = torch.arange(4) if kind == "sparse gradient" else X
    before = copy.deepcopy(model.state_dict())

    def step():
        out = model(given)
        out = out[0] if isinstance(out, tuple) else out
        if kind != "inference":
            out.square().sum().backward()
        return out.detach()

    found = hmp.compare(step, None, None)
    assert found.same, str(found)
    for old, new in zip(before.values(), model.state_dict().values(), strict=True):
        assert torch.equal(old.nan_to_num(), new.nan_to_num())


def test_other_threads_are_left_alone(model):
    other = nn.Linear(8, 8)
    go, done = threading.Event(), threading.Event()

    def train():
        go.wait(10)
        other(X)
        with torch.no_grad():
            other.weight.add_(1)
        done.set()

    def step():
        go.set()
        done.wait(10)
        return model(X)

    trained = other.weight.detach() + 1
    thread = threading.Thread(target=train)
    thread.start()
    hmp.compare(step, None, None)
    thread.join()
    assert torch.equal(other.weight, trained)


def test_a_graph_from_before_is_still_good(model):
    y = model(X).square().sum()
    hmp.compare(lambda: model(X).sum().backward(), None, "hmp")
    y.backward()
    assert model.weight.grad is not None


# --- What is never the same

BIG = torch.randn(1 << 16, generator=torch.Generator().manual_seed(1))
ONE = torch.zeros(1 << 16, dtype=torch.bool)
ONE[1] = True
SPARSE = [torch.tensor([[0.0, each], [0, 0]]).to_sparse() for each in (1.0, 2.0)]


def lossy(extra):
    weight = torch.ones(3, requires_grad=True)
    loss = (weight * 2).sum()
    if extra:
        loss = loss + torch.tensor(5.0)
    loss.backward()


DIFFERENT = {
    "transposed": (lambda: torch.exp(X), lambda: torch.exp(X).t()),
    "one more result": (lambda: (torch.exp(X), X), lambda: torch.exp(X)),
    "one number of many": (lambda: torch.exp(BIG), lambda: torch.exp(BIG).masked_fill(ONE, 7.0)),
    "finite and not": (lambda: torch.exp(X) * torch.nan, lambda: torch.exp(X) * 1.0),
    "the sign of zero": (lambda: torch.zeros(3) * 1.0, lambda: torch.zeros(3) * -1.0),
    "the loss": (lambda: lossy(False), lambda: lossy(True)),
    "a number": (lambda: (torch.exp(X), 1.0), lambda: (torch.exp(X), 2.0)),
    "sparse": (lambda: SPARSE[0] * 1.0, lambda: SPARSE[1] * 1.0),
    "conjugate": (lambda: torch.fft.fft(X), lambda: torch.fft.fft(X).conj()),
    "other indices": (lambda: X[torch.tensor([0, 1])] * 2, lambda: X[torch.tensor([1, 0])] * 2),
}


@pytest.mark.parametrize("name", DIFFERENT)
def test_what_differs_or_cannot_be_seen_is_not_the_same(name):
    found = hmp.compare(*DIFFERENT[name])
    assert not found.same
    assert str(found)
    found.to_html()


def test_more_calls_than_are_recorded_are_not_the_same():
    def step():
        with torch.no_grad():
            for _ in range(66_000):
                torch.neg(X)

    found = hmp.compare(step, "hmp", "hmp")
    assert not found.same
    assert found.lost == 2 * (66_000 - 65_536)
    assert "could not be compared" in str(found)


@pytest.mark.parametrize(
    ("a", "b", "first"),
    [
        (lambda: X.mul(X + 1), lambda: (X.neg().mul(X.neg()), X.mul(X + 1))[1], None),
        (lambda: X.exp().sin(), lambda: X.sin().exp(), ("sin", "given")),
        (lambda: X.clone() * 2, lambda: (X + 0).clone() * 2, None),
        (lambda: X.clone() * 2, lambda: X.flip(0).clone() * 2, ("flip", "only in b")),
        (lambda: {"a": X * 2, "b": X * 3}, lambda: {"b": X * 3, "a": X * 2}, None),
    ],
    ids=[
        "one more of the same op",
        "another order",
        "the same by another way",
        "another input",
        "keys in another order",
    ],
)
def test_how_calls_are_paired(a, b, first):
    found = hmp.compare(a, b)
    assert found.same == (first is None), str(found)
    if first is not None:
        assert (found.first.op, found.first.kind) == first


def test_gradients_are_those_of_the_same_weights():
    """In whatever order they arrive: casts change it."""
    torch.manual_seed(0)
    a, b = (nn.Parameter(torch.randn(8, 8)) for _ in range(2))
    found = hmp.compare(lambda: torch.mm(a, b).square().sum().backward(), None, LOW_MM)
    assert 0 < found.gradient_error < 0.02


# --- What must not break


def frees(_):
    y = X.clone()
    y.untyped_storage().resize_(0)
    return y.new_ones(3)


def uses_up_its_graph(model):
    y = model(X)
    y.backward(torch.ones_like(y))
    return y


class NoBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.variable = 3
        return x * 2


def checkpoints(model):
    return torch.utils.checkpoint.checkpoint(model, X.clone().requires_grad_(), use_reentrant=True)


def on_meta(model):
    with torch.device("meta"):
        return model(X)


@pytest.mark.parametrize(
    "step",
    [frees, uses_up_its_graph, lambda model: NoBackward.apply(model(X)), checkpoints, on_meta],
    ids=["frees", "uses up its graph", "no backward", "checkpoints", "default device"],
)
def test_steps_that_are_hard_to_look_at(step, model):
    hmp.compare(lambda: step(model), None, "hmp").to_html()
    assert _core.probe_name() == ""


def test_outputs_without_a_backward_have_no_shares(model):
    found = hmp.compare(lambda: NoBackward.apply(model(X)), None, "hmp")
    assert any(note.startswith("No shares: the backward pass of the outputs raised") for note in found.notes)
    assert found.first.op == "linear"


@pytest.mark.filterwarnings("ignore:torch.compile with fullgraph=True found no compiled frames")  # torch 2.12
@pytest.mark.parametrize("warm", [False, True])
def test_compiled_modules_run(warm, model):
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    if warm:
        compiled(X)
    hmp.compare(lambda: compiled(X), None, "hmp")


BEGUN, GO = threading.Event(), threading.Event()


@torch.library.custom_op("habana_mp_tests::waits", mutates_args=())
def waits(x: torch.Tensor) -> torch.Tensor:
    BEGUN.set()
    GO.wait(10)
    return x * 2


def test_a_call_that_outlives_its_run(model):
    """An op of another thread begins in a run that ends by an exception, and ends in the next one: it is a call of neither (D50)."""
    thread = threading.Thread(target=waits, args=(X,))

    def raises():
        for _ in range(1000):
            torch.neg(X)
        thread.start()
        BEGUN.wait(10)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        hmp.compare(raises, None, None)

    def ends():
        GO.set()
        thread.join()
        return model(X) * 2

    found = hmp.compare(ends, None, None)
    assert found.same
    assert found.calls == 2


def test_a_session_ends_with_its_object():
    session = _core.start_recording(by_compare=True)
    assert _core.probe_name() == "compare"
    del session
    assert _core.probe_name() == ""
    assert _core.stop_recording([]) is None
    assert _core.stop_comparing([]) is None
    with pytest.raises(ValueError, match="record a first run"):
        _core.start_comparing(None, [], 0)


def test_an_optimizer_that_keeps_lists_is_put_back():
    """LBFGS appends to them, takes from them and replaces their items."""
    torch.manual_seed(0)
    model, x, y = nn.Linear(8, 1), torch.randn(16, 8), torch.randn(16, 1)
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=4, history_size=5)

    def closure():
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x), y)
        loss.backward()
        return loss

    def step():
        return optimizer.step(closure)

    step()
    state = optimizer.state[model.weight]
    before = copy.deepcopy(state)
    assert len(before["old_dirs"]) > 1
    found = hmp.compare(step, None, None)
    assert found.same
    assert found.losses[0] == found.losses[1]
    hmp.compare(step, None, "balanced")
    assert state.keys() == before.keys()
    for name, value in before.items():
        torch.testing.assert_close(state[name], value, rtol=0, atol=0)
