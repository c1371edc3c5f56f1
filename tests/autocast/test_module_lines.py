"""Names of a policy that are limited to modules, put on models: by set_policies, by habana-mp run and by the trainers."""

from __future__ import annotations

import contextlib
import copy
import subprocess
import sys

import pytest
import torch
from subprograms import STRICT
from torch import nn

from habana_mp import hmp
from habana_mp._autocast.models_called import on_models_called

BF16, FP32 = torch.bfloat16, torch.float32
LIMITED = hmp.Policy.from_ops(lower=["linear"], fp32=["linear in layers.*.last"], name="limited")


class Seen(nn.Linear):
    """Keeps the dtype of what its op made."""

    made = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = super().forward(x)
        self.made = y.dtype
        return y.float()


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = Seen(4, 4), Seen(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.first(x))


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([Block(), Block()])
        self.head = Seen(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


def made(model):
    model(torch.ones(2, 4))
    return [module.made for module in model.modules() if isinstance(module, Seen)]


@contextlib.contextmanager
def converted(policy):
    hmp.convert(policy=policy)
    yield
    hmp.revert()


IN_FORCE = {"convert": converted, "autocast": lambda policy: hmp.autocast("cpu", policy=policy)}
GIVEN = {
    "a pattern": ("linear in layers.*.last", [BF16, FP32, BF16, FP32, BF16]),
    "a list of modules": ("linear in layers", [FP32, FP32, FP32, FP32, BF16]),
    "any depth": ("linear in **first", [FP32, BF16, FP32, BF16, BF16]),
    "one": ("linear in head", [BF16, BF16, BF16, BF16, FP32]),
}


@pytest.mark.parametrize("in_force", IN_FORCE.values(), ids=IN_FORCE)
@pytest.mark.parametrize(("line", "expected"), GIVEN.values(), ids=GIVEN)
def test_a_name_holds_in_its_modules(in_force, line, expected):
    policy = hmp.Policy.from_ops(lower=["linear"], fp32=[line])
    model = Net()
    with hmp.set_policies(model, policy), in_force(policy):
        assert made(model) == expected
        assert torch.nn.functional.linear(torch.ones(2, 4), torch.ones(4, 4)).dtype == BF16
    with in_force(policy):
        assert made(model) == [BF16] * 5
    assert made(model) == [FP32] * 5


@pytest.mark.parametrize("name", IN_FORCE)
def test_a_policy_whose_names_are_on_no_model_warns_once(name):
    in_force = IN_FORCE[name]
    policy = hmp.Policy.from_ops(lower=["linear"], fp32=[f"linear in {name}", *(f"mm in m{i}" for i in range(4))])
    with (
        pytest.warns(
            UserWarning,
            match=r"custom has names that are limited to modules \(.*, \.\.\.\)\. They apply only in models",
        ),
        in_force(policy),
    ):
        pass
    with in_force(policy):
        pass


@pytest.mark.parametrize("in_force", IN_FORCE.values(), ids=IN_FORCE)
def test_a_model_that_keeps_another_policy_is_warned_of(in_force):
    """The names for modules are those that the model has, and the other lists are not."""
    name = f"linear in layers.*.{'first' if in_force is converted else 'last'}"
    policy = hmp.Policy.from_ops(lower=["linear"]).with_edits(f"+{name}:fp32")
    model = Net()
    hmp.set_policies(model, policy)
    edited = policy.with_edits("+linear:fp32")
    with (
        pytest.warns(
            UserWarning, match="A model keeps the policy of the last such call. Call it again with this policy"
        ),
        in_force(edited),
    ):
        pass
    hmp.set_policies(model, edited)
    with in_force(edited):
        assert made(model) == [FP32] * 5


def test_modules_that_a_model_does_not_have_are_warned_of():
    policy = hmp.Policy.from_ops(fp32=["linear in layers.*.lost", "linear in head"])
    with pytest.warns(
        UserWarning, match=r"'linear in layers.\*.lost' names no module. Did you mean 'layers.[01].last'"
    ):
        hmp.set_policies(Net(), policy)


def test_a_class_in_place_of_a_path_is_warned_of():
    policy = hmp.Policy.from_ops(fp32=["linear in Linear"])
    with pytest.warns(UserWarning, match="'linear in Linear' names no module: paths are matched, not classes"):
        hmp.set_policies(nn.Sequential(nn.Linear(2, 2)), policy)


def test_of_a_preset_nothing_is_said(monkeypatch, tmp_path):
    """Presets are for models of all kinds."""
    monkeypatch.setattr("habana_mp._autocast.module_lines.SHIPPED", tmp_path)
    (tmp_path / "fp32.txt").write_text("linear in no.such\n")
    hmp.set_policies(Net(), hmp.Policy.from_files(fp32=tmp_path / "fp32.txt"))


def test_copies_and_checkpoints_keep_them(tmp_path):
    model = Net()
    hmp.set_policies(model, LIMITED)
    torch.save(model, tmp_path / "model.pt")
    for other in (copy.deepcopy(model), torch.load(tmp_path / "model.pt", weights_only=False)):
        with hmp.autocast("cpu", policy=LIMITED):
            assert made(other) == [BF16, FP32, BF16, FP32, BF16]


def test_compiled_models_follow():
    model = Net()
    hmp.set_policies(model, LIMITED)
    compiled = torch.compile(model, backend="eager")
    with hmp.autocast("cpu", policy=LIMITED):
        compiled(torch.ones(2, 4))
    assert [module.made for module in model.modules() if isinstance(module, Seen)] == [BF16, FP32, BF16, FP32, BF16]


def test_explain_says_of_modules():
    model = Net()
    hmp.set_policies(model, LIMITED)
    assert "in the modules layers.*.last it is in the fp32 list" in str(hmp.explain("linear", policy=LIMITED))
    with hmp.autocast("cpu", policy=LIMITED):
        assert hmp.explain("linear", module=model.layers[0].last).rule.action == "fp32"
        assert hmp.explain("linear", module=model.layers[0].first).rule.action == "lower"


def test_the_report_has_the_line(tmp_path):
    (tmp_path / "fp32.txt").write_text("# why\n+linear in head\n")
    policy = hmp.Policy.from_files(fp32=tmp_path / "fp32.txt", base=hmp.Policy.from_ops(lower=["linear"]))
    model = Net()
    with hmp.set_policies(model, policy), hmp.autocast("cpu", policy=policy), hmp.report() as report:
        model(torch.ones(2, 4))
    rules = {row["module"]: row["rule"] for row in report.to_dict()["rows"] if row["op"] == "linear"}
    assert rules["Net: head"] == f"fp32: linear, {tmp_path / 'fp32.txt'}:2"
    assert rules["Net: layers.0.first"] == "lower: linear, custom+files"


# --- Models that are seen


def test_models_are_found_when_they_are_called():
    first, second, own = Net(), Net(), Net()
    hmp.set_policies(own, {"head": "fp32"})
    with on_models_called(LIMITED), converted(LIMITED):
        for model in (first, second):
            assert made(model) == [BF16, FP32, BF16, FP32, BF16]
        assert made(own) == [BF16, BF16, BF16, BF16, FP32]
    with converted(LIMITED):
        assert made(first) == [BF16] * 5
    assert not any(module._forward_pre_hooks for module in first.modules())


def test_a_part_that_is_called_before_its_model():
    """Its paths begin with it then; those of the model hold from the call of the model on."""
    model = Net()
    with on_models_called(LIMITED), converted(LIMITED):
        model.layers[0](torch.ones(2, 4))
        assert made(model) == [BF16, FP32, BF16, FP32, BF16]
        whole = nn.Sequential(model)
        made(whole)
        assert [each.made for each in model.modules() if isinstance(each, Seen)] == [BF16] * 5
    assert not any(module._forward_pre_hooks for module in model.modules())


def test_scripted_models_run_beside_others():
    scripted = torch.jit.trace(nn.Sequential(nn.Linear(4, 4)), torch.ones(2, 4), check_trace=False)
    with on_models_called(LIMITED), converted(LIMITED):
        scripted(torch.ones(2, 4))
        assert made(Net()) == [BF16, FP32, BF16, FP32, BF16]


def test_modules_that_no_model_had_are_warned_of_at_the_end():
    policy = hmp.Policy.from_ops(lower=["linear"], fp32=["linear in heat"])
    with (
        pytest.warns(UserWarning, match="'linear in heat' names no module. Did you mean 'head'"),
        on_models_called(policy),
    ):
        made(Net())


def test_the_inner_of_two_runs_rules_alone():
    other = hmp.Policy.from_ops(lower=["linear"], fp32=["linear in head"])
    model = Net()
    with on_models_called(LIMITED), converted(LIMITED):
        assert made(model) == [BF16, FP32, BF16, FP32, BF16]
        with on_models_called(other), hmp.autocast("cpu", policy=other):
            assert made(model) == [BF16, BF16, BF16, BF16, FP32]
        with on_models_called(hmp.Policy.from_ops()):
            assert made(model) == [BF16] * 5
        assert made(model) == [BF16, FP32, BF16, FP32, BF16]


def test_copies_that_are_made_meanwhile_have_none_of_it():
    model = Net()
    with on_models_called(LIMITED), converted(LIMITED):
        made(model)
        other = copy.deepcopy(model)
        assert made(other) == [BF16, FP32, BF16, FP32, BF16]
    assert not any(module._forward_pre_hooks for module in (*model.modules(), *other.modules()))
    with converted(LIMITED):
        assert made(other) == [BF16] * 5


def test_a_forward_that_raises_leaves_the_policy():
    model = Net()
    with on_models_called(LIMITED), converted(LIMITED):
        with pytest.raises(TypeError):
            model.layers[0].last("no tensor")
        assert torch.nn.functional.linear(torch.ones(2, 4), torch.ones(4, 4)).dtype == BF16


def test_models_that_are_compiled_are_found():
    model = Net()
    with on_models_called(LIMITED), converted(LIMITED):
        torch.compile(model, backend="eager")(torch.ones(2, 4))
        assert [each.made for each in model.modules() if isinstance(each, Seen)] == [BF16, FP32, BF16, FP32, BF16]
    assert not any(module._forward_pre_hooks for module in model.modules())


def test_what_set_policies_does_not_take():
    with pytest.raises(ValueError, match="hmp has no names that are limited to modules"):
        hmp.set_policies(Net(), "hmp")
    with pytest.raises(ValueError, match="the policy for 'head' has names that are limited to modules"):
        hmp.set_policies(Net(), {"head": LIMITED})


def test_a_policy_without_such_names_takes_those_of_before_off():
    """Edits by module are taken one after another, and the first may have no module."""
    model = Net()
    hmp.set_policies(model, LIMITED)
    assert any(module._forward_pre_hooks for module in model.modules())
    hmp.set_policies(model, hmp.Policy.load("hmp").with_edits("+mul:fp32"))
    assert not any(module._forward_pre_hooks for module in model.modules())


def test_compare_puts_them_on_the_model():
    model = Net()
    found = hmp.compare(lambda: model(torch.ones(2, 4)), hmp.Policy.from_ops(lower=["linear"]), LIMITED)
    assert [(row.op, row.module) for row in found.rows if row.kind == "precision"][:1] == [
        ("linear", "Net: layers.0.last")
    ]
    assert not any(module._forward_pre_hooks for module in model.modules())


def test_a_run_that_does_not_begin_leaves_no_hook(monkeypatch):
    from torch.nn.modules import module as nn_module

    from habana_mp.trainers._run import Run

    monkeypatch.setenv("HABANA_MP_LOG", "casts:/nonexistent/folder/log")
    before = len(nn_module._global_forward_pre_hooks)
    with pytest.raises(OSError, match="nonexistent"):
        Run(LIMITED, report=False).begin()
    assert len(nn_module._global_forward_pre_hooks) == before


SCRIPT = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x):
        y = self.body(x)
        z = self.head(x)
        print(y.dtype, z.dtype)
        return z

