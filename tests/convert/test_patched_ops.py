"""The C++ slot and the Python ``__call__`` of a patched op are one rule, and it is the rule of D10 to D16: every op of torch's own test
table (op_db), as function, method, operator and in-place variant, in dtypes that agree and that differ.

The rule stands here once more, as an oracle: which tensors of a call go to which dtype, told from the policy's lists and the call alone.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import types

import pytest
import torch
from op_calls import calls, intercept

import habana_mp._core as _core
from habana_mp import hmp

F32, BF16, F16, F64 = torch.float32, torch.bfloat16, torch.float16, torch.float64
ELIGIBLE = (F32, BF16, F16)
LOW = (BF16, F16)
PATTERNS = {
    "f32": (F32,),
    "bf16": (BF16,),
    "f16": (F16,),
    "f32-bf16": (F32, BF16),
    "bf16-f32": (BF16, F32),
    "f16-bf16": (F16, BF16),
    "f16-f32-f32": (F16, F32, F32),
    "bf16-f64": (BF16, F64),
}
POLICIES = ("hmp", "hmp-o2", "torch-cpu", "torch-cuda")


# ---- the oracle


def words(text):
    return frozenset(text.split())


# Ops with tensors among their arguments that are no inputs of a computation (D4, D15): comparisons and tests, copies and conversions,
# constructors, random, views and shape ops. Names without the underscores of operators and in-place twins.
NO_REST = words("""
    adjoint alias_copy all allclose any argmax argmin argsort argwhere as_strided as_strided_copy atleast_1d
    atleast_2d atleast_3d bernoulli bfloat16 block_diag bool broadcast_tensors broadcast_to byte cartesian_prod cauchy
    cdouble cfloat chalf channel_shuffle char chunk chunk_cat clone combinations conj conj_physical constant_pad_nd
    contiguous count_nonzero diag diag_embed diagflat diagonal diagonal_copy double dsplit empty_like eq equal expand
    expand_as expand_copy exponential fftshift fill flatten flip fliplr flipud float full_like gather ge geometric
    getitem greater greater_equal gt half hash_tensor hsplit ifftshift index_select int is_floating_point isclose
    isfinite isin isinf isnan isneginf isposinf isreal item le less less_equal linspace log_normal logical_and
    logical_not logical_or logical_xor long lt masked_select meshgrid moveaxis movedim multinomial narrow narrow_copy
    native_batch_norm native_batch_norm_legit native_group_norm native_layer_norm ne new_empty new_empty_strided
    new_full new_ones new_zeros nonzero nonzero_static normal not_equal ones_like pad permute permute_copy
    pixel_shuffle pixel_unshuffle pos positive randint_like randn_like ravel real repeat repeat_interleave reshape
    reshape_as resize resize_as resolve_conj resolve_neg roll rot90 select short signbit split split_with_sizes
    split_with_sizes_copy squeeze squeeze_copy swapaxes swapdims t t_copy take take_along_dim tensor_split tile to
    to_sparse transpose transpose_copy tril triu unbind unbind_copy unflatten unfold unfold_copy uniform unique
    unique_consecutive unsafe_chunk unsafe_masked_index unsafe_masked_index_put_accumulate unsafe_split unsqueeze
    unsqueeze_copy view view_as view_as_complex view_copy vsplit zero zeros_like
