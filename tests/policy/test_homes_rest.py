"""What the rest is, against torch's own schemas: no views, no queries, no conversions (D4, D15)."""

# ruff: noqa: PLW0108 - a lambda looks the op up when it is called; the op itself would be torch's own, from before any conversion

from __future__ import annotations

from types import FunctionType

import pytest
import torch
from home_calls import BF16, F16, F32, a

import habana_mp._core as _core
from habana_mp import hmp
from habana_mp._policy.homes import computes_on, homes


def schemas():
    for schema in torch._C._jit_get_all_schemas():
        namespace, _, name = schema.name.partition("::")
        if namespace == "aten":
            yield name, schema


def returns_view(schema):
    return any(value.alias_info and not value.alias_info.is_write for value in schema.returns)


def count_tensors(schema):
    count = 0
    for argument in schema.arguments:
        text = str(argument.type)
        if not argument.is_out and "Tensor" in text:
            count += 2 if "List" in text else 1
    return count


def homes_in_rest(least):
    """Names of homes whose ops compute on at least so many tensors."""
    found = {}
    for home in homes():
        if computes_on(home, isinstance(home.function(), FunctionType)) >= least:
            found.setdefault(home.name, home.label)
    return found


def test_no_view_is_in_the_rest():
    """D4, D15, F80: a view with a cast in front of it would not alias its source."""
    rest = homes_in_rest(1)
    assert {name: rest[name] for name, schema in schemas() if returns_view(schema) and name in rest} == {}


def test_no_copy_of_a_view_is_in_the_rest():
    """The _copy twins of views, and ops that answer with a number or a bool, keep their meaning."""
    views = {name for name, schema in schemas() if returns_view(schema)}
    rest = homes_in_rest(1)
    assert [name for name in rest if name.removesuffix("_copy") in views and name.endswith("_copy")] == []
    assert not {"is_contiguous", "storage_offset", "stride", "size", "dim", "numel", "item"} & set(rest)


def test_every_name_that_is_left_out_exists():
    names = {home.attribute for home in homes()} | {op.partition(".")[0] for op in _core.dispatched_ops()}
    known = names | {name.rstrip("_") for name in names}
    assert [name for group in _core.NOT_COMPUTING.values() for name in sorted(group) if name not in known] == []


def test_no_name_is_left_out_twice():
    listed = [name for group in _core.NOT_COMPUTING.values() for name in group]
    assert len(listed) == len(set(listed))


# Ops with two tensors that D15 leaves out without being named in _core.NOT_COMPUTING: quantised kernels, and overloads that only
# TorchScript has. Another torch version may have ops that belong here, or in NOT_COMPUTING.
LEFT_OUT_BY_KIND = {
    "fake_quantize_per_channel_affine",
    "fake_quantize_per_tensor_affine",
    "quantize_per_channel",
    "quantize_per_tensor",
    "quantized_batch_norm",
    "quantized_gru_cell",
    "quantized_lstm_cell",
    "quantized_rnn_relu_cell",
    "quantized_rnn_tanh_cell",
    "sort",
}


def test_every_op_with_two_tensors_is_in_the_rest_or_left_out_by_name():
    """D15: a table that shows new ops of another torch version."""
    rest = homes_in_rest(2)
    reachable = {home.name: home for home in homes()}
    left_out = frozenset().union(*_core.NOT_COMPUTING.values())
    unknown = set()
    for name, schema in schemas():
        if name in reachable and count_tensors(schema) >= 2 and name not in rest:
            own = reachable[name].attribute
            base = name[:-1] if name.endswith("_") and not name.endswith("__") else name
            if base not in left_out and own not in left_out and not own.startswith(_core.LOW_LEVEL_PREFIXES):
                unknown.add(name)
    assert unknown == LEFT_OUT_BY_KIND


VIEWS = {
    "t": lambda x: x.t(),
    "view": lambda x: x.view(4),
    "reshape": lambda x: x.reshape(4),
    "transpose": lambda x: torch.transpose(x, 0, 1),
    "select": lambda x: x[0],
    "diagonal": lambda x: torch.diagonal(x),
    "linalg.diagonal": lambda x: torch.linalg.diagonal(x),
    "expand": lambda x: x.expand(3, 2, 2),
    "chunk": lambda x: x.chunk(2)[0],
    "unbind": lambda x: x.unbind()[0],
    "real": lambda x: torch.real(x),
    "detach": lambda x: x.detach(),
    "swapaxes": lambda x: x.swapaxes(0, 1),
    "atleast_3d": lambda x: torch.atleast_3d(x),
    "contiguous": lambda x: x.contiguous(),
    "squeeze": lambda x: torch.squeeze(x),
    "broadcast_tensors": lambda x: torch.broadcast_tensors(x, torch.ones(2, 2))[0],
    "meshgrid": lambda x: torch.meshgrid(x.view(4), indexing="ij")[0],
    "split": lambda x: torch.split(x, 1)[0],
    "hsplit": lambda x: torch.hsplit(x, 2)[0],
    "mT": lambda x: x.mT,
}


@pytest.mark.parametrize("view", VIEWS.values(), ids=VIEWS.keys())
def test_views_stay_views_under_o2(view):
    """D4."""
    hmp.convert(opt_level="O2")
    x = a().bfloat16()
    result = view(x)
    assert result.dtype == BF16
    assert result.untyped_storage().data_ptr() == x.untyped_storage().data_ptr()


QUERIES = {
    "is_contiguous": lambda x: x.is_contiguous(),
    "storage_offset": lambda x: x.storage_offset(),
    "stride": lambda x: x.stride(),
    "data_ptr": lambda x: x.data_ptr(),
    "element_size": lambda x: x.element_size(),
    "type": lambda x: x.type(),
    "is_same_size": lambda x: x.is_same_size(x),
    "result_type": lambda x: torch.result_type(x, torch.ones(2, 2)),
    "can_cast": lambda x: torch.can_cast(x.dtype, F32),
}


@pytest.mark.parametrize("query", QUERIES.values(), ids=QUERIES.keys())
def test_queries_answer_for_the_tensor_itself_under_o2(query):
    """D4."""
    x = torch.arange(12, dtype=BF16).view(3, 4)[1:, ::2]
    expected = query(x)
    hmp.convert(opt_level="O2")
    assert query(x) == expected


CONVERSIONS = {
    "to dtype": (lambda x: x.to(F32), F32),
    "to other": (lambda x: x.to(torch.ones(1)), F32),
    "type_as": (lambda x: x.type_as(torch.ones(1)), F32),
    "float": (lambda x: x.float(), F32),
    "half": (lambda x: x.half(), F16),
    "clone": (lambda x: x.clone(), BF16),
    "copy_": (lambda x: x.copy_(torch.ones(2, 2)), BF16),
    "zeros_like": (lambda x: torch.zeros_like(x), BF16),
    "new_zeros": (lambda x: x.new_zeros(2), BF16),
    "comparison": (lambda x: x > torch.zeros(2, 2), torch.bool),
    "randn_like": (lambda x: torch.randn_like(x), BF16),
}


@pytest.mark.parametrize(("call", "expected"), CONVERSIONS.values(), ids=CONVERSIONS.keys())
@pytest.mark.parametrize("level", ["O1", "O2"])
def test_conversions_copies_and_constructors_keep_their_meaning(level, call, expected):
    """D4, D15."""
    hmp.convert(opt_level=level)
    assert call(a().bfloat16()).dtype == expected
