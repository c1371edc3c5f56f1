"""Names that a region of autocast does not see: functions that torch has in Python alone."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch.nn import functional

from habana_mp import hmp

ADVICE = "because torch has these functions in Python alone. hmp.convert sees them:\n"
NAMES = {
    "a-function-in-Python": ("+normalize:lower", ["'normalize'"]),
    "for-one-dtype": ("+grouped_mm@bfloat16:lower", ["'grouped_mm@bfloat16'"]),
    "a-short-name": ("+vector_norm:lower", ["'vector_norm'. Did you mean 'linalg_vector_norm'?"]),
    "the-long-name": ("+linalg_vector_norm:lower", []),
    "compound": ("+multi_head_attention_forward:fp32", ["'multi_head_attention_forward'"]),
    "at-the-dispatcher": ("+mul:lower", []),
    "an-overload": ("+pow.Tensor_Scalar:lower", []),
    "in-place-D12": ("+add_:lower", []),
    "an-operator": ("+__rdiv__:lower", []),
    "as-a-preset-has-it": ("+normalize:fp32", []),
}


@pytest.mark.parametrize(("edit", "unseen"), NAMES.values(), ids=NAMES)
def test_a_region_warns_of_what_it_does_not_see(edit: str, unseen: list[str]) -> None:
    policy = hmp.Policy.load("balanced").with_edits(edit)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        hmp.autocast("cpu", policy=policy)
        hmp.autocast("cpu", policy=policy)
    assert [str(each.message).partition(ADVICE)[2].splitlines() for each in caught] == ([unseen] if unseen else [])
    assert {each.filename for each in caught} <= {__file__}


def test_the_warning_names_the_line(tmp_path) -> None:
    file = tmp_path / "lower.txt"
    file.write_text("linear\nsoftmin  # a comment\n")
    policy = hmp.Policy.from_files(lower=file)
    with pytest.warns(UserWarning, match="does not see") as caught:
        hmp.autocast("cpu", policy=policy)
    assert str(caught[0].message).endswith(f"\n{file}:2: 'softmin'")


@pytest.mark.parametrize("preset", hmp.presets())
def test_no_preset_is_warned_of(preset: str) -> None:
    policy = hmp.Policy.load(preset)
    hmp.autocast("cpu", dtype=torch.bfloat16, policy=policy)
    hmp.autocast("cpu", dtype=torch.bfloat16, policy=hmp.Policy.load(str(policy)))  # which has no files


def test_convert_sees_it_and_a_region_does_not() -> None:
    """F.softmin is softmax of the negated input: a region casts that, by its own rule."""
    policy = hmp.Policy.from_ops(lower=["softmin"])
    x = torch.randn(4, 4)
    with pytest.warns(UserWarning, match="does not see"):
        region = hmp.autocast("cpu", policy=policy)
    with region:
        assert functional.softmin(x, 1).dtype == torch.float32
        explained = hmp.explain("softmin")
    hmp.convert(policy=policy)
    assert functional.softmin(x, 1).dtype == torch.bfloat16
    assert "a region of autocast does not see it" in "".join(explained.notes)
    assert hmp.explain("softmin").notes == ()