""")
NORMS = {  # D14: all but the input, and which of them are running statistics, by position (F132)
    "torch.nn.functional.batch_norm": (1, 2),
    "torch.nn.functional.instance_norm": (1, 2),
    "torch.batch_norm": (3, 4),
    "torch.instance_norm": (3, 4),
    "torch.nn.functional.layer_norm": (),
    "torch.layer_norm": (),
    "torch.nn.functional.group_norm": (),
    "torch.group_norm": (),
    "torch.native_layer_norm": (),
    "torch.native_group_norm": (),
    "torch.native_batch_norm": (3, 4),
    "torch.cudnn_batch_norm": (3, 4),
    "torch.miopen_batch_norm": (3, 4),
    "torch._batch_norm_impl_index": (3, 4),
    "torch._native_batch_norm_legit": (3, 4),
    "torch._native_batch_norm_legit_no_training": (3, 4),
}
IN_PLACE_OPERATORS = words("add sub mul matmul truediv div floordiv mod pow and or xor lshift rshift")


def tensors_of(args, kwargs):
    """(name or position, tensor) of every tensor, those in lists and tuples too."""
    for place, value in [*enumerate(args), *kwargs.items()]:
        for item in value if isinstance(value, (list, tuple)) else [value]:
            if isinstance(item, torch.Tensor):
                yield place, item


def bound(call):
    """Arguments by name, where the function is written in Python."""
    if not isinstance(call.function, types.FunctionType):
        return dict(call.kwargs)
    try:
        return inspect.signature(call.function).bind(*call.args, **call.kwargs).arguments
    except (TypeError, ValueError):
        return dict(call.kwargs)


def rule_of(policy, call):
    rules = [policy.rule(name) for name in call.names]
    return next((rule for rule in rules if rule.action != "rest"), rules[0])


def target_of(call, named):
    """The argument that an in-place call writes to (D12), by position or name."""
    own = call.attribute
    if own.endswith("_") and not own.endswith("__"):
        return 0
    if own == "__setitem__" or (own.startswith("__i") and own[3:-2] in IN_PLACE_OPERATORS):
        return 0
    if named.get("inplace"):
        return "input"
    return "weight" if named.get("max_norm") is not None else None


def is_statistic(call, place):
    return call.label in NORMS and (place in NORMS[call.label] or place in ("running_mean", "running_var"))


def oracle(policy, call, args, kwargs):
    """The dtype that each tensor of a call has when it reaches the original, and whether casts are off inside it (D19)."""
    before = [tensor.dtype for _, tensor in tensors_of(args, kwargs)]
    rule = rule_of(policy, call)
    atomic = rule.action in ("lower", "fp32")
    base = call.attribute.strip("_")
    untouched = rule.action == "rest" and (rule.rest == "inputs" or base in NO_REST)
    refusing = any(map(_core.refuses_mixed, call.names))
    if untouched and not refusing:
        return before, False

    given = [*args, *kwargs.values()]
    named = bound(call)
    if any(isinstance(value, (torch.dtype, type)) for value in given) or named.get("out") is not None:
        return before, atomic
    if F64 in before or any(dtype.is_complex for dtype in before):
        return before, atomic
    target = target_of(call, named)

    def is_first(place):
        return place in (0, "input", "self")

    def is_target(place):
        if target == "weight":
            return place == "weight" or place == 1
        return target is not None and is_first(place)

    def is_input(place):
        return is_first(place) or call.label not in NORMS

    places = [place for place, _ in tensors_of(args, kwargs)]
    tensors = [tensor for _, tensor in tensors_of(args, kwargs)]
    eligible = [tensor.dtype in ELIGIBLE for tensor in tensors]
    if target is not None and any(map(is_target, places)):
        to = next(tensor.dtype for place, tensor in zip(places, tensors) if is_target(place))
        chosen = [not is_target(place) and to in ELIGIBLE for place in places]
    elif rule.action == "lower":
        to, chosen = policy.low_dtype, [is_input(place) for place in places]
    elif rule.action == "fp32" or (rule.action == "rest" and rule.rest == "fp32"):
        low = any(is_statistic(call, p) and t.dtype in ELIGIBLE and t.dtype != F32 for p, t in zip(places, tensors))
        to, chosen = F32, [not low for _ in places]
    elif rule.action == "promote" or untouched:
        counted = [tensor for tensor, ok in zip(tensors, eligible) if ok]
        dtypes = {tensor.dtype for tensor in counted if tensor.dim() > 0} or {tensor.dtype for tensor in counted}
        to, chosen = dtypes.pop() if len(dtypes) == 1 else F32, [True for _ in places]
    else:
        to = next((t.dtype for p, t, ok in zip(places, tensors, eligible) if ok and is_input(p)), None)
        chosen = [is_input(place) for place in places]
    return [
        to if ok and choose and not is_statistic(call, place) else dtype
        for place, dtype, ok, choose in zip(places, before, eligible, chosen)
    ], atomic


# ---- running a call


def rebuilt(value, change):
    """A copy of a call's arguments with every tensor changed; a tensor that stands twice stays one."""
    memo = {}

    def copy(value):
        if isinstance(value, torch.Tensor):
            if id(value) not in memo:
                memo[id(value)] = change(value)
            return memo[id(value)]
        if isinstance(value, list):
            return [copy(item) for item in value]
        if isinstance(value, tuple):
            items = [copy(item) for item in value]
            return type(value)._make(items) if hasattr(value, "_make") else tuple(items)
        if isinstance(value, dict):
            return {key: copy(item) for key, item in value.items()}
        return value

    return copy(value)


