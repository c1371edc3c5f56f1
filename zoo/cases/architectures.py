"""The architectures of transformers with tiny configurations: made, called and differentiated under each variant.

Models are in eval mode, so that dropout draws nothing. The gradient at each output is a fixed cosine: a mean has none behind a norm.
An architecture whose tiny configuration does not run in float32 is no case; its run says why.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch.utils._pytree import tree_flatten

from zoo.cases import Began, Case, Outcome, Run, dtypes_of, first_line
from zoo.cases.calls import Call, Maker, copied
from zoo.cases.tiny.configs import tiny
from zoo.cases.tiny.inputs import candidates
from zoo.cases.variants import PLAIN, POLICIES, Variant, variants

# More parameters than this: a size that the patterns do not know, which would take too long.
MOST_PARAMETERS = 20_000_000


def cases() -> list[Case]:
    from transformers.models.auto.modeling_auto import MODEL_MAPPING_NAMES

    return [Case("architecture", name, functools.partial(_runs, name)) for name in MODEL_MAPPING_NAMES]


def maker(name: str) -> Maker:
    """Of one call of the model, whose tiny configuration must run."""
    inputs = _runnable(name, _make(name))

    def make(_: str) -> list[Call]:
        return [Call(_make(name), (), copied(inputs))]

    return make


class Figures(NamedTuple):
    """What a call gave, in float32: all outputs in a row, all gradients in a row."""

    outputs: torch.Tensor
    gradients: torch.Tensor


def _runs(name: str, skip: frozenset[tuple[str, str]]) -> Iterator[Run | Began]:
    yield Began(*PLAIN)
    try:
        plain = _make(name)
        inputs = _runnable(name, plain)
    except Exception as error:
        yield Run(*PLAIN, "float32", [Outcome("forward", first_line(error))])
        return
    reference: Figures | None = None
    for variant in variants(POLICIES):
        if variant in skip and variant != PLAIN:
            continue
        yield Began(*variant)
        run, figures = _run(name, plain, inputs, variant, reference)
        reference = reference or figures
        if variant not in skip:
            yield run


def _run(
    name: str, plain: torch.nn.Module, inputs: dict[str, Any], variant: Variant, reference: Figures | None
) -> tuple[Run, Figures | None]:
    parameters = ""
    with variant.conversion():
        try:
            model = _make(name)
            parameters = _difference(plain, model)
            model.zero_grad()
            with variant.region():
                result = _forward(model, inputs)
        except Exception as error:
            return Run(*variant, "float32", [Outcome("forward", first_line(error))], parameters=parameters), None
        try:
            backward(result)
        except Exception as error:
            return Run(*variant, "float32", [Outcome("backward", first_line(error))], parameters=parameters), None
    figures = _figures(model, result)
    outcomes = [Outcome("ran", dtypes_of(floating(result)))]
    if reference is None:
        return Run(*variant, "float32", outcomes), figures
    errors = [error_of(ours, theirs) for ours, theirs in zip(figures, reference, strict=True)]
    return Run(*variant, "float32", outcomes, errors[0], errors[1], parameters), figures


def _make(name: str) -> torch.nn.Module:
    config = tiny(name)
    model_class = _class(config)
    if not _is_small(name):
        raise ValueError("the tiny configuration is not tiny")
    torch.manual_seed(0)
    return model_class(config).eval()


@functools.cache
def _is_small(name: str) -> bool:
    config = tiny(name)
    with torch.device("meta"):
        return sum(parameter.numel() for parameter in _class(config)(config).parameters()) <= MOST_PARAMETERS


def _class(config: Any) -> Any:
    """The base model, or the first model with a head where there is none."""
    from transformers.models.auto import modeling_auto

    mappings = [name for name in vars(modeling_auto) if name.startswith("MODEL") and name.endswith("_MAPPING")]
    for name in ("MODEL_MAPPING", "MODEL_FOR_PRETRAINING_MAPPING", *mappings):
        mapping = getattr(modeling_auto, name)
        if type(config) in mapping:
            found = mapping[type(config)]
            return found[0] if isinstance(found, tuple) else found
    raise ValueError("no model for this configuration")


def _runnable(name: str, model: torch.nn.Module) -> dict[str, Any]:
    """The first set of inputs that the model takes, forward and backward."""
    failure: Exception = ValueError("no input that is known")
    torch.manual_seed(0)
    for inputs in candidates(model, tiny(name)):
        try:
            backward(_forward(model, inputs))
        except Exception as error:
            failure = error
        else:
            return inputs
    raise failure


def _forward(model: torch.nn.Module, inputs: dict[str, Any]) -> Any:
    torch.manual_seed(0)
    return model(**inputs)


def floating(result: Any) -> list[torch.Tensor]:
    """The outputs that are tensors of floats. What a model keeps for generation is no output."""
    if isinstance(result, dict):
        result = {name: value for name, value in result.items() if name != "past_key_values"}
    leaves = tree_flatten(result)[0]
    return [leaf for leaf in leaves if isinstance(leaf, torch.Tensor) and leaf.is_floating_point()]


def backward(result: Any) -> None:
    roots = [output for output in floating(result) if output.requires_grad]
    if not roots:
        raise ValueError("no output has a gradient")
    weights = [torch.arange(root.numel()).cos().reshape(root.shape).to(root.dtype) for root in roots]
    torch.autograd.backward(roots, weights)


def _figures(model: torch.nn.Module, result: Any) -> Figures:
    gradients = [
        torch.zeros_like(parameter) if parameter.grad is None else parameter.grad for parameter in model.parameters()
    ]
    return Figures(row(floating(result)), row(gradients))


def row(tensors: list[torch.Tensor]) -> torch.Tensor:
    return torch.cat([tensor.detach().float().flatten() for tensor in tensors]) if tensors else torch.zeros(0)


def error_of(ours: torch.Tensor, reference: torch.Tensor) -> float | None:
    """Relative, over all numbers; infinite where one is not finite that is in float32; none where the shapes differ."""
    if ours.shape != reference.shape:
        return None
    finite = reference.isfinite()
    ours, reference = ours[finite].double(), reference[finite].double()
    if not ours.isfinite().all():
        return float("inf")
    return float((ours - reference).norm() / reference.norm().clamp_min(1e-30))


def _difference(plain: torch.nn.Module, made: torch.nn.Module) -> str:
    """What the parameters and buffers of a model have in another dtype or with other numbers."""
    theirs = plain.state_dict()
    found = []
    for name, ours in made.state_dict().items():
        if ours.dtype != theirs[name].dtype:
            found.append(f"{name} is {dtypes_of(ours)}")
        elif not torch.equal(ours.nan_to_num(), theirs[name].nan_to_num()):
            found.append(f"{name} has other numbers")
    return ", ".join(found[:2]) + (f" and {len(found) - 2} more" if len(found) > 2 else "")
