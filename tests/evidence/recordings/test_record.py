"""hmp.record, and recordings compared: what a file has, and what is refused."""

from __future__ import annotations

import msgspec
import pytest
import torch
from measured_net import Net, X, loss_of
from safetensors import safe_open
from torch import nn

import habana_mp._core as _core
from habana_mp import hmp
from habana_mp._evidence.recordings import file
from habana_mp._evidence.recordings.form import Form
from habana_mp.results import PolicyDiff
from tests.evidence.recordings.programs import record


@pytest.fixture
def model():
    torch.manual_seed(0)
    return Net()


def training(model):
    def step():
        model.zero_grad()
        loss = loss_of(model)
        loss.backward()
        return loss

    return step


def calls_in(path):
    with safe_open(path, "pt") as opened:
        return msgspec.json.decode(opened.get_tensor("recording").numpy().tobytes(), type=Form).calls


def test_a_step_and_two_files_are_the_same_as_a_recording(model, here):
    record("a.rec", training(model))
    record("b.rec", training(model))
    for found in (hmp.compare("a.rec", "b.rec"), hmp.compare(training(model), "a.rec")):
        assert (found.same, found.first, found.rows) == (True, None, ()), str(found)
        assert (found.gradient_error, found.result_error) == (0, 0)
        assert found.losses[0] == found.losses[1] != ()
    hmp.assert_same("a.rec", training(model))


def test_another_weight_is_named(model, here):
    record("a.rec", training(model))
    with torch.no_grad():
        model.norm.bias += 1
    record("b.rec", training(model))
    for found in (hmp.compare("a.rec", "b.rec"), hmp.compare(training(model), "a.rec")):
        assert (found.first.op, found.first.kind) == ("layer_norm", "given")
        assert found.first.made == found.first.total > 0
    with pytest.raises(AssertionError, match="first difference\n  layer_norm in Net: norm"):
        hmp.assert_same("a.rec", training(model))


def test_the_policies_are_compared_too(model, here):
    with hmp.autocast("cpu", policy="hmp"):
        record("a.rec", lambda: model(X))
    with hmp.autocast("cpu", policy="torch-cpu"):
        record("b.rec", lambda: model(X))
    found = hmp.compare("a.rec", "b.rec")
    policies = [hmp.Policy.load(name) for name in ("hmp", "torch-cpu")]
    assert found.policy_diff == PolicyDiff.between(*policies)
    assert found.names == ("a.rec", "b.rec")
    assert hmp.compare(lambda: model(X), "a.rec").first.runs_in == ("bfloat16", "float32")


def test_backward_passes_are_measured_beside_a_file_as_in_one_process(here):
    weight, x = torch.randn(8, 16, requires_grad=True), torch.randn(32, 16)

    def step():
        nn.functional.silu(x @ weight.t()).sum(1).square().mean().backward()

    record("a.rec", step)
    weight.grad = None
    with hmp.autocast("cpu", policy="hmp"):
        beside = hmp.compare(step, "a.rec")
    in_one, in_two = (
        {row.op: row.made for row in each.rows if row.phase == "backward" and row.kind == "precision"}
        for each in (hmp.compare(step, None, "hmp"), beside)
    )
    assert in_two.keys() == in_one.keys() >= {"silu", "matmul"}
    assert in_two["silu"] == in_one["silu"]
    # Its saved input was rounded before, which the run in one process counts, too.
    assert in_one["matmul"] > in_two["matmul"] > 1e-3


def test_within_a_tolerance(model, here):
    record("a.rec", lambda: model(X))
    record("b.rec", lambda: model(X * (1 + 1e-6)))
    assert not hmp.compare("a.rec", "b.rec").same
    found = hmp.compare("a.rec", "b.rec", rtol=1e-5)
    assert found.same
    assert f"The same numbers in {found.calls} calls within 1e-05." in str(found)
    hmp.assert_same("a.rec", lambda: model(X * (1 + 1e-6)), rtol=1e-5)
    with torch.no_grad():
        model.last.bias += 0.1
    found = hmp.compare(lambda: model(X), "a.rec", rtol=1e-5)
    assert (found.first.op, found.first.module) == ("linear", "Net: last")


def test_what_a_file_has(model, here):
    record("a.rec", training(model))
    with safe_open("a.rec", "pt") as opened:
        assert set(opened.keys()) == {"recording", "samples", "choices", "losses", "log_probabilities"}
        assert opened.metadata()["format"] == "habana_mp.recording"
    about = file.load("a.rec").about
    assert (about.torch, about.policy, about.policy_name, about.devices[0]) == (
        torch.__version__,
        "",
        "no policy",
        "cpu",
    )


