"""Each benchmark runs, prints its rows as JSON and writes its section, its goals and its pictures. How fast anything is, is not tested."""

import json
import re
import subprocess
import sys
from pathlib import Path

import linear
import pytest
import torch

ROOT = Path(__file__).parent.parent.parent

# Script, its section and pictures, and some of its rows with their goals.
CASES = [
    pytest.param(
        "overhead",
        "Overhead",
        [],
        {
            "mm(8x8), nothing to cast, only mm patched: extra": 30,
            "mm(8x8), nothing to cast, only mm patched: native call": None,
            "mm(8x8), two float32 inputs, grad off: extra over torch.autocast's extra": 0.45,
            "mm(8x8), two float32 inputs, grad on: extra over torch.autocast's extra": 0.45,
            "disable_casts, enter and exit": 0.5,
            "report on over off: mm(8x8), two float32 inputs": 2,
            "report on over off: encoder layer of 128, 4 x 64 tokens, training step": 2,
            "import habana_mp, after import torch": 50,
        },
        id="overhead",
    ),
    pytest.param(
        "kernels",
        "Kernels",
        ["kernels.svg"],
        {
            "float32 -> bfloat16, 256 Ki elements: kernel over memcpy of the same bytes": 0.9,
            "float16 -> float32, 256 Ki elements: kernel over memcpy of the same bytes": 0.9,
            "scalar, bfloat16 -> float16, 128 Ki elements, variants: memcpy": None,
        },
        id="kernels",
    ),
    pytest.param(
        "casts",
        "Casts",
        ["casts.svg"],
        {
            "float32 -> bfloat16, 128 Ki elements, 1 thread: Tensor.to over patched op": 2.5,
            "float32 -> bfloat16, 64 elements, 1 thread: Tensor.to over hmp.cast": None,
            "float32 -> bfloat16, 128 Ki elements, 2 threads: Tensor.to over hmp.cast": 1,
            "bfloat16 -> float32, 128 Ki elements, 2 threads: Tensor.to over patched op": 1,
            "float32 -> bfloat16, 128 Ki elements, 2 threads: Tensor.copy_ over hmp.cast, out=": None,
        },
        id="casts",
    ),
    pytest.param(
        "inference",
        "Inference",
        [],
        {
            "inference, CNN, batch 1, 1 thread: hmp / bf16": 1.01,
            "inference, CNN, channels last, batch 1, 1 thread: hmp.autocast / bf16": 0.8,
            "inference, ResNet, channels last, batch 1, 1 thread: hmp / bf16": 0.8,
            "inference, MLP 256x2, batch 1, 1 thread: hmp / bf16": 0.5,
            "inference, MLP 256x2, batch 2, 1 thread: fp32": None,
            "inference, BERT 1x64, batch 1, 1 thread: hmp / bf16": 0.9,
            "inference, BERT 1x64, batch 1, 1 thread: int8 / hmp": None,
            "inference, TransformerEncoder 1x128, no fast path, batch 1, 1 thread: hmp / bf16": 0.9,
            "inference, llama 1x64, prefill, batch 1, 1 thread: hmp.autocast / bf16": 0.9,
            "inference, GPT-2 1x64, batch 1, 1 thread: autocast / hmp: torch-cpu": None,
            "frozen, TransformerEncoder 1x64, no fast path, batch 1, 1 thread: hmp / bf16": 1.0,
            "inference, the most of 11 comparisons: hmp over bf16": 1.01,
        },
        id="inference",
    ),
    pytest.param(
        "training",
        "Training",
        [],
        {
            "training step, MLP 256x2, batch 1, 1 thread: hmp / autocast": 0.85,
            "training step, MLP 256x2, batch 1, 1 thread: hmp.autocast / autocast": 0.85,
            "training step, ViT 1x128, batch 1, 1 thread: hmp / autocast": 1.0,
            "training step, ViT 1x128, batch 1, 1 thread: hmp / bf16": 1.1,
        },
        id="training",
    ),
    pytest.param(
        "memory",
        "Memory",
        [],
        {
            "peak memory, BERT 1x64, batch 1: hmp: torch-cpu / autocast": 1.0,
            "peak memory, BERT 1x64, batch 1: fp32": None,
            "memory of inference, ViT 1x128, batch 1: hmp / bf16 + float32 weights": 1.05,
            "memory of inference, ViT 1x128, batch 1: hmp.autocast / bf16 + float32 weights": 1.05,
            "memory of inference, ViT 1x128, batch 1: hmp, offloaded / bf16": 1.1,
            "memory of inference, ViT 1x128, batch 1: int8, offloaded / fp32": 0.3,
            "memory of inference, ViT 1x128, batch 1: bf16": None,
        },
        id="memory",
    ),
    pytest.param(
        "linear",
        "Linear layers",
        [],
        {
            "linear 256 x 256, 1 row, 1 thread: share of the read bandwidth, hmp": 0.85,
            "linear 256 x 256, 8 rows, 1 thread: share of the read bandwidth, hmp.autocast": 0.8,
            "linear 256 x 256, 16 rows, 1 thread: share of the read bandwidth, hmp": 0.7,
            **(
                {"linear 256 x 256, 16 rows, 1 thread: share of the read bandwidth, oneDNN, packed": None}
                if linear.packs()
                else {}
            ),
            "linear 256 x 256, 8 rows, 1 thread: share of the read bandwidth, hmp, int8": 1.8,
            "linear 256 x 256, 16 rows, 1 thread: share of the read bandwidth, hmp, weight_int8": None,
            "linear 64 to 256, 512 rows, 1 thread: hmp, int8 / hmp": 0.65,
            "linear 256 x 256, 8 rows, 1 thread: share of the read bandwidth, ONNX Runtime, int8": None,
            "linear 256 x 256, 1 row, 1 thread: read bandwidth": None,
        },
        id="linear",
    ),
    pytest.param(
        "decode",
        "Decoding",
        [],
        {
            "decoding, llama 1x128, batch 1, 1 thread: hmp / bf16": 0.6,
            "decoding, llama 1x128, batch 1, 1 thread: hmp / autocast": 0.35,
            "decoding, GPT-2 1x128, batch 1, 1 thread: hmp.autocast": None,
        },
        id="decode",
    ),
    pytest.param(
        "compiled",
        "Compiled models",
        [],
        {
            "compiled inference, MLP 256x2, batch 1, 1 thread: hmp / bf16": 1.03,
            "compiled inference, MLP 256x2, batch 1, 1 thread: hmp / hmp: fused": 1.05,
            "compiled training, MLP 256x2, batch 1, 1 thread: hmp / autocast": 1.0,
            "compiled training, MLP 256x2, batch 1, 1 thread: hmp / hmp: fused": 1.05,
        },
        id="compiled",
    ),
    pytest.param(
        "values",
        "Values",
        [],
        {
            "MLP: foretold change of the loss, median off by": 10,
            "MLP: rank correlation over the places, median of the seeds": 0.95,
            "RoPE of a llama, layer_norm of an encoder, exp in float16: named first by one command, of 3": 3,
            "planted NaNs and infinities named where they are made, of 52": 52,
            "float16 overflow and underflow: recall": 1,
            "GPT: a step with values=True": 3,
            "a training step of GPT-2 1x64, batch 4, 1 thread: recorded over plain": None,
            "a training step of GPT-2 1x64, batch 4, 1 thread: file of the recording": 20,
            "two recordings of 200 calls or more: loaded and compared": 2,
            "two recordings of 200 calls or more: larger file": 20,
        },
        id="values",
    ),
    pytest.param(
        "advice",
        "Advice",
        [],
        {
            "first edit gains 0.8 of the best or more, of 2 cases": 90,
            "error after three edits, median off by": 10,
        },
        id="advice",
    ),
    pytest.param(
        "tuner",
        "Tuning",
        [],
        {
            "planted ops that need float32, 1, 3 or 5 in a model: all found, of 3": 3,
            "innocent ops in float32, median": 0,
            "tuned: time over float32, slowest model": 1.03,
            "runs beyond those that were announced, n // 2 + 20 for n ops": 0,
            "balanced: time against torch.autocast, median of 4": 1.02,
        },
        id="tuner",
    ),
    pytest.param("accuracy", "Losses", ["accuracy-1.svg"], {}, id="accuracy"),
    pytest.param(
        "eight_bits",
        "Inference in 8 bits on trained models",
        [],
        {
            "speech, int8: error": None,
            "speech, tuned, 0.05: time over float32": None,
            "speech, float32: copies of weights": None,
        },
        id="eight_bits",
    ),
]


