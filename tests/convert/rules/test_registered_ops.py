"""``hmp.register_op``: functions that are not torch's have names in lists, under both front ends and in graphs."""

from __future__ import annotations

import contextlib
import pickle
import threading

import pytest
import torch

from habana_mp import hmp
from habana_mp._policy import names

BF16, FP32 = torch.bfloat16, torch.float32


@pytest.fixture(autouse=True)
def _known_names_as_they_were():
    before = set(names.registered)
    torch.manual_seed(0)
    yield
    names.registered.clear()
    names.registered.update(before)


def fused(x, weight, inplace=False):
    return {"dtypes": (x.dtype, weight.dtype), "product": (x @ weight).dtype}


LIBRARY = torch.library.Library("habana_mp_registered", "DEF")
LIBRARY.define("scaled(Tensor x, Tensor[] more) -> Tensor")
LIBRARY.impl("scaled", lambda x, more: x * len(more), "CompositeExplicitAutograd")


def in_force(front_end, policy):
    if front_end == "convert":
        hmp.convert(policy=policy)
        return contextlib.nullcontext()
    return hmp.autocast("cpu", policy=policy)


# Edit, the dtypes that the function sees, and that of the product inside: of a listed function nothing inside is cast (D19).
RULES = {
    "in the lower list": ("+fused:lower", (BF16, BF16), BF16),
    "in the fp32 list": ("+fused:fp32", (FP32, FP32), FP32),
    "promote": ("+fused:promote", (FP32, FP32), BF16),
    "in no list": ("+matmul:lower", (FP32, FP32), BF16),
    "for the other dtype": ("+fused@float16:lower", (FP32, FP32), BF16),
}


@pytest.mark.parametrize("front_end", ["convert", "autocast"])
@pytest.mark.parametrize(("edit", "dtypes", "product"), RULES.values(), ids=RULES)
def test_rules(front_end, edit, dtypes, product):
    op = hmp.register_op(fused)
    policy = hmp.Policy.load("hmp").with_edits(edit, strict=True)
    with in_force(front_end, policy):
        assert op(torch.ones(2, 2), weight=torch.ones(2, 2)) == {"dtypes": dtypes, "product": product}
    hmp.revert()
    assert op(torch.ones(2, 2), torch.ones(2, 2)) == {"dtypes": (FP32, FP32), "product": FP32}


@pytest.mark.parametrize("front_end", ["convert", "autocast"])
def test_report_log_and_reasons(front_end, monkeypatch, capsys):
    monkeypatch.setenv("HABANA_MP_LOG", "casts")
    op = hmp.register_op(fused)
    policy = hmp.Policy.load("torch-cpu").with_edits("+fused:lower")
    x, low = torch.ones(2, 2), torch.ones(2, 2, dtype=BF16)
    with in_force(front_end, policy), hmp.report() as report:
        op(x, x + 0)
        op(low, low)
    rows = [row for row in report.to_dict()["rows"] if row["op"] == "fused"]
    assert [(row["op"], row["calls"], row["front_end"]) for row in rows] == [("fused", 2, front_end)]
    assert report.casts("fused", to="bf16") == 2
    assert rows[0]["rule"].startswith("lower: fused")
    assert "fused" in capsys.readouterr().out


def test_d31_error_list():
    op = hmp.register_op(fused)
    policy = hmp.Policy.load("hmp").with_edits("+fused:error")
    for front_end in ("autocast", "convert"):
        with in_force(front_end, policy), pytest.raises(RuntimeError, match="fused"):
            op(torch.ones(2), torch.ones(2))


def test_regions_come_before_convert_and_are_of_their_thread():
    op = hmp.register_op(fused)
    hmp.convert(policy=hmp.Policy.load("hmp").with_edits("+fused:lower"))
    x, seen = torch.ones(2, 2), []
    with hmp.autocast("cpu", policy=hmp.Policy.load("torch-cpu").with_edits("+fused:fp32")):
        assert op(x.bfloat16(), x)["dtypes"] == (FP32, FP32)
        thread = threading.Thread(target=lambda: seen.append(op(x, x)["dtypes"]))
        thread.start()
        thread.join()
        with hmp.disable_casts():
            assert op(x.bfloat16(), x.bfloat16())["dtypes"] == (BF16, BF16)
    assert seen == [(BF16, BF16)]


def test_float16_region():
    op = hmp.register_op(fused)
    with hmp.autocast("cpu", torch.float16, policy=hmp.Policy.load("hmp").with_edits("+fused:lower")):
        assert op(torch.ones(2, 2), torch.ones(2, 2))["dtypes"] == (torch.float16, torch.float16)


