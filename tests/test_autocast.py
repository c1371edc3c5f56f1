"""hmp.autocast: what a region does, for whom, and what it leaves alone (F19 to F36, F82 to F95, D28 to D33)."""

from __future__ import annotations

import copy
import pickle
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from habana_mp import _core, hmp

BF16, FP16, FP32, FP64 = torch.bfloat16, torch.float16, torch.float32, torch.float64


@pytest.fixture(autouse=True)
def _leaves_autocast_as_it_was():
    yield
    assert not torch._C._is_any_autocast_enabled()
    assert torch.is_autocast_cache_enabled()
    assert torch.autocast_increment_nesting() == 1
    torch.autocast_decrement_nesting()


def mat(dtype: torch.dtype = FP32, n: int = 4) -> torch.Tensor:
    return torch.ones(n, n, dtype=dtype)


A = hmp.Policy.from_ops(lower=["mm", "add"], fp32=["softmax"], promote=["cat"], name="a")
B = hmp.Policy.from_ops(lower=["softmax"], fp32=["mm"], name="b")


def results() -> tuple[torch.dtype, ...]:
    """What mm, add and softmax give here: bfloat16, bfloat16, float32 under A; float32, float32, bfloat16 under B."""
    return (mat() @ mat()).dtype, torch.add(mat(), mat()).dtype, torch.softmax(mat(), 0).dtype


PLAIN, TORCH, UNDER_A, UNDER_B = (FP32, FP32, FP32), (BF16, FP32, FP32), (BF16, BF16, FP32), (FP32, FP32, BF16)


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
    with pytest.warns(UserWarning, match="'lienar' is no op of torch .*'linear'"):
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
    """D28, D32. A region for a device that the build lacks is on, silently."""
    with hmp.autocast(device):
        assert torch.is_autocast_enabled(device)
        assert _core.autocast_policy(device) == hmp.Policy.load(policy)._core
        assert torch.get_autocast_dtype(device) == hmp.Policy.load(policy).low_dtype


def test_hpu_without_one_acts_on_the_tensors_own_device() -> None:
    """D28"""
    with hmp.autocast("hpu"):
        assert torch.mul(mat(), mat()).dtype == BF16
        assert torch.exp(mat(BF16)).dtype == FP32


def test_a_region_for_another_device_leaves_the_cpu_alone() -> None:
    with hmp.autocast("cuda"):
        assert results() == PLAIN


@pytest.mark.parametrize("dtype", [FP32, FP64, torch.int8])
def test_other_dtypes_are_refused(dtype: torch.dtype) -> None:
    """F36"""
    with pytest.warns(UserWarning, match="Disabling autocast"):
        region = hmp.autocast("cpu", dtype)
    with region:
        assert results() == PLAIN


def test_hpu_refuses_float16() -> None:
    """D29, F92"""
    with pytest.warns(UserWarning, match=r"only supports dtypes of torch\.bfloat16 currently"):
        region = hmp.autocast("hpu", FP16)
    with region:
        assert results() == PLAIN


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"dtype": "bfloat16"}, "dtype is torch.bfloat16 or torch.float16, not 'bfloat16'"),
        ({"dtype": A}, "a policy is given as policy="),
        ({"dtype": 16}, "not 16"),
        ({"enabled": "no"}, "enabled and cache_enabled are True or False, not 'no' and None"),
        ({"enabled": []}, "True or False"),
        ({"cache_enabled": 0}, "not True and 0"),
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


def test_a_device_that_is_no_string_is_refused() -> None:
    """F34"""
    with pytest.raises(ValueError, match="Expected `device_type` of type `str`"):
        hmp.autocast(torch.device("cpu"))


def test_a_policy_that_is_none_is_refused() -> None:
    with pytest.raises(ValueError, match="policy is a Policy"):
        hmp.autocast("cpu", policy=3)