def in_dtypes(call, pattern):
    """Fresh arguments with the floating tensors in the dtypes of a pattern, its last one for all that follow."""
    dtypes = iter(pattern)
    last = [pattern[0]]

    def change(tensor):
        fresh = tensor.detach().clone()
        if tensor.dtype not in ELIGIBLE:
            return fresh
        last[0] = next(dtypes, last[0])
        return fresh.to(last[0])

    return rebuilt((call.args, call.kwargs), change)


def hand_cast(args, kwargs, dtypes):
    remaining = iter(dtypes)
    done = {}

    def cast(value):
        if isinstance(value, torch.Tensor):
            dtype = next(remaining)
            if dtype == value.dtype:
                return value
            if id(value) not in done:
                done[id(value)] = value.to(dtype)
            return done[id(value)]
        if isinstance(value, list):
            return [cast(item) for item in value]
        if isinstance(value, tuple):
            items = [cast(item) for item in value]
            return type(value)._make(items) if hasattr(value, "_make") else tuple(items)
        return value

    return tuple(cast(value) for value in args), {name: cast(value) for name, value in kwargs.items()}


def outcome(function, args, kwargs):
    torch.default_generator.manual_seed(0)
    try:
        return function(*args, **kwargs)
    except Exception as error:
        return type(error), str(error).partition("\n")[0]


def same(a, b):
    """Equal values of equal types: tensors in dtype, shape and every bit but those of NaN."""
    if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor):
        if (a.dtype, a.shape, a.layout, type(a)) != (b.dtype, b.shape, b.layout, type(b)):
            return False
        if a.layout != torch.strided:
            a, b = a.to_dense(), b.to_dense()
        if a.is_quantized or a.is_meta:
            return True
        if a.dtype == torch.complex32:
            a, b = a.to(torch.complex64), b.to(torch.complex64)
        if a.dtype.is_floating_point or a.dtype.is_complex:
            return torch.equal(a, b) or torch.allclose(a, b, rtol=0, atol=0, equal_nan=True)
        return torch.equal(a, b)
    if isinstance(a, (list, tuple)) and isinstance(b, (list, tuple)):
        return type(a) is type(b) and len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, torch.Tensor) or isinstance(b, torch.Tensor):
        return False
    return a is b or a == b or (a != a and b != b)


def shown(value):
    if isinstance(value, torch.Tensor):
        return f"{value.dtype}{tuple(value.shape)}".removeprefix("torch.")
    if isinstance(value, (list, tuple)):
        return f"{type(value).__name__}({', '.join(map(shown, value))})"
    return repr(value)[:200]


UNINITIALISED = words("empty_like empty_permuted new_empty new_empty_strided empty_strided empty resize_ resize_as_")


