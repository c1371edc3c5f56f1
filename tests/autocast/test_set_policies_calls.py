"""hmp.set_policies: a policy is in force from the beginning of a call of its module to its end, and the innermost that is named decides."""

from __future__ import annotations

import asyncio
import copy
import threading
import warnings

import pytest
import torch
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

from habana_mp import hmp

BF16, FP32, F16 = torch.bfloat16, torch.float32, torch.float16
LOW = hmp.Policy.from_ops(lower=["linear"], name="low")
HIGH = hmp.Policy.from_ops(fp32=["linear"], name="high")


class Calls(torch.nn.Module):
    """Calls a function, and then its parts; ``seen`` is the dtype of a product before them."""

    def __init__(self, function=None, **parts: torch.nn.Module) -> None:
        super().__init__()
        self.function = function
        for name, part in parts.items():
            self.add_module(name, part)

    def forward(self, t: torch.Tensor):
        if self.function is not None:
            return self.function(t)
        self.seen = F.linear(t.float(), torch.ones(4, 4)).dtype
        for part in self.children():
            part(t)
        return t


def here() -> torch.dtype:
    return F.linear(torch.ones(2, 4), torch.ones(4, 4)).dtype


@pytest.fixture(params=["convert", "region", "both"])
def low_here(request):
    """A front end with LOW in force, whose casts are on."""
    if request.param != "region":
        hmp.convert(policy=LOW)
    if request.param == "convert":
        yield
    else:
        with hmp.autocast("cpu", policy=LOW):
            yield
    hmp.revert()
    assert (here(), torch._C._is_any_autocast_enabled()) == (FP32, False)


class Ended(BaseException):
    pass


@pytest.mark.parametrize(
    "error", [KeyboardInterrupt, SystemExit, GeneratorExit, asyncio.CancelledError, Ended, ValueError]
)
@pytest.mark.parametrize("policy", [HIGH, "fp32"], ids=["policy", "fp32"])
def test_whatever_ends_the_forward(low_here, policy, error) -> None:
    def fail(_):
        raise error

    model = Calls(a=Calls(b=Calls(fail)))
    hmp.set_policies(model, {"a": policy, "a.b": LOW})
    for _ in range(3):
        with pytest.raises(error):
            model(torch.ones(2, 4))
        assert here() == BF16


@pytest.mark.parametrize("removed_by", ["its-own-forward", "another-thread"])
@pytest.mark.parametrize("how", ["remove", "set-again", "set-others"])
def test_removed_while_a_thread_is_inside(low_here, how: str, removed_by: str) -> None:
    def change(_=None):
        if how == "remove":
            handle.remove()
        else:
            hmp.set_policies(model, {"a": "fp32"} if how == "set-again" else {"": "fp32"})

    def inside(t):
        if removed_by == "its-own-forward":
            change()
        else:
            thread = threading.Thread(target=change)
            thread.start()
            thread.join()
        return here()

    model = Calls(a=Calls(inside))
    handle = hmp.set_policies(model, {"a": HIGH})
    assert model.a(torch.ones(2, 4)) == FP32
    assert here() == BF16


@pytest.mark.parametrize(
    ("policies", "seen"),
    [
        ({"": "fp32", "a": LOW}, (FP32, BF16, BF16)),
        ({"": "fp32", "a.b": LOW}, (FP32, FP32, BF16)),
        ({"": "fp32", "a": LOW, "a.b": "fp32"}, (FP32, BF16, FP32)),
        ({"": LOW, "a": "fp32", "a.b": LOW}, (BF16, FP32, BF16)),
        ({"": HIGH, "a": "fp32", "a.b": LOW}, (FP32, FP32, BF16)),
        ({"": "fp32", "a": "fp32", "a.b": LOW}, (FP32, FP32, BF16)),
        ({"a": "fp32"}, (BF16, FP32, FP32)),
    ],
    ids=str,
)
def test_the_innermost_that_is_named_decides(low_here, policies, seen) -> None:
    model = Calls(a=Calls(b=Calls()))
    hmp.set_policies(model, policies)
    for called in (model, lambda t: checkpoint(model, t, use_reentrant=False)):
        called(torch.ones(2, 4))
        assert (model.seen, model.a.seen, model.a.b.seen) == seen
        assert here() == BF16
    for module, dtype in zip((model, model.a, model.a.b), seen, strict=True):
        explained = hmp.explain("linear", module=module)
        assert explained.in_force == (dtype == BF16 or explained.rule.action == "fp32")


