"""_core.pyi says what the C++ core is."""

import ast
import subprocess
import sys
from pathlib import Path

from habana_mp._convert.call_form import CallForm

STUB = Path(__file__).parents[2] / "habana_mp" / "_core.pyi"

# The metaclass of a pybind11 class is no name that a stub could give.
ALLOWED = "".join(
    f"habana_mp._core.{name}\n"
    for name in (
        "AutocastRegion",
        "AutocastRules",
        "CallQueue",
        "ComparedArgument",
        "ComparedCall",
        "ComparedRuns",
        "Entry",
        "GivenTensor",
        "Nonfinite",
        "PatchSet",
        "Policy",
        "ProbeSession",
        "RecordedCall",
        "Recording",
        "Report",
        "Rule",
        "Site",
    )
)


def test_stub_is_true(tmp_path: Path) -> None:
    allowlist = tmp_path / "allowlist"
    allowlist.write_text(ALLOWED)
    checked = subprocess.run(
        [sys.executable, "-m", "mypy.stubtest", "habana_mp._core", "--allowlist", allowlist],
        capture_output=True,
        text=True,
        check=False,
    )
    assert checked.returncode == 0, checked.stdout + checked.stderr


def test_stub_has_the_arguments_of_patched_ops() -> None:
    """stubtest cannot read them off a type that is written in C."""
    (made,) = (
        method
        for node in ast.walk(ast.parse(STUB.read_text()))
        if isinstance(node, ast.ClassDef) and node.name == "PatchedFunctionBase"
        for method in node.body
        if isinstance(method, ast.FunctionDef) and method.name == "__new__"
    )
    assert [argument.arg for argument in made.args.kwonlyargs] == list(CallForm._fields)
