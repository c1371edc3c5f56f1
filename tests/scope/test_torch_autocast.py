"""D43: torch.autocast(..., enabled=False) inside the forward of a module means no casts inside; at the level of the script, nothing."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import threading

import pytest
import torch
import transformers
import transformers.models.ernie4_5_moe.modeling_ernie4_5_moe
from torch import nn
from torch.utils.checkpoint import checkpoint, set_checkpoint_early_stop
from transformers.utils.generic import maybe_autocast

from habana_mp import hmp

BF16, FP32 = torch.bfloat16, torch.float32
X = torch.linspace(-1, 1, 16).view(4, 4)
DECORATOR = torch.autocast("cpu", enabled=False)  # before any conversion


class Model(nn.Module):
    """Its forward is a function of the case."""

    def __init__(self, body) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.eye(4))
        self.body = body

    def forward(self, x):
        return self.body(self, x)


def product(model, x):
    return x @ model.weight


def inside(region):
    """A forward with a product in a region and one behind it."""

    def body(model, x):
        with region():
            within = product(model, x)
        return within, product(model, x)

    return body


@DECORATOR
def decorated(model, x):
    return product(model, x)


def with_exit_stack(model, x):
    with contextlib.ExitStack() as stack:
        stack.enter_context(torch.autocast("cpu", enabled=False))
        within = product(model, x)
    return within, product(model, x)


def with_generator(model, x):
    def products():
        with torch.autocast("cpu", enabled=False):
            yield product(model, x)
            yield product(model, x)

    both = products()
    first = next(both)
    both.close()
    return first, product(model, x)


def with_error(model, x):
    with contextlib.suppress(ValueError), torch.autocast("cpu", enabled=False):
        within = product(model, x)
        raise ValueError
    return within, product(model, x)


def with_one_in_itself(model, x):
    region = torch.autocast("cpu", enabled=False)
    with region:
        with region:
            pass
        within = product(model, x)
    return within, product(model, x)


def with_one_that_is_on(model, x):
    with torch.autocast("cpu", enabled=False):
        with torch.autocast("xpu", enabled=False):
            pass
        within = product(model, x)
    return within, product(model, x)


def submodule(model, x):
    return Model(inside(lambda: torch.autocast("cpu", enabled=False)))(x)


FORWARDS = {
    "torch.autocast": inside(lambda: torch.autocast("cpu", enabled=False)),
    "by position": inside(lambda: torch.autocast("cpu", None, False)),
    "torch.amp.autocast": inside(lambda: torch.amp.autocast("cpu", enabled=False)),
    "another device": inside(lambda: torch.autocast("cuda", enabled=False)),
    "torch.cuda.amp.autocast": inside(lambda: torch.cuda.amp.autocast(enabled=False)),
    "torch.cpu.amp.autocast": inside(lambda: torch.cpu.amp.autocast(enabled=False)),
    "maybe_autocast": inside(lambda: maybe_autocast(device_type="cpu", enabled=False)),
    "decorator": lambda model, x: (decorated(model, x), product(model, x)),
    "ExitStack": with_exit_stack,
    "generator": with_generator,
    "error": with_error,
    "one in itself": with_one_in_itself,
    "two": with_one_that_is_on,
    "a module in it": submodule,
}


def dtypes(results):
    return tuple(result.dtype for result in results)


@pytest.mark.filterwarnings("ignore:.*amp.autocast.*:FutureWarning")
@pytest.mark.parametrize("case", FORWARDS)
def test_in_the_forward_of_a_module(case: str) -> None:
    hmp.convert(policy="hmp")
    assert dtypes(Model(FORWARDS[case])(X)) == (FP32, BF16)
    assert (X @ X).dtype == BF16
    hmp.revert()
    assert dtypes(Model(FORWARDS[case])(X)) == (FP32, FP32)


@pytest.mark.parametrize("case", ["torch.autocast", "maybe_autocast", "a module in it"])
@pytest.mark.parametrize("backend", ["eager", "aot_eager", "inductor"])
def test_compiled(case: str, backend: str) -> None:
    torch._dynamo.reset()
    model = Model(FORWARDS[case] if case != "a module in it" else lambda outer, x: outer.inner(x))
    model.inner = Model(FORWARDS["torch.autocast"])

    def script(x):
        with torch.autocast("cpu", enabled=False):
            return x @ x, *model(x)

    for policy, low in (("hmp", BF16), (None, FP32)):
        if policy is None:
            hmp.revert()
        else:
            hmp.convert(policy=policy)
        assert dtypes(torch.compile(model, backend=backend, fullgraph=True)(X)) == (FP32, low)
        assert dtypes(torch.compile(script, backend=backend, fullgraph=True)(X)) == (low, FP32, low)
        assert (X @ X).dtype == low
    torch._dynamo.reset()


def test_a_graph_that_breaks_inside() -> None:
    torch._dynamo.reset()

    def breaks(model, x):
        with torch.autocast("cpu", enabled=False):
            first = product(model, x)
            torch._dynamo.graph_break()
            second = product(model, x)
        return first, second, product(model, x)

    hmp.convert(policy="hmp")
    with torch.no_grad():
        results = torch.compile(Model(breaks), backend="eager")(X)
    assert dtypes(results) == (FP32, FP32, BF16)
    assert (X @ X).dtype == BF16
    torch._dynamo.reset()


@pytest.mark.parametrize("use_reentrant", [True, False])
@pytest.mark.parametrize("form", ["a function of the module", "the module", "around the checkpoint"])
def test_checkpointed(form: str, use_reentrant: bool) -> None:
    seen = []

    def part(model, x):
        with torch.autocast("cpu", enabled=False):
            within = product(model, x)
        seen.append((within.dtype, product(model, x).dtype))
        return within

    def plain(model, x):
        seen.append((product(model, x).dtype, BF16))
        return product(model, x)

    def body(model, x):
        if form == "around the checkpoint":
            with torch.autocast("cpu", enabled=False):
                return checkpoint(plain, model, x, use_reentrant=use_reentrant)
        if form == "the module":
            return checkpoint(Model(part), x, use_reentrant=use_reentrant)
        return checkpoint(part, model, x, use_reentrant=use_reentrant)

    hmp.convert(policy="hmp")
    with set_checkpoint_early_stop(False):
        out = Model(body)(X.clone().requires_grad_())
    out.sum().backward()
    assert seen == [(FP32, BF16)] * 2


def script_level(region):
    with region():
        return X @ X


class Lightning(nn.Module):
    """Strategies of Lightning call training_step as the forward of a module."""

    def forward(self, x):
        return self.training_step(x)

    def training_step(self, x):
        with torch.autocast("cpu", enabled=False):
            return x @ x


SCRIPTS = {
    "torch.autocast": lambda: script_level(lambda: torch.autocast("cpu", enabled=False)),
    "decorator": DECORATOR(lambda: X @ X),
    "around the model": lambda: script_level(lambda: torch.autocast("cpu", enabled=False)) + Model(product)(X),
    "a training_step": lambda: Lightning()(X),
    "DataParallel": lambda: nn.DataParallel(Model(product))(X),
    "on, in a forward": lambda: Model(inside(lambda: torch.autocast("cpu", enabled=True)))(X)[0],
}


@pytest.mark.parametrize("case", SCRIPTS)
def test_at_the_level_of_the_script_it_changes_nothing(case: str) -> None:
    hmp.convert(policy="hmp")
    assert SCRIPTS[case]().dtype == BF16


def test_the_models_in_such_a_script_are_cast() -> None:
    hmp.convert(policy="hmp")
    with torch.autocast("cpu", enabled=False):
        assert Model(product)(X).dtype == BF16
        assert dtypes(Model(FORWARDS["torch.autocast"])(X)) == (FP32, BF16)


def test_it_is_for_its_thread() -> None:
    seen = []

    def body(model, x):
        with torch.autocast("cpu", enabled=False):
            thread = threading.Thread(target=lambda: seen.append(product(model, x).dtype))
            thread.start()
            thread.join()
        return product(model, x)

    hmp.convert(policy="hmp")
    Model(body)(X)
    assert seen == [BF16]


def test_the_backward_pass_in_a_forward_is_what_its_forward_was() -> None:
    """torch.amp.custom_bwd enters a region with enabled=False where its forward had none: nobody has written that."""

    class Square(torch.autograd.Function):
        @staticmethod
        @torch.amp.custom_fwd(device_type="cpu")
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x @ x

        @staticmethod
        @torch.amp.custom_bwd(device_type="cpu")
        def backward(ctx, grad):
            (x,) = ctx.saved_tensors
            seen.append((grad.float() @ x).dtype)
            return grad.float() @ x

    seen: list[torch.dtype] = []

    def body(_, x):
        x = x.clone().requires_grad_()
        return torch.autograd.grad(Square.apply(x).float().sum(), x)[0]

    hmp.convert(policy="hmp")
    with contextlib.suppress(RuntimeError):
        Model(body)(X)
    assert seen == [BF16]


def ernie_router():
    config = transformers.Ernie4_5_MoeConfig(hidden_size=16, moe_num_experts=4, moe_k=2)
    router = transformers.models.ernie4_5_moe.modeling_ernie4_5_moe.Ernie4_5_MoeTopKRouter(config)
    nn.init.normal_(router.weight)
    return router, (torch.randn(8, 16),)


def upcast_scores():
    """What GPT-2 computes inside of its region, by the same helper."""

    def body(_, q):
        with maybe_autocast(q.device.type, enabled=False):
            return torch.baddbmm(torch.empty(2, 4, 4), q.float(), q.float().mT, beta=0, alpha=0.3)

    return Model(body), (torch.randn(2, 4, 8),)


FORCED = {"the router of ERNIE": ernie_router, "the scores of GPT-2": upcast_scores}


@pytest.mark.parametrize("policy", ["hmp", "hmp-o1", "hmp-o2"])
@pytest.mark.parametrize("name", FORCED)
def test_what_transformers_forces_to_float32(name: str, policy: str) -> None:
    torch.manual_seed(0)
    model, arguments = FORCED[name]()
    plain = flat(model(*arguments))
    hmp.convert(policy=policy)
    assert all(map(torch.equal, flat(model(*arguments)), plain))


def flat(results):
    return [results] if isinstance(results, torch.Tensor) else [*results]


def test_a_model_that_is_imported_behind_convert() -> None:
    program = """
