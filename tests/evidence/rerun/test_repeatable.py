"""Which ops are run again (D50): by the schemas of all of torch's ops, and by the memory of those that OpInfo has samples of."""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import re
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.library import Library
from torch.testing._internal.common_methods_invocations import op_db
from torch.testing._internal.common_utils import set_rng_seed
from torch.utils._pytree import tree_leaves

import habana_mp._core as _core
from habana_mp import hmp

# By what schemas say, without the table of src/evidence/repeatable.cpp.
RESERVES = re.compile(r"workspace|reserve|layers_?outputs", re.IGNORECASE)
# Recurrent layers of the vendors' libraries, but for forward passes: oneDNN's and cuDNN's are pure, where they drop nothing.
VENDORS = re.compile(
    r"^aten::_?(cudnn_rnn|miopen_rnn|lstm_mps|mkldnn_rnn_layer_backward|cudnn_.*attention|.*cudnn_attention)"
)
RANDOM = re.compile(
    r"^aten::_*(?!.*(?:backward|no_dropout))(.*dropout|bernoulli|multinomial|rand|normal|uniform|.*philox)"
)


def schemas() -> Iterator[torch.FunctionSchema]:
    for name in torch._C._dispatch_get_all_op_names():
        with contextlib.suppress(RuntimeError):  # some have no schema
            yield torch._C._get_schema(*(name.split(".") if "." in name else (name, "")))


def tags(schema: torch.FunctionSchema) -> list[torch.Tag]:
    found = torch._C._get_operation_overload(schema.name, schema.overload_name)
    return list(found[2]) if found else []


def why(schema: torch.FunctionSchema) -> str:
    return _core.why_not_run_again(schema.name, schema.overload_name)


ALL = list(schemas())


def test_only_ops_with_a_functional_result_are_run_again() -> None:
    again = [schema for schema in ALL if why(schema) == "none"]
    assert len(again) > 2000
    wrong = {}
    for schema in again:
        written = [each for each in schema.arguments if each.alias_info is not None and each.alias_info.is_write]
        reasons = {
            "another library": not schema.name.startswith("aten::"),
            "a reserve": any(RESERVES.search(each.name) for each in schema.arguments),
            "a vendor's recurrent layer": bool(VENDORS.match(schema.name)),
            "a generator": any("Generator" in str(each.type) for each in schema.arguments),
            "random": torch.Tag.nondeterministic_seeded in tags(schema)
            and all(each.name != "dropout_p" for each in schema.arguments),
            "random by its name": bool(RANDOM.match(schema.name)) and not schema.name.endswith("_like_backward"),
            "a view in place": torch.Tag.inplace_view in tags(schema),
            "no result": not schema.returns,
            "more than one written": len(written) > 1 or any("[]" in str(each.type) for each in written),
        }
        if any(reasons.values()):
            wrong[str(schema)] = [reason for reason, holds in reasons.items() if holds]
    assert wrong == {}


@pytest.mark.parametrize(
    ("op", "reason"),
    [
        ("aten::mm", "none"),
        ("aten::add_.Tensor", "none"),
        ("aten::mm.out", "none"),
        ("aten::native_batch_norm", "none"),
        ("aten::native_batch_norm_backward", "none"),
        ("aten::mkldnn_rnn_layer", "none"),
        ("aten::_thnn_fused_lstm_cell", "none"),
        ("aten::_scaled_dot_product_flash_attention_for_cpu", "none"),
        ("aten::mkldnn_rnn_layer_backward", "reserve"),
        ("aten::_cudnn_rnn", "random"),  # where it drops: a call knows
        ("aten::_cudnn_rnn_backward", "reserve"),
        ("aten::_cudnn_rnn_flatten_weight", "reserve"),
        ("aten::miopen_rnn", "reserve"),
        ("aten::miopen_rnn_backward", "reserve"),
        ("aten::_thnn_fused_lstm_cell_backward", "reserve"),
        ("aten::_thnn_fused_gru_cell_backward", "reserve"),
        ("aten::cudnn_batch_norm_backward", "reserve"),
        ("aten::batch_norm_backward", "reserve"),
        ("aten::_scaled_dot_product_cudnn_attention", "reserve"),
        ("aten::native_dropout", "random"),
        ("aten::bernoulli_.float", "random"),
        ("aten::rrelu_with_noise", "random"),
        ("aten::_fused_adam_", "writes"),
        ("aten::_foreach_add_.Scalar", "writes"),
        ("aten::_batch_norm_with_update", "writes"),
        ("aten::t_", "writes"),
        ("aten::_backward", "writes"),
        ("c10d::allreduce_", "collective"),
        ("_c10d_functional::all_reduce", "collective"),
        ("mkldnn::_linear_pointwise", "library"),
    ],
)
def test_why_an_op_is_not_run_again(op: str, reason: str) -> None:
    assert _core.why_not_run_again(*(op.split(".") if "." in op else (op, ""))) == reason


