"""The trainers on two processes: ranks under different policies fail where training begins."""

from __future__ import annotations

import os
import re
import sys

import accelerate
import pytest
import torch
import transformers
from plain_training import Net, adam, samples
from ranks import WORLD, join, leave, run_ranks

from habana_mp import hmp
from habana_mp.trainers.accelerate import HMPHook
from habana_mp.trainers.transformers import HMPCallback

pytestmark = pytest.mark.xdist_group("ranks_trainers")

OF_RANK = ["hmp", "hmp-o1"]


def callback(folder, policy):
    """The model is wrapped before the callback hears of training."""
    arguments = transformers.TrainingArguments(
        folder,
        max_steps=1,
        save_strategy="no",
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
        ddp_backend="gloo",
        dataloader_pin_memory=False,
    )
    data = [{"x": x, "labels": label} for x, label in samples()]
    transformers.Trainer(Net(), arguments, train_dataset=data, callbacks=[HMPCallback(policy)]).train()


def hook(folder, policy):
    accelerator = accelerate.Accelerator(cpu=True)
    net = Net()
    accelerator.prepare(net, adam(net))
    HMPHook(accelerator, policy).remove()


TRAINERS = {"callback": callback, "hook": hook}


def worker(folder):
    os.environ["LOCAL_RANK"] = os.environ["RANK"]
    os.environ["MASTER_ADDR"] = "localhost"  # accelerate asks for it where the group is made already, too
    os.environ["LOCAL_WORLD_SIZE"] = str(WORLD)
    rank = join(folder)
    results = {}
    for name, train in TRAINERS.items():
        train(folder, "hmp")
        try:
            train(folder, OF_RANK[rank])
        except RuntimeError as error:
            results[name] = str(error)
        hmp.revert()
    torch.save(results, f"{folder}/{rank}.pt")
    leave()


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ranks")
    ended = run_ranks(__file__, folder)
    assert [each.status for each in ended] == [0] * WORLD, "".join(each.err for each in ended)
    return [torch.load(folder / f"{rank}.pt") for rank in range(WORLD)]


@pytest.mark.parametrize("trainer", TRAINERS)
def test_different_policies_are_reported_on_every_rank(results, trainer):
    for rank in range(WORLD):
        assert re.match(r"the ranks have different policies at .*:\n  rank 0: 'hmp', hash", results[rank][trainer])
        assert "  rank 1: 'hmp-o1', hash" in results[rank][trainer]


if __name__ == "__main__":
    worker(*sys.argv[1:])
