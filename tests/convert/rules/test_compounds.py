"""Ops that are made of others in C++ run their insides by the lists, under both front ends (D40, D41)."""

from __future__ import annotations

import contextlib

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from habana_mp import hmp

F32, BF16 = torch.float32, torch.bfloat16


def mat(dtype=F32, *shape):
    torch.manual_seed(0)
    return torch.randn(shape or (4, 4)).to(dtype)


CALLS = {
    "einsum, two operands": lambda a, b: torch.einsum("ij,jk->ik", a, b),
    "einsum, three operands": lambda a, b: torch.einsum("ij,jk,kl->il", a, b, b),
    "einsum, a batch": lambda a, b: torch.einsum("bij,bjk->bik", a.expand(2, 4, 4), b.expand(2, 4, 4)),
    "einsum, one operand": lambda a, _: torch.einsum("ij->j", a),
    "inner": lambda a, b: torch.inner(a, b),  # noqa: PLW0108 - looked up when it is called
    "tensordot": lambda a, b: torch.tensordot(a, b, 1),
    "multi_dot": lambda a, b: torch.linalg.multi_dot([a, b, a]),
    "chain_matmul": lambda a, b: torch.linalg.multi_dot([a, b]),
    "matrix_power": lambda a, _: torch.linalg.matrix_power(a, 3),
    "Tensor.matrix_power": lambda a, _: a.matrix_power(2),
    "vecdot": lambda a, b: torch.linalg.vecdot(a, b),  # noqa: PLW0108
    "cov": lambda a, _: torch.cov(a),
    "bilinear": lambda a, b: torch.nn.functional.bilinear(a, b, mat(F32, 3, 4, 4)),
}
DTYPES = {
    "float32": (F32, F32),
    "bfloat16": (BF16, BF16),
    "first bfloat16": (BF16, F32),
    "second bfloat16": (F32, BF16),
}


INPUTS = {
    dtypes: (mat(dtypes[0]), (mat() + 1).to(dtypes[1])) for dtypes in DTYPES.values()
}  # made where nothing is cast


PRODUCTS = ("einsum, two operands", "einsum, a batch", "tensordot", "inner", "multi_dot", "chain_matmul")


def outcome(region, call, dtypes):
    """The result, or what was raised."""
    a, b = INPUTS[dtypes]
    try:
        with region:
            return call(a, b)
    except RuntimeError as error:
        return str(error).partition("\n")[0]


def same(a, b):
    return a == b if isinstance(a, str) or isinstance(b, str) else a.dtype == b.dtype and torch.equal(a, b)


@pytest.mark.parametrize("dtypes", DTYPES.values(), ids=DTYPES)
@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_convert_does_what_torch_autocast_does(call, dtypes):
    """The preset torch-cpu, bit for bit; what torch refuses for its mixed dtypes may run."""
    theirs = outcome(torch.autocast("cpu", BF16), call, dtypes)
    hmp.convert(policy="torch-cpu")
    ours = outcome(contextlib.nullcontext(), call, dtypes)
    assert same(ours, theirs) or (isinstance(theirs, str) and not isinstance(ours, str))


@pytest.mark.parametrize("policy", ["hmp", "hmp-o1", "hmp-o2", "hpu-autocast", "torch-cpu", "xpu"])
@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_the_front_ends_give_the_same_numbers(call, policy):
    region = hmp.autocast("cpu", BF16, policy=policy)
    dispatched = {name: outcome(region, call, dtypes) for name, dtypes in DTYPES.items()}
    hmp.convert(policy=policy)
    converted = {name: outcome(contextlib.nullcontext(), call, dtypes) for name, dtypes in DTYPES.items()}
    assert [name for name in DTYPES if not same(converted[name], dispatched[name])] == []


@pytest.mark.parametrize("policy", ["hmp", "hpu-autocast", "torch-cpu", "xpu"])
def test_mixed_dtypes_do_not_raise_in_products(policy):
    """Funnel, Pegasus-X and ProphetNet multiply an activation with a float32 table by einsum."""
    with hmp.autocast("cpu", policy=policy):
        dispatched = {name: CALLS[name](mat(BF16), mat()).dtype for name in PRODUCTS}
    hmp.convert(policy=policy)
    assert {name: CALLS[name](mat(BF16), mat()).dtype for name in PRODUCTS} == dispatched
    wide = {"tensordot", "inner"} if policy == "xpu" else set()  # its promote list has tensordot, which inner calls
    assert {name for name, dtype in dispatched.items() if dtype is F32} == wide


