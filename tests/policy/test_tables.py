"""The tables of src/policy: that torch has what they name, and that both front ends go by them."""

# ruff: noqa: PLW0108 - a lambda looks the op up when it is called; the op itself would be from before any conversion

from __future__ import annotations

import contextlib

import pytest
import torch
from drawn_models import converted
from torch.profiler import profile
from torch.utils._python_dispatch import TorchDispatchMode

import habana_mp._core as _core
from habana_mp import hmp

BF16, F32 = torch.bfloat16, torch.float32


FRONT_ENDS = {
    "convert": lambda policy: converted(policy=policy),
    "autocast": lambda policy: hmp.autocast("cpu", policy=policy),
}
both_front_ends = pytest.mark.parametrize("front_end", FRONT_ENDS.values(), ids=FRONT_ENDS.keys())


def test_torch_has_the_dtypes():
    assert _core.DTYPES == ("other", "float8", "float16", "bfloat16", "float32", "float64", "int8")
    assert set(_core.LOW_DTYPES) < set(_core.ELIGIBLE_DTYPES) < set(_core.SOURCE_DTYPES) < set(_core.DTYPES)
    assert set(_core.SHORT_DTYPE_NAMES) == set(_core.DTYPES)
    named = [getattr(torch, name) for name in _core.DTYPES if name not in ("other", "float8", "int8")]
    assert all(dtype.is_floating_point for dtype in named)


@pytest.mark.parametrize("name", _core.DTYPES)
def test_casts_go_to_eligible_dtypes_alone(name):
    """D10."""
    number = _core.DTYPES.index(name)
    if name in _core.ELIGIBLE_DTYPES:
        assert _core.cast_tensor(torch.ones(3), number).dtype == getattr(torch, name)
    else:
        with pytest.raises(ValueError, match=f"{number} is not the number of a dtype that can be cast"):
            _core.cast_tensor(torch.ones(3), number)


@pytest.mark.parametrize("number", [-1, len(_core.DTYPES), 32 + _core.DTYPES.index("float32"), 256])
def test_numbers_of_no_dtype_are_refused(number):
    with pytest.raises(ValueError, match="is not the number of a dtype that can be cast"):
        _core.cast_tensor(torch.ones(3), number)


class _Reached(Exception):  # noqa: N818 - nothing went wrong
    pass


class Reaching(TorchDispatchMode):
    """Stops at an op of the dispatcher, and says in which dtypes its tensors came."""

    def __init__(self, op):
        super().__init__()
        self.op, self.dtypes = op, []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func.overloadpacket.__name__ == self.op:
            self.dtypes = [value.dtype for value in args if isinstance(value, torch.Tensor)]
            raise _Reached
        return func(*args, **(kwargs or {}))


# Arguments behind input, weight, bias and, in the first group, running_mean and running_var.
RUNNING = {
    "native_batch_norm": (False, 0.1, 1e-5),
    "cudnn_batch_norm": (False, 0.1, 1e-5),
    "miopen_batch_norm": (False, 0.1, 1e-5),
    "_native_batch_norm_legit_no_training": (0.1, 1e-5),
}
PLAIN = {"native_group_norm": (1, 2, 16, 1, 1e-5), "_native_batch_norm_legit": (True, 0.1, 1e-5)}


def dtypes_reached(front_end, op, action, given, affine, statistics):
    """Of input, weight and bias, and of the statistics where the op has them."""
    tensors = [torch.ones(1, 2, 4, 4, dtype=given), *(torch.ones(2, dtype=affine) for _ in range(2))]
    if op in RUNNING:
        tensors += [torch.ones(2, dtype=statistics) for _ in range(2)]
    policy = hmp.Policy.from_ops(**{action: [op]}, rest="inputs")
    with front_end(policy), Reaching(op) as reached, contextlib.suppress(_Reached):
        getattr(torch, op)(*tensors, *RUNNING.get(op, PLAIN.get(op)))
    return reached.dtypes[:3], reached.dtypes[3:]


@both_front_ends
@pytest.mark.parametrize("op", [*RUNNING, *PLAIN])
class TestNorms:
    """D14: the same ops are norms for both front ends."""

    def test_lower_casts_the_input_alone(self, front_end, op):
        statistics = [F32, F32] if op in RUNNING else []
        assert dtypes_reached(front_end, op, "lower", F32, F32, F32) == ([BF16, F32, F32], statistics)

    def test_fp32_casts_all_but_the_statistics(self, front_end, op):
        statistics = [F32, F32] if op in RUNNING else []
        assert dtypes_reached(front_end, op, "fp32", BF16, BF16, F32) == ([F32, F32, F32], statistics)

    def test_low_statistics_leave_it_alone_in_fp32(self, front_end, op):
        cast = [BF16] * 3 if op in RUNNING else [F32] * 3
        statistics = [BF16, BF16] if op in RUNNING else []
        assert dtypes_reached(front_end, op, "fp32", BF16, BF16, BF16) == (cast, statistics)


PRODUCTS = {
    "linear": lambda x, w: torch.nn.functional.linear(x, w.t()),
    "matmul": lambda x, w: torch.matmul(x, w),
    "linalg.matmul": lambda x, w: torch.linalg.matmul(x, w),
    "@": lambda x, w: x @ w,
    "__rmatmul__": lambda x, w: w.__rmatmul__(x),
}


@both_front_ends
@pytest.mark.parametrize("product", PRODUCTS.values(), ids=PRODUCTS.keys())
def test_products_get_a_batch_as_one_long_matrix(front_end, product):
    """What lies so that torch would multiply matrix by matrix, or copy it, is cast to contiguous."""
    x, w = torch.randn(5, 3, 8).transpose(0, 1), torch.randn(8, 4)
    with front_end(hmp.Policy.from_ops(lower=["linear", "matmul"], rest="inputs")), profile() as profiled:
        result = product(x, w)
    assert result.dtype == BF16
    assert not {"aten::bmm", "aten::clone"} & {event.name for event in profiled.events()}
