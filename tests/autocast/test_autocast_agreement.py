"""The presets torch-cpu, torch-cuda and torch-xpu do what torch.autocast does, for every op of torch's own tests of it (F179 to F181,
F183, F241).

CPU computes; CUDA and XPU, which a CPU build has the tables of, run under FakeTensorMode. Two cases differ from torch by decision:
float64 among the inputs (D10), and float16 beside bfloat16 (D13).
"""

from __future__ import annotations

import contextlib
import itertools
import subprocess
import sys
import warnings
from typing import Any

import pytest
import torch
from torch._subclasses import FakeTensorMode

from habana_mp import hmp

testing = pytest.importorskip("torch.testing._internal.autocast_test_lists")

FLOATS = (torch.float32, torch.bfloat16, torch.float16)
LOWER = (torch.bfloat16, torch.float16)


def lists_of(device: str) -> Any:
    return testing.AutocastCPUTestLists("cpu") if device == "cpu" else testing.AutocastTestLists(device)


def cases_of(lists: Any) -> dict[str, tuple[Any, tuple[Any, ...], dict[str, Any]]]:
    """id -> (function, args, kwargs) for every op and every way to call it that torch's lists name."""
    found = {}
    for title, entries in vars(lists).items():
        for entry in entries:
            name, rest = entry[0], entry[1:]
            kwargs = next((part for part in rest if isinstance(part, dict)), {})
            for number, args in enumerate(part for part in rest if isinstance(part, tuple)):
                for home, function in homes_of(name, args[0]).items():
                    found[f"{title}-{home}-{number}"] = (function, args, kwargs)
    return found


def homes_of(name: str, first: Any) -> dict[str, Any]:
    owners = {"torch": torch, "nn": torch._C._nn, "linalg": torch.linalg, "Tensor": torch.Tensor}
    if not isinstance(first, torch.Tensor):
        del owners["Tensor"]
    return {
        f"{title}.{attribute}": getattr(owner, attribute)
        for title, owner in owners.items()
        for attribute in {name, name.removeprefix("linalg_")}
        if callable(getattr(owner, attribute, None)) and (title == "linalg") == (attribute != name)
    }


def mixes(count: int) -> list[tuple[torch.dtype, ...]]:
    """Dtypes for the float tensors of a call: all there are for up to three, else each one alone in another dtype than the rest."""
    if count <= 3:
        return list(itertools.product(FLOATS, repeat=count))
    alike = [(dtype,) * count for dtype in FLOATS]
    return alike + [
        (*[a] * i, b, *[a] * (count - 1 - i)) for a, b in itertools.permutations(FLOATS, 2) for i in range(count)
    ]


