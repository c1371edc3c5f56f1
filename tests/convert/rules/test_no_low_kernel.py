"""An op that has no kernel for the low dtype on its device runs in float32, and says so (D42)."""

from __future__ import annotations

import contextlib
import io

import pytest
import torch
import torch.nn.functional as F
from drawn_models import converted

from habana_mp import hmp

F32, BF16, F16 = torch.float32, torch.bfloat16, torch.float16
SPD = torch.eye(4) * 2


def image(dtype):
    return torch.ones(1, 1, 4, 4, 4, dtype=dtype)


CALLS = {
    "linalg.inv": lambda d: torch.linalg.inv(SPD.to(d)),
    "linalg.solve": lambda d: torch.linalg.solve(SPD.to(d), SPD.to(d)),
    "linalg.svd": lambda d: torch.linalg.svd(SPD.to(d))[1],
    "linalg.solve_triangular": lambda d: torch.linalg.solve_triangular(SPD.to(d), SPD.to(d), upper=True),
    "Tensor.det": lambda d: SPD.to(d).det(),
    "polar": lambda d: torch.polar(SPD.to(d), SPD.to(d)).real,
    "complex": lambda d: torch.complex(SPD.to(d), SPD.to(d)).real,
    "fft.rfft": lambda d: torch.fft.rfft(SPD.to(d)).real,
    "stft": lambda d: torch.stft(torch.ones(32, dtype=d), 8, window=torch.ones(8, dtype=d), return_complex=True).real,
    "avg_pool3d": lambda d: F.avg_pool3d(image(d), 2),
    "quantile": lambda d: torch.quantile(SPD.to(d), torch.tensor(0.5, dtype=d)),
    "special.erfcx": lambda d: torch.special.erfcx(SPD.to(d)),
    "pdist": lambda d: F.pdist(SPD.to(d)),
    "CSR @": lambda d: SPD.to(d).to_sparse_csr() @ SPD.to(d),
}
POLICIES = ("hmp", "hmp-o2", "hpu-autocast", "torch-cpu", "xpu")


def conversion(policy):
    return converted(policy=policy)


def region(policy):
    return hmp.autocast("cpu", BF16, policy=policy)


FRONT_ENDS = pytest.mark.parametrize("front_end", [conversion, region], ids=["convert", "autocast"])


@FRONT_ENDS
@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support")
# Of torch's own stft, from 2.15 on, before it finds that it has no kernel.
@pytest.mark.filterwarnings("ignore:BComplex32 support is experimental")
@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_it_runs_in_float32(call, policy, front_end):
    plain = call(F32)
    with front_end(policy):
        result = call(BF16)
    assert result.dtype is F32
    assert torch.allclose(result, plain, rtol=1e-2)


@FRONT_ENDS
def test_with_a_gradient(front_end):
    x = SPD.to(BF16).requires_grad_()
    with front_end("torch-cpu"):
        torch.logdet(x).backward()
    assert x.grad.dtype is BF16
    assert torch.equal(x.grad.float(), SPD.inverse())


@FRONT_ENDS
def test_float16_has_its_own(front_end):
    policy = hmp.Policy.load("torch-cpu").with_low_dtype(F16)
    with conversion(policy) if front_end is conversion else hmp.autocast("cpu", F16, policy="torch-cpu"):
        assert torch.linalg.inv(SPD.to(F16)).dtype is F32


@FRONT_ENDS
@pytest.mark.parametrize("low", [BF16, F16], ids=str)
def test_an_lstm_of_onednn(low, front_end):
    """Which kernels oneDNN has depends on the CPU, and its error is of a type of its own: torch.autocast raises it."""
    policy = hmp.Policy.load("torch-cpu").with_low_dtype(low)
    layer, x = torch.nn.LSTM(4, 4), torch.randn(3, 2, 4)
    expected, _ = layer(x)
    with conversion(policy) if front_end is conversion else hmp.autocast("cpu", low, policy="torch-cpu"):
        result, _ = layer(x)
    assert torch.allclose(result.float(), expected, atol=0.02)


