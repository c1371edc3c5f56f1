"""A short form of what ``make zoo`` compiles: outputs and gradients are those of uncompiled code (D55)."""

from __future__ import annotations

import warnings

import pytest

from zoo import compiled
from zoo.cases import Run, compiles

pytestmark = pytest.mark.xdist_group("zoo")


@pytest.mark.parametrize("label", ["training/llama", "inference/bert"])
def test_an_architecture_compiles_to_the_numbers_of_uncompiled_code(label: str) -> None:
    (case,) = (each for each in compiles.cases() if each.label == label)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        runs = [run for run in case.runs(frozenset()) if isinstance(run, Run)]
    assert list(compiled.families({label: runs}).values()) == [True]
    assert [each for each in compiled.off({label: runs}) if not each.reason] == []