def is_float(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.is_floating_point()


def floats_in(value: Any) -> int:
    if isinstance(value, (tuple, list)):
        return sum(map(floats_in, value))
    return int(is_float(value))


def with_dtypes(value: Any, dtypes: Any) -> Any:
    if isinstance(value, (tuple, list)):
        return type(value)([with_dtypes(item, dtypes) for item in value])
    return value.to(next(dtypes)) if is_float(value) else value


def outcome(region: Any, function: Any, args: Any, kwargs: Any) -> Any:
    torch.manual_seed(0)
    try:
        with warnings.catch_warnings(), region:
            warnings.simplefilter("ignore")  # torch's own, once in a process
            result = function(*args, **kwargs)
    except Exception as error:
        return type(error), str(error).partition("\n")[0]
    return result


def dtypes_of(result: Any) -> Any:
    if isinstance(result, (tuple, list)):
        return [dtypes_of(item) for item in result]
    return result.dtype if isinstance(result, torch.Tensor) else result


def same(ours: Any, theirs: Any, values: bool) -> bool:
    if isinstance(ours, (tuple, list)) and isinstance(theirs, (tuple, list)):
        return len(ours) == len(theirs) and all(map(same, ours, theirs, [values] * len(ours)))
    if isinstance(ours, torch.Tensor) and isinstance(theirs, torch.Tensor):
        if ours.dtype != theirs.dtype or ours.shape != theirs.shape:
            return False
        return not values or torch.equal(ours.nan_to_num(), theirs.nan_to_num())
    return type(ours) is type(theirs) and ours == theirs


@contextlib.contextmanager
def torch_region(device: str, low: torch.dtype):
    """torch.autocast, also where the build lacks the device, which makes it refuse."""
    before = torch.is_autocast_enabled(device), torch.get_autocast_dtype(device)
    torch.set_autocast_enabled(device, True)
    torch.set_autocast_dtype(device, low)
    try:
        yield
    finally:
        torch.set_autocast_enabled(device, before[0])
        torch.set_autocast_dtype(device, before[1])
        torch.clear_autocast_cache()


def disagreements(device: str, low: torch.dtype) -> list[str]:
    found = []
    policy = hmp.Policy.load(f"torch-{device}")
    for name, (function, args, kwargs) in cases_of(lists_of(device)).items():
        for dtypes in mixes(floats_in(args)):
            cast = with_dtypes(args, iter(dtypes))
            theirs = outcome(torch_region(device, low), function, cast, kwargs)
            ours = outcome(hmp.autocast(device, low, policy=policy), function, cast, kwargs)
            if isinstance(theirs, tuple) and "Unexpected floating ScalarType" in str(theirs[-1]):
                continue  # D13; test_promote_takes_what_torch_refuses
            if "bilinear" in name and dtypes[:3].count(low) == 3:
                continue  # D13: torch does not look at the bias
            if not same(ours, theirs, values=device == "cpu"):
                short = [str(dtype).removeprefix("torch.") for dtype in dtypes]
                found.append(f"{name} {short}: {dtypes_of(ours)}, torch: {dtypes_of(theirs)}")
    return found


@pytest.mark.parametrize("low", LOWER, ids=str)
def test_cpu_gives_what_torch_gives(low: torch.dtype) -> None:
    assert disagreements("cpu", low) == []


@pytest.mark.parametrize("low", LOWER, ids=str)
@pytest.mark.parametrize("device", ["cuda", "xpu"])
def test_other_devices_give_the_dtypes_that_torch_gives(device: str, low: torch.dtype) -> None:
    with FakeTensorMode(allow_fallback_kernels=False):
        assert disagreements(device, low) == []


PLAIN = """
import warnings

import torch
from torch.testing._internal.autocast_test_lists import AutocastCPUTestLists

warnings.simplefilter("ignore")
torch.manual_seed(0)
lists = AutocastCPUTestLists("cpu")
calls = [
    (function, part, next((kwargs for kwargs in entry if isinstance(kwargs, dict)), {}))
    for entries in vars(lists).values()
    for entry in entries
    for owner in (torch, torch._C._nn)
    if (function := getattr(owner, entry[0], None)) is not None
    for part in entry
    if isinstance(part, tuple)
]


def everything():
    found = []
    for low in (torch.bfloat16, torch.float16):
        with torch.autocast("cpu", low):
            for function, args, kwargs in calls:
                try:
                    found.append(function(*args, **kwargs))
                except Exception as error:
                    found.append(repr(error))
    return found


def same(a, b):
    if isinstance(a, (tuple, list)):
        return all(map(same, a, b))
    if isinstance(a, torch.Tensor):
        return a.dtype == b.dtype and torch.equal(a.nan_to_num(), b.nan_to_num())
    return a == b


def tables():
    ops = torch._C._dispatch_get_all_op_names()
    return [line for op in ops for line in torch._C._dispatch_dump(op).splitlines() if line.startswith("Autocast")]


before, tables_before = everything(), tables()
from habana_mp import hmp

for name in hmp.presets():
    with hmp.autocast("cpu", policy=name):
        torch.mm(torch.ones(2, 2), torch.ones(2, 2))
print(len(before), all(map(same, before, everything())), len(tables_before), tables() == tables_before)
"""


def test_plain_torch_autocast_is_what_it_was() -> None:
    done = subprocess.run([sys.executable, "-c", PLAIN], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    calls, agree, kernels, same_kernels = done.stdout.split()
    assert int(calls) > 100
    assert agree == "True"
    assert int(kernels) > 300  # F183
    assert same_kernels == "True"


BY_HAND = {
    "convolution": lambda x, w: torch.convolution(x, w, None, [1, 1], [0, 0], [1, 1], False, [0, 0], 1),
    "_convolution": lambda x, w: torch._convolution(
        x, w, None, [1, 1], [0, 0], [1, 1], False, [0, 0], 1, False, False, False, False
    ),
    "_convolution.deprecated": lambda x, w: torch._convolution(
        x, w, None, [1, 1], [0, 0], [1, 1], False, [0, 0], 1, False, False, False
    ),
}


@pytest.mark.parametrize("op", BY_HAND)
def test_f241_convolutions_called_by_hand(op):
    """torch registers one overload of ``_convolution`` for the CPU; ``convolution`` and the other overload follow their input."""
    image, weight = torch.randn(1, 2, 8, 8), torch.randn(2, 2, 3, 3)
    with torch.autocast("cpu"):
        expected = BY_HAND[op](image, weight).dtype
    with hmp.autocast("cpu", policy="torch-cpu"):
        assert BY_HAND[op](image, weight).dtype == expected
    if op == "_convolution":
        return  # a listed overload is the whole op under convert (D17)
    hmp.convert(policy="torch-cpu")
    assert BY_HAND[op](image, weight).dtype == expected


@pytest.mark.parametrize("base", ["xpu", "torch-cuda", "torch-xpu"])
@pytest.mark.parametrize("op", ["convolution", "_convolution"])
def test_d39_a_name_that_python_reaches_inside_conv2d(op, base):
    """A user's name wins over a built-in list that names what it calls, under both front ends."""
    policy = hmp.Policy.load(base).with_edits(f"+{op}:fp32").with_low_dtype("bf16")
    image, weight = torch.randn(1, 2, 8, 8), torch.randn(2, 2, 3, 3)
    with hmp.autocast("cpu", policy=policy):
        expected = torch.conv2d(image, weight).dtype
    hmp.convert(policy=policy)
    assert torch.conv2d(image, weight).dtype == expected
