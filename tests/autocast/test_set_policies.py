"""hmp.set_policies: policies of modules, which deepcopy, pickle and checkpoints keep. test_set_policies_compile.py has compile."""

from __future__ import annotations

import contextlib
import copy
import pickle

import pytest
import torch
from torch.utils.checkpoint import checkpoint

from habana_mp import hmp

BF16, FP32 = torch.bfloat16, torch.float32
LOW = hmp.Policy.from_ops(lower=["linear"], name="low")
HIGH = hmp.Policy.from_ops(fp32=["linear"], name="high")


class Probe(torch.nn.Linear):
    """Tells the dtypes that it got and gave."""

    def __init__(self) -> None:
        super().__init__(4, 4)

    def forward(self, t: torch.Tensor) -> torch.Tensor:
        out = super().forward(t)
        self.seen = (t.dtype, out.dtype)
        return out


class Block(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = Probe()
        self.norm = Probe()

    def forward(self, t: torch.Tensor) -> torch.Tensor:
        return self.norm(self.first(t))


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList([Block(), Block()])
        self.head = Probe()

    def forward(self, t: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            t = layer(t)
        return self.head(t)


def seen(model: torch.nn.Module, region=None) -> dict[str, tuple[torch.dtype, torch.dtype]]:
    with region or hmp.autocast("cpu", policy=LOW):
        model(torch.ones(2, 4))
    return {path: module.seen for path, module in model.named_modules() if isinstance(module, Probe)}


PATHS = ("layers.0.first", "layers.0.norm", "layers.1.first", "layers.1.norm", "head")


CASES = pytest.mark.parametrize(
    ("policies", "given"),
    [
        pytest.param({}, (BF16,) * 5, id="default"),
        pytest.param({"layers.*.norm": HIGH}, (BF16, FP32, BF16, FP32, BF16), id="glob"),
        # A list of modules is never called itself.
        pytest.param({"layers": HIGH}, (FP32, FP32, FP32, FP32, BF16), id="container"),
        pytest.param({"layers": HIGH, "layers.1": LOW}, (FP32, FP32, BF16, BF16, BF16), id="module-in-container"),
        pytest.param({"": HIGH, "layers": LOW}, (BF16, BF16, BF16, BF16, FP32), id="container-in-model"),
        pytest.param({"**norm": HIGH}, (BF16, FP32, BF16, FP32, BF16), id="deep-glob"),
        pytest.param(
            {"layers.*.norm": HIGH, "layers.0.norm": LOW}, (BF16, BF16, BF16, FP32, BF16), id="exact-beats-glob"
        ),
        pytest.param(
            {"layers.0.norm": LOW, "layers.*.norm": HIGH}, (BF16, BF16, BF16, FP32, BF16), id="whatever-the-order"
        ),
        pytest.param({"layers.*.*": HIGH, "layers.*.norm": LOW}, (FP32, BF16, FP32, BF16, BF16), id="later-glob-wins"),
        pytest.param({"layers.1": HIGH}, (BF16, BF16, FP32, FP32, BF16), id="what-is-inside-follows"),
        pytest.param({"layers.1": HIGH, "layers.1.norm": LOW}, (BF16, BF16, FP32, BF16, BF16), id="the-inner-one-wins"),
        pytest.param({"": HIGH, "head": "fp32"}, (FP32,) * 5, id="whole-model"),
        pytest.param({"head": "fp32"}, (BF16, BF16, BF16, BF16, FP32), id="fp32"),
    ],
)


@CASES
def test_which_policy_acts(policies, given) -> None:
    model = Net()
    hmp.set_policies(model, policies)
    assert tuple(out for _, out in seen(model).values()) == given
    assert tuple(seen(model)) == PATHS


@CASES
@pytest.mark.parametrize(
    "region", [contextlib.nullcontext, lambda: hmp.autocast("cpu", policy=LOW)], ids=["", "and-a-region"]
)
def test_which_policy_acts_under_convert(region, policies, given) -> None:
    model = Net()
    hmp.set_policies(model, policies)
    hmp.convert(policy=LOW)
    assert tuple(out for _, out in seen(model, region()).values()) == given
    assert torch.nn.functional.linear(torch.ones(2, 4), torch.ones(4, 4)).dtype == BF16
    hmp.revert()
    model(torch.ones(2, 4))
    assert model.head.seen == (FP32, FP32)


def test_an_op_that_is_a_python_function_of_torch() -> None:
    """F.layer_norm calls torch.layer_norm: atomic under convert, whose policy does not count inside."""
    model = torch.nn.Sequential(torch.nn.LayerNorm(4))
    hmp.set_policies(model, {"0": hmp.Policy.from_ops(lower=["layer_norm"])})
    hmp.convert(policy=hmp.Policy.from_ops(fp32=["layer_norm"]))
    assert model(torch.ones(2, 4)).dtype == BF16


def test_the_low_dtype_is_that_of_convert() -> None:
    model = Net()
    hmp.set_policies(model, {"head": LOW})
    hmp.convert(policy=HIGH.with_low_dtype(torch.float16))
    model(torch.ones(2, 4))
    assert (model.head.seen[1], model.layers[0].first.seen[1]) == (torch.float16, FP32)


def test_disable_casts_inside_a_module_under_convert() -> None:
    class Careful(torch.nn.Module):
        def forward(self, t):
            with hmp.disable_casts():
                within = torch.nn.functional.linear(t, t)
            return within, torch.nn.functional.linear(t, t)

    model = torch.nn.Sequential(Careful())
    hmp.set_policies(model, {"0": LOW})
    hmp.convert(policy=HIGH)
    assert [out.dtype for out in model(torch.ones(4, 4))] == [FP32, BF16]
    with hmp.disable_casts():
        assert [out.dtype for out in model(torch.ones(4, 4))] == [FP32, FP32]


def test_gradients_and_errors_under_convert() -> None:
    model = Net()
    hmp.set_policies(model, {"layers.0": HIGH, "head": LOW})
    hmp.convert(policy=LOW)
    model(torch.ones(2, 4)).float().sum().backward()
    assert {parameter.grad.dtype for parameter in model.parameters()} == {FP32}
    with pytest.raises(RuntimeError):
        model(torch.ones(2, 3))
    assert torch.nn.functional.linear(torch.ones(2, 4), torch.ones(4, 4)).dtype == BF16
    assert not torch._C._is_any_autocast_enabled()


def test_fp32_casts_what_comes_in() -> None:
    model = Net()
    hmp.set_policies(model, {"layers.0.norm": "fp32"})
    assert seen(model)["layers.0.norm"] == (FP32, FP32)


def test_fp32_under_convert() -> None:
    model = Net()
    hmp.set_policies(model, {"layers.0.norm": "fp32"})
    hmp.convert(policy=LOW)
    model(torch.ones(2, 4))
    assert model.layers[0].norm.seen == (FP32, FP32)
    assert model.head.seen == (BF16, BF16)


def test_without_a_region_nothing_happens() -> None:
    model = Net()
    hmp.set_policies(model, {"head": LOW, "layers.0.norm": "fp32"})
    model(torch.ones(2, 4))
    assert model.head.seen == (FP32, FP32)
    model.to(BF16)
    model(torch.ones(2, 4, dtype=BF16))
    assert model.layers[0].norm.seen == (BF16, BF16)


@pytest.mark.parametrize(
    ("region", "policy", "entries"),
    [
        pytest.param({}, "torch-cpu", 1, id="kept"),
        pytest.param({}, "hpu-autocast", 0, id="its-own-policy-keeps-none-D29"),
        pytest.param({"cache_enabled": False}, "torch-cpu", 0, id="the-region-keeps-none"),
        pytest.param({"policy": "hpu-autocast"}, "torch-cpu", 0, id="the-regions-policy-keeps-none"),
    ],
)
def test_whether_casts_of_weights_are_kept(region, policy: str, entries: int) -> None:
    hmp.cache.clear()
    model = torch.nn.Sequential(torch.nn.Linear(128, 128))
    with hmp.set_policies(model, {"0": policy}), hmp.autocast("cpu", **region), torch.no_grad():
        model(torch.ones(2, 128))
        assert hmp.cache.info().entries == entries


def test_the_handle_removes_them() -> None:
    model = Net()
    handle = hmp.set_policies(model, {"head": HIGH})
    handle.remove()
    assert seen(model)["head"] == (BF16, BF16)
    with hmp.set_policies(model, {"head": HIGH}):
        assert seen(model)["head"] == (BF16, FP32)
    assert not any(module._forward_pre_hooks or module._forward_hooks for module in model.modules())


def test_a_second_call_replaces_the_first() -> None:
    model = Net()
    hmp.set_policies(model, {"head": HIGH})
    hmp.set_policies(model, {"layers.0.norm": HIGH})
    assert tuple(out for _, out in seen(model).values()) == (BF16, FP32, BF16, BF16, BF16)


@pytest.mark.parametrize("how", ["deepcopy", "pickle"])
def test_copies_keep_them(how: str) -> None:
    model = Net()
    handle = hmp.set_policies(model, {"head": HIGH, "layers.0.norm": "fp32"})
    copied = copy.deepcopy(model) if how == "deepcopy" else pickle.loads(pickle.dumps(model))
    handle.remove()
    assert seen(copied)["head"] == (BF16, FP32)
    assert seen(copied)["layers.0.norm"] == (FP32, FP32)
    assert seen(model)["head"] == (BF16, BF16)


@pytest.mark.parametrize("reentrant", [True, False], ids=["reentrant", "not-reentrant"])
def test_checkpoints_keep_them(reentrant: bool) -> None:
    model = Net()
    hmp.set_policies(model, {"layers.0.norm": HIGH})
    with hmp.autocast("cpu", policy=LOW), torch.utils.checkpoint.set_checkpoint_early_stop(False):
        out = checkpoint(model.layers[0], torch.ones(2, 4, requires_grad=True), use_reentrant=reentrant)
    first = model.layers[0].norm.seen
    model.layers[0].norm.seen = None
    out.float().sum().backward()
    assert model.layers[0].norm.seen == first == (BF16, FP32)


@pytest.mark.parametrize("reentrant", [True, False], ids=["reentrant", "not-reentrant"])
def test_checkpoints_keep_them_under_convert(reentrant: bool) -> None:
    model = Net()
    hmp.set_policies(model, {"layers.0.norm": HIGH})
    hmp.convert(policy=LOW)
    with torch.utils.checkpoint.set_checkpoint_early_stop(False):
        out = checkpoint(model.layers[0], torch.ones(2, 4, requires_grad=True), use_reentrant=reentrant)
    first = model.layers[0].norm.seen
    model.layers[0].norm.seen = None
    out.float().sum().backward()
    assert model.layers[0].norm.seen == first == (BF16, FP32)


def test_ctrl_c_inside_leaves_it_with_the_region() -> None:
    """torch calls no hook then."""

    class Interrupted(torch.nn.Module):
        def forward(self, t):
            raise KeyboardInterrupt

    model = torch.nn.Sequential(Interrupted())
    hmp.set_policies(model, {"0": HIGH})
    with pytest.raises(KeyboardInterrupt), hmp.autocast("cpu", policy=LOW):
        model(torch.ones(4, 4))
    assert not torch._C._is_any_autocast_enabled()
    assert torch.mm(torch.ones(2, 2), torch.ones(2, 2)).dtype == torch.float32


def test_an_error_inside_leaves_it() -> None:
    model = Net()
    hmp.set_policies(model, {"layers.0": HIGH})
    with hmp.autocast("cpu", policy=LOW):
        with pytest.raises(RuntimeError):
            model(torch.ones(2, 3))
        assert torch.nn.functional.linear(torch.ones(2, 4), torch.ones(4, 4)).dtype == BF16


@pytest.mark.parametrize(
    ("policies", "message"),
    [
        ({"haed": HIGH}, "'haed' names no module of Net. Did you mean 'head'?"),
        ({"layers.*.nrm": HIGH}, r"'layers\.\*\.nrm' names no module of Net"),
        (
            {"norm": HIGH},
            r"'norm' names no module of Net, but modules inside others match '\*\*.norm', such as 'layers.0.norm'",
        ),
        ("fp32", r"'fp32' is for the modules of a mapping. For the whole model pass \{'': 'fp32'\}"),
        ({"head": "no-such-policy"}, "the policy for 'head' must be \"fp32\" or a policy, not 'no-such-policy'"),
        ({"head": "FP32"}, "or a policy, not 'FP32': did you mean \"fp32\""),
        ({"head": "float32"}, "or a policy, not 'float32': did you mean \"fp32\""),
        ({"Probe": HIGH}, "'Probe' names no module of Net: paths are matched, not classes. Modules of this class: "),
        ({"Net: head": HIGH}, "'Net: head' names no module of Net. A path has no name of a model .* Write 'head'"),
        (
            {"": LOW.with_edits("+mul in head:fp32"), "head": "fp32"},
            "a mapping cannot have such a policy. Pass it without a mapping.* add a name for each op",
        ),
        ({"head": 3}, "or a policy, not 3"),
        ({"head": None}, "or a policy, not None"),
    ],
)
def test_mistakes(policies, message: str) -> None:
    model = Net()
    with pytest.raises(ValueError, match=message):
        hmp.set_policies(model, policies)
    assert not any(module._forward_pre_hooks for module in model.modules())


@pytest.mark.parametrize(
    ("model", "policies", "message"),
    [
        (None, {}, "model must be a torch.nn.Module, not None"),
        (Net(), ["head"], "policies must be a policy, or a mapping of paths of modules"),
        (Net(), {torch.nn.Linear: "fp32"}, "policies must be a policy, or a mapping of paths of modules"),
    ],
    ids=["no-model", "a-list", "a-class"],
)
def test_wrong_types(model, policies, message: str) -> None:
    with pytest.raises(TypeError, match=message):
        hmp.set_policies(model, policies)


def test_a_pattern_is_for_what_is_below_the_model() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU())
    with hmp.set_policies(model, {"*": "fp32"}):
        assert not model._forward_pre_hooks
        assert all(module._forward_pre_hooks for module in model)
    with hmp.set_policies(model, {"": "fp32"}), hmp.autocast("cpu", policy=LOW):
        assert model(torch.ones(2, 4)).dtype == torch.float32


def test_any_path_of_a_shared_module_names_it() -> None:
    model = torch.nn.Module()
    model.a = model.b = torch.nn.Linear(4, 4)
    with hmp.set_policies(model, {"b": "fp32"}), hmp.autocast("cpu", policy=LOW):
        assert model.a(torch.ones(2, 4)).dtype == torch.float32


def test_a_policy_that_refuses_the_dtype_of_the_region() -> None:
    """D29: it warns, and the module runs uncast."""
    model = torch.nn.Sequential(torch.nn.Linear(4, 4))
    with hmp.set_policies(model, {"0": "hpu-autocast"}), hmp.autocast("cpu", torch.float16):
        with pytest.warns(UserWarning, match="hpu-autocast Autocast only supports dtypes of torch.bfloat16"):
            assert model(torch.ones(2, 4)).dtype == torch.float32
        assert torch.mm(torch.ones(2, 2), torch.ones(2, 2)).dtype == torch.float16


def test_explain_outside_a_region() -> None:
    model = Net()
    hmp.set_policies(model, {"layers.*.norm": HIGH})
    explained = hmp.explain("linear", module=model.layers[0].norm)
    assert (explained.rule.action, explained.in_force) == ("fp32", False)
    assert "set_policies rules 'layers.0.norm' under convert and in regions of autocast" in explained.state


def test_explain_under_convert() -> None:
    model = Net()
    hmp.set_policies(model, {"layers.*.norm": HIGH, "head": "fp32"})
    hmp.convert(policy=LOW)
    inside = hmp.explain("linear", module=model.layers[0].norm)
    assert (inside.rule.action, inside.in_force) == ("fp32", True)
    assert inside.state == "in force inside 'layers.0.norm': set_policies, in place of low, of convert"
    assert (hmp.explain("linear", module=model.layers[0].first).rule.action, hmp.explain("linear").state) == (
        "lower",
        "in force",
    )
    assert (
        hmp.explain("linear", module=model.head).state
        == "switched off inside 'head' by set_policies, which has it run in float32"
    )


def test_explain() -> None:
    model = Net()
    hmp.set_policies(model, {"layers.*.norm": HIGH, "head": "fp32"})
    with hmp.autocast("cpu", policy=LOW):
        inside = hmp.explain("linear", module=model.layers[0].norm)
        outside = hmp.explain("linear", module=model.layers[0].first)
        head = hmp.explain("linear", module=model.head)
    assert (inside.rule.action, inside.state) == (
        "fp32",
        "in force inside 'layers.0.norm': set_policies, autocast for cpu",
    )
    assert (outside.rule.action, outside.state) == ("lower", "in force here: autocast for cpu")
    assert head.state == "switched off inside 'head' by set_policies, which has it run in float32"
    assert not head.in_force
    assert {*head.homes.values()} == {"left alone"}
    assert head.arguments == ("left alone: casts are switched off here",)
