"""``hmp.find_nonfinite``: planted NaNs and infinities are named where they are made, and those that are meant are not."""

from __future__ import annotations

import contextlib
import io
import math
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset

import habana_mp._core as _core
from habana_mp import hmp

LOW_LISTS = hmp.Policy.load("torch-cpu")
IN_FLOAT16 = hmp.Policy.load("torch-cpu").with_low_dtype("fp16").with_edits("+exp:lower", "+mul:lower", "+sum:lower")


class Block(nn.Module):
    """Attention with a causal mask of -inf, and a log of zeros that is masked: both meant."""

    def __init__(self, planted: str = "") -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(8, 8) for _ in range(3))
        self.planted = planted

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.q(x), self.k(x), self.v(x)
        scores = q @ k.transpose(-1, -2) + torch.full((6, 6), -torch.inf).triu(1)
        y = torch.softmax(scores, -1) @ v
        logs = torch.log(torch.relu(y.detach()))
        y = y + logs.masked_fill(logs.isinf(), 0.0)
        return PLANTED[self.planted][0](y) if self.planted else y


# What is done to the result of a block, the op to be named, the phase, and whether it is NaN.
PLANTED = {
    "log of a negative number": (lambda y: y + torch.log(y.detach() * 0 - 1), "log", "forward", True),
    "sqrt of a negative number": (lambda y: y + torch.sqrt(y.detach() * 0 - 1), "sqrt", "forward", True),
    "division by zero": (lambda y: y / torch.zeros_like(y), "div", "forward", None),
    "reciprocal of zero": (lambda y: y * torch.reciprocal(y.detach() * 0), "reciprocal", "forward", False),
    "exp": (lambda y: y * torch.exp(y.detach() * 0 + 100), "exp", "forward", False),
    "pow": (lambda y: y * torch.pow(y.detach() * 0 + 1e30, 2), "pow", "forward", False),
    "acos": (lambda y: y + torch.acos(y.detach() * 0 + 2), "acos", "forward", True),
    "rsqrt of zero": (lambda y: y * torch.rsqrt(y.detach() * 0), "rsqrt", "forward", False),
    "log1p": (lambda y: y + torch.log1p(y.detach() * 0 - 1), "log1p", "forward", False),
    "mul": (lambda y: (y * 0 + 1e30) * 1e30, "mul", "forward", False),
    "sum": (lambda y: y + (y * 0 + 3e38).sum(-1, keepdim=True), "sum", "forward", False),
    "matmul": (lambda y: (y * 0 + 1e30) @ torch.full((8, 8), 1e30), "matmul", "forward", False),
    "norm of zeros backward": (lambda y: y + torch.sqrt((y * 0).square()), "sqrt", "backward", False),
    "log of zero backward": (lambda y: y + (y * 0).abs().pow(0.5), "pow", "backward", None),
    "acos backward": (lambda y: y + torch.acos(y * 0 + 1), "acos", "backward", False),
}


@pytest.mark.parametrize("planted", PLANTED)
@pytest.mark.parametrize("policy", ["float32", "bfloat16"])
@pytest.mark.parametrize("where", ["first", "last"])
def test_planted(planted, policy, where) -> None:
    _, op, phase, nan = PLANTED[planted]
    torch.manual_seed(0)
    blocks = [Block(planted), Block()] if where == "first" else [Block(), Block(planted)]
    model = nn.Sequential(*blocks, nn.Linear(8, 4))
    region = contextlib.nullcontext() if policy == "float32" else hmp.autocast("cpu", policy=LOW_LISTS)

    def step() -> None:
        with region:
            loss = model(torch.randn(6, 8)).float().mean()
        loss.backward()

    found = hmp.find_nonfinite(step)
    assert found is not None
    assert (found.op, found.phase) == (op, phase)
    assert nan is None or (found.kind == "nan") == nan
    assert found.module.startswith("Sequential: ")
    assert found.source.rpartition("/")[2].startswith("test_nonfinite.py:") or phase == "backward"
    assert op in str(found)


OVERFLOWS = {
    "matmul": lambda x: (x * 300) @ (x.t() * 300),
    "exp": lambda x: torch.exp(x * 0 + 12),
    "mul": lambda x: (x * 0 + 300) * (x * 0 + 300),
    "linear": lambda x: F.linear(x * 0 + 300, torch.full((4, 8), 300.0)),
    "sum": lambda x: (x * 0 + 30000).sum(-1),
}