def test_gradients_have_the_dtype_of_the_weight():
    @hmp.register_op(name="own_linear")
    def linear(x, weight):
        return x @ weight

    weight = torch.randn(4, 3, requires_grad=True)
    with hmp.autocast("cpu", policy=hmp.Policy.from_ops(lower=["own_linear"])):
        y = linear(torch.randn(2, 4), weight)
    assert y.dtype == BF16
    y.float().sum().backward()
    assert weight.grad.dtype == FP32


def test_an_op_of_torch_library_with_tensors_in_a_list():
    op = hmp.register_op(torch.ops.habana_mp_registered.scaled)
    x = torch.ones(2)
    with hmp.autocast("cpu", policy=hmp.Policy.from_ops(lower=["scaled"])), hmp.report() as report:
        assert op(x, [x + 1, x + 2]).dtype == BF16
    assert report.casts("scaled") == 3


def test_a_method():
    class Net:
        @hmp.register_op
        def mix(self, x):
            return x.dtype

    with hmp.autocast("cpu", policy=hmp.Policy.from_ops(lower=["mix"])):
        assert Net().mix(torch.ones(2)) == BF16


@hmp.register_op
def picklable(x):
    return x


def test_looks_like_the_function():
    assert picklable.__name__ == "picklable"
    assert pickle.loads(pickle.dumps(picklable)) is picklable
    assert hmp.register_op(picklable).original is picklable.original
    assert "picklable" in repr(picklable)


@pytest.mark.parametrize("front_end", ["convert", "autocast"])
@pytest.mark.parametrize("edit", ["+traced_mlp:lower", "+traced_mlp:fp32", "+relu:lower"])
def test_in_a_graph(front_end, edit):
    """No graph break, the bits of eager, and no stale graph when the policy changes."""

    @hmp.register_op
    def traced_mlp(x, weight):
        return torch.relu(x @ weight) @ weight

    torch._dynamo.reset()
    x, weight = torch.randn(3, 4), torch.randn(4, 4)
    compiled = torch.compile(lambda x: traced_mlp(x, weight) + 1, backend="aot_eager", fullgraph=True)
    for policy in (hmp.Policy.load("torch-cpu").with_edits(edit), hmp.Policy.load("torch-cpu")):
        with in_force(front_end, policy):
            expected = traced_mlp(x, weight) + 1
            assert torch.equal(compiled(x), expected)
            assert compiled(x).dtype == expected.dtype
    torch._dynamo.reset()


def test_explain():
    hmp.register_op(fused)
    policy = hmp.Policy.load("hmp").with_edits("+fused:fp32")
    found = hmp.explain("fused", policy=policy)
    assert found.homes == {"register_op": "float32"}
    assert found.rule.action == "fp32"
    assert hmp.explain("mylib.fused", policy=policy).op == "fused"
    assert "the ops inside follow their own rules" in str(hmp.explain("fused", policy="hmp"))


def test_d22_a_name_that_nobody_registered_is_unknown():
    with pytest.raises(ValueError, match=r"'flash_kernel' is not an op of torch .*hmp.register_op"):
        hmp.Policy.load("hmp").with_edits("+flash_kernel:lower", strict=True)


WRONG = {
    "not callable": (lambda: hmp.register_op(3), TypeError, "takes a function, not 3"),
    "a class": (lambda: hmp.register_op(torch.nn.Linear), TypeError, "takes a function"),
    "a name that is no string": (lambda: hmp.register_op(fused, name=3), TypeError, "pass a string as name="),
    "an op of torch": (lambda: hmp.register_op(torch.mm), ValueError, "torch has an op 'mm'"),
    "a name of torch": (lambda: hmp.register_op(fused, name="linear"), ValueError, "torch has an op 'linear'"),
    "a name with a dot": (lambda: hmp.register_op(fused, name="a.b"), ValueError, "letters, digits and _"),
    "a lambda": (lambda: hmp.register_op(lambda x: x), ValueError, "'<lambda>' is not a name"),
    "letters that no list has": (lambda: hmp.register_op(fused, name="größe"), ValueError, "letters, digits and _"),
}


@pytest.mark.parametrize(("call", "error", "message"), WRONG.values(), ids=WRONG)
def test_wrong_input(call, error, message):
    before = set(names.registered)
    with pytest.raises(error, match=message):
        call()
    assert names.registered == before