@FRONT_ENDS
def test_a_list_that_lowers_it_does_not_help(front_end):
    policy = hmp.Policy.from_ops(lower=["linalg_inv"])
    with front_end(policy), hmp.report() as report:
        assert torch.linalg.inv(SPD).dtype is F32
        assert torch.linalg.inv(SPD.to(BF16)).dtype is F32
    # The first is given float32 and stays in it; the second is cast once.
    assert (report.casts(to=F32), report.casts(to=BF16)) == (1, 0)


@FRONT_ENDS
def test_the_report_says_so(front_end):
    with front_end("torch-cpu"), hmp.report() as report:
        torch.polar(SPD.to(BF16), SPD.to(BF16))
        torch.special.erfcx(SPD.to(BF16))
    assert report.casts() == 3
    assert report.casts(op="special_erfcx", to=F32) == 1
    assert "no kernel" in str(report)
    assert "no bfloat16 kernel" in report.to_html()
    assert any("no bfloat16 kernel" in row.rule for row in report.rows)


@FRONT_ENDS
def test_the_log_says_so(front_end, monkeypatch):
    monkeypatch.setenv("HABANA_MP_LOG", "casts")
    out = io.StringIO()
    with contextlib.redirect_stdout(out), front_end("torch-cpu"):
        torch.special.erfcx(SPD.to(BF16))
        torch.linalg.solve(SPD.to(BF16), SPD)
    lines = out.getvalue().splitlines()
    assert [line.partition(" | ")[2] for line in lines if "to_fp32 | " in line][:1] == ["no bfloat16 kernel"]


def test_explain_says_so():
    hmp.convert(policy="torch-cpu")
    assert "no bfloat16 kernel" in str(hmp.explain("special_erfcx"))
    assert "no bfloat16 kernel" not in str(hmp.explain("relu"))


@FRONT_ENDS
@pytest.mark.parametrize(
    "call",
    [lambda: torch.linalg.inv(torch.ones(2, 3, dtype=BF16)), lambda: torch.linalg.inv(torch.zeros(2, 2, dtype=BF16))],
    ids=["no square matrix", "singular"],
)
def test_an_error_of_the_caller_is_still_raised(call, front_end):
    with front_end("torch-cpu"), pytest.raises(RuntimeError, match=r"linalg\.inv"):
        call()


@FRONT_ENDS
def test_float64_beside_it_is_left_alone(front_end):
    """D10."""
    with front_end("torch-cpu"), pytest.raises(RuntimeError):
        torch.linalg.solve(SPD.to(BF16), SPD.double())


def made_low(weight):
    return F.linear(SPD, weight)


@FRONT_ENDS
@pytest.mark.parametrize("grad", [True, False], ids=["grad", "no grad"])
@pytest.mark.parametrize(
    "call",
    [
        lambda x: torch.linalg.inv(x, out=torch.empty(4, 4)),
        lambda x: torch.linalg.inv(x, out=torch.empty(4, 4, dtype=BF16)),
    ],
    ids=["out in float32", "out in bfloat16"],
)
def test_out_keeps_the_error_with_a_note(call, grad, front_end):
    """Which op made the tensor low, which list line says so, which edit helps."""
    weight = SPD.clone()
    with pytest.raises(RuntimeError) as caught, front_end("torch-cpu"), torch.set_grad_enabled(False):
        call(made_low(weight))
    (note,) = caught.value.__notes__
    assert "linear" in note
    assert "torch-cpu/lower.txt:" in note
    assert '"+linear"' in note
    assert 'policy.with_edits("+linear:fp32")' in note
    hmp.revert()


def test_the_note_names_the_op_that_made_the_tensor():
    """By autograd, whatever ran since."""
    hmp.convert(policy="hmp")
    x = torch.ones(4, 4, requires_grad=True) * 2  # mul is in the lower list
    torch.mm(SPD, SPD)
    with pytest.raises(RuntimeError) as caught:
        torch.linalg.norm(x.neg(), ord="nuc", dtype=BF16)
    assert "mul made it" in caught.value.__notes__[0]
    assert "hmp/lower.txt:" in caught.value.__notes__[0]