@pytest.mark.parametrize("op", OVERFLOWS)
@pytest.mark.parametrize("front_end", ["convert", "autocast"])
def test_an_overflow_of_float16_has_an_edit_that_mends_it(op, front_end) -> None:
    x = torch.ones(8, 8, requires_grad=True)

    def step(policy: hmp.Policy):
        def run() -> None:
            if front_end == "convert":
                hmp.convert(policy=policy)
                OVERFLOWS[op](x).float().mean().backward()
                hmp.revert()
            else:
                with hmp.autocast("cpu", torch.float16, policy=policy):
                    y = OVERFLOWS[op](x)
                y.float().mean().backward()

        return run

    found = hmp.find_nonfinite(step(IN_FLOAT16))
    assert found is not None
    assert (found.op, found.dtype, found.edit) == (op, "float16", f"+{op}:fp32")
    assert found.rule.startswith(f"lower: {op}")
    assert found.given
    assert all(max(abs(tensor.smallest), abs(tensor.largest)) < 65504 for tensor in found.given)
    assert hmp.find_nonfinite(step(IN_FLOAT16.with_edits(found.edit))) is None


# The sizes of a weight and the call, by the op of the list.
IN_8_BITS = {
    "linear": ((64, 64), lambda x, w: F.linear(x, w)),  # noqa: PLW0108 - found when it runs
    "mm": ((64, 64), lambda x, w: x.mm(w)),
    "matmul": ((64, 64), lambda x, w: x @ w),
    "addmm": ((64, 64), lambda x, w: torch.addmm(torch.zeros(64), x, w)),
    "bmm": ((1, 64, 64), lambda x, w: torch.bmm(x[None], w)),
    "conv1d": ((64, 64, 1), lambda x, w: F.conv1d(x[..., None], w)),
    "conv2d": ((64, 64, 1, 1), lambda x, w: F.conv2d(x[..., None, None], w)),
}


@pytest.mark.parametrize("op", IN_8_BITS)
@pytest.mark.parametrize("title", ["weight_int8", "int8"])
@pytest.mark.parametrize("front_end", ["convert", "autocast"])
@pytest.mark.parametrize("made", [True, False], ids=["too large for float16", "given"])
def test_products_in_8_bits_are_looked_at_d56(op, title, front_end, made) -> None:
    """They run no op of torch inside: the op behind them, or none, was named."""
    sizes, call = IN_8_BITS[op]
    weight = nn.Parameter(torch.full(sizes, 3000.0 if made else math.inf), requires_grad=False)
    x = torch.ones(2, 64)
    policy = hmp.Policy.load("hmp").with_low_dtype("float16").with_edits(f"+{op}:{title}")
    if front_end == "convert":
        hmp.convert(policy=policy)
    with hmp.autocast("cpu", policy=policy) if front_end == "autocast" else contextlib.nullcontext():
        found = hmp.find_nonfinite(lambda: call(x, weight).sum(dtype=torch.float32))
    assert found is not None
    assert (found.op, found.dtype, found.from_outside) == (op, "float16", not made)
    assert found.edit == (f"+{op}:fp32" if made else None)


@pytest.mark.parametrize("front_end", ["convert", "autocast"])
def test_a_mask_that_the_low_dtype_does_not_hold(front_end) -> None:
    """finfo(float32).min is -inf in bfloat16, and a row that is all mask becomes NaN in a softmax, which is not to blame."""
    policy = hmp.Policy.load("hmp").with_edits("+add:lower", "+softmax:lower")
    scores = torch.randn(4, 4, requires_grad=True)
    mask = torch.full((4, 4), torch.finfo(torch.float32).min)

    def step(policy: hmp.Policy):
        def run() -> None:
            if front_end == "convert":
                hmp.convert(policy=policy)
                y = torch.softmax(scores + mask, -1)
                hmp.revert()
            else:
                with hmp.autocast("cpu", policy=policy):
                    y = torch.softmax(scores + mask, -1)
            y.float().square().sum().backward()

        return run

    found = hmp.find_nonfinite(step(policy))
    assert found is not None
    assert (found.op, found.inner, found.edit) == ("add", "cast", "+add:fp32")
    assert "the cast of what it is given" in str(found)


MASK = torch.full((8, 8), -torch.inf).triu(1)

