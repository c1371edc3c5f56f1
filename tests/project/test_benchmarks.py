"""Each benchmark runs, prints its rows as JSON and writes its section. How fast anything is, is not tested."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent

# Script, its section and pictures, and some of its rows with their goals.
CASES = [
    pytest.param(
        "overhead",
        "Overhead",
        [],
        {
            "mm(8x8), nothing to cast, only mm patched: extra": 30,
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
        ["kernels.svg", "casts.svg"],
        {
            "float32 -> bfloat16, 256 Ki elements: kernel over memcpy of the same bytes": 0.9,
            "float16 -> float32, 256 Ki elements: kernel over memcpy of the same bytes": 0.9,
            "float32 -> bfloat16, 128 Ki elements, 1 thread: Tensor.to over patched op": 2.5,
            "float32 -> bfloat16, 64 elements, 1 thread: Tensor.to over hmp.cast": None,
            "float32 -> bfloat16, 128 Ki elements, 2 threads: Tensor.copy_ over hmp.cast, out=": None,
            "scalar, bfloat16 -> float16, 128 Ki elements, variants: memcpy": None,
        },
        id="kernels",
    ),
    pytest.param(
        "models",
        "Models",
        ["inference.svg", "training.svg"],
        {
            "inference, CNN, batch 1, 1 thread: hmp / bf16": 1.05,
            "inference, GPT-2 1x64, batch 1, 1 thread: autocast / hmp: torch-cpu": None,
            "frozen, TransformerEncoder 1x64, no fast path, batch 1, 1 thread: hmp / bf16": 1.0,
            "training step, MLP 256x2, batch 1, 1 thread: hmp / autocast": 0.85,
            "training step, ViT 1x128, batch 1, 1 thread: hmp / autocast": 1.0,
            "training step, ViT 1x128, batch 1, 1 thread: hmp / bf16": 1.1,
            "peak memory, BERT 1x64, batch 1: hmp: torch-cpu / autocast": 1.0,
            "peak memory, BERT 1x64, batch 1: fp32": None,
        },
        id="models",
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
            "compiled training, MLP 256x2, batch 1, 1 thread: hmp / autocast": 1.0,
        },
        id="compiled",
    ),
    pytest.param(
        "evidence",
        "Values",
        [],
        {
            "MLP: foretold change of the loss, median off by": 10,
            "MLP: rank correlation over the places, median of the seeds": 0.95,
            "RoPE of a llama, layer_norm of an encoder, exp in float16: named first by one command, of 3": 3,
            "planted NaNs and infinities named where they are made, of 52": 52,
            "float16 overflow and underflow: recall": 1,
            "GPT: a step with values=True": 3,
        },
        id="evidence",
    ),
    pytest.param(
        "tuner",
        "Tuning",
        [],
        {
            "planted ops that need float32, 1, 3 or 5 in a model: all found, of 3": 3,
            "innocent ops in float32, median": 0,
            "tuned against the fastest of all choices within the budget, slowest model": 1.03,
            "runs beyond those that were announced, n // 2 + 20 for n ops": 0,
            "balanced: time against torch.autocast, median of 4": 1.02,
        },
        id="tuner",
    ),
    pytest.param("accuracy", "Losses", ["accuracy-1.svg", "accuracy-2.svg", "accuracy-3.svg"], {}, id="accuracy"),
]


@pytest.mark.unsanitized(reason="it measures, and calls programs that have no sanitizers")
@pytest.mark.parametrize(("script", "section", "pictures", "goals"), CASES)
def test_quick_run(script, section, pictures, goals, tmp_path):
    path = tmp_path / "benchmarks.md"
    path.write_text(f"# Benchmarks\n\n## {section}\n\nold\n\n## Others\n\nAs they were.\n")
    command = [sys.executable, ROOT / "benchmarks" / f"{script}.py", "--quick", "--json", "--markdown", path]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr

    report = json.loads(done.stdout)
    rows = {row["what"]: row for row in report["rows"]}
    assert len(rows) == len(report["rows"])
    assert {what: rows[what]["goal"] for what in goals} == goals
    assert {type(row["measured"]) for row in rows.values()} == {float}

    text = path.read_text()
    assert [line for line in text.splitlines() if line.startswith("## ")] == [f"## {section}", "## Others"]
    assert f"## {section}\n\nMachine: {report['machine']}.\n" in text
    assert "\nold\n" not in text
    assert text.endswith("\n## Others\n\nAs they were.\n")
    assert re.findall(r"^!\[.+\]\((.+)\)$", text, re.MULTILINE) == pictures
    assert sorted(picture.name for picture in tmp_path.glob("*.svg")) == sorted(pictures)
