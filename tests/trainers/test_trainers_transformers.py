"""The Trainer of transformers with a policy: ``HMPCallback``."""

from __future__ import annotations

import pytest
import torch
import transformers
from plain_training import BATCH, CASTS, POLICY, STEPS, Net, adam, same, samples, train

import habana_mp._core as _core
from habana_mp import hmp
from habana_mp._scope import in_force
from habana_mp.trainers.transformers import HMPCallback

pytestmark = pytest.mark.usefixtures("no_accelerator")


class Losses(transformers.TrainerCallback):
    def __init__(self):
        self.losses = []

    def on_log(self, args, state, control, logs, **kwargs):
        self.losses += [logs["loss"]] if "loss" in logs else []


def data():
    return [{"x": x, "labels": label} for x, label in samples()]


def arguments(folder, **kwargs):
    return transformers.TrainingArguments(
        output_dir=str(folder),
        use_cpu=True,
        num_train_epochs=1,
        per_device_train_batch_size=BATCH,
        per_device_eval_batch_size=BATCH,
        train_sampling_strategy="sequential",
        max_grad_norm=0,
        lr_scheduler_type="constant",
        logging_steps=1,
        logging_nan_inf_filter=False,
        report_to=[],
        disable_tqdm=True,
        dataloader_pin_memory=False,
        **{"save_strategy": "no", **kwargs},
    )


def trainer(folder, *callbacks, net=None, **kwargs):
    net = net or Net()
    made = transformers.Trainer(
        net,
        arguments(folder, **kwargs),
        train_dataset=data(),
        eval_dataset=data(),
        callbacks=[*callbacks],
        optimizers=(adam(net), None),
    )
    made.remove_callback(transformers.trainer_callback.PrinterCallback)
    return made


def test_train(tmp_path):
    losses, net = train()
    callback, logged = HMPCallback(POLICY, report=True), Losses()
    made = trainer(tmp_path, callback, logged)
    made.train()
    assert logged.losses == losses
    assert same(made.model, net)
    assert {op: callback.report.casts(op) for op in CASTS} == {op: n * STEPS for op, n in CASTS.items()}
    assert callback.report.casts() == sum(CASTS.values()) * STEPS
    assert not hmp.is_converted()


def test_evaluation_inside_of_training(tmp_path):
    callback = HMPCallback(POLICY, report=True)
    made = trainer(tmp_path, callback, eval_strategy="epoch")
    made.train()
    assert callback.report.casts() == 2 * sum(CASTS.values()) * STEPS


@pytest.mark.parametrize("run", ["evaluate", "predict"])
def test_without_training(tmp_path, run):
    hmp.convert(policy=POLICY)
    net = Net()
    losses = [net(**batch)["loss"].item() for batch in torch.utils.data.DataLoader(data(), batch_size=BATCH)]
    hmp.revert()
    with HMPCallback(POLICY, report=True) as callback:
        made = trainer(tmp_path, callback)
        loss = made.evaluate()["eval_loss"] if run == "evaluate" else made.predict(data()).metrics["test_loss"]
        assert hmp.is_converted()
    assert loss == pytest.approx(sum(losses) / STEPS, rel=1e-6)
    assert callback.report.casts() == sum(CASTS.values()) * STEPS
    assert not hmp.is_converted()


def test_evaluation_that_the_policy_misses(tmp_path):
    callback = HMPCallback(POLICY, report=True)
    made = trainer(tmp_path, callback)
    made.train()
    with pytest.warns(
        UserWarning, match="outside train run in float32, not under the policy 'hmp.edits'. Call them inside"
    ) as warned:
        made.evaluate()
    assert sum("outside train" in str(each.message) for each in warned) == 1
    assert callback.report.casts() == sum(CASTS.values()) * STEPS
    hmp.convert()
    made.evaluate()


class Failing(Net):
    def forward(self, x, labels=None):
        raise ValueError("enough")


def test_exceptions(tmp_path):
    callback = HMPCallback(POLICY)
    with callback, pytest.raises(ValueError, match="enough"):
        trainer(tmp_path, callback, net=Failing()).train()
    assert not hmp.is_converted()
    assert not _core.casts_off()


def test_training_again_after_an_exception(tmp_path):
    callback = HMPCallback(POLICY, report=True)
    with pytest.raises(ValueError, match="enough"):
        trainer(tmp_path, callback, net=Failing()).train()
    _, net = train()
    hmp.revert()
    made = trainer(tmp_path, callback)
    made.train()
    assert same(made.model, net)
    assert callback.report.casts() == sum(CASTS.values()) * STEPS
    assert not hmp.is_converted()


