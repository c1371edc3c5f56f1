"""Decoding: one token after another with a KV cache, by models of transformers with random weights."""

from __future__ import annotations

import copy
import functools
from dataclasses import dataclass
from typing import Any

import torch
from harness.command import run
from harness.device import DEVICE, DEVICES, placed, thread_counts
from harness.pages import Report
from harness.rows import Comparison, Ratio, rows_of, table_of_comparisons
from harness.timing import clock, take_turns
from subjects import model_zoo
from subjects.variants import INT8, VARIANTS, Variant

NAMES = ("fp32", "autocast", "bf16", "hmp", "hmp.autocast", *(INT8 if DEVICE == "cpu" else ()))
PROMPT = 32


@dataclass(frozen=True)
class Effort:
    models: dict[str, functools.partial[torch.nn.Module]]
    batches: tuple[int, ...]
    threads: tuple[int, ...]
    tokens: int
    rounds: int


FULL = Effort(
    {
        "llama 6x1024": functools.partial(model_zoo.llama, 6, 1024),
        "GPT-2 6x768": functools.partial(model_zoo.gpt2_decoder, 6, 768),
    },
    batches=(1, 8),
    threads=(1, 2),
    tokens=12,
    rounds=5,
)
QUICK = Effort(
    {
        "llama 1x128": functools.partial(model_zoo.llama, 1, 128),
        "GPT-2 1x128": functools.partial(model_zoo.gpt2_decoder, 1, 128),
    },
    batches=(1,),
    threads=(1,),
    tokens=2,
    rounds=1,
)


def decode(model: Any, prompt: torch.Tensor, tokens: int, variant: Variant) -> float:
    """Milliseconds a token, without the prompt: greedy, the shortest step."""
    best = float("inf")
    with torch.inference_mode(), variant.forward():
        out = model(prompt, use_cache=True)
        for _ in range(tokens):
            token = out.logits[:, -1:].argmax(-1)
            begun = clock()
            out = model(token, past_key_values=out.past_key_values, use_cache=True)
            best = min(best, clock() - begun)
    return best * 1e3


def decodings(effort: Effort) -> list[Comparison]:
    found = []
    for name, make in effort.models.items():
        torch.manual_seed(0)
        plain = placed(make()).eval()
        low = copy.deepcopy(plain).to(torch.bfloat16)
        for batch in effort.batches:
            prompt = placed(torch.randint(model_zoo.VOCABULARY, (batch, PROMPT)))
            for threads in thread_counts(effort.threads):
                torch.set_num_threads(threads)

                def visit(which: str, prompt: torch.Tensor = prompt, plain: Any = plain, low: Any = low) -> float:
                    variant = VARIANTS[which]
                    with variant.process():
                        model = low if variant.held else plain
                        decode(model, prompt, 1, variant)
                        return decode(model, prompt, effort.tokens, variant)

                taken = take_turns({which: functools.partial(visit, which) for which in NAMES}, effort.rounds)
                ratios = [
                    Ratio("hmp", "bf16"),
                    Ratio("hmp.autocast", "bf16"),
                    Ratio("hmp", "autocast"),
                    Ratio("hmp", "fp32"),
                    *(Ratio(each, "hmp") for each in NAMES if each in INT8),
                ]
                what = f"{name}, batch {batch}, {threads} thread{'s' * (threads > 1)}"
                found.append(Comparison(what, "ms", taken, ratios))
    return found


def measure(quick: bool) -> Report:
    effort = QUICK if quick else FULL
    found = decodings(effort)
    packed = "; `hmp` and `hmp.autocast` use [packed copies](cache.md#packed-copies)" if DEVICE == "cpu" else ""
    text = f"""\
The time of the shortest decoding step, in milliseconds, without the prompt. A step makes one token for each sequence of the batch. The models
have random weights, 6 layers of width 1024 or 768, {model_zoo.VOCABULARY} words and a prompt of {PROMPT} tokens, under `torch.inference_mode()`. The variants are those of
[Inference](#inference){packed}; `weight_int8` and `int8` have all linear layers [in eight bits](int8.md).

{table_of_comparisons(found)}"""
    return Report("Decoding", rows_of({"decoding": found}), text)


if __name__ == "__main__":
    run(__doc__, measure, DEVICES)