@pytest.mark.parametrize("device", ["cuda", "xpu"])
def test_binary_cross_entropy_raises(device: str) -> None:
    """D31, F184 to F190"""
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
    with pytest.raises(ValueError, match="is no edit of a policy"):
        hmp.Policy.load("torch-cpu").with_edits(edit)


# Scope


def test_nesting_and_leaving() -> None:
    with hmp.autocast("cpu", policy=A):
        assert results() == UNDER_A
        with hmp.autocast("cpu", policy=B):
            assert results() == UNDER_B
            with hmp.autocast("cpu", enabled=False):
                assert results() == PLAIN
            assert results() == UNDER_B
        assert results() == UNDER_A
    assert results() == PLAIN


def test_regions_for_two_devices_do_not_disturb_one_another() -> None:
    with hmp.autocast("cpu", policy=A), hmp.autocast("cuda", policy=B), hmp.autocast("cuda", enabled=False):
        assert results() == UNDER_A


def test_inside_torch_autocast_ours_rules() -> None:
    with torch.autocast("cpu", BF16):
        assert results() == TORCH
        with hmp.autocast("cpu", policy=B):
            assert results() == UNDER_B
        assert results() == TORCH


@pytest.mark.parametrize(
    ("region", "expected"),
    [
        pytest.param(lambda: torch.autocast("cpu", BF16), TORCH, id="on"),
        pytest.param(lambda: torch.autocast("cpu", FP16), (FP16, FP32, FP32), id="another-dtype"),
        pytest.param(lambda: torch.autocast("cpu", enabled=False), PLAIN, id="off"),
        pytest.param(lambda: torch.autocast("xpu", BF16), UNDER_A, id="another-device"),
    ],
)
def test_torch_autocast_inside_ours_rules(region, expected) -> None:
    """Design fact 9: the inner one rules."""
    with hmp.autocast("cpu", policy=A):
        with region():
            assert results() == expected
            with hmp.autocast("cpu", policy=B):
                assert results() == UNDER_B
            assert results() == expected
        assert results() == UNDER_A


def test_torch_autocast_for_hpu_switches_ours_for_hpu_off() -> None:
    """D28: without an HPU both are for the tensors' own device. Scripts for Gaudi keep parts in float32 so."""
    with hmp.autocast("hpu"):
        with torch.autocast("hpu", enabled=False):
            assert results() == PLAIN
        with torch.autocast("xpu", enabled=False):
            assert (mat() @ mat()).dtype == BF16
        assert (mat() @ mat()).dtype == BF16
    with hmp.autocast("cpu", policy=A), torch.autocast("hpu", BF16):
        assert results() == UNDER_A


def test_one_instance_in_itself() -> None:
    """D33, where torch.autocast leaves autocast on."""
    region = hmp.autocast("cpu", policy=A)
    with region:
        with region, region:
            assert results() == UNDER_A
        assert results() == UNDER_A
    assert results() == PLAIN


def test_a_recursive_function() -> None:
    """D33"""

    @hmp.autocast("cpu", policy=A)
    def deep(n: int) -> list:
        return [results(), *(deep(n - 1) if n else []), results()]

    assert deep(3) == [UNDER_A] * 8
    assert results() == PLAIN


def test_a_generator_is_inside_while_it_runs() -> None:
    @hmp.autocast("cpu", policy=A)
    def two():
        yield results()
        yield results()

    found = []
    for inside in two():
        found += [inside, results()]
    assert found == [UNDER_A, PLAIN] * 2


def test_exceptions_leave_it() -> None:
    region = hmp.autocast("cpu", policy=A)
    with pytest.raises(RuntimeError, match="cannot be multiplied"), region:
        torch.mm(mat(), mat(n=3))
    assert results() == PLAIN
    with region:
        with pytest.raises(RuntimeError, match="cannot be multiplied"):
            torch.mm(mat(), mat(n=3))
        assert results() == UNDER_A


def in_and_out(policy: hmp.Policy):
    with hmp.autocast("cpu", policy=policy):
        yield results()
    yield results()