@pytest.mark.parametrize("since", ["nothing", "revert", "convert"])
def test_training_with_another_callback_after_an_exception(tmp_path, since):
    """The one that was left is over. What was put in force since then stays."""
    with pytest.raises(ValueError, match="enough"):
        trainer(tmp_path, HMPCallback("hmp-o2"), net=Failing()).train()
    before = {"nothing": lambda: None, "revert": hmp.revert, "convert": lambda: hmp.convert(policy="hmp-o1")}[since]()
    trainer(tmp_path, HMPCallback(POLICY)).train()
    assert in_force.policy is before


class Trains(transformers.TrainerCallback):
    def __init__(self, inner):
        self.inner = inner

    def on_epoch_end(self, args, state, control, **kwargs):
        self.inner.train()
        self.policy = in_force.policy


def test_a_trainer_inside_of_another(tmp_path):
    outer = HMPCallback(POLICY)
    trains = Trains(trainer(tmp_path, HMPCallback("hmp-o2")))
    trainer(tmp_path, outer, trains).train()
    assert trains.policy is outer.policy
    assert not hmp.is_converted()


def test_an_exception_in_the_step_of_the_optimizer(tmp_path):
    net = Net()
    made = trainer(tmp_path, HMPCallback(POLICY), net=net)

    def fail(*_):
        raise ValueError("enough")

    made.optimizer.register_step_post_hook(fail)
    with pytest.raises(ValueError, match="enough"):
        made.train()
    assert not _core.casts_off()


def test_training_twice(tmp_path):
    callback = HMPCallback(POLICY)
    made = trainer(tmp_path, callback)
    made.train()
    step = made.optimizer.step
    made.train()
    assert made.optimizer.step == step
    assert not hmp.is_converted()


def test_what_was_in_force_comes_back(tmp_path):
    before = hmp.convert(policy="hmp-o2")
    trainer(tmp_path, HMPCallback(POLICY)).train()
    assert in_force.policy is before


def test_a_checkpoint_tells_of_another_policy(tmp_path):
    trainer(tmp_path, HMPCallback(POLICY), save_strategy="epoch").train()
    trainer(tmp_path, HMPCallback(POLICY)).train(resume_from_checkpoint=True)
    trainer(tmp_path).train(resume_from_checkpoint=True)
    with pytest.warns(UserWarning, match="sqrt: lower -> rest"):
        trainer(tmp_path, HMPCallback("hmp")).train(resume_from_checkpoint=True)


def test_a_checkpoint_without_a_policy(tmp_path):
    trainer(tmp_path, save_strategy="epoch").train()
    trainer(tmp_path, HMPCallback(POLICY)).train(resume_from_checkpoint=True)


def test_a_callback_that_is_restored(tmp_path):
    trainer(tmp_path, HMPCallback(POLICY), save_strategy="epoch").train()
    made = trainer(tmp_path, HMPCallback("hmp"), restore_callback_states_from_checkpoint=True)
    made.train(resume_from_checkpoint=True)
    assert made.pop_callback(HMPCallback).policy == POLICY
    assert not hmp.is_converted()


@pytest.mark.parametrize("other", ["bf16", "bf16_full_eval", "fp16_full_eval"])
def test_two_mixed_precisions(tmp_path, other):
    with pytest.raises(
        ValueError, match=rf"TrainingArguments\({other}=True\) and HMPCallback both set mixed precision"
    ):
        trainer(tmp_path, HMPCallback(), **{other: True})
    made = trainer(tmp_path, **{other: True})
    made.add_callback(HMPCallback())
    with pytest.raises(
        ValueError, match=rf"TrainingArguments\({other}=True\) and HMPCallback both set mixed precision"
    ):
        made.train()
    assert not hmp.is_converted()


def test_two_policies(tmp_path):
    with pytest.raises(ValueError, match=r"this one has two\. Remove one of them"):
        trainer(tmp_path, HMPCallback(), HMPCallback(POLICY))
    made = trainer(tmp_path, HMPCallback())
    made.add_callback(HMPCallback(POLICY))
    with pytest.raises(ValueError, match=r"this one has two\. Remove one of them"):
        made.train()
    assert not hmp.is_converted()


def test_the_mixed_precision_of_a_launcher(tmp_path, monkeypatch):
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "bf16")
    with pytest.raises(
        ValueError, match="mixed_precision='bf16' of accelerate and HMPCallback both set mixed precision"
    ):
        trainer(tmp_path, HMPCallback())
