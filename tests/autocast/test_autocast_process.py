"""What a process finds of hmp.autocast: its kernels, the lists of the environment, and its memory afterwards (D30)."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from autocast_policies import mat

from habana_mp import hmp

pytestmark = pytest.mark.usefixtures("autocast_as_it_was")


def run_python(code: str, **environment: str) -> str:
    import os

    done = subprocess.run(
        [sys.executable, "-W", "always", "-c", code],
        capture_output=True,
        text=True,
        env={**os.environ, **environment},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


OURS = """
import sys
import torch
from habana_mp import hmp
with hmp.autocast("cpu"):
    torch.mm(torch.ones(2, 2), torch.ones(2, 2))
print("ours", file=sys.stderr)
"""
OTHERS = """
import torch
library = torch.library.Library("aten", "IMPL")
library.impl("mm", lambda *args: None, "AutocastCPU", allow_override=True)
"""


def test_registration_is_silent_and_leaves_the_warning_to_others() -> None:
    """torch warns once in a process, up to 2.13. What it says without us it says after us."""
    ours, _, others = run_python(OURS + OTHERS).partition("ours\n")
    warning = "Overriding a previously registered kernel"
    assert ours == ""
    assert (warning in others) == (warning in run_python(OTHERS))


@pytest.mark.parametrize("policy", ["torch-cpu", "hmp", "hpu-autocast", "xpu"])
def test_the_fused_encoder_of_inference_is_not_taken(policy: str) -> None:
    """A policy meets the ops that the encoder is made of, as without no_grad."""
    torch.manual_seed(0)
    layer = torch.nn.TransformerEncoderLayer(16, 2, 32, batch_first=True, dropout=0.0)
    model = torch.nn.TransformerEncoder(layer, 2).eval()
    x = torch.randn(2, 4, 16)
    with hmp.autocast("cpu", policy=policy):
        expected = model(x)
        with torch.no_grad():
            assert torch.equal(model(x), expected)
    with torch.no_grad(), torch.autocast("cpu"):
        model(x)  # torch's own way
    assert torch.backends.mha.get_fastpath_enabled()


LISTS = """
import torch
from habana_mp import hmp
one = torch.ones(2, 2)
with hmp.autocast("hpu"):
    print(torch.add(one, one).dtype, torch.mm(one, one).dtype, torch.matmul(one.bfloat16(), one).dtype, torch.div(one.bfloat16(), one).dtype)
"""


@pytest.mark.parametrize(
    ("lower", "fp32"),
    [
        ("LOWER_LIST", "FP32_LIST"),
        ("PT_HPU_AUTOCAST_LOWER_PRECISION_OPS_LIST", "PT_HPU_AUTOCAST_FP32_OPS_LIST"),
    ],
)
def test_lists_of_the_environment(lower: str, fp32: str, tmp_path: Path) -> None:
    """D30, F118 to F122, F256; F51: div, which the fp32 list omits, promotes"""
    (tmp_path / "lower.txt").write_text("add\nmm\n")
    (tmp_path / "fp32.txt").write_text("matmul\n")
    out = run_python(LISTS, **{lower: str(tmp_path / "lower.txt"), fp32: str(tmp_path / "fp32.txt")})
    assert out.split() == ["torch.bfloat16", "torch.bfloat16", "torch.float32", "torch.float32"]


def test_lists_of_the_environment_are_the_presets(tmp_path: Path) -> None:
    """D30: wherever its name is given."""
    (tmp_path / "lower.txt").write_text("add\n")
    program = """
import torch
from habana_mp import hmp
print(hmp.Policy.load("hpu-autocast").lists["lower"], hmp.explain("add", policy="hpu-autocast").rule.action)
model = torch.nn.Linear(4, 4)
with hmp.set_policies(model, {"": "hpu-autocast"}), hmp.autocast("cpu"):
    print(model(torch.ones(4, 4)).dtype)
print(hmp.convert(policy="hpu-autocast").rule("add").action)
"""
    out = run_python(program, LOWER_LIST=str(tmp_path / "lower.txt"))
    assert out.splitlines() == ["('add',) lower", "torch.float32", "lower"]


def test_a_list_of_the_environment_that_is_missing(tmp_path: Path) -> None:
    """D30"""
    out = run_python(LISTS, LOWER_LIST=str(tmp_path / "none.txt"))
    assert "LOWER_LIST=" in out
    assert "is not used. The default list of hpu-autocast stays" in out
    assert out.split()[:4] == ["torch.float32", "torch.bfloat16", "torch.bfloat16", "torch.float32"]


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


@pytest.mark.unsanitized(reason="the sanitizer keeps freed memory back")
def test_policies_are_freed() -> None:
    """100 policies loaded, entered and dropped: memory is back to where it was."""

    def rounds(first: int, last: int) -> None:
        for i in range(first, last):
            policy = hmp.Policy.from_ops(lower=["mm"], promote=["cat"], fp32=["exp"][: i % 2], name=f"p{i}")
            policy = policy.with_edits(f"+{['log', 'sin', 'cos', 'tan'][i % 4]}:fp32")
            with hmp.autocast("cpu", policy=policy):
                torch.mm(mat(), mat())

    rounds(0, 100)
    before = resident_bytes()
    rounds(100, 200)
    assert resident_bytes() - before < 2**19  # kept, they would take more than twice that
