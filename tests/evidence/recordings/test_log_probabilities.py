"""Log-probabilities of two runs, token by token, and the ops that make the gap."""

from __future__ import annotations

import math

import pytest
import torch

from habana_mp import hmp
from habana_mp.results import LogProbabilities
from tests.evidence.recordings.programs import TOKENS, by_token, gpt, whole


def log_probabilities(logits):
    return logits.float().log_softmax(-1)[:, :-1].gather(-1, TOKENS[:, 1:, None])


def step(model, run=whole):
    return lambda: {"log_probabilities": log_probabilities(run(model))}


def test_the_numbers_of_a_gap():
    a = torch.tensor([-1.0, -2.0, -3.0, -math.inf])
    b = torch.tensor([-1.0, -2.5, -2.9, -math.inf])
    found = LogProbabilities.of(a, b)
    assert found.tokens == 4
    assert found.nats_per_token == pytest.approx(0.15)
    assert found.largest_ratio == pytest.approx(math.exp(0.5))
    assert (found.beyond(), found.beyond(1.7), found.beyond(1.0)) == (0.25, 0, 0.5)
    assert str(found) == "0.15 nats per token over 4 tokens, largest ratio 1.649, 25 % of tokens beyond 1.2"
    assert LogProbabilities.of(a, torch.zeros(4)).largest_ratio == math.inf
    with pytest.raises(ValueError, match=r"ratio must be 1 or more, not 0.5"):
        found.beyond(0.5)


def test_a_trainer_and_an_engine(here):
    trainer, engine = gpt(), gpt(fused=True)
    with hmp.record("trainer.rec") as run:
        run.returns(step(trainer)())
    with hmp.autocast("cpu", policy="hmp"), hmp.record("engine.rec") as run:
        run.returns(step(engine, by_token)())
    found = hmp.compare("trainer.rec", "engine.rec", rtol=1e-3)
    own = log_probabilities(whole(trainer)).flatten()
    with hmp.autocast("cpu", policy="hmp"):
        other = log_probabilities(by_token(engine)).flatten()
    gap = found.log_probabilities
    assert gap.tokens == 15
    assert gap.nats_per_token == pytest.approx((other - own).abs().mean().item(), rel=1e-5)
    assert gap.largest == pytest.approx((other - own).abs().max().item(), rel=1e-5)
    assert f"log-probabilities: {gap}" in str(found)
    assert found.to_dict()["log_probabilities"]["tokens"] == 15
    assert "nats per token" in found.to_html()
    assert any(row.module == "GPT: h.0.attn.qkv" and row.kind == "precision" for row in found.rows)
    assert found.both_recorded
    assert "To see which ops make the gap, run one of the two: hmp.compare(step, 'trainer.rec')" in str(found)
    with pytest.raises(
        ValueError, match=r"both runs are recordings, so no shares are known. .*hmp.compare\(step, 'trainer.rec'\)"
    ):
        found.main_makers()


def test_the_ops_that_make_the_gap(here):
    model = gpt()
    with hmp.record("trainer.rec") as run:
        run.returns({"log_probabilities": log_probabilities(model(TOKENS))})
    with hmp.autocast("cpu", policy=hmp.Policy.from_ops(lower=["linear"], name="low")):
        found = hmp.compare(lambda: {"log_probabilities": log_probabilities(model(TOKENS))}, "trainer.rec")
    main = found.main_makers()
    assert main[0].op == "linear"
    assert sum(row.share for row in main) >= 0.9 > sum(row.share for row in main[:-1])
    assert "90 % of the gap: linear in GPT: " in str(found)
    assert not found.both_recorded


def test_other_tokens_are_not_compared(here):
    with hmp.record("a.rec") as run:
        run.returns({"log_probabilities": torch.zeros(3)})
    found = hmp.compare(lambda: {"log_probabilities": torch.zeros(4)}, "a.rec")
    assert (found.same, found.log_probabilities) == (False, None)
    assert "log_probabilities has 3 tokens in run a and 4 in run b, and is not compared." in found.notes


@pytest.mark.parametrize(
    ("values", "error", "said"),
    [
        ([1.0], TypeError, r"log_probabilities must be a floating tensor with a number for each token, not \[1.0\]"),
        (torch.zeros(3, dtype=torch.int64), TypeError, "must be a floating tensor"),
        (torch.zeros(1).expand(1_000_001), ValueError, "has 1,000,001 tokens. A recording keeps at most 1,000,000"),
    ],
    ids=["list", "whole numbers", "too many"],
)
def test_what_is_refused(values, error, said, here):
    with pytest.raises(error, match=said), hmp.record("a.rec") as run:
        run.returns({"log_probabilities": values})