import torch
from habana_mp import hmp
hmp.convert(policy="hmp")
import transformers
import transformers.models.ernie4_5_moe.modeling_ernie4_5_moe
from transformers.utils import generic
from transformers.models.ernie4_5_moe import modeling_ernie4_5_moe
def scores():
    torch.manual_seed(0)
    config = transformers.Ernie4_5_MoeConfig(hidden_size=16, moe_num_experts=4, moe_k=2)
    router = modeling_ernie4_5_moe.Ernie4_5_MoeTopKRouter(config)
    torch.nn.init.normal_(router.weight)
    return router(torch.randn(8, 16))
ours = scores()
assert generic.maybe_autocast.__code__.co_filename != generic.__file__
hmp.revert()
assert generic.maybe_autocast.__code__.co_filename == generic.__file__
assert all(map(torch.equal, ours, scores()))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_casts_are_as_before_behind_a_region_around_convert() -> None:
    with torch.autocast("cpu", enabled=False):
        hmp.convert(policy="hmp")
    assert (X @ X).dtype == BF16


def test_a_region_that_is_never_left_ends_with_the_conversion() -> None:
    region = torch.autocast("cpu", enabled=False)

    class Enters(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            region.__enter__()
            return x @ x

    hmp.convert(policy="hmp")
    assert Enters()(X).dtype == FP32
    hmp.revert()
    hmp.convert(policy="hmp")
    assert (X @ X).dtype == BF16
    region.__exit__(None, None, None)
    assert (X @ X).dtype == BF16
