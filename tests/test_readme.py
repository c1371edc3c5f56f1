"""The Python examples of the README run as they are printed, each in a process and a folder of its own."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

README = (Path(__file__).parent.parent / "README.md").read_text()
EXAMPLES = [
    pytest.param(code, id=title.strip().lower().replace(" ", "-"))
    for title, section in re.findall(r"^## (.*?)\n(.*?)(?=^## |\Z)", README, re.MULTILINE | re.DOTALL)
    for code in re.findall(r"^```python\n(.*?)^```", section, re.MULTILINE | re.DOTALL)
]


def test_the_readme_has_examples() -> None:
    assert len(EXAMPLES) >= 6


@pytest.mark.parametrize("code", EXAMPLES)
def test_example(code: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
