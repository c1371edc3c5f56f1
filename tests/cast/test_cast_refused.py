"""hmp.cast: what it does not take says what is accepted."""

import ml_dtypes
import numpy as np
import pytest
import torch

from habana_mp import hmp

FLOATS = np.ones(3, np.float32)
REFUSED = {
    "a list": (lambda: hmp.cast([1.0], "float16"), TypeError, "x must be a torch tensor or a NumPy array .*, not list"),
    "a scalar": (lambda: hmp.cast(np.float32(1), "float16"), TypeError, "not float32"),
    "a masked array": (
        lambda: hmp.cast(np.ma.array(FLOATS), "float16"),
        TypeError,
        "NumPy array without a mask.*, not MaskedArray",
    ),
    "float64": (
        lambda: hmp.cast(np.ones(3), "float16"),
        TypeError,
        "x is float64, and only float32, float16 or bfloat16 can be cast$",
    ),
    "int32": (lambda: hmp.cast(np.ones(3, np.int32), "float16"), TypeError, "x is int32"),
    "uint16": (
        lambda: hmp.cast(np.ones(3, np.uint16), "float32"),
        TypeError,
        r'x\.view\(\[\("bfloat16", np\.uint16\)\]\)',
    ),
    "complex64": (lambda: hmp.cast(np.ones(3, np.complex64), "float16"), TypeError, "x is complex64"),
    "float8": (lambda: hmp.cast(FLOATS.astype(ml_dtypes.float8_e5m2), "float16"), TypeError, "x is float8_e5m2"),
    "other fields": (lambda: hmp.cast(np.ones(3, [("bfloat16", "u2"), ("b", "u2")]), "float16"), TypeError, "x is "),
    "a name of another field": (lambda: hmp.cast(np.ones(3, [("bfloat16", "f2")]), "float16"), TypeError, "x is "),
    "a float64 tensor": (
        lambda: hmp.cast(torch.ones(3).double(), "float16"),
        TypeError,
        "x is torch.float64, and only float32",
    ),
    "an int tensor": (
        lambda: hmp.cast(torch.ones(3).int(), "float16"),
        TypeError,
        "x is torch.int32, and only float32",
    ),
    "to float64": (
        lambda: hmp.cast(FLOATS, "float64"),
        ValueError,
        "dtype must be float32, float16 or bfloat16, not 'float64'",
    ),
    "to torch.float64": (lambda: hmp.cast(FLOATS, torch.float64), ValueError, "not torch.float64"),
    "to float": (lambda: hmp.cast(FLOATS, float), ValueError, "not <class 'float'>"),
    "to the other byte order": (lambda: hmp.cast(FLOATS, np.dtype(">f4")), ValueError, "not dtype"),
    "to uint16": (lambda: hmp.cast(FLOATS, np.uint16), ValueError, "not <class 'numpy.uint16'>"),
    "to nothing": (lambda: hmp.cast(FLOATS, None), TypeError, "a dtype of torch, NumPy or ml_dtypes, .*, not None"),
    "to a number": (
        lambda: hmp.cast(torch.ones(3), 16.0),
        TypeError,
        "a dtype of torch, NumPy or ml_dtypes, .*, not 16.0",
    ),
    "out: a tensor": (
        lambda: hmp.cast(FLOATS, "float16", out=torch.ones(3).half()),
        TypeError,
        "out must be a NumPy array .*, as x is, not Tensor",
    ),
    "out: an array": (
        lambda: hmp.cast(torch.ones(3), "float16", out=np.ones(3, np.float16)),
        TypeError,
        "out must be a torch tensor, as x is, not ndarray",
    ),
    "out: another shape": (
        lambda: hmp.cast(FLOATS, "float16", out=np.ones((3, 1), np.float16)),
        ValueError,
        r"out has the shape \(3, 1\), and x \(3,\)",
    ),
    "out: another dtype": (
        lambda: hmp.cast(FLOATS, "float16", out=np.ones(3, np.float32)),
        TypeError,
        "out is float32, and the cast is to float16",
    ),
    "out: uint16": (
        lambda: hmp.cast(FLOATS, "bfloat16", out=np.ones(3, np.uint16)),
        TypeError,
        r"out is uint16.*mark them: out\.view",
    ),
    "out: read-only": (
        lambda: hmp.cast(FLOATS, "float16", out=np.broadcast_to(np.float16(1), 3)),
        ValueError,
        "out is read-only",
    ),
    "out: a tensor of another shape": (
        lambda: hmp.cast(torch.ones(3), "float16", out=torch.ones(3, 1).half()),
        ValueError,
        r"out has the shape \(3, 1\), and x \(3,\)",
    ),
    "out: a tensor of another dtype": (
        lambda: hmp.cast(torch.ones(3), "float16", out=torch.ones(3)),
        TypeError,
        "out is torch.float32, and the cast is to torch.float16",
    ),
    "out: a tensor elsewhere": (
        lambda: hmp.cast(torch.ones(3), "float16", out=torch.ones(3, device="meta").half()),
        ValueError,
        "out is on meta, and x on cpu",
    ),
    "out: elements that share memory": (
        lambda: hmp.cast(torch.ones(3), "float16", out=torch.ones(1).half().expand(3)),
        RuntimeError,
        "more than one element of the written-to tensor refers to a single memory location",
    ),
    "out: x requires grad": (
        lambda: hmp.cast(torch.ones(3, requires_grad=True), "float16", out=torch.ones(3).half()),
        RuntimeError,
        "does not support automatic differentiation",
    ),
    "out: out requires grad": (
        lambda: hmp.cast(torch.ones(3), "float16", out=torch.ones(3).half().requires_grad_()),
        RuntimeError,
        "does not support automatic differentiation",
    ),
}


@pytest.mark.parametrize(("call", "error", "text"), REFUSED.values(), ids=REFUSED.keys())
def test_what_is_refused_says_what_is_accepted(call, error, text):
    with pytest.raises(error, match=text):
        call()