# What is drawn from the rows of more than one script.
DRAWN = {"Inference": ["inference.svg"], "Training": ["training.svg"], "Memory": ["training.svg"]}


@pytest.mark.unsanitized(reason="it measures, and calls programs that have no sanitizers")
@pytest.mark.parametrize(("script", "section", "pictures", "goals"), CASES)
def test_quick_run(script, section, pictures, goals, tmp_path):
    page = tmp_path / "docs" / ("accuracy.md" if script in ("accuracy", "eight_bits") else "benchmarks-tables.md")
    page.parent.mkdir()
    page.write_text(f"# Benchmarks\n\n## {section}\n\nold\n\n## Others\n\nAs they were.\n")
    command = [sys.executable, ROOT / "benchmarks" / f"{script}.py", "--quick", "--json", "--write", tmp_path]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr

    report = json.loads(done.stdout)
    rows = {row["what"]: row for row in report["rows"]}
    assert len(rows) == len(report["rows"])
    assert {what: rows[what]["goal"] for what in goals} == goals
    assert {type(row["measured"]) for row in rows.values()} == {float}

    text = page.read_text()
    assert [line for line in text.splitlines() if line.startswith("## ")] == [f"## {section}", "## Others"]
    assert f"## {section}\n\nMachine: {report['machine']}. Measured at commit {report['commit']}.\n" in text
    assert "\nold\n" not in text
    assert text.endswith("\n## Others\n\nAs they were.\n")
    assert re.findall(r"^!\[.+\]\((.+)\)$", text, re.MULTILINE) == pictures
    drawn = [*pictures, *DRAWN.get(section, [])]
    assert sorted(picture.name for picture in page.parent.glob("*.svg")) == sorted(drawn)

    # Goals are for contributors.
    front, goals_page = (tmp_path / path for path in ("docs/benchmarks.md", "benchmarks/goals.md"))
    assert [what for what in ("missed", "goal", "≤", "≥") if what in text + front.read_text()] == []
    with_goal = [what for what, row in rows.items() if row["goal"] is not None]
    assert all(f"| {what} |" in goals_page.read_text() for what in with_goal)


@pytest.mark.skipif(torch.cuda.is_available(), reason="it would run")
@pytest.mark.parametrize(
    ("script", "words"),
    [("casts", "torch sees no CUDA device"), ("kernels", "this benchmark runs on cpu")],
    ids=["no device", "for the CPU"],
)
def test_a_device_that_cannot_be_used(script, words):
    command = [sys.executable, ROOT / "benchmarks" / f"{script}.py", "--quick", "--device", "cuda"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr.endswith(f"error: {words}\n")


def test_make_bench_runs_every_script():
    named = re.search(r"^BENCHMARKS \?= (.+)$", (ROOT / "Makefile").read_text(), re.MULTILINE)[1].split()
    scripts = {path.stem for path in (ROOT / "benchmarks").glob("*.py")}
    assert sorted(named) == sorted(scripts) == sorted(case.values[0] for case in CASES)