def of_bytes(value: Any, *, whole: bool = True) -> list[str]:
    """What the memory of all tensors holds. With ``whole`` also what lies round views: of results torch may leave that unfilled."""
    found = []
    for each in tree_leaves(value):
        if isinstance(each, torch.Tensor) and each.layout == torch.strided and not each.is_quantized:
            if each._is_zerotensor():  # it has no memory
                continue
            own = each.detach() if whole else each.detach().resolve_conj().resolve_neg().clone()
            memory = torch.empty(0, dtype=torch.uint8).set_(own.untyped_storage()).numpy()
            found.append(f"{tuple(each.shape)} {each.stride()} {hashlib.sha1(memory).hexdigest()}")
    return found


@pytest.mark.slow
@pytest.mark.parametrize(
    "op",
    [op for op in op_db if not any(part in op.name for part in ("empty", "jiterator"))],
    ids=lambda op: op.formatted_name,
)
@pytest.mark.filterwarnings("ignore")
def test_the_arguments_of_an_op_that_is_run_again_are_as_without(op: Any) -> None:
    """Values, ``compare`` and ``find_nonfinite`` leave arguments, results and random numbers as they would be: bit for bit."""
    if torch.float32 not in op.dtypes:
        pytest.skip("has no float32")
    for backward in (False, True):
        wants = backward and op.supports_autograd
        if backward and not wants:
            continue
        for number in range(len(samples(op, wants))):
            plain = ran(op, number, wants, contextlib.nullcontext)
            for look in (measured, found_nonfinite):
                assert ran(op, number, wants, look) == plain, (number, look)


@contextlib.contextmanager
def measured() -> Iterator[None]:
    with hmp.report(values=True):
        yield


@contextlib.contextmanager
def found_nonfinite() -> Iterator[None]:
    """Without the function round it, which takes a step."""
    with hmp.report():
        _core.start_finding()
        try:
            yield
        finally:
            _core.stop_finding([])


def samples(op: Any, backward: bool) -> list[Any]:
    """The first two. OpInfo's own `sample_inputs` looks for its test on the stack, which takes nine tenths of the time of this one."""
    set_rng_seed(0)  # that of numpy and Python too, which draw some of them
    return [*itertools.islice(op.sample_inputs_func(op, "cpu", torch.float32, backward), 2)]


def ran(op: Any, number: int, backward: bool, look: Any) -> tuple[Any, ...]:
    sample = samples(op, backward)[number]
    low = sample.transform(
        lambda x: (
            x.detach().bfloat16().requires_grad_(x.requires_grad)
            if isinstance(x, torch.Tensor) and x.dtype == torch.float32
            else x
        )
    )
    found: list[Any] = []
    for each in (sample, low):
        torch.manual_seed(1)
        given = (each.input, each.args, each.kwargs)
        with look():
            try:
                result = op(each.input, *each.args, **each.kwargs)
                if backward:
                    results = [x for x in tree_leaves(result) if isinstance(x, torch.Tensor) and x.requires_grad]
                    torch.autograd.backward([x.abs().float().sum() for x in results if x.layout == torch.strided])
            except (RuntimeError, NotImplementedError, ValueError) as error:
                result = type(error)  # it has no kernel for bfloat16
        gradients = [x.grad for x in tree_leaves(given) if isinstance(x, torch.Tensor) and x.is_leaf]
        made = of_bytes([result, gradients], whole=False)
        found.append([of_bytes(given), made, of_bytes(torch.get_rng_state())])
    return tuple(found)