@FRONT_ENDS
@pytest.mark.parametrize("affine", [True, False], ids=["weights", "statistics alone"])
def test_the_note_says_what_to_do_with_a_norm_that_is_held_in_bfloat16(front_end, affine):
    """Beside a float32 input torch takes neither its weights nor its running statistics, and no cast can help these (D14)."""
    model = torch.nn.Sequential(torch.nn.Conv2d(1, 2, 1), torch.nn.BatchNorm2d(2, affine=affine)).to(BF16)
    wide = hmp.Policy.from_ops(rest="fp32", name="wide")
    x = torch.ones(1, 1, 4, 4, dtype=BF16)
    with pytest.raises(RuntimeError, match="mixed dtype") as caught, front_end(wide):
        model(x)
    (note,) = caught.value.__notes__
    assert note.startswith("habana_mp: batch_norm got float32 and bfloat16 tensors under the policy 'wide'.")
    assert note.endswith("Hold the norms of the model in float32: norm.float().")
    hmp.revert()
    model[1].float()
    with front_end(wide):
        assert model(x).dtype == F32


@FRONT_ENDS
@pytest.mark.parametrize("grad", [True, False], ids=["grad", "no grad"])
@pytest.mark.parametrize("raised_in", ["a block", "a decorated function", "blocks in each other"])
def test_the_note_names_disable_casts_where_dtypes_meet(front_end, grad, raised_in):
    """An error that leaves a block of disable_casts gets one note, which says that casts are off there."""
    weight = SPD.clone()

    def in_a_block(x, weight):
        with hmp.disable_casts():
            F.linear(x, weight)

    linear = {
        "a block": in_a_block,
        "a decorated function": hmp.disable_casts()(F.linear),
        "blocks in each other": hmp.disable_casts()(in_a_block),
    }[raised_in]
    with pytest.raises(RuntimeError, match="same dtype") as caught, torch.set_grad_enabled(grad), front_end("balanced"):
        linear(made_low(weight), weight)
    (note,) = caught.value.__notes__
    assert "The call is in hmp.disable_casts(), where no argument is cast: cast the tensor before the call." in note
    assert "linear" in note
    hmp.revert()


class WithoutDecorators(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight):
        ctx.save_for_backward(x, weight)
        return x @ weight

    @staticmethod
    def backward(ctx, gradient):
        x, weight = ctx.saved_tensors
        return gradient @ weight.t(), x.t() @ gradient


def test_the_note_on_a_backward_pass_names_the_decorators():
    """It advised float32 for linear. No region covers the backward pass: the saved float32 tensors are not cast there."""
    x, weight = SPD.clone().requires_grad_(), SPD.clone().requires_grad_()
    with pytest.raises(RuntimeError, match="same dtype") as caught, hmp.autocast("cpu", policy="balanced"):
        WithoutDecorators.apply(x, weight).sum().backward()
    (note,) = caught.value.__notes__
    assert (
        "No region covers a backward pass. Decorate forward and backward of the torch.autograd.Function with hmp.custom_fwd"
        in note
    )


def test_without_a_policy_disable_casts_adds_no_note():
    with pytest.raises(RuntimeError, match="same dtype") as caught, hmp.disable_casts():
        F.linear(SPD.to(BF16), SPD)
    assert not hasattr(caught.value, "__notes__")


def test_disable_casts_keeps_torchs_error():
    hmp.convert(policy="torch-cpu")
    with hmp.disable_casts(), pytest.raises(RuntimeError, match="not supported"):
        torch.linalg.inv(SPD.to(BF16))


class Plain(torch.Tensor):
    """A subclass that overrides nothing."""


@FRONT_ENDS
def test_of_a_subclass(front_end):
    x = SPD.to(BF16).as_subclass(Plain)
    with front_end("hmp"):
        result = torch.linalg.inv(x)
        assert torch.einsum("ij,jk->ik", SPD.as_subclass(Plain), x).dtype is BF16
    assert type(result) is Plain
    assert result.dtype is F32


def test_on_meta():
    with conversion("hmp"):
        assert torch.linalg.inv(SPD.to("meta", BF16)).dtype is F32


def test_an_error_that_names_no_dtype_is_the_caller_s():
    """The function of a loss is called once: its message is about something else."""
    calls = []

    def distance(a, b):
        calls.append(a.dtype)
        raise RuntimeError("Half-life expected")

    x = torch.ones(2, 4)
    hmp.convert(policy=hmp.Policy.from_ops(lower=["triplet_margin_with_distance_loss"]))
    with pytest.raises(RuntimeError, match="Half-life"):
        F.triplet_margin_with_distance_loss(x, x, x, distance_function=distance)
    assert len(calls) == 1
