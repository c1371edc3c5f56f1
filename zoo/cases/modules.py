"""The modules of torch's own table, module_db, in training and in eval mode. Mixed inputs: all of them are bfloat16, the weights float32."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

import torch

from zoo.cases import Began, Case, Run
from zoo.cases.calls import Call, Maker, copied, lowered, runs


def cases() -> list[Case]:
    from torch.testing._internal.common_modules import module_db

    return [Case("module", info.formatted_name, functools.partial(_runs, info)) for info in module_db]


def _runs(info: Any, skip: frozenset[tuple[str, str]]) -> Iterator[Run | Began]:
    yield from runs(maker(info), skip)


def maker(info: Any) -> Maker:
    return lambda inputs: [call for training in (True, False) for call in _calls(info, training, inputs)]


def _calls(info: Any, training: bool, inputs: str) -> Iterator[Call]:
    torch.manual_seed(0)
    for sample in info.module_inputs_func(
        info, device="cpu", dtype=torch.float32, requires_grad=True, training=training
    ):
        if sample.forward_input is None:
            continue
        made, given = sample.constructor_input, sample.forward_input
        module = info.module_cls(*made.args, **made.kwargs).train(training)
        args, kwargs = copied((tuple(given.args), dict(given.kwargs)))
        if inputs == "mixed":
            args, kwargs = lowered((args, kwargs))
        yield Call(module, args, kwargs)
