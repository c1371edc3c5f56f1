"""Architectures that Inductor compiles, under policies and without one: how far their numbers are from those of the same code uncompiled.

In training, with the gradients of all weights, and in inference, without them. Both are in eval mode, so that nothing is drawn. Where outputs in
float32 are further off than MOST, the model is compiled without a policy too: what differs then is not ours.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch._dynamo.utils import counters

from habana_mp import hmp
from zoo.cases import Began, Case, Difference, Outcome, Run, architectures, dtypes_of, first_line
from zoo.cases.calls import Call, Maker
from zoo.cases.variants import PLAIN

# A family has one name here: those whose tiny configuration takes no minutes to compile, of each kind some.
FAMILIES = """
    bert gpt2 llama t5 vit resnet whisper bart roberta distilbert albert electra mpnet deberta xlnet mistral qwen2 qwen3 gemma gemma2 phi phi3
    gpt_neox gpt_neo gptj opt bloom falcon mpt stablelm olmo2 granite starcoder2 persimmon cohere codegen biogpt mixtral mamba beit deit
    convnext convnextv2 swin segformer regnet mobilenet_v1 mobilenet_v2 mobilevit efficientnet dinov2 poolformer pvt yolos clip siglip wav2vec2
    hubert audio-spectrogram-transformer marian pegasus mbart m2m_100 umt5 modernbert fnet nystromformer roformer layoutlm canine convbert
    squeezebert openai-gpt ctrl xglm nemotron focalnet levit rembert esm
""".split()

EXACT, FUSED = "exact", "fused"
# How a graph rounds, and by which policy. Each takes half a minute: so not all in both.
VARIANTS = {"training": [(EXACT, "hmp")], "inference": [(EXACT, "balanced"), (FUSED, "hmp")]}
# The gradients of their weights and biases are apart: no other number is computed from them.
NORMS = (torch.nn.LayerNorm, torch.nn.GroupNorm)
OF_NORMS = "gradients of norms"
YARDSTICK = ("plain", "")
# The relative error of outputs in float32 that is left to the order of sums.
MOST = 1e-5
# A variant compiles some twenty kernels of C++.
PATIENCE = 10


def cases() -> list[Case]:
    importlib.import_module("torch._inductor.compile_fx")  # so that no worker has to
    importlib.import_module("torch._inductor.graph")
    return [
        Case(kind, name, functools.partial(_runs, name, kind), PATIENCE)  # type: ignore[arg-type]
        for kind in VARIANTS
        for name in FAMILIES
    ]


def _runs(name: str, kind: str, skip: frozenset[tuple[str, str]]) -> Iterator[Run | Began]:
    yield Began(*PLAIN)
    try:
        make = architectures.maker(name)
    except Exception as error:
        yield Run(*PLAIN, "float32", [Outcome("forward", first_line(error))])
        return
    yield Run(*PLAIN, "float32", [Outcome("ran", "")])
    far = False
    for rounds, policy in VARIANTS[kind]:
        if (rounds, policy) not in skip:
            yield Began(rounds, policy)
            run = _run(make, rounds, policy, kind)
            far = far or (rounds == EXACT and any(map(is_far, run.differences)))
            yield run
    if far and YARDSTICK not in skip:
        yield Began(*YARDSTICK)
        yield _run(make, *YARDSTICK, kind)


def is_far(difference: Difference) -> bool:
    return difference.of == "outputs in float32" and (difference.error is None or difference.error > MOST)


def _run(make: Maker, rounds: str, policy: str, kind: str) -> Run:
    """Kernels are kept on disk by their source. Graphs are not: they would be those of the code that compiled them."""
    try:
        expected = _called(make, rounds, policy, kind, compiled=False)
        with (
            torch._inductor.config.patch(fx_graph_cache=False),
            torch._functorch.config.patch(enable_autograd_cache=False),
        ):
            found = _called(make, rounds, policy, kind, compiled=True)
    except Exception as error:
        return Run(rounds, policy, "float32", [Outcome("forward", first_line(error))])
    graphs = counters["stats"]["unique_graphs"]
    if not graphs:
        return Run(rounds, policy, "float32", [Outcome("forward", "nothing is compiled")])
    dtypes = [dtypes_of(each["outputs"]) for each in (expected, found)]
    if dtypes[0] != dtypes[1]:
        return Run(rounds, policy, "float32", [Outcome("changed", f"{dtypes[0]} / {dtypes[1]}")])
    differences = [
        _difference(f"{of} in {dtype}", *(_in(dtype, run[of]) for run in (found, expected)))
        for of, results in expected.items()
        for dtype in sorted(set(map(dtypes_of, results)))
    ]
    return Run(rounds, policy, "float32", [Outcome("ran", f"{graphs} graphs")], differences=differences)


def _in(dtype: str, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    return [each for each in tensors if dtypes_of(each) == dtype]


def _called(make: Maker, rounds: str, policy: str, kind: str, *, compiled: bool) -> dict[str, list[torch.Tensor]]:
    torch.compiler.reset()
    counters.clear()
    (call,) = make("float32")
    function = torch.compile(call.function) if compiled else call.function
    torch.manual_seed(0)
    with torch.set_grad_enabled(kind == "training"), _region(rounds, policy):
        result = function(*call.args, **call.kwargs)
    found = {"outputs": architectures.floating(result)}
    if kind == "training":
        architectures.backward(result)
        found["gradients"], found[OF_NORMS] = (_gradients(call, of_norms=each) for each in (False, True))
    return found


def _region(rounds: str, policy: str) -> AbstractContextManager[Any]:
    return hmp.autocast("cpu", policy=_policy(rounds, policy)) if policy else nullcontext()


@functools.cache
def _policy(rounds: str, name: str) -> hmp.Policy:
    return hmp.Policy(hmp.Policy.load(name)._core.replaced(compiled=rounds))


def _gradients(call: Call, *, of_norms: bool) -> list[torch.Tensor]:
    assert isinstance(call.function, torch.nn.Module)
    norms = {id(weight) for each in call.function.modules() if isinstance(each, NORMS) for weight in each.parameters()}
    weights = [weight for weight in call.function.parameters() if (id(weight) in norms) == of_norms]
    return [weight.grad for weight in weights if weight.grad is not None]


def _difference(of: str, found: list[torch.Tensor], expected: list[torch.Tensor]) -> Difference:
    ours, theirs = architectures.row(found), architectures.row(expected)
    if ours.shape != theirs.shape:
        return Difference(of, None, 1)
    others = (ours != theirs) & ~(ours.isnan() & theirs.isnan())
    return Difference(of, architectures.error_of(ours, theirs), float(others.float().mean()))