def differences(policy, call, pattern):
    """What is wrong with a call, in words."""
    op = getattr(call.owner, call.attribute)
    args, kwargs = in_dtypes(call, pattern)
    dtypes, atomic = oracle(policy, call, args, kwargs)

    # What reaches the original.
    reached = intercept(lambda func: func is call.function, op, args, kwargs)
    if reached is not None:
        given = [tensor for _, tensor in tensors_of(args, kwargs)]
        arrived = [tensor for _, tensor in tensors_of(reached[1], reached[2])]
        if [tensor.dtype for tensor in arrived] != dtypes:
            yield f"reached the original in {shown(arrived)}, given {shown(given)}, the rule says {dtypes}"
            return
        for before, after in zip(given, arrived, strict=True):
            if (before is after) != (before.dtype == after.dtype):
                yield f"{shown(before)} was copied without a cast"
    if call.attribute in UNINITIALISED:
        return

    runs = {}
    for name, function in (("slot", op), ("__call__", op.__call__)):
        mine = in_dtypes(call, pattern)
        runs[name] = outcome(function, *mine), mine
    runs["by hand"] = by_hand(policy, call, pattern, dtypes, atomic)
    with hmp.disable_casts():
        for name in ("__call__", "by hand"):
            if not same(runs["slot"][0], runs[name][0]):
                yield f"slot {shown(runs['slot'][0])}, {name} {shown(runs[name][0])}"
            elif not same(runs["slot"][1][0], runs[name][1][0]):
                yield f"slot left its arguments as {shown(runs['slot'][1][0])}, {name} as {shown(runs[name][1][0])}"


def by_hand(policy, call, pattern, dtypes, atomic):
    """What the original gives, its arguments cast by hand, and the arguments. In float32 where a low dtype has no kernel (D42)."""
    inside = contextlib.nullcontext
    if atomic:
        inside = hmp.disable_casts
    elif _core.is_compound(call.names[0]) and not isinstance(call.function, types.FunctionType):
        # Autocast decides what a compound is made of; convert is to do the same (D40, D41).
        inside = functools.partial(hmp.autocast, "cpu", policy.low_dtype, policy=policy)
    runs = []
    args, kwargs = in_dtypes(call, pattern)
    places = [place for place, _ in tensors_of(args, kwargs)]
    in_float32 = [
        F32 if dtype in LOW and not is_statistic(call, place) else dtype
        for place, dtype in zip(places, dtypes, strict=True)
    ]
    for to in (dtypes, in_float32):
        mine = in_dtypes(call, pattern)
        with hmp.disable_casts():
            cast = hand_cast(*mine, to)
        with inside() if to is dtypes else hmp.disable_casts():
            runs.append((outcome(call.function, *cast), mine))
        failed = isinstance(runs[0][0], tuple) and runs[0][0][:1] in ((RuntimeError,), (NotImplementedError,))
        if not failed or not is_retried(policy, call, dtypes, runs[0][0][1]):
            return runs[0]
    return runs[1] if not isinstance(runs[1][0], tuple) or runs[1][0][:1] != (RuntimeError,) else runs[0]


def is_retried(policy, call, dtypes, message):
    """Whether a call that has failed is made again in float32 (D42)."""
    given, named = [*call.args, *call.kwargs.values()], bound(call)
    explicit = any(isinstance(value, (torch.dtype, type)) for value in given) or named.get("out") is not None
    explicit |= F64 in dtypes  # D10
    rule = rule_of(policy, call)
    ruled = rule.action != "rest" or rule.rest != "inputs" or any(map(_core.may_lack_low_kernel, call.names))
    return ruled and not explicit and target_of(call, named) is None and _core.blames_low_dtype(message)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", POLICIES)
def test_slot_and_call_and_rule_agree(name):
    """D10 to D16, D19, D41, D42."""
    table = calls()
    policy = hmp.convert(policy=name)
    wrong = []
    for call in table:
        if not hasattr(getattr(call.owner, call.attribute), "__wrapped__"):
            continue
        if rule_of(policy, call).action == "error":
            continue
        count = sum(t.dtype in ELIGIBLE for _, t in tensors_of(call.args, call.kwargs))
        for pattern, dtypes in PATTERNS.items():
            if len(dtypes) <= max(count, 1):
                wrong += [f"{call.label} {pattern}: {text}" for text in differences(policy, call, dtypes)]
    assert not wrong, f"{len(wrong)}:\n" + "\n".join(wrong)
