"""Takes the small GPT of gpt.py from a preset to lists of its own, by `hmp.tune`, and trains it under both.

    python examples/tune_gpt.py

The model is trained a little first: what an op loses depends on the numbers that it is given. The lists go to examples/out/gpt-lists, each line
with its evidence, and the page with the picture of errors and times to examples/out/tuned.html.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from pathlib import Path

import gpt
import torch

from habana_mp import hmp

OUT = Path(__file__).parent / "out"


def main() -> None:
    parser = argparse.ArgumentParser(description="Tune the lists of a small GPT.")
    parser.add_argument("--steps", type=int, default=150, help="of each training")
    parser.add_argument(
        "--budget", type=float, default=2e-3, help="the largest error of the logits, relative to their size"
    )
    args = parser.parse_args()

    text, words = gpt.manual()
    trained = gpt.train("float32", text, words, args.steps)
    windows = text[torch.randint(len(text) - gpt.CONTEXT, (2, gpt.BATCH, 1)) + torch.arange(gpt.CONTEXT)]

    found = hmp.tune(
        lambda: trained.model(windows[0]),
        args.budget,
        check=lambda: trained.model(windows[1]),
        start="hmp",
        others="lower",
        progress=sys.stderr.isatty(),
    )
    print(found)
    print()
    for op in sorted({each.part.op for each in found.parts if each.list == "fp32"}):
        print(found.explain(op))

    OUT.mkdir(exist_ok=True)
    found.save(OUT / "gpt-lists")
    found.to_html(OUT / "tuned.html")
    print("\nLists: examples/out/gpt-lists   page: examples/out/tuned.html\n")

    runs = {"float32": trained}
    for name, policy in {"hmp": hmp.Policy.load("hmp"), "tuned": hmp.Policy.load(OUT / "gpt-lists")}.items():
        region = hmp.autocast("cpu", policy=policy)
        runs[name] = gpt.train(name, text, words, args.steps, lambda region=region: region)
    gpt.show(runs, args.steps)
    losses = {name: statistics.fmean(run.losses[-20:]) for name, run in runs.items()}
    for name in ("hmp", "tuned"):
        print(f"{name}: loss of the last 20 steps {losses[name] - losses['float32']:+.4f} against float32")


if __name__ == "__main__":
    main()