def test_the_low_dtype_inside_fp32_is_that_round_it() -> None:
    model = Calls(a=Calls())
    hmp.set_policies(model, {"": "fp32", "a": hmp.Policy.from_ops(lower=["linear"], name="any").with_low_dtype(BF16)})
    with hmp.autocast("cpu", F16, policy="balanced"):
        model(torch.ones(2, 4))
    assert (model.seen, model.a.seen) == (FP32, F16)
    hmp.convert(policy=LOW.with_low_dtype(F16))
    model(torch.ones(2, 4))
    assert (model.seen, model.a.seen) == (FP32, F16)


@pytest.mark.parametrize(
    ("entered", "dtype"),
    [
        (lambda: hmp.autocast("cpu", policy=LOW), BF16),
        (lambda: hmp.autocast("cpu", F16, policy="balanced"), F16),
        (lambda: torch.autocast("cpu"), BF16),
        (lambda: hmp.autocast("cpu", enabled=False), FP32),
        (hmp.disable_casts, FP32),
    ],
    ids=["region", "float16", "torch", "off", "disable_casts"],
)
def test_a_region_inside_a_module_that_runs_in_float32(low_here, entered, dtype: torch.dtype) -> None:
    def inside(t):
        with entered():
            found = here()
        return found, here()

    model = Calls(inside)
    hmp.set_policies(model, {"": "fp32"})
    assert model(torch.ones(2, 4)) == (dtype, FP32)


@pytest.mark.parametrize(
    ("asked", "in_force", "state"),
    [
        ({}, False, "switched off here by set_policies, which has the module run in float32"),
        ({"module": "b"}, False, "switched off inside '' by set_policies, which has it run in float32"),
        ({"module": "a"}, True, "in force inside 'a': set_policies, "),
        ({"policy": HIGH}, False, "not in force"),
    ],
    ids=["here", "a-part", "a-part-with-a-policy", "another-policy"],
)
def test_explain_asked_inside_fp32(low_here, asked, in_force: bool, state: str) -> None:
    """D50: in a region alone it said that nothing is converted."""

    def inside(t):
        parts = {name: getattr(model, value) if name == "module" else value for name, value in asked.items()}
        explained.append(hmp.explain("linear", **parts))
        return t

    explained: list[hmp.Explanation] = []
    model = Calls(inside, a=Calls(), b=Calls())
    hmp.set_policies(model, {"": "fp32", "a": LOW})
    model(torch.ones(2, 4))
    assert (explained[0].in_force, explained[0].state.startswith(state)) == (in_force, True), explained[0].state
    assert ({*explained[0].homes.values()} == {"left alone"}) == state.startswith("switched off")


def test_another_thread_gets_what_is_in_force_inside_fp32() -> None:
    def inside(t):
        passed = hmp.autocast.current()

        def work():
            with passed:
                model.a(t)
                model.b(t)

        thread = threading.Thread(target=work)
        thread.start()
        thread.join()

    model = Calls(inside, a=Calls(), b=Calls())
    hmp.set_policies(model, {"": "fp32", "a": LOW})
    with hmp.autocast("cpu", policy=LOW):
        model(torch.ones(2, 4))
    assert (model.a.seen, model.b.seen) == (BF16, FP32)


def test_hooks_of_the_module_run_inside(low_here) -> None:
    seen = []
    model = Calls(a=Calls())
    hmp.set_policies(model, {"a": HIGH})
    model.a.register_forward_pre_hook(lambda *_: seen.append(here()))
    model.a.register_forward_hook(lambda *_: seen.append(here()))
    model(torch.ones(2, 4))
    assert seen == [FP32, FP32]


@pytest.mark.parametrize("policy", [HIGH, "fp32"], ids=["policy", "fp32"])
@pytest.mark.parametrize(
    "copied",
    [
        copy.copy,
        copy.deepcopy,
        lambda module: module._replicate_for_data_parallel(),
        torch.nn.utils.parametrizations.weight_norm,
    ],
    ids=["copy", "deepcopy", "replica", "parametrized"],
)
def test_copies_run_their_own_forward(low_here, copied, policy) -> None:
    class Own(torch.nn.Linear):
        def forward(self, t):
            return id(self), here()

    model = Own(4, 4)
    hmp.set_policies(model, {"": policy})
    found = copied(model)
    assert found(torch.ones(2, 4)) == (id(found), FP32)
    assert here() == BF16


