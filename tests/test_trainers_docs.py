"""The code of docs/trainers.md runs as it is printed."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from accelerate.state import AcceleratorState

from habana_mp import hmp

PAGE = (Path(__file__).parent.parent / "docs" / "trainers.md").read_text()
BLOCKS = [
    pytest.param(code, id=title.strip())
    for title, section in re.findall(r"^## (.*?)\n(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL)
    for code in re.findall(r"^```python\n(.*?)^```", section, re.MULTILINE | re.DOTALL)
]


@pytest.mark.parametrize("code", BLOCKS)
# What Lightning itself emits, whatever runs in it.
@pytest.mark.filterwarnings("ignore:.*does not have many workers:UserWarning")
@pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning")
@pytest.mark.filterwarnings("ignore:The number of training batches:UserWarning")
def test_the_code(code, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    exec(compile(code, "trainers.md", "exec"), {"__name__": "__main__"})
    AcceleratorState._reset_state(reset_partial_state=True)
    out = capsys.readouterr().out
    for printed in re.findall(r"^print\(.*\)  # (.*)", code, re.MULTILINE):
        assert printed in out
    if ".report)" in code:
        assert re.search(r"^\d+ casts, ", out, re.MULTILINE)
        assert not hmp.is_converted()


def test_the_page_has_code():
    assert len(BLOCKS) >= 5
