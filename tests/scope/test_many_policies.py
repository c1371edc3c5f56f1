"""A process that makes policies for ever, each with a name of its own, keeps nothing of them."""

from __future__ import annotations

import gc
import weakref
from pathlib import Path

import pytest
import torch
from torch import nn

from habana_mp import hmp

X = torch.ones(4, 4)
# As many names of ops and modules as a report knows (src/base/name_numbers.h).
MOST_NAMES = 1 << 16


def made(number):
    return hmp.Policy.from_ops(lower=["mm"], name=f"p{number}")


def in_a_region(policy):
    with hmp.autocast("cpu", policy=policy):
        torch.mm(X, X)


def in_a_conversion(policy):
    hmp.convert(policy=policy)
    torch.mm(X, X)
    hmp.revert()


def in_a_report(policy):
    with hmp.report() as report:
        in_a_region(policy)
        in_a_conversion(policy)
    assert report.casts("mm") == 2


def on_a_module(policy):
    model = nn.Sequential(nn.Linear(4, 4))
    hmp.set_policies(model, {"0": policy})
    model(X)


def in_a_checkpoint(policy):
    state = hmp.PolicyState(policy)
    state.load_state_dict(hmp.PolicyState("hmp").state_dict() | state.state_dict())


def edited(policy):
    in_a_region(policy.with_edits("+bmm:fp32").with_low_dtype(torch.float16))


USES = [in_a_region, in_a_conversion, in_a_report, on_a_module, in_a_checkpoint, edited]


@pytest.mark.parametrize("use", USES, ids=lambda use: use.__name__.replace("_", " "))
def test_a_policy_that_was_used_is_freed(use):
    policy = made("-of-this-test")
    use(policy)
    kept = weakref.ref(policy)
    del policy
    gc.collect()
    assert kept() is None


def resident_mib():
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096 / (1 << 20)


@pytest.mark.unsanitized("the sanitizer keeps what is freed")
def test_policies_with_ever_new_names_take_no_memory():
    for number in range(2000):
        in_a_region(made(number))
    gc.collect()
    before = resident_mib()
    for number in range(2000, 22000):
        in_a_region(made(number))
    gc.collect()
    assert resident_mib() - before < 2


def test_policies_take_no_names_from_ops_and_modules():
    for number in range(MOST_NAMES + 1):
        in_a_region(made(number))

    class Unheard(nn.Module):
        def forward(self, x):
            return torch.mm(x, x)

    with hmp.report() as report, hmp.autocast("cpu", policy=made("last")):
        Unheard()(X)
    assert [(row["module"], row["policy"]) for row in report.to_dict()["rows"]] == [("Unheard", "plast")]
