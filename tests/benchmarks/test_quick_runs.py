"""Each benchmark runs, prints its rows as JSON and writes its section, its goals and its pictures. How fast anything is, is not tested."""

import json
import re
import subprocess
import sys
from pathlib import Path

import linear
import pytest
import torch
from harness import goals, results

ROOT = Path(__file__).parent.parent.parent

# Script, its section and pictures, and some of its rows.
CASES = [
    pytest.param(
        "overhead",
        "Overhead",
        [],
        [
            "mm(8x8), nothing to cast, only mm patched: extra",
            "mm(8x8), nothing to cast, only mm patched: native call",
            "mm(8x8), two float32 inputs, grad off: extra over torch.autocast's extra",
            "mm(8x8), two float32 inputs, grad on: extra over torch.autocast's extra",
            "disable_casts, enter and exit",
            "report on over off: mm(8x8), two float32 inputs",
            "report on over off: encoder layer of 128, 4 x 64 tokens, training step",
            "import habana_mp, after import torch",
        ],
        id="overhead",
    ),
    pytest.param(
        "kernels",
        "Kernels",
        ["kernels.svg"],
        [
            "float32 -> bfloat16, 256 Ki elements: kernel over memcpy of the same bytes",
            "float16 -> float32, 256 Ki elements: kernel over memcpy of the same bytes",
            "scalar, bfloat16 -> float16, 128 Ki elements, variants: memcpy",
        ],
        id="kernels",
    ),
    pytest.param(
        "casts",
        "Casts",
        ["casts.svg"],
        [
            "float32 -> bfloat16, 128 Ki elements, 1 thread: Tensor.to over patched op",
            "float32 -> bfloat16, 64 elements, 1 thread: Tensor.to over hmp.cast",
            "float32 -> bfloat16, 128 Ki elements, 2 threads: Tensor.to over hmp.cast",
            "bfloat16 -> float32, 128 Ki elements, 2 threads: Tensor.to over patched op",
            "float32 -> bfloat16, 128 Ki elements, 2 threads: Tensor.copy_ over hmp.cast, out=",
        ],
        id="casts",
    ),
    pytest.param(
        "inference",
        "Inference",
        [],
        [
            "inference, CNN, batch 1, 1 thread: hmp / bf16",
            "inference, CNN, channels last, batch 1, 1 thread: hmp.autocast / bf16",
            "inference, ResNet, channels last, batch 1, 1 thread: hmp / bf16",
            "inference, MLP 256x2, batch 1, 1 thread: hmp / bf16",
            "inference, MLP 256x2, batch 2, 1 thread: fp32",
            "inference, BERT 1x64, batch 1, 1 thread: hmp / bf16",
            "inference, BERT 1x64, batch 1, 1 thread: int8 / hmp",
            "inference, TransformerEncoder 1x128, no fast path, batch 1, 1 thread: hmp / bf16",
            "inference, llama 1x64, prefill, batch 1, 1 thread: hmp.autocast / bf16",
            "inference, GPT-2 1x64, batch 1, 1 thread: autocast / hmp: torch-cpu",
            "frozen, TransformerEncoder 1x64, no fast path, batch 1, 1 thread: hmp / bf16",
        ],
        id="inference",
    ),
    pytest.param(
        "training",
        "Training",
        [],
        [
            "training step, MLP 256x2, batch 1, 1 thread: hmp / autocast",
            "training step, MLP 256x2, batch 1, 1 thread: hmp.autocast / autocast",
            "training step, ViT 1x128, batch 1, 1 thread: hmp / autocast",
            "training step, ViT 1x128, batch 1, 1 thread: hmp / bf16",
        ],
        id="training",
    ),
    pytest.param(
        "memory",
        "Memory",
        [],
        [
            "peak memory, BERT 1x64, batch 1: hmp: torch-cpu / autocast",
            "peak memory, BERT 1x64, batch 1: fp32",
            "memory of inference, ViT 1x128, batch 1: hmp / bf16 + float32 weights",
            "memory of inference, ViT 1x128, batch 1: hmp.autocast / bf16 + float32 weights",
            "memory of inference, ViT 1x128, batch 1: hmp, offloaded / bf16",
            "memory of inference, ViT 1x128, batch 1: int8, offloaded / fp32",
            "memory of inference, ViT 1x128, batch 1: bf16",
        ],
        id="memory",
    ),
    pytest.param(
        "linear",
        "Linear layers",
        [],
        [
            "linear 256 x 256, 1 row, 1 thread: share of the read bandwidth, hmp",
            "linear 256 x 256, 8 rows, 1 thread: share of the read bandwidth, hmp.autocast",
            "linear 256 x 256, 16 rows, 1 thread: share of the read bandwidth, hmp",
            *(
                ["linear 256 x 256, 16 rows, 1 thread: share of the read bandwidth, oneDNN, packed"]
                if linear.packs()
                else []
            ),
            "linear 256 x 256, 8 rows, 1 thread: share of the read bandwidth, hmp, int8",
            "linear 256 x 256, 16 rows, 1 thread: share of the read bandwidth, hmp, weight_int8",
            "linear 64 to 256, 512 rows, 1 thread: hmp, int8 / hmp",
            "linear 256 x 256, 8 rows, 1 thread: hmp, int8 / hmp",
            "linear 256 x 256, 8 rows, 1 thread: hmp, int8 / ONNX Runtime, int8",
            "linear 64 to 256, 64 rows, 1 thread: hmp, int8 / ONNX Runtime, int8",
            "error of linear 256 x 256, 1 row: hmp, int8 / ONNX Runtime, int8",
            "error of linear 64 to 256, 64 rows: hmp, weight_int8",
            "linear 256 x 256, 8 rows, 1 thread: share of the read bandwidth, ONNX Runtime, int8",
            "linear 256 x 256, 1 row, 1 thread: read bandwidth",
        ],
        id="linear",
    ),
    pytest.param(
        "decode",
        "Decoding",
        [],
        [
            "decoding, llama 1x128, batch 1, 1 thread: hmp / bf16",
            "decoding, llama 1x128, batch 1, 1 thread: hmp / autocast",
            "decoding, GPT-2 1x128, batch 1, 1 thread: hmp.autocast",
            "decoding, llama 1x128, batch 1, 1 thread: int8, compiled",
            "error of the logits, llama 1x128, batch 1: weight_int8",
        ],
        id="decode",
    ),
    pytest.param(
        "compiled",
        "Compiled models",
        [],
        [
            "compiled inference, MLP 256x2, batch 1, 1 thread: hmp / bf16",
            "compiled inference, MLP 256x2, batch 1, 1 thread: hmp / hmp: fused",
            "compiled training, MLP 256x2, batch 1, 1 thread: hmp / autocast",
            "compiled training, MLP 256x2, batch 1, 1 thread: hmp / hmp: fused",
        ],
        id="compiled",
    ),
    pytest.param(
        "values",
        "Values",
        [],
        [
            "MLP: foretold change of the loss, median off by",
            "MLP: rank correlation over the places, median of the seeds",
            "RoPE of a llama, layer_norm of an encoder, exp in float16: named first by one command, of 3",
            "planted NaNs and infinities named where they are made, of 52",
            "float16 overflow and underflow: recall",
            "GPT: a step with values=True",
            "a training step of GPT-2 1x64, batch 4, 1 thread: recorded over plain",
            "a training step of GPT-2 1x64, batch 4, 1 thread: file of the recording",
            "two recordings of 200 calls or more: loaded and compared",
            "two recordings of 200 calls or more: larger file",
        ],
        id="values",
    ),
    pytest.param(
        "advice",
        "Advice",
        [],
        [
            "first edit gains 0.8 of the best or more, of 2 cases",
            "error after three edits, median off by",
        ],
        id="advice",
    ),
    pytest.param(
        "tuner",
        "Tuning",
        [],
        [
            "planted ops that need float32, 1, 3 or 5 in a model: all found, of 3",
            "innocent ops in float32, median",
            "tuned: time over float32, slowest model",
            "runs beyond those that were announced, n // 2 + 44 for n ops",
            "balanced: time against torch.autocast, median of 4",
        ],
        id="tuner",
    ),
    pytest.param("accuracy", "Losses", ["accuracy-1.svg"], [], id="accuracy"),
    pytest.param(
        "eight_bits",
        "Inference in 8 bits on trained models",
        [],
        [
            "speech, int8: error",
            "speech, tuned, 0.05: time over float32",
            "speech, float32: copies of weights",
            "speech, error with one edit for 8 bits: foretold within a factor of 1.3, of 4",
        ],
        id="eight_bits",
    ),
]


# What is drawn from the rows of more than one script.
DRAWN = {"Inference": ["inference.svg"], "Training": ["training.svg"], "Memory": ["training.svg"]}


@pytest.mark.unsanitized(reason="it measures, and calls programs that have no sanitizers")
@pytest.mark.parametrize(("script", "section", "pictures", "names"), CASES)
def test_quick_run(script, section, pictures, names, tmp_path):
    page = tmp_path / "docs" / ("accuracy.md" if script in ("accuracy", "eight_bits") else "benchmarks-tables.md")
    page.parent.mkdir()
    page.write_text(f"# Benchmarks\n\n## {section}\n\nold\n\n## Others\n\nAs they were.\n")
    command = [sys.executable, ROOT / "benchmarks" / f"{script}.py", "--quick", "--json", "--write", tmp_path]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr

    report = json.loads(done.stdout)
    rows = {row["what"]: row for row in report["rows"]}
    assert len(rows) == len(report["rows"])
    assert [name for name in names if name not in rows] == []
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
    with_goal = goals.by_goal([results.Row(**row) for row in rows.values()], goals.load())
    assert (f"\n## {section}\n" in goals_page.read_text()) == bool(with_goal)


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