MEANT = {
    "a mask of -inf": lambda x: torch.softmax(x + torch.full((8, 8), -torch.inf).triu(1), -1),
    "masked_fill": lambda x: torch.softmax(x.masked_fill(torch.eye(8) > 0, -torch.inf), -1),
    "where": lambda x: torch.where(x > 0, x, torch.log(torch.relu(x)).nan_to_num(neginf=0.0)),
    "a log that is masked": lambda x: torch.log(torch.relu(x.detach())).masked_fill(x <= 0, 0.0) + x,
    "a maximum that begins at -inf": lambda x: torch.maximum(torch.full((8, 8), -torch.inf), x),
    "memory that is not yet written": lambda x: torch.empty(8, 8).copy_(x) + x,
    "a mask of before": lambda x: torch.softmax(x + MASK, -1),
    "a mask in place": lambda x: torch.softmax((x * 1).add_(MASK), -1),
    "a mask that is printed": lambda x: x if (MASK * 2).min().item() < 0 else -x,
    "a best loss that begins at inf": lambda x: x if torch.full((), torch.inf).item() > 0 else -x,
    "a quotient that is not used": lambda x: (x.detach() / 0).isfinite().float() + x,
}


@pytest.mark.parametrize("case", MEANT)
def test_what_is_meant_does_not_count(case) -> None:
    x = torch.randn(8, 8, requires_grad=True)

    def step() -> float:
        loss = MEANT[case](x).sum()
        loss.backward()
        return loss.item()

    assert hmp.find_nonfinite(step) is None


ONES = torch.ones(4, 4)


def written(x):
    """By NumPy, which torch does not see."""
    made = x * 1
    made.numpy()[0] = np.inf
    return made


def on_a_thread(work):
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(work).result()


class Data(Dataset):
    def __len__(self):
        return 4

    def __getitem__(self, i):
        return torch.full((4,), 300.0) @ (torch.eye(4) * 300) * torch.tensor([1.0, 1, -1, -1])


def trained(x):
    weight = torch.ones(4, 4, requires_grad=True)
    (x @ weight).sum().backward()


def restored():
    weights = {"weight": torch.full((4, 4), math.inf), "bias": torch.zeros(4)}
    saved = io.BytesIO()
    on_a_thread(lambda: torch.save(weights, saved))
    saved.seek(0)
    return torch.load(saved)