def test_a_norm_is_that_of_all_numbers(model, here):
    numbers = torch.linspace(-3, 3, 5000)
    record("a.rec", lambda: numbers * 2)
    (result,) = next(call.results for call in calls_in("a.rec") if call.inner == "aten::mul")
    assert result.norm == pytest.approx((numbers * 2).double().norm().item(), rel=1e-6)
    assert (result.step, result.sampled) == (4, 1250)


def test_a_number_of_python_is_no_call_of_its_own(here):
    numbers = torch.ones(64)
    record("a.rec", lambda: numbers.mul_(2).lerp_(numbers, 0.5))
    assert [call.inner for call in calls_in("a.rec")] == ["aten::mul_", "aten::lerp_"]


VIEWS = {
    "rows": lambda x: x[:, ::3],
    "columns": lambda x: x[:, :, 5:],
    "transposed": lambda x: x.transpose(1, 2),
    "transposed, an odd number": lambda x: x[0, :33].t(),
    "the first dimension last": lambda x: x.permute(1, 2, 0),
    "four dimensions": lambda x: x.view(37, 8, 8, 48).permute(0, 2, 3, 1),
    "all turned": lambda x: x.view(37, 8, 8, 48).permute(3, 2, 0, 1),
    "expanded": lambda x: x[:, :, :1].expand(37, 64, 5),
    "one": lambda x: x[1, 1, 1],
    "none": lambda x: x[:0],
}
DTYPES = [torch.float32, torch.bfloat16, torch.float16, torch.float64, torch.int64, torch.int32, torch.int8, torch.bool, torch.complex64]  # fmt: skip