@pytest.mark.filterwarnings("ignore:Warning only once for all operators")
def test_an_op_whose_kernel_is_python_is_not_run_again() -> None:
    """Nobody knows what it does beside its result."""
    calls: list[int] = []
    library = Library("aten", "IMPL")
    library.impl("digamma", lambda x: calls.append(1) or torch.polygamma(0, x), "CPU", allow_override=True)
    x = torch.rand(4).bfloat16()
    try:
        with hmp.report(values=True) as report:
            torch.digamma(x)
        step = lambda: torch.digamma(x)  # noqa: E731
        hmp.compare(step, step)
        hmp.find_nonfinite(step)
    finally:
        library._destroy()
    assert len(calls) == 4
    row = next(row for row in report.to_dict()["rows"] if row["op"] == "digamma")
    assert row.get("unmeasured") == {"library": 1} or row["values"]["calls"] == 1  # of the op inside


LIBRARY = Library("habana_mp_test_again", "DEF")
LIBRARY.define("count(Tensor x) -> Tensor")
LIBRARY.define("count_into(Tensor x, Tensor(a!) counter) -> Tensor")
COUNTS: list[int] = []
LIBRARY.impl(
    "count",
    lambda x: COUNTS.append(1) or torch.from_numpy(x.float().numpy() * 2).to(x.dtype),
    "CompositeExplicitAutograd",
)
LIBRARY.impl("count_into", lambda x, counter: counter.add_(1) and x.clone(), "CompositeExplicitAutograd")


@pytest.mark.filterwarnings("ignore")
def test_an_op_of_another_library_is_not_run_again() -> None:
    COUNTS.clear()
    counter, x = torch.zeros(()), torch.ones(4, dtype=torch.bfloat16)

    def step() -> None:
        torch.ops.habana_mp_test_again.count(x)
        torch.ops.habana_mp_test_again.count_into(x, counter)

    with hmp.report(values=True) as report:
        step()
    hmp.compare(step, step)
    hmp.find_nonfinite(step)
    assert (len(COUNTS), counter.item()) == (4, 2)  # compare puts the counter back
    reasons = {row["op"]: row.get("unmeasured") for row in report.to_dict()["rows"]}
    assert reasons["habana_mp_test_again::count"] == {"library": 1}


@pytest.mark.skipif(
    not torch.ops.mkldnn._is_mkldnn_bf16_supported(),
    reason="oneDNN has no bfloat16 on this CPU: its recurrent layer does not run",
)
def test_the_backward_pass_of_an_lstm_is_not_measured_and_says_so() -> None:
    layer = torch.nn.LSTM(32, 16)
    with hmp.autocast("cpu", policy="torch-cpu"), hmp.report(values=True) as report:
        layer(torch.randn(5, 2, 32))[0].float().sum().backward()
    rows = [row for row in report.to_dict()["rows"] if "unmeasured_backward" in row]
    assert [row["unmeasured_backward"] for row in rows] == [{"reserve": 1}]
    assert "it needs what its forward pass keeps in reserve" in str(report)
    assert "Error not measured" in report.to_html()
    with pytest.raises(RuntimeError, match="not measured: it needs what its forward pass keeps in reserve"):
        report.local_error(rows[0]["op"], backward=True)
    assert 0 < float(report.local_error(rows[0]["op"])) < 0.02  # its forward pass, inside torch's lstm