@pytest.mark.parametrize("policy", ["hmp", "hpu-autocast"])
def test_only_products_run_lower_inside(policy):
    """mul is in the lower list of both: kron, quantile and stft are made of it, and keep their precision."""
    x = mat(F32, 64)
    calls = {
        "outer": lambda: torch.outer(x, x),
        "kron": lambda: torch.kron(x, x),
        "quantile": lambda: torch.quantile(x, 0.3),
        "stft": lambda: torch.stft(x, 16, window=torch.ones(16), return_complex=True).abs(),
        "matrix_exp": lambda: torch.matrix_exp(mat(F32, 3, 4, 4)),
    }
    expected = {name: call() for name, call in calls.items()}
    hmp.convert(policy=policy)
    converted = {name: call() for name, call in calls.items()}
    hmp.revert()
    with hmp.autocast("cpu", policy=policy):
        dispatched = {name: call() for name, call in calls.items()}
    for name, plain in expected.items():
        assert converted[name].dtype is dispatched[name].dtype is F32, name
        assert torch.allclose(converted[name], plain), name
        assert torch.allclose(dispatched[name], plain), name


def test_fp32_rules_hold_inside():
    """hpu-autocast runs pow in float32, and square is made of it."""
    hmp.convert(policy="hpu-autocast")
    assert torch.square(mat(BF16)).dtype is F32


def test_a_region_decides_inside_its_block():
    """Under convert and torch.autocast together the region decides what an unlisted compound is made of."""
    hmp.convert(policy=hmp.Policy.from_ops(fp32=["bmm"]))
    call = CALLS["einsum, two operands"]
    assert call(mat(BF16), mat(BF16)).dtype is F32
    with torch.autocast("cpu", BF16):
        assert call(mat(), mat()).dtype is BF16


def test_disable_casts_holds_inside():
    hmp.convert(policy="torch-cpu")
    with hmp.disable_casts():
        assert CALLS["einsum, two operands"](mat(), mat()).dtype is F32


def test_the_report_counts_the_insides_under_convert():
    hmp.convert(policy="torch-cpu")
    with hmp.report() as report:
        CALLS["einsum, two operands"](mat(), mat())
    assert report.casts(op="bmm", to=BF16) == 2
    assert report.casts() == 2


def test_nothing_stays_on_after_an_error_inside():
    hmp.convert(policy="torch-cpu")
    with pytest.raises(RuntimeError, match="einsum"):
        torch.einsum("ij,jk->ik", mat(), mat(F32, 3, 3))
    assert not torch.is_autocast_enabled("cpu")
    assert (mat() * mat()).dtype is F32
    hmp.revert()
    assert CALLS["einsum, two operands"](mat(), mat()).dtype is F32


@pytest.mark.parametrize("name", ["einsum, two operands", "tensordot", "multi_dot", "matrix_power", "vecdot"])
def test_compiled_code_runs_the_insides_alike(name):
    """D41 in a full graph; a policy that does not lower products gives another graph."""
    call = CALLS[name]
    hmp.convert(policy="torch-cpu")
    eager = call(mat(), mat() + 1)
    compiled = torch.compile(call, fullgraph=True, backend="aot_eager")
    assert same(compiled(mat(), mat() + 1), eager)
    hmp.convert(policy=hmp.Policy.from_ops(fp32=["softmax"]))
    assert compiled(mat(), mat() + 1).dtype is F32
    hmp.revert()
    assert compiled(mat(), mat() + 1).dtype is F32


@pytest.mark.parametrize("kernel", [SDPBackend.MATH, SDPBackend.FLASH_ATTENTION], ids=lambda each: each.name)
@pytest.mark.parametrize("front_end", ["convert", "region"])
@pytest.mark.parametrize(
    ("lower", "is_low"),
    [
        (["matmul", "bmm"], False),
        (["scaled_dot_product_attention"], True),
        (["_scaled_dot_product_flash_attention_for_cpu"], True),
    ],
    ids=str,
)
def test_attention_is_one_op_whatever_kernel_torch_takes(lower, is_low, front_end, kernel):
    """One of them calls matmul: a list that names that alone does not mean it."""
    q, k, v = torch.randn(3, 2, 4, 16, 32)
    exact = torch.nn.functional.scaled_dot_product_attention(q, k, v)
    policy = hmp.Policy.from_ops(lower=lower)
    with contextlib.ExitStack() as stack:
        stack.enter_context(sdpa_kernel(kernel))
        if front_end == "region":
            stack.enter_context(hmp.autocast("cpu", policy=policy))
        else:
            hmp.convert(policy=policy)
        found = torch.nn.functional.scaled_dot_product_attention(q, k, v)
    assert found.dtype is (BF16 if is_low else F32)
    torch.testing.assert_close(found.float(), exact, **({"rtol": 0.05, "atol": 0.02} if is_low else {}))
