"""decide() against a second reading of D10 to D15 and D49, written for reading and not for speed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

import habana_mp._core as _core

OTHER, F8, F16, BF16, F32, F64 = (
    _core.DTYPES.index(name) for name in ("other", "float8", "float16", "bfloat16", "float32", "float64")
)
SOURCES = (F8, F16, BF16, F32)
LOWER, WEIGHT_INT8, INT8, FP32, PROMOTE, FIRST, INPUTS, ERROR = (
    _core.ACTIONS.index(name)
    for name in ("lower", "weight_int8", "int8", "fp32", "promote", "first_input", "inputs", "error")
)
INPUT, AFFINE, STATISTIC, TARGET = (_core.ROLES.index(name) for name in ("input", "affine", "statistic", "target"))


def expected(action, low, listed, args, explicit):
    """(cause, dtype, which arguments are cast)"""
    alone = ("none", OTHER, [False] * len(args))
    eligible = [dtype in (F16, BF16, F32) for dtype, _, _ in args]
    sources = [dtype in SOURCES for dtype, _, _ in args]
    beside_float8 = any(dtype == F8 for dtype, _, _ in args)
    if explicit or any(dtype == F64 for dtype, _, _ in args):  # D11, D10
        return alone
    if any(role == TARGET for _, _, role in args):  # D12
        to = next(dtype for dtype, _, role in args if role == TARGET)
        if action == ERROR or (action == INPUTS and not listed) or to not in (F16, BF16, F32):
            return alone
        cause, roles = "in_place", (INPUT, AFFINE)
    elif beside_float8 and sum(sources) == 1:  # D49: stored numbers by themselves
        return alone
    elif action in (LOWER, WEIGHT_INT8, INT8):  # D56; D14: weights of a norm stay, but for those in float8
        if not any(ok and role == INPUT for (_, _, role), ok in zip(args, sources, strict=True)):
            return alone
        stored = any(dtype == F8 and role == AFFINE for dtype, _, role in args)
        cause, to, roles = _core.ACTIONS[action], low, ((INPUT, AFFINE) if stored else (INPUT,))
    elif action == FP32:
        # D14: running statistics below float32 take no float32 input.
        if any(ok and role == STATISTIC and dtype != F32 for (dtype, _, role), ok in zip(args, eligible, strict=True)):
            return alone
        if not listed and not any(
            ok and role in (INPUT, AFFINE) for (_, _, role), ok in zip(args, eligible, strict=True)
        ):  # D49: what moves stored numbers
            return alone
        cause, to, roles = ("fp32" if listed else "rest_fp32"), F32, (INPUT, AFFINE)
    elif action == PROMOTE:  # D13
        pool = [
            (dtype, zero)
            for (dtype, zero, role), ok in zip(args, eligible, strict=True)
            if ok and role in (INPUT, AFFINE)
        ]
        if not pool:  # D49: none to promote to
            return alone
        counting = {dtype for dtype, zero in pool if not zero} or {dtype for dtype, _ in pool}
        cause, to, roles = "promote", (counting.pop() if len(counting) == 1 else F32), (INPUT, AFFINE)
    elif action == FIRST:  # D15
        cause, to, roles = "first_input", OTHER, (INPUT,)
        to = next((dtype for (dtype, _, role), ok in zip(args, eligible, strict=True) if ok and role == INPUT), OTHER)
        if to == OTHER:
            return alone
    else:
        return alone
    concerned = [ok and role in roles for (_, _, role), ok in zip(args, sources, strict=True)]
    if cause != "in_place" and not any(concerned):
        return alone
    return cause, to, [ok and dtype != to for ok, (dtype, _, _) in zip(concerned, args, strict=True)]


arguments = st.lists(st.tuples(st.integers(OTHER, F64), st.booleans(), st.integers(INPUT, TARGET)), max_size=6)
usual = st.lists(st.tuples(st.sampled_from([OTHER, *SOURCES]), st.booleans(), st.just(INPUT)), max_size=6)


@given(st.integers(LOWER, ERROR), st.sampled_from([F16, BF16]), st.booleans(), arguments | usual, st.booleans())
def test_decide_is_d10_to_d15_and_d49(action, low, listed, args, explicit):
    to, cause, roles = _core.decide(action, low, listed, tuple(args), explicit)
    cast = [bool(roles >> role & 1) and dtype in SOURCES and dtype != to for dtype, _, role in args]
    assert (_core.CAUSES[cause], to, cast) == expected(action, low, listed, args, explicit)


def test_decide_refuses_numbers_that_are_no_enum():
    for bad in (
        (9, BF16, True, ()),
        (LOWER, 7, True, ()),
        (LOWER, BF16, True, ((F32, False, 4),)),
        (-1, BF16, True, ()),
    ):
        with pytest.raises(ValueError, match="is out of range"):
            _core.decide(*bad, False)