def test_a_generator_that_disable_casts_was_round_when_it_began() -> None:
    running = in_and_out(A)
    with hmp.disable_casts():
        assert next(running) == PLAIN
    next(running)
    with hmp.autocast("cpu", policy=A):
        assert results() == UNDER_A


def test_a_generator_that_goes_on_after_the_region_round_it() -> None:
    running = in_and_out(B)
    with hmp.autocast("cpu", policy=A):
        assert next(running) == UNDER_B
    assert results() == PLAIN
    assert next(running) == PLAIN


def test_what_is_off_is_not_refused() -> None:
    """No warning (they are errors here), as torch."""
    with hmp.autocast("cpu", FP32, enabled=False):
        assert results() == PLAIN


def test_leaving_what_was_not_entered() -> None:
    with pytest.raises(RuntimeError, match="left more often than entered"):
        hmp.autocast("cpu").__exit__(None, None, None)


def in_thread(function):
    found = []
    thread = threading.Thread(target=lambda: found.append(function()))
    thread.start()
    thread.join()
    return found[0]


def test_a_new_thread_starts_off() -> None:
    """F142"""
    with hmp.autocast("cpu", policy=A):
        assert in_thread(results) == PLAIN
        assert results() == UNDER_A


def test_plain_torch_autocast_in_another_thread() -> None:
    def theirs():
        with torch.autocast("cpu", BF16):
            return results()

    with hmp.autocast("cpu", policy=A):
        assert in_thread(theirs) == TORCH
    assert theirs() == TORCH


def test_current_hands_the_state_on() -> None:
    with hmp.autocast("cpu", policy=A), hmp.autocast("xpu", policy=B):
        state = hmp.autocast.current()

    def work():
        with state:
            inside = results(), torch.is_autocast_enabled("xpu"), torch.is_autocast_enabled("cuda")
        return inside, results()

    assert in_thread(work) == ((UNDER_A, True, False), PLAIN)
    with state:
        assert results() == UNDER_A


@pytest.mark.parametrize(
    ("outer", "expected"),
    [
        pytest.param(lambda: torch.autocast("cpu", BF16), TORCH, id="torch"),
        pytest.param(lambda: hmp.autocast("cpu", enabled=False), PLAIN, id="off"),
        pytest.param(hmp.disable_casts, PLAIN, id="disable_casts"),
    ],
)
def test_current_inside_others(outer, expected) -> None:
    with hmp.autocast("cpu", policy=A), outer():
        state = hmp.autocast.current()

    def work():
        with state:
            return results()

    assert in_thread(work) == expected