def given(*values):
    return torch.tensor(values).repeat(4, 4 // len(values))


INF, BELOW, BOTH, NAN = given(math.inf), given(-math.inf), given(math.inf, -math.inf), given(math.nan)

# What is done, and the op that is given what nobody here has made.
OUTSIDE = {
    "a tensor of the caller": (lambda: INF.mean().item(), "mean"),
    "a mean of relu": (lambda: torch.relu(INF).mean().item(), "relu"),
    "both infinities": (lambda: trained(BOTH), "matmul"),
    "-inf in a loss": (lambda: trained(BELOW), "matmul"),
    "NaN": (lambda: NAN * 2, "mul"),
    "an array": (lambda: torch.from_numpy(np.full((4, 4), np.inf)).sum().item(), "sum"),
    "a factory": (lambda: trained(torch.full((4, 4), math.inf)), "full"),
    "a checkpoint": (lambda: nn.Linear(4, 4).load_state_dict(restored()), "copy_"),
    "a write by NumPy": (lambda: written(ONES).sum().item(), "sum"),
    "an op in place": (lambda: INF.mul_(2), "mul_"),
    "another thread": (lambda: on_a_thread(lambda: ONES / 0).sum().item(), "sum"),
    "a worker": (lambda: trained(next(iter(DataLoader(Data(), 4, num_workers=1)))), "matmul"),
    "nothing that is done": (lambda: NAN, ""),
}


@pytest.mark.parametrize("case", OUTSIDE)
def test_what_comes_from_outside(case) -> None:
    step, op = OUTSIDE[case]
    with hmp.autocast("cpu", torch.float16, policy=LOW_LISTS):
        found = hmp.find_nonfinite(step)
    assert found is not None
    assert (found.op, found.from_outside, found.edit) == (op, True, None)
    assert "no op here has made" in str(found)
    assert ("workers of a DataLoader" in str(found)) == bool(found.forked_casts)
    assert case != "a worker" or found.forked_casts


def test_an_overflow_beside_a_mask_is_made_here() -> None:
    mask = torch.zeros(1, 4, 4).masked_fill(torch.ones(4, 4).triu(1) > 0, -math.inf)
    with hmp.autocast("cpu", torch.float16, policy=LOW_LISTS):
        found = hmp.find_nonfinite(
            lambda: torch.baddbmm(mask, torch.full((1, 4, 4), 200.0), torch.full((1, 4, 4), 200.0))
        )
    assert found is not None
    assert (found.op, found.from_outside, found.edit) == ("baddbmm", False, "+baddbmm:fp32")


def test_masks_that_a_step_returns_do_not_count() -> None:
    assert hmp.find_nonfinite(lambda: (MASK, MASK * 2, ONES.masked_fill(ONES > 0, -math.inf))) is None
    assert hmp.find_nonfinite(lambda: (torch.zeros(2).log().isinf(), MASK * 2)) is None


RESULTS = {
    "returned": lambda y: y,
    "in a dict": lambda y: {"logits": [y]},
    "printed": lambda y: y.sum().item() and None,
}


@pytest.mark.parametrize("how", RESULTS)
def test_inference(how) -> None:
    with torch.no_grad():
        found = hmp.find_nonfinite(lambda: RESULTS[how](torch.exp(torch.full((3,), 100.0))))
    assert found is not None
    assert (found.op, found.kind, found.edit) == ("exp", "inf", None)
    assert "none: it is not finite in float32 either" in str(found)


def test_no_edit_helps_an_op_that_writes_into_what_it_is_given() -> None:
    with torch.no_grad():
        found = hmp.find_nonfinite(lambda: torch.full((3,), 3e4, dtype=torch.float16).mul_(3))
    assert found is not None
    assert (found.op, found.kind, found.edit) == ("mul_", "inf", None)
    assert "none: it writes into what it is given, in float16" in str(found)


def test_a_step_that_leaves_nothing_is_judged_by_what_is_in_memory() -> None:
    kept = []
    assert hmp.find_nonfinite(lambda: kept.append(torch.exp(torch.full((3,), 100.0)))).op == "exp"
    assert hmp.find_nonfinite(lambda: torch.exp(torch.full((3,), 100.0)).isfinite().sum() and None) is None


def test_a_weight_that_an_optimizer_spoils() -> None:
    weight = torch.ones(3, requires_grad=True)
    optimizer = torch.optim.SGD([weight], lr=1e38)

    def step() -> None:
        (weight * 1e3).sum().backward()
        optimizer.step()

    found = hmp.find_nonfinite(step)
    assert found is not None
    assert found.inner.startswith("aten::")
    assert not weight.isfinite().all()


def test_what_the_step_raises_comes_through_and_the_next_search_runs() -> None:
    with pytest.raises(ZeroDivisionError):
        hmp.find_nonfinite(lambda: 1 / 0)
    with pytest.raises(KeyboardInterrupt):
        hmp.find_nonfinite(lambda: (_ for _ in ()).throw(KeyboardInterrupt))
    assert hmp.find_nonfinite(lambda: torch.ones(2).log()) is None
    assert not _core.reporting()


def test_one_search_at_a_time() -> None:
    with pytest.raises(RuntimeError, match="Only one step can be recorded at a time"):
        hmp.find_nonfinite(lambda: hmp.find_nonfinite(lambda: None))
    assert hmp.find_nonfinite(lambda: None) is None


def test_from_another_thread() -> None:
    found = []
    thread = threading.Thread(target=lambda: found.append(hmp.find_nonfinite(lambda: torch.ones(2) / 0)))
    thread.start()
    thread.join()
    assert found[0].op == "div"


@pytest.mark.parametrize(
    ("step", "shown"),
    [
        (3, "3"),
        (None, "None"),
        ("train", "'train'"),
        (torch.ones(64, 64), "a Tensor of shape [64, 64] and dtype torch.float32"),
        ([torch.ones(64, 64)], "[tensor([[1., 1., 1.,  ..., 1., 1., 1.],..."),
        (range(10**6), "range(0, 1000000)"),
        ([*range(10**4)], f"{str([*range(10**4)])[:80]}..."),
    ],
    ids=["number", "None", "name", "tensor", "list of tensors", "range", "long list"],
)
def test_wrong_steps(step, shown) -> None:
    with pytest.raises(TypeError) as raised:
        hmp.find_nonfinite(step)
    assert str(raised.value) == f"step must be a function without arguments, not {shown}"
