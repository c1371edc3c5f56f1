"""A loop with accelerate and a policy: ``HMPHook``."""

from __future__ import annotations

import functools

import accelerate
import pytest
import torch
from accelerate.state import AcceleratorState
from arrived_calls import casts_of
from plain_training import CASTS, POLICY, STEPS, Net, adam, batches, same, train

import habana_mp._core as _core
from habana_mp import hmp
from habana_mp._scope import in_force
from habana_mp.trainers.accelerate import HMPHook

pytestmark = pytest.mark.usefixtures("no_accelerator")


def loop(accelerator, net, optimizer, loader):
    losses = []
    for x, labels in loader:
        with accelerator.accumulate(net):
            loss = net(x, labels)["loss"]
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
    return losses


def prepared(accelerator):
    net = Net()
    return accelerator.prepare(net, adam(net), batches())


@pytest.mark.parametrize("first", ["hook", "prepare"])
def test_loop(first):
    losses, net = train()
    accelerator = accelerate.Accelerator(cpu=True)
    parts = prepared(accelerator) if first == "prepare" else ()
    with HMPHook(accelerator, POLICY, report=True) as hook:
        parts = parts or prepared(accelerator)
        assert loop(accelerator, *parts) == losses
    assert same(parts[0], net)
    assert {op: hook.report.casts(op) for op in CASTS} == {op: n * STEPS for op, n in CASTS.items()}
    assert hook.report.casts() == sum(CASTS.values()) * STEPS
    assert not hmp.is_converted()


def test_the_end_of_training():
    accelerator = accelerate.Accelerator(cpu=True)
    before = dict(vars(accelerator))
    HMPHook(accelerator, POLICY)
    loop(accelerator, *prepared(accelerator))
    accelerator.end_training()
    assert not hmp.is_converted()
    assert vars(accelerator).keys() == before.keys()
    accelerator.end_training()


def test_accumulated_gradients():
    accelerator = accelerate.Accelerator(cpu=True, gradient_accumulation_steps=2)
    with HMPHook(accelerator, POLICY, report=True) as hook:
        net, optimizer, loader = prepared(accelerator)
        loop(accelerator, net, optimizer, loader)
    assert casts_of(hook.report, "sqrt") == 0
    assert optimizer.optimizer.state[net.inner.weight]["step"] == STEPS / 2


def test_an_optimizer_that_calls_the_model():
    seen = []

    def closure(x, labels):
        optimizer.zero_grad()
        outputs = net(x, labels)
        seen.append(outputs["logits"].dtype)
        accelerator.backward(outputs["loss"])
        return outputs["loss"]

    accelerator = accelerate.Accelerator(cpu=True)
    with HMPHook(accelerator, POLICY):
        net, optimizer, loader = prepared(accelerator)
        for x, labels in loader:
            optimizer.step(functools.partial(closure, x, labels))
    assert seen == [torch.bfloat16] * STEPS
    assert same(net, train()[1])
    assert not _core.casts_off()


def test_a_scheduler():
    accelerator = accelerate.Accelerator(cpu=True)
    net = Net()
    optimizer = adam(net)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
    with HMPHook(accelerator, POLICY):
        net, optimizer, scheduler, loader = accelerator.prepare(net, optimizer, scheduler, batches())
        for x, labels in loader:
            accelerator.backward(net(x, labels)["loss"])
            optimizer.step()
            scheduler.step()
    assert scheduler.get_last_lr() == [0.1 * 0.5**STEPS]


def test_exceptions():
    def failing_loop():
        with HMPHook(accelerator, POLICY):
            net, optimizer, loader = prepared(accelerator)
            optimizer.optimizer.register_step_post_hook(lambda *_: {}["enough"])
            loop(accelerator, net, optimizer, loader)

    accelerator = accelerate.Accelerator(cpu=True)
    with pytest.raises(KeyError, match="enough"):
        failing_loop()
    assert not hmp.is_converted()
    assert not _core.casts_off()


def test_what_was_in_force_comes_back():
    before = hmp.convert(policy="hmp-o2")
    with HMPHook(accelerate.Accelerator(cpu=True), POLICY) as hook:
        assert in_force.policy is hook.policy == POLICY
    hook.remove()
    assert in_force.policy is before


def test_a_saved_state_tells_of_another_policy(tmp_path):
    accelerator = accelerate.Accelerator(cpu=True)
    with HMPHook(accelerator, POLICY):
        prepared(accelerator)
        accelerator.save_state(tmp_path)
        accelerator.load_state(tmp_path)
    with HMPHook(accelerator, "hmp"), pytest.warns(UserWarning, match="sqrt: lower -> rest"):
        accelerator.load_state(tmp_path)
    accelerator.load_state(tmp_path)


def test_a_saved_state_without_a_policy(tmp_path):
    accelerator = accelerate.Accelerator(cpu=True)
    prepared(accelerator)
    accelerator.save_state(tmp_path)
    with HMPHook(accelerator, POLICY):
        accelerator.load_state(tmp_path)


def test_two_mixed_precisions(monkeypatch):
    with pytest.raises(ValueError, match=r"Accelerator\(mixed_precision='bf16'\) and HMPHook both set mixed precision"):
        HMPHook(accelerate.Accelerator(cpu=True, mixed_precision="bf16"))
    AcceleratorState._reset_state(reset_partial_state=True)
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "bf16")
    with pytest.raises(ValueError, match=r"Accelerator\(mixed_precision='bf16'\) and HMPHook both set mixed precision"):
        HMPHook(accelerate.Accelerator(cpu=True))
    assert not hmp.is_converted()


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ((None,), TypeError, "the first argument must be an Accelerator, not None"),
        (("hmp",), TypeError, "the first argument must be an Accelerator, not 'hmp'"),
        ((accelerate.Accelerator, "hpm"), ValueError, "Unknown policy 'hpm'"),
    ],
    ids=["None", "policy first", "policy"],
)
def test_used_wrongly(arguments, error, message):
    first, *others = arguments
    with pytest.raises(error, match=message):
        HMPHook(first(cpu=True) if isinstance(first, type) else first, *others)
    assert not hmp.is_converted()


@pytest.mark.parametrize("first", ["outer", "inner"])
def test_hooks_of_two_accelerators_end_in_any_order(first):
    outer = HMPHook(accelerate.Accelerator(cpu=True), "hmp")
    inner = HMPHook(accelerate.Accelerator(cpu=True), "hmp-o2")
    (outer if first == "outer" else inner).remove()
    assert in_force.policy.name == ("hmp-o2" if first == "outer" else "hmp")
    (inner if first == "outer" else outer).remove()
    assert not hmp.is_converted()


def test_one_hook_at_a_time():
    accelerator = accelerate.Accelerator(cpu=True)
    with HMPHook(accelerator), pytest.raises(RuntimeError, match="has an HMPHook already"):
        HMPHook(accelerator, POLICY)
    HMPHook(accelerator).remove()
    assert not hmp.is_converted()
