"""Faults and differences that are planted, for what finds them: each function gives rows of how many were found and named."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from harness.rows import Row
from torch import nn

from habana_mp import hmp

sys.path.insert(0, str(Path(__file__).parent.parent.parent))
from zoo import differences as two_steps

PLANTED: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "log": lambda y: y + torch.log(y.detach() * 0 - 1),
    "sqrt": lambda y: y + torch.sqrt(y.detach() * 0 - 1),
    "div": lambda y: y / torch.zeros_like(y),
    "exp": lambda y: y * torch.exp(y.detach() * 0 + 100),
    "pow": lambda y: y * torch.pow(y.detach() * 0 + 1e30, 2),
    "acos": lambda y: y + torch.acos(y.detach() * 0 + 2),
    "mul": lambda y: (y * 0 + 1e30) * 1e30,
    "sum": lambda y: y + (y * 0 + 3e38).sum(-1, keepdim=True),
    "reciprocal": lambda y: y * torch.reciprocal(y.detach() * 0),
    "rsqrt": lambda y: y * torch.rsqrt(y.detach() * 0),
    "matmul": lambda y: (y * 0 + 1e30) @ torch.full((8, 8), 1e30),
    "sqrt, backward": lambda y: y + torch.sqrt((y * 0).square()),
    "acos, backward": lambda y: y + torch.acos(y * 0 + 1),
    "": lambda y: y,
}


class Block(nn.Module):
    """Has infinities that are meant: a causal mask, and logs of zeros that are masked."""

    def __init__(self, planted: str) -> None:
        super().__init__()
        self.q, self.v, self.planted = nn.Linear(8, 8), nn.Linear(8, 8), planted

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scores = self.q(x) @ x.t() + torch.full((len(x), len(x)), -torch.inf).triu(1)
        y = torch.softmax(scores, -1) @ self.v(x)
        logs = torch.log(torch.relu(y.detach()))
        return PLANTED[self.planted](y + logs.masked_fill(logs.isinf(), 0.0))


def plants() -> list[Row]:
    right = wrong = total = false = 0
    for planted in PLANTED:
        for place in range(2):
            for policy in ("fp32", "bfloat16"):
                torch.manual_seed(total)
                model = nn.Sequential(*(Block(planted if i == place else "") for i in range(2)), nn.Linear(8, 4))
                region = hmp.autocast("cpu", policy="torch-cpu") if policy != "fp32" else contextlib.nullcontext()

                def step(model: nn.Module = model, region: Any = region) -> None:
                    with region:
                        y = model(torch.randn(6, 8)).float().mean()
                    y.backward()

                found = hmp.find_nonfinite(step)
                if not planted:
                    false += found is not None
                    continue
                total += 1
                op, _, phase = planted.partition(", ")
                named = found is not None and (found.op, found.phase) == (op, phase or "forward")
                right, wrong = right + named, wrong + (not named)
    return [
        Row(f"planted NaNs and infinities named where they are made, of {total}", float(right), ""),
        Row("false ones, in the same steps without a plant", float(false), ""),
    ]


def ranges(quick: bool) -> list[Row]:
    """Overflow and underflow in float16, foretold from float32, against running it."""
    ops: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
        "mul": lambda x: x * x,
        "exp": torch.exp,
        "sum": lambda x: x.sum(-1),
        "mm": lambda x: x @ x.t(),
        "add": lambda x: x + x,
        "pow": lambda x: x.pow(3),
        "softmax": lambda x: torch.softmax(x, -1),
        "sigmoid": torch.sigmoid,
    }
    hits = false = missed = 0
    for op, call in ops.items():
        for power in range(-12, 13, 6 if quick else 1):
            torch.manual_seed(power)
            x = (torch.randn(32, 32) * 2.0**power).half().float()
            with hmp.report(values=True) as report:
                full = call(x)
            seen = next(
                row["values"]["range"]
                for row in report.to_dict()["rows"]
                if row["op"] in (op, "matmul") and "values" in row
            )
            low = call(x.half()).float()
            over = bool((low.isinf() & full.isfinite()).any())
            under = bool(((low == 0) & (full != 0)).any())
            for foretold, real in ((seen["over_float16"] > 0, over), (seen["under_float16"] > 0, under)):
                hits += foretold and real
                false += foretold and not real
                missed += real and not foretold
    return [
        Row("float16 overflow and underflow: recall", hits / max(1, hits + missed), ""),
        Row("float16 overflow and underflow: precision", hits / max(1, hits + false), ""),
    ]


def differences(quick: bool) -> list[Row]:
    """Two steps that differ in one planted place: whether the first difference that compare names is there."""
    steps, lowered = list(two_steps.STEPS.values()), list(two_steps.LOWERED.items())
    if quick:
        steps, lowered = steps[:4], lowered[:2]
    named = sum(two_steps.is_named(two_steps.compared(each), each.ops, each.module, each.phase) for each in steps)
    named += sum(two_steps.is_named(two_steps.compared_lower(op), (name,), module) for op, (name, module) in lowered)
    total = len(steps) + len(lowered)
    nothing = two_steps.compared(two_steps.Planted(lambda _: None, (), ""))
    what = f"planted differences that compare names at their op and module, of {total}"
    return [
        Row(what, float(named), ""),
        Row("differences named in two steps that are the same", float(not nothing.same), ""),
    ]


# Each is a script of its own, and what the first line of a command is to name.
SCRIPTS = {
    "rotary positions of a llama": (
        """
import torch, transformers
transformers.logging.set_verbosity_error()
torch.manual_seed(0)
sizes = dict(vocab_size=512, hidden_size=128, num_hidden_layers=2, num_attention_heads=4, intermediate_size=256)
sizes["initializer_range"] = 0.2  # large enough that attention looks at positions
model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**sizes))
x = torch.randint(0, 512, (1, 1024))
model(x, labels=x).loss.backward()
""",
        ("report", "--values"),
        "1. +mul:fp32: mul makes",
        "rotary_emb",
    ),
    "layer_norm of an encoder": (
        """
import torch
from torch import nn
torch.manual_seed(0)
layer = nn.TransformerEncoderLayer(64, 4, 128, dropout=0.0, batch_first=True, norm_first=True)
model, head = nn.TransformerEncoder(layer, 4, nn.LayerNorm(64), False), nn.Linear(64, 10)
x, target = torch.randn(8, 32, 64) + 30, torch.randint(0, 10, (256,))
nn.functional.cross_entropy(head(model(x)).flatten(0, 1).float(), target).backward()
""",
        ("report", "--values"),
        "1. +layer_norm:fp32: layer_norm makes",
        "",
    ),
    "exp that overflows in float16": (
        """
import torch
x = torch.linspace(0, 12, 64).reshape(8, 8).requires_grad_()
torch.exp(x).log().sum().backward()
""",
        ("find-nonfinite", "--low-dtype", "float16", "--lower", "+exp"),
        "exp makes infinities in float16",
        "",
    ),
}


def commands() -> list[Row]:
    """Faults of today's models under Habana's lists, each named first by one command."""
    named = 0
    for script, command, first, where in SCRIPTS.values():
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "train.py").write_text(script, encoding="utf-8")
            arguments = [sys.executable, "-m", "habana_mp", *command, "--policy", "hmp", "train.py"]
            done = subprocess.run(arguments, cwd=folder, capture_output=True, text=True, check=False)
        shown = " ".join(done.stderr.split()).partition(" 2. ")[0]
        named += first in shown and where in shown
    what = f"RoPE of a llama, layer_norm of an encoder, exp in float16: named first by one command, of {len(SCRIPTS)}"
    return [Row(what, float(named), "")]
