"""Lightning with a policy: ``HMPPrecision``."""

from __future__ import annotations

import copy
import pickle

import lightning
import pytest
import torch
from plain_training import CASTS, POLICY, STEPS, Net, adam, batches, same, train

import habana_mp._core as _core
from habana_mp import hmp
from habana_mp._scope import in_force
from habana_mp.trainers.lightning import HMPPrecision

pytestmark = [
    # What Lightning itself emits, whatever runs in it.
    pytest.mark.filterwarnings("ignore:.*does not have many workers:UserWarning"),
    pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning"),
]


LOG = lightning.LightningModule.log


class Module(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = Net()
        self.losses, self.logged, self.outside = [], [], []

    def training_step(self, batch, _):
        loss = self.net(*batch)["loss"]
        self.losses.append(loss.item())
        return loss

    def predict_step(self, batch, _):
        return self.net(*batch)["logits"]

    def on_before_optimizer_step(self, optimizer):
        self.outside.append(self.net.inner(torch.ones(1, 8)).dtype)

    def configure_optimizers(self):
        return adam(self.net)


class Evaluated(Module):
    def validation_step(self, batch, _):
        loss = self.net(*batch)["loss"]
        self.logged.append(loss.item())
        self.log("val", loss)

    test_step = validation_step


def trainer(plugin=None, **kwargs):
    return lightning.Trainer(
        plugins=[] if plugin is None else [plugin],
        accelerator="cpu",
        max_epochs=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        num_sanity_val_steps=0,
        **kwargs,
    )


def test_fit():
    losses, net = train()
    module, plugin = Module(), HMPPrecision(POLICY, report=True)
    trainer(plugin).fit(module, batches())
    assert module.losses == losses
    assert same(module.net, net)
    assert {op: plugin.report.casts(op) for op in CASTS} == {op: n * STEPS for op, n in CASTS.items()}
    assert plugin.report.casts() == sum(CASTS.values()) * STEPS
    assert module.outside == [torch.float32] * STEPS
    assert not hmp.is_converted()


@pytest.mark.parametrize("run", ["validate", "test", "predict"])
def test_steps_without_training(run):
    module, plugin = Evaluated(), HMPPrecision(POLICY, report=True)
    with hmp.report() as plain:
        hmp.convert(policy=POLICY)
        expected = [module.net(*batch) for batch in batches()]
        hmp.revert()
    results = getattr(trainer(plugin), run)(module, batches(), **({} if run == "predict" else {"verbose": False}))
    if run == "predict":
        assert all(torch.equal(a, b["logits"]) for a, b in zip(results, expected))
        assert results[0].dtype == torch.bfloat16
    else:
        losses = [each["loss"].item() for each in expected]
        assert module.logged == losses
        # The mean that Lightning makes of them is not cast, though mul is in the lower list.
        assert results[0]["val"] == pytest.approx(sum(losses) / STEPS, rel=1e-6)
    assert not plain.diff(plugin.report)
    assert not hmp.is_converted()


def test_one_plugin_serves_several_runs():
    module, plugin = Evaluated(), HMPPrecision(POLICY, report=True)
    made = trainer(plugin)
    made.fit(module, batches(), batches())
    first = plugin.report
    made.test(module, batches(), verbose=False)
    assert first.casts("linear") == 2 * plugin.report.casts("linear") == 2 * 6 * STEPS


class Manual(Module):
    """With an optimizer that calls the model again."""

    def __init__(self):
        super().__init__()
        self.automatic_optimization = False

    def training_step(self, batch, _):
        def closure():
            self.optimizers().zero_grad()
            outputs = self.net(*batch)
            assert outputs["logits"].dtype == torch.bfloat16
            self.losses.append(outputs["loss"].item())
            self.manual_backward(outputs["loss"])

        self.optimizers().step(closure=closure)
        assert self.net.inner(batch[0]).dtype == torch.bfloat16


def test_manual_optimization():
    losses, net = train()
    module = Manual()
    trainer(HMPPrecision(POLICY)).fit(module, batches())
    assert module.losses == losses
    assert same(module.net, net)


class Custom(torch.autograd.Function):
    """With a backward pass in Python: a float32 weight meets a bfloat16 gradient there."""

    @staticmethod
    def forward(ctx, x, weight):
        ctx.save_for_backward(x, weight)
        return torch.nn.functional.linear(x, weight)

    @staticmethod
    def backward(ctx, gradient):
        x, weight = ctx.saved_tensors
        return torch.mm(gradient, weight), torch.mm(gradient.t(), x)


def test_backward_passes_are_cast():
    class Own(Module):
        def training_step(self, batch, _):
            return Custom.apply(self.net.inner(batch[0]), self.net.outer.weight).float().sum()

    plugin = HMPPrecision(POLICY, report=True)
    trainer(plugin, limit_train_batches=1).fit(Own(), batches())
    assert plugin.report.casts("mm") == 1


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
@pytest.mark.parametrize("hook", ["training_step", "on_train_start", "on_before_optimizer_step", "validation_step"])
def test_exceptions(hook, error):
    module, plugin = Evaluated(), HMPPrecision(POLICY, report=True)

    def fail(*_):
        raise error("enough")

    setattr(module, hook, fail)
    with pytest.raises((error, SystemExit)):
        trainer(plugin).fit(module, batches(), batches())
    assert not hmp.is_converted()
    assert not _core.casts_off()
    assert lightning.LightningModule.log is LOG
    assert repr(plugin.report).startswith("<CastReport: ")


def test_what_was_in_force_comes_back():
    before = hmp.convert(policy="hmp-o2")
    with hmp.disable_casts():
        trainer(HMPPrecision(POLICY), limit_train_batches=1).fit(Module(), batches())
        assert _core.casts_off()
    assert in_force.policy is before


def test_the_policy_of_the_command_line_wins(monkeypatch):
    monkeypatch.setattr(in_force, "cli_policy", hmp.Policy.load("hmp-o2"))
    plugin = HMPPrecision(POLICY)
    trainer(plugin, limit_train_batches=1).fit(Module(), batches())
    assert plugin.state_dict() == hmp.PolicyState("hmp-o2").state_dict()
    assert not hmp.is_converted()


class Pickled(Evaluated):
    def on_train_end(self):
        pickle.loads(pickle.dumps(copy.deepcopy(self)))


def test_a_module_can_be_pickled_while_it_is_trained():
    trainer(HMPPrecision(POLICY), limit_train_batches=1).fit(Pickled(), batches(), batches())


def test_a_checkpoint_tells_of_another_policy(tmp_path):
    made = trainer(HMPPrecision(POLICY), limit_train_batches=1)
    made.fit(Module(), batches())
    made.save_checkpoint(tmp_path / "a.ckpt")
    resumed = Module()
    trainer(HMPPrecision(POLICY), limit_train_batches=1).fit(resumed, batches(), ckpt_path=tmp_path / "a.ckpt")
    with pytest.warns(UserWarning, match="sqrt: lower -> rest"):
        trainer(HMPPrecision("hmp")).fit(Module(), batches(), ckpt_path=tmp_path / "a.ckpt")


def test_two_mixed_precisions():
    with pytest.raises(ValueError, match="Received both `precision=bf16-mixed` and `plugins="):
        trainer(HMPPrecision(), precision="bf16-mixed")


def test_fabric():
    fabric = lightning.Fabric(accelerator="cpu", devices=1, plugins=[HMPPrecision()])
    with pytest.raises(
        TypeError, match=r"HMPPrecision works with lightning.Trainer only. In a loop with Fabric, call hmp.convert"
    ):
        fabric.setup(Net())
    assert not hmp.is_converted()


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"policy": "hpm"}, ValueError, "Unknown policy 'hpm'"),
        ({"policy": "nowhere/gaudi_config.json"}, FileNotFoundError, "nowhere/gaudi_config.json"),
        ({"report": "casts.html"}, TypeError, "report must be True or False, not 'casts.html'"),
    ],
    ids=["policy", "file", "report"],
)
def test_used_wrongly(arguments, error, message):
    with pytest.raises(error, match=message):
        HMPPrecision(**arguments)


def test_a_verbose_gaudi_config(tmp_path, capsys):
    file = tmp_path / "gaudi_config.json"
    file.write_text('{"use_habana_mixed_precision": true, "hmp_is_verbose": true, "hmp_bf16_ops": ["linear"]}')
    plugin = HMPPrecision(file)
    trainer(plugin, limit_train_batches=1).fit(Module(), batches())
    assert plugin.policy == hmp.Policy.load(file)
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[-1] for line in lines if "linear>" in line] == ["to_bf16", "to_bf16"]
