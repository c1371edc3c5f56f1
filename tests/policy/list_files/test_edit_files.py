"""``Policy.with_edits`` of a file, as ``habana-mp report --write-edits`` writes it."""

from __future__ import annotations

import pytest

from habana_mp import hmp


def test_a_file_of_edits(tmp_path) -> None:
    file = tmp_path / "delta.txt"
    file.write_text("# for accuracy\n+softmax:lower  # why\n\n-mm\n")
    policy = hmp.Policy.load("torch-cpu")
    assert policy.with_edits(file, "+add:fp32") == policy.with_edits("+softmax:lower", "-mm", "+add:fp32")


@pytest.mark.parametrize(
    ("content", "error", "message"),
    [
        ("+sum:fp32\n+sum fp32\n", ValueError, r"delta.txt, line 2: '\+sum fp32' is not an edit of a policy"),
        ("linear\n", ValueError, "delta.txt, line 1: 'linear' is not an edit of a policy: it begins with neither"),
        (
            "+linear:int8\n+softmax:int8\n",
            ValueError,
            r"delta.txt, line 2: 'softmax' cannot be in the int8 list. Accepted are",
        ),
        (
            "\n+embedding in wte:int8  # why\n",
            ValueError,
            "delta.txt, line 2: 'embedding in wte' cannot be in the int8 list",
        ),
        (None, OSError, "delta.txt"),
    ],
)
def test_a_wrong_file_of_edits(tmp_path, content, error, message) -> None:
    file = tmp_path / "delta.txt"
    if content is not None:
        file.write_text(content)
    with pytest.raises(error, match=message):
        hmp.Policy.load("hmp").with_edits(file)
