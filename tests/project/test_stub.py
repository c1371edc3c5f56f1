"""_core.pyi says what the C++ core is."""

import subprocess
import sys
from pathlib import Path

# The metaclass of a pybind11 class is no name that a stub could give.
ALLOWED = "".join(
    f"habana_mp._core.{name}\n"
    for name in (
        "AutocastRegion",
        "AutocastRules",
        "CallQueue",
        "PatchSet",
        "Policy",
        "ProbeSession",
        "Recording",
        "Report",
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
