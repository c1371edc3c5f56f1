"""float32 copies of weights in a low dtype: of a model held in bfloat16 one op runs in float32, such as its head, and its weight is cast once (39, 41)."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from cached_weight import MODES, ROW, N, casts
from torch import nn

from habana_mp import hmp

pytestmark = pytest.mark.usefixtures("empty_cache")

LOW = [torch.bfloat16, torch.float16]
WIDE = hmp.Policy.from_ops(fp32=["linear"])
X = torch.linspace(-1, 1, 2 * N).view(2, N).bfloat16()


def weight(dtype=torch.bfloat16, *, frozen=False):
    return nn.Parameter(torch.randn(N, N).to(dtype), requires_grad=not frozen)


def by_hand(p):
    return F.linear(X.float(), p.detach().float())


def data_row(p):
    p.data[ROW].fill_(3)


def address(p):
    view = torch.frombuffer(bytearray(2 * N), dtype=p.dtype)
    with torch.no_grad():
        p[ROW] = view


CHANGES = {
    "row": lambda p: p.detach()[ROW].fill_(3),
    "data-row": data_row,
    "data-copy": lambda p: p.data.copy_(torch.randn(N, N)),
    "data-assigned": lambda p: setattr(p, "data", torch.randn(N, N).to(p.dtype)),
    "numpy": lambda p: p.detach().view(torch.int16).numpy().__setitem__(ROW, 3),
    "dlpack": lambda p: torch.from_dlpack(p.detach())[ROW].fill_(3),
    "storage-fill": lambda p: p.untyped_storage().fill_(0),
    "buffer": address,
    "vector": lambda p: nn.utils.vector_to_parameters(torch.randn(N * N).to(p.dtype), [p]),
    "half and back": lambda p: nn.ParameterList([p]).float().to(p.dtype)[0].data[ROW].fill_(3),
}


@pytest.mark.parametrize("front_end", ["convert", "autocast"])
@pytest.mark.parametrize("dtype", LOW, ids=str)
@pytest.mark.parametrize("frozen", [False, True], ids=["trained", "frozen"])
def test_a_low_weight_is_cast_once(front_end, dtype, frozen):
    p, x = weight(dtype, frozen=frozen), X.to(dtype)
    if front_end == "convert":
        hmp.convert(policy=WIDE)
    with hmp.autocast("cpu", policy=WIDE, enabled=front_end == "autocast"), hmp.report() as report:
        for mode in MODES.values():
            with mode():
                assert torch.equal(F.linear(x, p), F.linear(x.float(), p.detach().float()))
    assert casts() == (1, len(MODES) - 1)
    assert hmp.cache.info().bytes == 4 * N * N
    assert report.cache_hits("linear") == len(MODES) - 1


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("dtype", LOW, ids=str)
def test_a_changed_low_weight_is_cast_anew(change, dtype):
    hmp.convert(policy=WIDE)
    p = weight(dtype)
    assert torch.equal(F.linear(X, p), by_hand(p))
    for _ in range(2):
        CHANGES[change](p)
        for mode in MODES.values():
            with mode():
                assert torch.equal(F.linear(X, p), by_hand(p))


def test_training_takes_the_same_steps_as_casts_by_hand():
    torch.manual_seed(0)
    found = nn.Linear(N, N, bias=False, dtype=torch.bfloat16)
    wanted = copy.deepcopy(found)
    optimizers = [torch.optim.AdamW(each.parameters(), lr=1e-2) for each in (found, wanted)]
    for _ in range(4):
        with hmp.autocast("cpu", policy=WIDE):
            found(X).square().sum().backward()
        F.linear(X.float(), wanted.weight.float()).square().sum().backward()
        assert torch.equal(found.weight.grad, wanted.weight.grad)
        for each in optimizers:
            each.step()
            each.zero_grad()
        assert torch.equal(found.weight, wanted.weight)


class Tied(nn.Module):
    """A language model's ends: the head has the weight of the embedding."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(512, 64)
        self.body = nn.Linear(64, 64, bias=False)
        self.lm_head = nn.Linear(64, 512, bias=False)
        self.lm_head.weight = self.embedding.weight

    def forward(self, ids):
        return self.lm_head(torch.relu(self.body(self.embedding(ids))))


def test_the_head_of_a_model_held_in_bfloat16_by_one_edit():
    torch.manual_seed(0)
    model, ids = Tied().bfloat16(), torch.arange(32)
    policy = hmp.Policy.from_ops().with_edits("+linear in lm_head:fp32")
    hmp.set_policies(model, policy)
    hmp.convert(policy=policy)
    with torch.no_grad(), hmp.report() as report:
        for _ in range(8):
            logits = model(ids)
    hidden = torch.relu(model.body(model.embedding(ids)))
    assert logits.dtype == torch.float32
    assert torch.equal(logits, F.linear(hidden.float(), model.embedding.weight.float()))
    assert casts() == (1, 7)
    assert report.casts("linear") == 16  # the hidden state each time
    assert report.cache_hits("linear") == 7


def test_offload_leaves_low_weights_where_they_are(tmp_path):
    model = nn.Linear(512, 512, bias=False, dtype=torch.bfloat16)
    before = model.weight.data_ptr()
    hmp.cache.offload(model, tmp_path / "weights")
    assert model.weight.data_ptr() == before


@pytest.mark.parametrize("numbers", [(4097, 1), (65, 67), (1, 4099)])
def test_samples_of_an_odd_number_of_numbers(numbers):
    hmp.convert(policy=WIDE)
    p = nn.Parameter(torch.randn(*numbers).bfloat16())
    x = torch.randn(2, numbers[1]).bfloat16()
    for _ in range(3):
        assert torch.equal(F.linear(x, p), F.linear(x.float(), p.detach().float()))
        p.data.view(-1)[-1] += 1


def test_float8_weights_are_cast_each_time_d49():
    hmp.convert(policy=hmp.Policy.from_ops(lower=["linear"]))
    p = nn.Parameter(torch.randn(N, N).to(torch.float8_e4m3fn), requires_grad=False)
    for _ in range(2):
        F.linear(X, p)
    assert hmp.cache.info().entries == 0