class TestBodies:
    """As ``disable_casts`` and ``hmp.autocast`` do with functions that they decorate (D27)."""

    # torch's decorator of generators, from Python 3.12 on; that of torch.no_grad warns alike.
    @pytest.mark.filterwarnings(r"ignore:the \(type, exc, tb\) signature of throw\(\):DeprecationWarning")
    @pytest.mark.parametrize("policy", [HIGH, "fp32"], ids=["policy", "fp32"])
    def test_a_generator_runs_under_the_policy(self, low_here, policy) -> None:
        def forward(t):
            sent = yield here()
            try:
                yield sent, here()
            except ValueError:
                yield here()
            return here()

        model = Calls(forward)
        hmp.set_policies(model, {"": policy})
        body = model(torch.ones(2, 4))
        assert (next(body), here()) == (FP32, BF16)
        assert (body.send(3), here()) == ((3, FP32), BF16)
        assert (body.throw(ValueError), here()) == (FP32, BF16)
        with pytest.raises(StopIteration) as end:
            next(body)
        assert (end.value.value, here()) == (FP32, BF16)

    def test_a_generator_that_is_closed_or_fails(self, low_here) -> None:
        ended = []

        def forward(t):
            try:
                yield
                raise KeyboardInterrupt
            finally:
                ended.append(here())

        model = Calls(forward)
        hmp.set_policies(model, {"": HIGH})
        body = model(torch.ones(2, 4))
        next(body)
        body.close()
        assert here() == BF16
        body = model(torch.ones(2, 4))
        next(body)
        with pytest.raises(KeyboardInterrupt):
            next(body)
        assert here() == BF16
        assert ended == [FP32, FP32]

    def test_coroutines_take_turns(self, low_here) -> None:
        async def forward(t):
            found = [here()]
            await asyncio.sleep(0)
            return [*found, here()]

        model = Calls(a=Calls(forward), b=Calls(forward))
        hmp.set_policies(model, {"a": HIGH})

        async def both():
            return await asyncio.gather(model.a(torch.ones(2, 4)), model.b(torch.ones(2, 4)))

        assert asyncio.run(both()) == [[FP32, FP32], [BF16, BF16]]
        assert here() == BF16

    def test_a_generator_that_somebody_else_has_begun(self, low_here) -> None:
        def numbers():
            yield 1
            yield here()

        begun = numbers()
        next(begun)
        model = Calls(lambda t: begun)
        hmp.set_policies(model, {"": HIGH})
        assert model(torch.ones(2, 4)) is begun

    def test_an_async_generator_is_refused(self) -> None:
        class Stream(torch.nn.Module):
            async def forward(self, t):
                yield t

        model = Calls(a=Calls(), b=Stream())
        with pytest.raises(TypeError, match="'b' cannot have a policy, because its forward is an async generator"):
            hmp.set_policies(model, {"a": HIGH, "b": HIGH})
        assert not any(module._forward_pre_hooks for module in model.modules())


def test_compiled_code_that_is_interrupted_leaves_its_policies() -> None:
    torch._dynamo.reset()
    interrupts = []

    class Part(torch.nn.Module):
        def forward(self, t):
            t = F.linear(t, torch.ones(4, 4))
            return torch.relu(t)

    def backend(graph, _):
        def run(*args):
            for node in graph.graph.nodes:
                if interrupts and "relu" in str(node.target):
                    node.target = raises
            graph.recompile()
            return graph(*args)

        return run

    def raises(*_):
        raise KeyboardInterrupt

    model = torch.nn.Sequential(Part())
    hmp.set_policies(model, {"0": HIGH})
    compiled = torch.compile(model, backend=backend)
    hmp.convert(policy=LOW)
    assert compiled(torch.ones(2, 4)).dtype == FP32
    interrupts.append(1)
    with pytest.raises(KeyboardInterrupt):
        compiled(torch.ones(2, 4))
    assert here() == BF16
    torch._dynamo.reset()


def test_a_module_in_float32_that_holds_bfloat16_is_named_in_the_error():
    model = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 1), torch.nn.BatchNorm2d(4)).to(BF16)
    x = torch.ones(2, 3, 4, 4, dtype=BF16)
    with hmp.autocast("cpu", policy="hmp"), hmp.set_policies(model, {"1": "fp32"}):
        with pytest.raises(RuntimeError, match="mixed dtype") as caught:
            model(x)
        (note,) = caught.value.__notes__
        assert note.startswith("habana_mp: the policy of '1' by set_policies is \"fp32\"")
        assert "its weight is bfloat16. Hold the module in float32: model.get_submodule('1').float()" in note
        model.get_submodule("1").float()
        assert model(x).dtype == FP32


def test_a_direct_call_of_call_impl_is_not_without_its_policy_silently():
    """Python 3.11 calls it past the C slot, but where Dynamo looks on."""
    model = torch.nn.Sequential(torch.nn.Linear(4, 4))
    x = torch.ones(2, 4)
    with hmp.autocast("cpu", policy="hmp"), hmp.set_policies(model, {"0": "fp32"}):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            dtype = model[0]._call_impl(x).dtype
        assert (dtype == FP32) == (caught == [])
        for warning in caught:
            assert "given to '0' is not in force in this call: module._call_impl(x) passes by it" in str(
                warning.message
            )
            assert warning.filename == __file__
        assert model(x).dtype == FP32
    model[0]._call_impl(x)  # nothing is in force that the policy could take the place of