def test_many_threads_at_once() -> None:
    failed = []

    def work(policy, expected):
        for _ in range(50):
            with hmp.autocast("cpu", policy=policy):
                if results() != expected:
                    failed.append(results())
            if results() != PLAIN:
                failed.append(results())

    threads = [
        threading.Thread(target=work, args=(policy, expected)) for policy, expected in [(A, UNDER_A), (B, UNDER_B)] * 2
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed


def test_disable_casts_inside() -> None:
    """D27"""
    with hmp.autocast("cpu", policy=A):
        with hmp.disable_casts():
            assert results() == PLAIN
        assert results() == UNDER_A
    with hmp.disable_casts(), hmp.autocast("cpu", policy=A):
        assert results() == PLAIN


# Training


@pytest.mark.parametrize("inside", [True, False], ids=["backward-inside", "backward-outside"])
def test_backward_runs_in_the_dtypes_of_forward(inside: bool) -> None:
    """F143: the region round backward changes nothing. mul is lower in hpu-autocast, and exp float32."""
    region = hmp.autocast("cpu", policy="hpu-autocast")
    x = torch.randn(4, 4, requires_grad=True)
    seen = []
    with region:
        y = torch.exp(x) @ x
        y.register_hook(lambda grad: seen.append((grad * grad.float()).dtype))
        loss = y.float().sum()
        if inside:
            loss.backward()
    if not inside:
        loss.backward()
    assert x.grad.dtype == FP32
    assert seen == [FP32]
    x2 = x.detach().clone().requires_grad_()
    e = torch.exp(x2)
    (e.bfloat16() @ x2.bfloat16()).float().sum().backward()
    assert torch.equal(x.grad, x2.grad)


@pytest.mark.parametrize("outer", ["region", "none"])
def test_torch_autocast_inside_backward(outer: str) -> None:
    """Functions of others that say torch.amp.custom_fwd, hooks and recomputation that enter torch.autocast."""
    seen = []

    class Theirs(torch.autograd.Function):
        @staticmethod
        @torch.amp.custom_fwd(device_type="cpu")
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        @torch.amp.custom_bwd(device_type="cpu")
        def backward(ctx, grad):
            seen.append((mat() @ mat()).dtype)
            return grad

    def hook(_):
        seen.append((mat() @ mat()).dtype)
        with torch.autocast("cpu", FP16):
            seen.append((mat() @ mat()).dtype)
        with hmp.autocast("cuda"), hmp.autocast.current():
            seen.append((mat() @ mat()).dtype)

    x = mat().requires_grad_()
    x.register_hook(hook)
    with hmp.autocast("cpu"):
        y = Theirs.apply(x)
        if outer == "region":
            y.sum().backward()
    if outer == "none":
        y.sum().backward()
    assert seen == [BF16, FP32, FP16, FP32]


def test_training_float16_with_a_scaler() -> None:
    """F153, F162"""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    scaler = hmp.GradScaler("cpu", init_scale=2.0**10)
    x = torch.randn(32, 8)
    target = x.sum(1, keepdim=True)
    losses = []
    for _ in range(30):
        optimizer.zero_grad()
        with hmp.autocast("cpu", FP16):
            out = model(x)
            assert out.dtype == FP16
            loss = F.mse_loss(out, target)
        assert loss.dtype == FP32
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        losses.append(loss.item())
    assert losses[-1] < losses[0] / 4
    assert scaler.get_scale() == 2.0**10


@pytest.mark.parametrize("cast_inputs", [None, FP32], ids=str)
def test_custom_functions_keep_the_policy(cast_inputs) -> None:
    """F149 to F151"""
    seen = []

    class Own(torch.autograd.Function):
        @staticmethod
        @hmp.custom_fwd(device_type="cpu", cast_inputs=cast_inputs)
        def forward(ctx, x):
            seen.append((x.dtype, results()))
            return x.clone()

        @staticmethod
        @hmp.custom_bwd(device_type="cpu")
        def backward(ctx, grad):
            seen.append(results())
            return grad

    x = mat(BF16).requires_grad_()
    with hmp.autocast("cpu", policy=A):
        y = Own.apply(x)
    y.sum().backward()
    expected = UNDER_A if cast_inputs is None else PLAIN
    assert seen == [(cast_inputs or BF16, expected), expected]


@pytest.mark.parametrize("cast_inputs", [None, FP32], ids=str)
def test_custom_functions_for_hpu_without_one(cast_inputs) -> None:
    """D28: each call is for its tensors' own device."""
    seen = []

    class Own(torch.autograd.Function):
        @staticmethod
        @hmp.custom_fwd(device_type="hpu", cast_inputs=cast_inputs)
        def forward(ctx, x):
            seen.append((x.dtype, (mat() @ mat()).dtype))
            return x.clone()

        @staticmethod
        @hmp.custom_bwd(device_type="hpu")
        def backward(ctx, grad):
            seen.append((mat() @ mat()).dtype)
            return grad

    with hmp.autocast("hpu"):
        y = Own.apply(mat(BF16).requires_grad_())
    y.sum().backward()
    expected = BF16 if cast_inputs is None else FP32
    assert seen == [(expected, expected), expected]


@pytest.mark.parametrize("reentrant", [True, False], ids=["reentrant", "not-reentrant"])
@pytest.mark.parametrize("converted", [True, False], ids=["converted", "alone"])
def test_checkpoints_recompute_under_their_policy(reentrant: bool, converted: bool) -> None:
    seen = []

    def block(x: torch.Tensor) -> torch.Tensor:
        seen.append(results())
        return torch.mm(x, x)

    x = mat().requires_grad_()
    with hmp.autocast("cpu", policy=B):
        pass  # the first region prepares
    if converted:
        hmp.convert(policy=hmp.Policy.from_ops(lower=["dot"]))
    with hmp.autocast("cpu", policy=A):
        y = torch.utils.checkpoint.checkpoint(block, x, use_reentrant=reentrant)
    with hmp.autocast("cpu", policy=B):
        y.float().sum().backward()
    assert seen == [UNDER_A, UNDER_A]
    assert results() == PLAIN


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


# What is told


def logged(capsys, level: str, monkeypatch, function) -> list[str]:
    monkeypatch.setenv("HABANA_MP_LOG", level)
    try:
        function()
    finally:
        _core.close_log()
    return capsys.readouterr().out.splitlines()


def test_log(capsys, monkeypatch) -> None:
    def run() -> None:
        with hmp.autocast("cpu", policy=A):
            torch.mm(mat(), mat())
            torch.softmax(mat(), 0)
            torch.cat([mat(BF16), mat()])
            torch.mul(mat(), mat())
            with hmp.disable_casts():
                torch.mm(mat(), mat())

    assert logged(capsys, "casts", monkeypatch, run) == [
        "casting  <OpOverload(op='aten.mm', overload='default')> to_bf16",
        "casting  <OpOverload(op='aten.softmax', overload='int')> to_fp32",
        "casting  <OpOverload(op='aten.cat', overload='default')>  to  to_fp32",
    ]


def test_log_in_detail(capsys, monkeypatch) -> None:
    """D26"""

    def run() -> None:
        with hmp.autocast("cpu"):
            torch.nn.Sequential(torch.nn.Linear(4, 4))(mat())
            torch.cat([mat(BF16), mat()])

    lines = logged(capsys, "detail", monkeypatch, run)
    assert lines[0] == "casting  <OpOverload(op='aten.linear', overload='default')> to_bf16"
    assert lines[1].startswith(
        "    input: float32 -> bfloat16, weight: float32 -> bfloat16, bias: float32 -> bfloat16 | lower: linear, "
    )
    assert "lists/torch-cpu/lower.txt:" in lines[1]
    assert " | Sequential: 0 | " in lines[1]
    assert lines[1].partition("test_autocast.py:")[1]
    assert "tensors[0]: bfloat16 -> float32 | promote: cat, " in lines[3]


def test_the_log_names_ops_as_python_does() -> None:
    assert repr(torch.ops.aten.softmax.int) == "<OpOverload(op='aten.softmax', overload='int')>"


# What a process finds


def run_python(code: str, **environment: str) -> str:
    import os

    done = subprocess.run(
        [sys.executable, "-W", "always", "-c", code],
        capture_output=True,
        text=True,
        env={**os.environ, **environment},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


def test_registration_is_silent_and_leaves_the_warning_to_others() -> None:
    out = run_python(
        """
import torch
from habana_mp import hmp
with hmp.autocast("cpu"):
    torch.mm(torch.ones(2, 2), torch.ones(2, 2))
print("ours")
library = torch.library.Library("aten", "IMPL")
library.impl("mm", lambda *args: None, "AutocastCPU", allow_override=True)
"""
    )
    ours, _, others = out.partition("ours")
    assert ours == ""
    assert "Overriding a previously registered kernel" in others


@pytest.mark.parametrize("policy", ["torch-cpu", "hmp", "hpu-autocast", "xpu"])
def test_the_fused_encoder_of_inference_is_not_taken(policy: str) -> None:
    """A policy meets the ops that the encoder is made of, as without no_grad."""
    torch.manual_seed(0)
    layer = torch.nn.TransformerEncoderLayer(16, 2, 32, batch_first=True, dropout=0.0)
    model = torch.nn.TransformerEncoder(layer, 2).eval()
    x = torch.randn(2, 4, 16)
    with hmp.autocast("cpu", policy=policy):
        expected = model(x)
        with torch.no_grad():
            assert torch.equal(model(x), expected)
    with torch.no_grad(), torch.autocast("cpu"):
        model(x)  # torch's own way
    assert torch.backends.mha.get_fastpath_enabled()


LISTS = """
import torch
from habana_mp import hmp
one = torch.ones(2, 2)
with hmp.autocast("hpu"):
    print(torch.add(one, one).dtype, torch.mm(one, one).dtype, torch.matmul(one.bfloat16(), one).dtype, torch.div(one.bfloat16(), one).dtype)
"""


@pytest.mark.parametrize(
    ("lower", "fp32"),
    [
        ("LOWER_LIST", "FP32_LIST"),
        ("PT_HPU_AUTOCAST_LOWER_PRECISION_OPS_LIST", "PT_HPU_AUTOCAST_FP32_OPS_LIST"),
    ],
)
def test_lists_of_the_environment(lower: str, fp32: str, tmp_path: Path) -> None:
    """D30, F118 to F122, F256; F51: div, which the fp32 list omits, promotes"""
    (tmp_path / "lower.txt").write_text("add\nmm\n")
    (tmp_path / "fp32.txt").write_text("matmul\n")
    out = run_python(LISTS, **{lower: str(tmp_path / "lower.txt"), fp32: str(tmp_path / "fp32.txt")})
    assert out.split() == ["torch.bfloat16", "torch.bfloat16", "torch.float32", "torch.float32"]


def test_lists_of_the_environment_are_the_presets(tmp_path: Path) -> None:
    """D30: wherever its name is given."""
    (tmp_path / "lower.txt").write_text("add\n")
    program = """
import torch
from habana_mp import hmp
print(hmp.Policy.load("hpu-autocast").lists["lower"], hmp.explain("add", policy="hpu-autocast").rule.action)
model = torch.nn.Linear(4, 4)
with hmp.set_policies(model, {"": "hpu-autocast"}), hmp.autocast("cpu"):
    print(model(torch.ones(4, 4)).dtype)
print(hmp.convert(policy="hpu-autocast").rule("add").action)
"""
    out = run_python(program, LOWER_LIST=str(tmp_path / "lower.txt"))
    assert out.splitlines() == ["('add',) lower", "torch.float32", "lower"]


def test_a_list_of_the_environment_that_is_missing(tmp_path: Path) -> None:
    """D30"""
    out = run_python(LISTS, LOWER_LIST=str(tmp_path / "none.txt"))
    assert "LOWER_LIST=" in out
    assert "is not used, the default list of hpu-autocast stays" in out
    assert out.split()[:4] == ["torch.float32", "torch.bfloat16", "torch.bfloat16", "torch.float32"]


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


@pytest.mark.unsanitized(reason="the sanitizer keeps freed memory back")
def test_policies_are_freed() -> None:
    """100 policies loaded, entered and dropped: memory is back to where it was."""

    def rounds(first: int, last: int) -> None:
        for i in range(first, last):
            policy = hmp.Policy.from_ops(lower=["mm"], promote=["cat"], fp32=["exp"][: i % 2], name=f"p{i}")
            policy = policy.with_edits(f"+{['log', 'sin', 'cos', 'tan'][i % 4]}:fp32")
            with hmp.autocast("cpu", policy=policy):
                torch.mm(mat(), mat())

    rounds(0, 100)
    before = resident_bytes()
    rounds(100, 200)
    assert resident_bytes() - before < 2**19  # kept, they would take more than twice that
