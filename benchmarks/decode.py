"""Decoding: one token after another with a KV cache, by models of transformers with random weights."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from harness.command import run
from harness.device import DEVICE, DEVICES, placed, thread_counts
from harness.pages import Report
from harness.rows import Comparison, Ratio, rows_of, table_of_comparisons
from harness.timing import clock, take_turns
from subjects import llama_cpp, model_zoo
from subjects.variants import INT8, VARIANTS, Variant, converted, of_8_bits

from habana_mp import hmp

# One row of a query by keys in bfloat16 is a product that torch hands to MKL, which has no fast kernel for it on some CPUs.
ATTENTION = "attention in fp32"
_WITH_ATTENTION = {"hmp": hmp.Policy.load("hmp"), "int8": of_8_bits("int8")}
IN_FLOAT32 = {
    f"{name}, {ATTENTION}": Variant(
        process=functools.partial(converted, policy.with_edits("+scaled_dot_product_attention:fp32"))
    )
    for name, policy in _WITH_ATTENTION.items()
}
OF_TORCH = {
    **{name: VARIANTS[name] for name in ("fp32", "autocast", "bf16", "hmp", "hmp.autocast")},
    **({**{name: VARIANTS[name] for name in INT8}, **IN_FLOAT32} if DEVICE == "cpu" else {}),
}
PROMPT = 32
SLOTS = 64  # of a cache of fixed size: the prompt and all tokens


def in_a_region(title: str) -> Variant:
    policy = of_8_bits(title)
    return Variant(forward=lambda: hmp.autocast(DEVICE, policy=policy))


# Regions: what is compiled under a conversion is compiled anew after each revert.
COMPILED = {f"{title}, compiled": in_a_region(title) for title in INT8} if DEVICE == "cpu" else {}
RIVAL = llama_cpp.NAME


@dataclass(frozen=True)
class Decoder:
    make: Callable[[], torch.nn.Module]
    is_llama: bool = False  # also compiled, and in llama.cpp


@dataclass(frozen=True)
class Effort:
    models: dict[str, Decoder]
    batches: tuple[int, ...]
    threads: tuple[int, ...]
    tokens: int
    rounds: int
    compiled: tuple[str, ...]


FULL = Effort(
    {
        "llama 6x1024": Decoder(functools.partial(model_zoo.llama, 6, 1024), is_llama=True),
        "GPT-2 6x768": Decoder(functools.partial(model_zoo.gpt2_decoder, 6, 768)),
    },
    batches=(1, 8),
    threads=(1, 2),
    tokens=12,
    rounds=5,
    compiled=tuple(COMPILED),
)
QUICK = Effort(
    {
        "llama 1x128": Decoder(functools.partial(model_zoo.llama, 1, 128), is_llama=True),
        "GPT-2 1x128": Decoder(functools.partial(model_zoo.gpt2_decoder, 1, 128)),
    },
    batches=(1,),
    threads=(1,),
    tokens=2,
    rounds=1,
    compiled=tuple(COMPILED)[-1:],
)


class Way(Protocol):
    """A model with what it runs under."""

    def logits(self, prompt: torch.Tensor) -> torch.Tensor:
        """Of the last token of each sequence."""

    def decode(self, prompt: torch.Tensor, tokens: int) -> float:
        """Milliseconds a token, without the prompt: greedy, the shortest step."""


@dataclass(frozen=True)
class OfTorch:
    model: Any
    variant: Variant
    compiled: Any = None  # computes the steps

    def logits(self, prompt: torch.Tensor) -> torch.Tensor:
        with self.variant.process(), torch.no_grad(), self.variant.forward():
            found: torch.Tensor = self.model(prompt).logits[:, -1].float()
            return found

    def decode(self, prompt: torch.Tensor, tokens: int) -> float:
        with self.variant.process():
            self._shortest(prompt, 1)
            return self._shortest(prompt, tokens)

    def _shortest(self, prompt: torch.Tensor, tokens: int) -> float:
        best = float("inf")
        step = self.model if self.compiled is None else self.compiled
        with torch.no_grad(), self.variant.forward():
            out = self.model(prompt, past_key_values=self._cache(), use_cache=True)
            for _ in range(tokens):
                token = out.logits[:, -1:].argmax(-1)
                begun = clock()
                out = step(token, past_key_values=out.past_key_values, use_cache=True)
                best = min(best, clock() - begun)
        return best * 1e3

    def _cache(self) -> Any:
        """One that grows has another shape in each step, for each of which torch.compile compiles."""
        from transformers import StaticCache

        return None if self.compiled is None else StaticCache(config=self.model.config, max_cache_len=SLOTS)


def ways(plain: Any, low: Any) -> dict[str, Way]:
    return {name: OfTorch(low if variant.held else plain, variant) for name, variant in OF_TORCH.items()}


def ways_of_llama(plain: Any, names: tuple[str, ...], batch: int, threads: int) -> dict[str, Way]:
    """What only it has: compiled code of these names, and llama.cpp."""
    torch.compiler.reset()
    found: dict[str, Way] = {}
    for name in names:
        compiled = torch.compile(plain, dynamic=False, options={"cpp_wrapper": True})
        found[name] = OfTorch(plain, COMPILED[name], compiled)
    if DEVICE == "cpu" and llama_cpp.is_installed():
        found[RIVAL] = llama_cpp.LlamaCpp(plain, batch, threads)
    return found


def ratios(names: Iterable[str]) -> list[Ratio]:
    beside = [name for name in names if name in INT8 or name in COMPILED] if RIVAL in names else []
    return [
        Ratio("hmp", "bf16"),
        Ratio("hmp.autocast", "bf16"),
        Ratio("hmp", "autocast"),
        Ratio("hmp", "fp32"),
        *(Ratio(each, "hmp") for each in (*INT8, f"hmp, {ATTENTION}") if each in OF_TORCH),
        *([Ratio(f"int8, {ATTENTION}", f"hmp, {ATTENTION}")] if DEVICE == "cpu" else []),
        *(Ratio(each, RIVAL) for each in beside),
    ]


def errors(what: str, found: dict[str, Way], prompt: torch.Tensor) -> Comparison:
    """Of the logits after the prompt, relative. What is compiled computes the steps alone."""
    exact = found["fp32"].logits(prompt)
    wrong = {
        name: ((way.logits(prompt) - exact).norm() / exact.norm()).item()
        for name, way in found.items()
        if name != "fp32" and name not in COMPILED
    }
    return Comparison(what, "", wrong, [Ratio(each, RIVAL) for each in INT8] if RIVAL in wrong else [])


def decodings(name: str, decoder: Decoder, effort: Effort) -> tuple[list[Comparison], list[Comparison]]:
    """Times and errors."""
    times, wrong = [], []
    torch.manual_seed(0)
    plain = placed(decoder.make()).eval()
    low = copy.deepcopy(plain).to(torch.bfloat16)
    for batch in effort.batches:
        prompt = placed(torch.randint(model_zoo.VOCABULARY, (batch, PROMPT)))
        for threads in thread_counts(effort.threads):
            torch.set_num_threads(threads)
            all_ways = ways(plain, low)
            if decoder.is_llama:
                # Weights that compiled code was given are packed late: it has its own.
                all_ways |= ways_of_llama(copy.deepcopy(plain), effort.compiled, batch, threads)
            visits = {each: functools.partial(way.decode, prompt, effort.tokens) for each, way in all_ways.items()}
            taken = take_turns(visits, effort.rounds)
            what = f"{name}, batch {batch}, {threads} thread{'s' * (threads > 1)}"
            times.append(Comparison(what, "ms", taken, ratios(taken)))
        wrong.append(errors(f"{name}, batch {batch}", all_ways, prompt))
    return times, wrong


def measure(quick: bool) -> Report:
    effort = QUICK if quick else FULL
    found = [decodings(name, decoder, effort) for name, decoder in effort.models.items()]
    times = [each for one, _ in found for each in one]
    wrong = [each for _, one in found for each in one]
    tables, error_tables = ("\n\n".join(map(table_of_comparisons, each)) for each in zip(*found, strict=True))
    packed = "; `hmp` and `hmp.autocast` use [packed copies](cache.md#packed-copies)" if DEVICE == "cpu" else ""
    in_8_bits = (
        f"; `weight_int8` and `int8` have all linear layers [in eight bits](int8.md), and those with {ATTENTION} have the edit"
        " `+scaled_dot_product_attention:fp32`"
        if DEVICE == "cpu"
        else ""
    )
    compiled = (
        "\nThose that are compiled run in a region, with a cache of fixed size, and C++ instead of Python between the ops"
        ' (`options={"cpp_wrapper": True}`).'
        if COMPILED
        else ""
    )
    beside = f" Another package in 8 bits: {RIVAL}." if any(RIVAL in each.taken for each in times) else ""
    text = f"""\
The time of the shortest decoding step, in milliseconds, without the prompt. A step makes one token for each sequence of the batch. The models
have random weights, 6 layers of width 1024 or 768, {model_zoo.VOCABULARY} words and a prompt of {PROMPT} tokens, under `torch.no_grad()` and in one region, as in `generate` of transformers: there `torch.autocast` keeps its casts of weights. The variants are those of
[Inference](#inference){packed}{in_8_bits}.{compiled}{beside}

{tables}

The relative error of the logits after the prompt:

{error_tables}"""
    return Report("Decoding", rows_of({"decoding": times, "error of the logits": wrong}), text)


if __name__ == "__main__":
    run(__doc__, measure, DEVICES)