Net()(torch.ones(2, 4))
"""

COMMANDS = {
    "an edit": ["--edit", "+linear in head:fp32"],
    "an edit of a list": ["--fp32", "+linear in head"],
    "a file": ["--fp32", "fp32.txt"],
}


@pytest.mark.parametrize("options", COMMANDS.values(), ids=COMMANDS)
def test_a_script_under_the_command_line(options, tmp_path):
    (tmp_path / "train.py").write_text(SCRIPT)
    (tmp_path / "fp32.txt").write_text("+linear in head\n")
    command = [sys.executable, *STRICT, "-m", "habana_mp", "run", *options, "train.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("torch.bfloat16 torch.float32\n", "")


@pytest.mark.usefixtures("no_accelerator")
def test_accelerate_puts_them_on_its_models():
    from accelerate import Accelerator

    from habana_mp.trainers.accelerate import HMPHook

    accelerator = Accelerator(cpu=True)
    with HMPHook(accelerator, policy=LIMITED):
        assert made(accelerator.prepare(Net())) == [BF16, FP32, BF16, FP32, BF16]


@pytest.mark.filterwarnings("ignore")  # those of lightning
def test_lightning_puts_them_on_its_module():
    """Its trainer calls training_step, and never the module."""
    lightning = pytest.importorskip("lightning")
    from habana_mp.trainers.lightning import HMPPrecision

    class Trained(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = Net()

        def training_step(self, batch):
            return self.net.head(self.net.layers[0](batch)).sum()

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), 0.1)

    policy = hmp.Policy.from_ops(lower=["linear"], fp32=["linear in net.head"])
    module = Trained()
    trainer = lightning.Trainer(
        plugins=[HMPPrecision(policy=policy)],
        max_steps=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        accelerator="cpu",
    )
    trainer.fit(module, torch.utils.data.DataLoader(torch.ones(2, 4), batch_size=2))
    assert (module.net.layers[0].last.made, module.net.head.made) == (BF16, FP32)