@pytest.mark.parametrize("view", VIEWS.values(), ids=VIEWS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_hash_is_of_the_numbers_in_their_order_wherever_they_lie(dtype, view):
    x = view((torch.arange(37 * 64 * 48) % 251 - 100).view(37, 64, 48).to(dtype))
    hashed = _core.hash_of_numbers(x)
    assert hashed == _core.hash_of_numbers(x.clone(memory_format=torch.contiguous_format)) != 0
    if x.numel() > 1 and dtype.is_floating_point:
        assert hashed == _core.hash_of_numbers(x.double().to(dtype))
        assert hashed != _core.hash_of_numbers(x.flip(0))


COMPLEX = torch.complex(torch.linspace(-3, 3, 132), torch.linspace(5, 1, 132)).view(4, 33)
INDICES = torch.tensor([[0, 1, 2, 2], [1, 0, 2, 0]])
FULL = torch.ones(3, 3, 3).to_sparse()
KINDS = {
    "complex": lambda: torch.fft.rfft(COMPLEX.real),
    "complex, more than are sampled": lambda: COMPLEX.repeat(64, 4) * 2,
    "one complex number": lambda: COMPLEX[0, 0] * 2,
    "no complex number": lambda: COMPLEX[:0] * 2,
    "a complex argument": COMPLEX.abs,
    "complex half": lambda: COMPLEX.to(torch.complex32) * 2,
    "complex double": lambda: COMPLEX.to(torch.complex128) * 2,
    "as real": lambda: torch.view_as_real(COMPLEX) * 2,
    "as complex": lambda: torch.view_as_complex(torch.ones(3, 2)) * 2,
    "conjugate": lambda: torch.conj(COMPLEX * 2),
    "negative": lambda: (COMPLEX * 2).conj().imag,
    "complex and real": lambda: torch.linalg.svd(COMPLEX[:, :4]),
    "sparse": lambda: torch.sparse_coo_tensor(INDICES, torch.ones(4), (3, 3)) * 2,
    "sparse with all numbers": lambda: FULL * 2,
    "sparse, complex": lambda: FULL.to(torch.complex64) * 2,
    "sparse without numbers": lambda: torch.sparse_coo_tensor(INDICES[:1, :3], torch.ones(3, 0), (4, 0)) * 2,
    "sparse to dense": lambda: FULL.to_dense() * 2,
    "a sparse gradient": lambda: nn.Embedding.from_pretrained(X, False, sparse=True)(INDICES).sum().backward(),
}


@pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental")
@pytest.mark.parametrize("step", KINDS.values(), ids=KINDS)
def test_complex_and_sparse_numbers_are_the_same_in_a_file_and_in_memory(step, here):
    record("a.rec", step)
    for found in (hmp.compare("a.rec", "a.rec"), hmp.compare(step, "a.rec"), hmp.compare(step, None)):
        assert found.same, str(found)


@pytest.mark.parametrize("kind", [torch.Tensor.to_sparse, torch.Tensor.clone], ids=["sparse", "dense"])
def test_imaginary_parts_are_compared(kind, here):
    record("a.rec", lambda: kind(COMPLEX) * 2)
    found = hmp.compare(lambda: kind(COMPLEX + 1j) * 2, "a.rec")
    assert (found.same, found.result_error > 0) == (False, True)


def test_a_complex_number_counts_as_two_beside_real_ones():
    a, b = torch.ones(8, dtype=torch.complex64), torch.ones(8)
    found = hmp.compare(lambda: (a * 1, b * 1), lambda: (a * 1.01, b * 1))
    assert found.result_error == pytest.approx(0.01 * (8 / 16) ** 0.5, rel=1e-4)


def test_what_a_kernel_writes_is_seen_where_no_version_counts_it(here):
    """The backward pass of an embedding makes zeros, and then writes some rows of them."""

    def step_of(rows):
        weight = torch.zeros(4096, 8, requires_grad=True)
        return lambda: torch.nn.functional.embedding(rows, weight).sum().backward()

    record("a.rec", step_of(torch.tensor([5])))
    record("b.rec", step_of(torch.tensor([7])))
    results = [
        [call.results[0].hash for call in calls_in(path) if call.inner == "aten::embedding_dense_backward"]
        for path in ("a.rec", "b.rec")
    ]
    assert results[0] != results[1]


def test_a_file_has_a_bounded_size(here, monkeypatch):
    monkeypatch.setattr(file, "MOST_BYTES", 100_000)

    def step():
        for _ in range(60):
            torch.exp(torch.linspace(0, 1, 3000))

    record("a.rec", step)
    assert (here / "a.rec").stat().st_size <= 100_000
    found = hmp.compare(step, "a.rec")
    assert found.same, str(found)
    record("b.rec", lambda: [torch.exp(X) for _ in range(2000)] and None)
    assert (here / "b.rec").stat().st_size <= 100_000
    found = hmp.compare("b.rec", "b.rec")
    assert (found.same, found.lost > 0) == (False, True)
    assert "could not be compared" in str(found)


def test_a_block_that_raises_leaves_no_file_and_nothing_that_looks(model, here):
    with pytest.raises(ZeroDivisionError), hmp.record("a.rec"):
        model(X / (1 // 0))
    assert [*here.iterdir()] == []
    assert _core.probe_name() == ""
    with hmp.record("a.rec"), pytest.raises(RuntimeError, match="compare cannot run inside record"):
        hmp.compare(lambda: model(X), None, "hmp")
    with hmp.record("a.rec"), pytest.raises(RuntimeError, match="record is already running"), hmp.record("b.rec"):
        pass


@pytest.mark.parametrize(
    ("call", "error", "said"),
    [
        (lambda: hmp.record("a.safetensors"), ValueError, "'a.safetensors': the name of a recording ends in .rec, such as step.rec"),
        (lambda: hmp.record("no/such/a.rec"), FileNotFoundError, "no/such"),
        (lambda: hmp.compare("a.rec", "hmp"), TypeError, "takes the path of a second one, which ends in .rec, not 'hmp'"),
        (lambda: hmp.compare("hmp", "a.rec"), TypeError, "step must be a function without arguments or a recording, not 'hmp'"),
        (lambda: hmp.compare(print, "a.rec", "hmp"), TypeError, "under the policy in force"),
        (lambda: hmp.compare("a.rec", "b.rec"), FileNotFoundError, "a.rec"),
        (lambda: hmp.compare(print, None, rtol=-1), ValueError, "rtol must be a number, 0 or more, not -1"),
        (lambda: hmp.compare(print, None, modules=["h"]), TypeError, "modules must be a mapping"),
        (lambda: hmp.compare(print, None, modules={"h.*": "layers"}), ValueError, "must have the same number of"),
        (lambda: hmp.assert_same("a", print), ValueError, "'a': the name of a recording ends in .rec"),
        (lambda: hmp.assert_same("a.rec", 3), TypeError, "step must be a function without arguments, not 3"),
    ],
    ids=lambda each: each if isinstance(each, str) else "",
)  # fmt: skip
def test_what_is_refused(call, error, said, here):
    with pytest.raises(error, match=said):
        call()


def test_state_is_put_back_beside_a_recording(here):
    model = nn.BatchNorm1d(16)
    record("a.rec", lambda: model(X))
    model.reset_running_stats()
    before = model.running_mean.clone()
    assert hmp.compare(lambda: model(X), "a.rec").same
    assert torch.equal(before, model.running_mean)
