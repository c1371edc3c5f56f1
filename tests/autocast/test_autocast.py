"""hmp.autocast: what a region does with each op, and which devices, dtypes and policies it takes (F34 to F36, F82 to F95, D28 to D32)."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from autocast_policies import BF16, FP16, FP32, FP64, PLAIN, UNDER_B, A, B, mat, results
from torch._subclasses import FakeTensorMode

import habana_mp._core as _core
from habana_mp import hmp

pytestmark = pytest.mark.usefixtures("autocast_as_it_was")


# What runs in what


@pytest.mark.parametrize(
    ("op", "expected"),
    [
        pytest.param(lambda: torch.mm(mat(), mat()), BF16, id="lower-function"),
        pytest.param(lambda: mat().mm(mat()), BF16, id="lower-method-F93"),
        pytest.param(lambda: F.linear(mat(), mat()), BF16, id="lower-F"),
        pytest.param(lambda: torch.nn.Linear(4, 4)(mat()), BF16, id="lower-module-F93"),
        pytest.param(lambda: mat().addmm(mat(), mat()), BF16, id="addmm-F87"),
        pytest.param(lambda: mat().addmm_(mat(), mat()), FP32, id="in-place-F85"),
        pytest.param(lambda: torch.addmm(mat(), mat(), mat(), out=mat()), FP32, id="out-F86"),
        pytest.param(lambda: torch.prod(mat(BF16)), FP32, id="fp32-F252"),
        pytest.param(lambda: torch.prod(mat(BF16), dtype=BF16), BF16, id="dtype-F89"),
        pytest.param(lambda: torch.prod(mat(BF16), dtype=FP64), FP64, id="dtype-float64-F252"),
        pytest.param(lambda: torch.prod(mat(torch.int64)), torch.int64, id="integers-F83"),
        pytest.param(lambda: torch.mm(mat(FP64), mat(FP64)), FP64, id="float64-F82"),
        pytest.param(lambda: torch.mm(mat(torch.complex64), mat(torch.complex64)), torch.complex64, id="complex-F83"),
        pytest.param(lambda: torch.add(mat(BF16), mat()), FP32, id="unlisted-F250"),
        pytest.param(lambda: torch.cat([mat(BF16), mat()]), FP32, id="promote-F254"),
        pytest.param(lambda: torch.cat([mat(BF16), mat(BF16)]), BF16, id="promote-alike-F67"),
        pytest.param(lambda: torch.cat([mat(BF16), mat(FP16)]), FP32, id="promote-fp16-bf16-D13"),
        pytest.param(lambda: torch.cat([mat(BF16), mat(FP64)]), FP64, id="promote-float64-D10"),
        pytest.param(lambda: torch.mm(mat(), mat(BF16)), BF16, id="mixed-F251"),
    ],
)
def test_ops_of_torch_cpu(op, expected: torch.dtype) -> None:
    with hmp.autocast("cpu"):
        assert op().dtype == expected


def test_a_call_with_a_float64_tensor_is_left_alone() -> None:
    """D10: torch.autocast would cast the others and then raise."""
    with hmp.autocast("cpu"), pytest.raises(RuntimeError, match="same dtype"):
        torch.mm(mat(), mat(FP64))


def test_lists_of_the_caller_are_not_changed() -> None:
    given = [mat(BF16), mat()]
    with hmp.autocast("cpu"):
        torch.cat(given)
    assert [item.dtype for item in given] == [BF16, FP32]


def test_a_tensor_given_twice_is_cast_once() -> None:
    x = mat().requires_grad_()
    with hmp.autocast("cpu"):
        y = torch.mm(x, x)
    first, second = (edge for edge, _ in y.grad_fn.next_functions)
    assert first is second


def test_norms_keep_their_statistics() -> None:
    """D14"""
    norm = torch.nn.BatchNorm1d(4)
    with hmp.autocast("hpu"):
        assert norm(mat() * torch.arange(4.0)).dtype == BF16
    assert norm.running_mean.dtype == FP32
    assert norm.running_mean.tolist() != [0.0] * 4


@pytest.mark.parametrize(
    ("listed", "op", "expected"),
    [
        pytest.param("pow.Tensor_Scalar", lambda x: x**2, BF16, id="that-overload"),
        pytest.param("pow.Tensor_Scalar", lambda x: x**x, FP32, id="another-overload"),
        pytest.param("pow", lambda x: x**x, BF16, id="whole-op"),
        pytest.param("__matmul__", lambda x: x @ x, BF16, id="operator-F127"),
        pytest.param("multi_dot", lambda x: torch.linalg.multi_dot([x, x]), BF16, id="module-F127"),
        pytest.param("truediv", lambda x: x / x, BF16, id="truediv-F130"),
        pytest.param("cross_entropy", lambda x: F.cross_entropy(x, x), BF16, id="python-name-F126"),
        pytest.param("GRUCell", lambda x: torch.nn.GRUCell(4, 4)(x, x), BF16, id="cell-F127"),
        pytest.param("_softmax", lambda x: x.softmax(0), BF16, id="name-of-cpp-F133"),
    ],
)
def test_names_that_a_policy_may_list(listed: str, op, expected: torch.dtype) -> None:
    with hmp.autocast("cpu", policy=hmp.Policy.from_ops(lower=[listed])):
        assert op(mat()).dtype == expected


def test_a_name_that_torch_lacks_warns() -> None:
    """D22"""
    with pytest.warns(UserWarning, match="'lienar' is not an op of torch .*'linear'"):
        hmp.Policy.load("torch-cpu").with_edits("+lienar:lower")


def test_listed_ops_are_atomic() -> None:
    """D19: mul inside layer_norm, mm inside linear and the like are not asked for a rule of their own."""
    policy = hmp.Policy.from_ops(lower=["addmm", "mm", "t"], fp32=["linear"])
    with hmp.autocast("cpu", policy=policy):
        assert F.linear(mat(), mat(), torch.ones(4)).dtype == FP32


# Devices, dtypes and policies


@pytest.mark.parametrize(
    ("device", "policy"),
    [("cpu", "torch-cpu"), ("cuda", "torch-cuda"), ("xpu", "xpu"), ("hpu", "hpu-autocast")],
)
def test_default_policies(device: str, policy: str) -> None:
    """D28, D32. A region for a device that the build lacks is on, silently; for CUDA with fake tensors alone."""
    with FakeTensorMode(), hmp.autocast(device):
        assert torch.is_autocast_enabled(device)
        assert _core.autocast_policy(device) == hmp.Policy.load(policy)._core
        assert torch.get_autocast_dtype(device) == hmp.Policy.load(policy).low_dtype


def test_hpu_without_one_acts_on_the_tensors_own_device() -> None:
    """D28"""
    with hmp.autocast("hpu"):
        assert torch.mul(mat(), mat()).dtype == BF16
        assert torch.exp(mat(BF16)).dtype == FP32


def test_a_region_for_another_device_leaves_the_cpu_alone() -> None:
    with hmp.autocast("xpu"):
        assert results() == PLAIN


@pytest.mark.skipif(torch.cuda.is_available(), reason="there it is on")
def test_without_cuda_a_region_for_it_warns_as_torch_does_and_is_off() -> None:
    """D28"""
    for region in (torch.autocast, hmp.autocast):
        with pytest.warns(UserWarning, match="CUDA is not available.* Disabling autocast") as caught:
            made = region("cuda")
        assert [warning.filename for warning in caught] == [__file__]
        with made:
            assert not torch.is_autocast_enabled("cuda")
            assert results() == PLAIN
    assert 'For tensors on the CPU, use hmp.autocast("cpu")' in str(caught[0].message)
    hmp.autocast("cuda", enabled=False)


@pytest.mark.parametrize("dtype", [FP32, FP64, torch.int8])
def test_other_dtypes_are_refused(dtype: torch.dtype) -> None:
    """F36"""
    with pytest.warns(UserWarning, match=r"Disabling autocast[\s\S]*to run all ops as they are, enabled=False"):
        region = hmp.autocast("cpu", dtype)
    with region:
        assert results() == PLAIN


def test_hpu_refuses_float16() -> None:
    """D29, F92"""
    with pytest.warns(UserWarning, match=r"only supports [\s\S]*Pass dtype=torch\.bfloat16, or a policy for torch"):
        region = hmp.autocast("hpu", FP16)
    with region:
        assert results() == PLAIN


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"dtype": "fp8"}, r"dtype must be torch.bfloat16 .* \(bfloat16, bf16, float16 or fp16\), not 'fp8'"),
        ({"dtype": A}, "To pass a policy, use policy="),
        ({"dtype": 16}, "not 16"),
        ({"enabled": "no"}, "^enabled must be True or False, not 'no'$"),
        ({"enabled": None}, "^enabled must be True or False, not None$"),
        ({"cache_enabled": 0}, "^cache_enabled must be True, False or None .*, not 0$"),
    ],
    ids=str,
)
def test_wrong_types_are_refused(given, message: str) -> None:
    with pytest.raises(TypeError, match=message):
        hmp.autocast("cpu", **given)


@pytest.mark.parametrize(
    "how", [copy.deepcopy, lambda value: pickle.loads(pickle.dumps(value))], ids=["copy", "pickle"]
)
def test_a_region_is_copied_with_what_holds_it(how) -> None:
    module = torch.nn.Linear(4, 4)
    module.region = hmp.autocast("cpu", torch.float16, policy=A)
    with how(module).region:
        assert torch.mm(mat(), mat()).dtype == FP16
    with pytest.raises(TypeError, match="belongs to this process"):
        how(hmp.autocast.current())


def test_an_op_of_the_error_list_says_so() -> None:
    """D31"""
    with (
        hmp.autocast("cpu", policy=A.with_edits("+exp:error")),
        pytest.raises(RuntimeError, match=r"\(a\+edits\) lists exp"),
    ):
        torch.exp(mat())


@pytest.mark.parametrize("device", ["mps", "ipu", "maia", "toaster"])
def test_other_devices_are_refused(device: str) -> None:
    with pytest.raises(RuntimeError, match=f"unsupported autocast device_type '{device}'"):
        hmp.autocast(device)


@pytest.mark.parametrize(("device", "near"), [("gpu", "cuda"), ("CUDA:0", "cuda"), ("cdua", "cuda"), ("gaudi", "hpu")])
def test_other_devices_are_refused_with_the_nearest(device: str, near: str) -> None:
    with pytest.raises(RuntimeError, match=f"Did you mean '{near}'"):
        hmp.autocast(device)


def test_a_device_that_is_no_string_is_refused() -> None:
    """F34"""
    with pytest.raises(ValueError, match="Expected `device_type` of type `str`"):
        hmp.autocast(torch.device("cpu"))


def test_a_policy_that_is_none_is_refused() -> None:
    with pytest.raises(ValueError, match="policy must be a Policy"):
        hmp.autocast("cpu", policy=3)


@pytest.mark.parametrize("device", ["cuda", "xpu"])
def test_binary_cross_entropy_raises(device: str) -> None:
    """D31, F184 to F186, F190"""
    x = torch.rand(4)
    with hmp.autocast("cpu", FP16, policy=f"torch-{device}"):
        with pytest.raises(RuntimeError, match="BCELoss are unsafe to autocast"):
            F.binary_cross_entropy(x, x)
        with hmp.disable_casts():
            F.binary_cross_entropy(x, x)


def test_the_dtype_of_the_region_wins_over_the_policy() -> None:
    with hmp.autocast("cpu", FP16, policy=A):
        assert torch.mm(mat(), mat()).dtype == FP16


def test_policies_come_from_files(tmp_path: Path) -> None:
    (tmp_path / "lower.txt").write_text("add\n")
    (tmp_path / "fp32.txt").write_text("mm\n")
    policy = hmp.Policy.from_files(lower=tmp_path / "lower.txt", fp32=tmp_path / "fp32.txt", base="torch-cpu")
    with hmp.autocast("cpu", policy=policy):
        assert torch.add(mat(), mat()).dtype == BF16
        assert torch.mm(mat(BF16), mat()).dtype == FP32


@pytest.mark.parametrize(
    ("edits", "expected"),
    [
        pytest.param(["+layer_norm:lower"], ("lower", "rest", "lower"), id="moves"),
        pytest.param(["-mm"], ("fp32", "rest", "rest"), id="removes"),
        pytest.param(["+add:promote", "-layer_norm"], ("rest", "promote", "lower"), id="several"),
    ],
)
def test_edits(edits: list[str], expected: tuple[str, ...]) -> None:
    base = hmp.Policy.load("torch-cuda")
    policy = base.with_edits(*edits)
    ops = ("layer_norm", "add", "mm")
    assert tuple(policy.rule(op).action for op in ops) == expected
    assert tuple(base.rule(op).action for op in ops) == ("fp32", "rest", "lower")


@pytest.mark.parametrize("edit", ["mm", "+mm", "+mm:half", "-mm:lower", "+m m:lower", ""])
def test_edits_that_are_none(edit: str) -> None:
    with pytest.raises(ValueError, match="is not an edit of a policy"):
        hmp.Policy.load("torch-cpu").with_edits(edit)


# Beside convert


def test_the_same_bits_as_convert() -> None:
    torch.manual_seed(0)
    model = torch.nn.TransformerEncoder(torch.nn.TransformerEncoderLayer(16, 2, 32, batch_first=True), 2)
    model.eval()
    x = torch.randn(3, 5, 16)
    policy = hmp.Policy.load("hpu-autocast")
    # What the dispatcher alone sees of the Python ops that attention is made of.
    with hmp.autocast("cpu", policy=policy):
        ours = model(x)
    hmp.convert(policy=policy)
    theirs = model(x)
    hmp.revert()
    assert ours.dtype == theirs.dtype
    assert torch.equal(ours, theirs)


def test_inside_convert() -> None:
    """Each casts by its own policy; convert comes first, it acts on Python names."""
    hmp.convert(policy=B)
    with hmp.autocast("cpu", policy=A):
        assert torch.mm(mat(), mat()).dtype == BF16
        assert torch.add(mat(), mat()).dtype == BF16
    assert results() == UNDER_B
