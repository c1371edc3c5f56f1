"""The fixture assert_casts, in a pytest of its own."""

from __future__ import annotations

import pytest

pytest_plugins = ["pytester"]

HEAD = """
import pytest, torch
from habana_mp import hmp

net = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Softmax(-1))
big = torch.nn.Linear(128, 128)
x = torch.randn(2, 4)

async def coroutine():
    return net(x)

@pytest.fixture(autouse=True)
def converted():
    hmp.convert()
    yield
    hmp.revert()
"""
TESTS = """
def test_exact(assert_casts):
    r = assert_casts(lambda: net(x), {"linear": {"bfloat16": 3}, "softmax": {torch.float32: 1}})
    assert r.casts(module="Sequential: 0") == 3

@pytest.mark.parametrize("turn", range(3))
def test_the_cache_does_not_change_the_count(assert_casts, turn):
    assert_casts(lambda: big(torch.randn(2, 128)), {"linear": {"bfloat16": 3}})

def test_another_name_of_the_op(assert_casts):
    assert_casts(lambda: x @ x.mT, {"matmul": {"bfloat16": 2}})

def test_an_op_and_its_in_place_form(assert_casts):
    low = x.bfloat16()
    assert_casts(lambda: (x + low, x.clone().add_(low), x.clone().__iadd__(low)), {"add": {"float32": 1}, "add_": {"float32": 2}})

def test_nothing(assert_casts):
    assert_casts(lambda: x.sin(), {})

def test_too_few(assert_casts):
    assert_casts(lambda: net(x), {"linear": {"bfloat16": 2}, "softmax": {"float32": 1}})

def test_one_more_op(assert_casts):
    assert_casts(lambda: net(x), {"linear": {"bfloat16": 3}})

def test_never_called(assert_casts):
    assert_casts(lambda: x.sin(), {"conv2d": {"bfloat16": 1}})

def test_seen_and_not_cast(assert_casts):
    assert_casts(lambda: torch.mm(x.bfloat16(), x.bfloat16().mT), {"mm": {"bfloat16": 2}})

def test_no_op(assert_casts):
    assert_casts(lambda: None, {})

def test_zero_of_an_op_that_is_never_called(assert_casts):
    assert_casts(lambda: net(x), {"linear": {"bfloat16": 3}, "softmax": {"float32": 1}, "conv1d": {"bfloat16": 0}})

def test_zero_of_an_op_that_is_called(assert_casts):
    assert_casts(lambda: x.sin(), {"sin": {"bfloat16": 0}})

def test_an_error_of_the_function(assert_casts):
    assert_casts(lambda: net(x[:, :3]), {})
"""
MISTAKES = {
    "no-function": ("net(x), {}", "TypeError: assert_casts takes a function without arguments"),
    "no-dict": ("lambda: net(x), 3", "TypeError: the expected casts must be"),
    "no-counts": ('lambda: net(x), {"linear": 3}', "TypeError: the casts of 'linear' must be"),
    "no-number": (
        'lambda: net(x), {"linear": {"bfloat16": "3"}}',
        "TypeError: the casts of 'linear' to 'bfloat16' must be a number",
    ),
    "no-op": ('lambda: net(x), {"lienar": {"bfloat16": 3}}', "ValueError: 'lienar' is not an op*Did you mean 'linear'"),
    "an-op-twice": (
        'lambda: net(x), {"matmul": {"bfloat16": 1}, "__matmul__": {"bfloat16": 1}}',
        "ValueError: 'matmul' and '__matmul__' are the same op",
    ),
    "coroutine": ("coroutine, {}", "TypeError: assert_casts calls <function coroutine*does not await it"),
    "no-dtype": ('lambda: net(x), {"linear": {"fp8": 3}}', "ValueError: to must be float16, bfloat16 or float32"),
}


@pytest.fixture
def project(pytester):
    pytester.makeconftest('pytest_plugins = ["habana_mp.pytest_plugin"]\n')
    return pytester


def test_it_says_which_casts_are_others(project):
    project.makepyfile(HEAD + TESTS)
    result = project.runpytest_inprocess("-p", "no:randomly", "-p", "no:xdist", "-q")
    result.assert_outcomes(passed=8, failed=7)
    result.stdout.fnmatch_lines(
        [
            "  linear to bfloat16: expected 2, got 3",
            "      3 | lower: linear, *lower.txt:* | Sequential: 0 | *test_it_says_which_casts_are_others.py:*",
            "all casts, as assert_casts takes them:",
            '  {"linear": {"bfloat16": 3}, "softmax": {"float32": 1}}',
            "  softmax to float32: expected 0, got 1",
            "  conv2d to bfloat16: expected 1, got 0",
            "      never called",
            "  mm to bfloat16: expected 2, got 0",
            "      seen, lower: 1 call on bfloat16",
            "no op was seen: the report sees eager calls, in the process that it was made in",
            "  conv1d to bfloat16: expected 0, got 0",
            "      never called",
        ]
    )
    result.stdout.fnmatch_lines(["E*RuntimeError: *mat1 and mat2 shapes cannot be multiplied*"])


@pytest.mark.parametrize(("call", "message"), MISTAKES.values(), ids=MISTAKES)
def test_mistakes_are_reported(project, call, message):
    project.makepyfile(HEAD + f"\ndef test(assert_casts):\n    assert_casts({call})\n")
    result = project.runpytest_inprocess("-p", "no:xdist", "-q")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines([f"*{message}*"])
