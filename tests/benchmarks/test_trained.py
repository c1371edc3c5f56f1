"""Ops in 8 bits on weights that were trained (D56): a MiniLM and a CREPE, which packages carry. Random weights say nothing about 8 bits."""

from __future__ import annotations

import importlib.util

import pytest
import torch

pytest.importorskip("transformers")

from eight_bits import IN_8_BITS, foretold, near, region_of
from linear import packs
from subjects.carried import CREPE, MINILM
from subjects.trained import of_crepe, of_minilm

from habana_mp import hmp
from habana_mp._evidence.tune.runs import relative_error

pytestmark = pytest.mark.filterwarnings("ignore")  # transformers' own
SUBJECTS = {MINILM: of_minilm, CREPE: of_crepe}
# At most: the error of the outputs, relative to float32, and what it is for the task: 1 minus the cosine of a sentence, cents of a pitch.
LIMITS = {
    MINILM: {"lower": (0.007, 5e-5), "weight_int8": (0.04, 1e-3), "int8": (0.08, 4e-3)},
    CREPE: {"lower": (0.004, 0.3), "weight_int8": (0.01, 0.8), "int8": (0.014, 1.6)},
}


@pytest.fixture(params=SUBJECTS)
def package(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    if importlib.util.find_spec(name) is None:
        pytest.skip(f"`make test-slow` installs {name}")
    return name


def test_errors_of_outputs(package: str) -> None:
    subject = SUBJECTS[package]()
    with torch.no_grad():
        exact = subject.model(subject.x)
    found = {}
    for title, ops in {"lower": (), **IN_8_BITS}.items():
        policy = hmp.Policy.load("balanced").with_edits(*(f"+{op}:{title}" for op in ops))
        outputs = region_of(subject, policy).outputs()
        beside = subject.beside(outputs, exact)
        found[title] = (relative_error(exact, outputs), 1 - beside if package == MINILM else beside)
    errors = [error for error, _ in found.values()]
    assert 0 < errors[0] < errors[1] < errors[2]
    assert {
        title: both
        for title, both in found.items()
        if any(a > b for a, b in zip(both, LIMITS[package][title], strict=True))
    } == {}


@pytest.mark.skipif(not packs(), reason="without instructions for bfloat16 it takes many minutes")
def test_errors_are_foretold_for_nine_of_ten_modules(package: str) -> None:
    """Within a factor of 1.3, with one linear layer or convolution in one of the lists."""
    found = foretold(SUBJECTS[package]())
    assert len(found.after) >= 14
    assert near(found.after) >= 90, found.line()
    assert near(found.added()) >= 90, found.line()
