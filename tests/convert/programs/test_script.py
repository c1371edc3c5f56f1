"""torch.jit.script under convert: the lists hold in the code that it compiles (D35)."""

import copy
import itertools
import subprocess
import sys

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from habana_mp import hmp

BF16 = torch.bfloat16


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


def listed(x: torch.Tensor) -> torch.Tensor:
    return torch.softmax(torch.mm(x, x), -1)


def unlisted(x: torch.Tensor, n: int) -> torch.Tensor:
    for _ in range(n):
        x = x.tanh() + x.sum()
    return x


def broken(x: torch.Tensor) -> torch.Tensor:
    return nothing_of_that_name(x)  # noqa: F821


def product(x: torch.Tensor) -> torch.Tensor:
    return torch.mm(x, x)  # raises for what is no matrix


def calls_listed(x: torch.Tensor) -> torch.Tensor:
    return listed(x) + x


def forking(x: torch.Tensor) -> torch.Tensor:
    return torch.jit.wait(torch.jit.fork(product, x))


bound_before = torch.jit.script


class Listed(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x):
        return self.layer(x)


class Unlisted(nn.Module):
    def forward(self, x):
        return x.exp() + 1


def doubled(value: int) -> int:
    return 2 * value


class Exported(Listed):
    @torch.jit.export
    def other(self, x):
        return self.layer(x)


class OldForm(torch.jit.ScriptModule):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)

    @torch.jit.script_method
    def forward(self, x):
        return self.layer(x)


class Head(nn.Module):
    """As YOLOX scripts its head: it gets what ops before it have lowered, and has weights in float32."""

    def __init__(self):
        super().__init__()
        self.conv, self.norm, self.out = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Linear(4, 2)

    def forward(self, x):
        y = F.silu(self.norm(self.conv(x)))
        return torch.softmax(self.out(y.mean([2, 3])), -1)


def swish(x: torch.Tensor) -> torch.Tensor:
    return x.mul(x.sigmoid())


def swish_backward(x: torch.Tensor, gradient: torch.Tensor) -> torch.Tensor:
    sigmoid = torch.sigmoid(x)
    return gradient * (sigmoid * (1 + x * (1 - sigmoid)))


class SwishOf:
    """timm up to 0.5: an autograd function of two scripted ones."""

    def __init__(self, forward, backward):
        class Function(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x):
                ctx.save_for_backward(x)
                return forward(x)

            @staticmethod
            def backward(ctx, gradient):
                return backward(ctx.saved_tensors[0], gradient)

        self.apply = Function.apply


def scripted_class():
    @torch.jit.script
    class Product:
        def __init__(self):
            self.times = 2

        def __call__(self, x: torch.Tensor) -> torch.Tensor:
            return torch.softmax(torch.mm(x, x), -1)

    return Product()


def loaded(path):
    torch.jit.script(listed).save(str(path / "scripted.pt"))
    return torch.jit.load(str(path / "scripted.pt"))


def with_float32_inside(x):
    with hmp.disable_casts():
        full = torch.mm(x, x)
    return full + torch.mm(x, x)


class Float32Inside(nn.Module):
    def forward(self, x):
        return with_float32_inside(x)


def run(function, of):
    """Result and gradients of four calls: TorchScript compiles anew at the second."""
    found = []
    for seed in range(4):
        torch.manual_seed(seed)
        x = torch.randn(of, requires_grad=True)
        result = function(x)
        result.float().square().sum().backward()
        found += [result, x.grad]
    return found


# What makes it, and the same in Python. A conversion is in force in both.
SCRIPTED = {
    "function": (lambda _: torch.jit.script(listed), listed),
    "a name bound before": (lambda _: bound_before(listed), listed),
    "again": (lambda _: [torch.jit.script(listed) for _ in range(2)][1], listed),
    "class": (lambda _: scripted_class(), listed),
    "loaded": (loaded, listed),
    "called by another": (lambda _: torch.jit.script(calls_listed), calls_listed),
    "compiled by torch.compile": (lambda _: torch.compile(torch.jit.script(listed), backend="eager"), listed),
}
MODULES = {
    "module": (Listed, torch.jit.script, "forward"),
    "exported": (Exported, torch.jit.script, "other"),
    "old form": (OldForm, lambda module: module, "forward"),
    "a part": (lambda: nn.Sequential(Listed()), lambda module: nn.Sequential(torch.jit.script(module[0])), "forward"),
    "frozen": (lambda: Listed().eval(), lambda module: torch.jit.freeze(torch.jit.script(module)), "forward"),
}
UNREACHED = {
    "another thread": lambda: torch.jit.script(forking),
    "called by a trace": lambda: torch.jit.trace(torch.jit.script(product), torch.eye(4)),
    "replaced by oneDNN": lambda: torch.jit.optimize_for_inference(torch.jit.script(Listed().eval())),
}
POLICIES = ["hmp", "hmp-o1", "hmp-o2", "balanced", "torch-cpu"]


class TestScript:
    """The lists hold in code of TorchScript, so nothing is lost that would have to be refused."""

    @pytest.mark.parametrize("policy", POLICIES)
    @pytest.mark.parametrize(("make", "same"), SCRIPTED.values(), ids=SCRIPTED.keys())
    @pytest.mark.parametrize("when", ["before", "after"])
    def test_scripted_functions_run_by_the_lists(self, when, make, same, policy, tmp_path):
        scripted = make(tmp_path) if when == "before" else None
        hmp.convert(policy=policy)
        scripted = scripted or make(tmp_path)
        found, expected = run(scripted, (3, 3)), run(same, (3, 3))
        assert [t.dtype for t in found] == [t.dtype for t in expected]
        assert all(map(torch.equal, found, expected))

    @pytest.mark.parametrize("when", ["before", "after"])
    @pytest.mark.parametrize(("make", "script", "method"), MODULES.values(), ids=MODULES.keys())
    def test_scripted_modules_run_by_the_lists(self, make, script, method, when):
        if when == "after":
            hmp.convert()
        module = make()
        weight, bias = (t.detach().clone() for t in module.parameters())
        scripted = getattr(script(module), method)
        hmp.convert()
        found, expected = run(scripted, (3, 4)), run(lambda x: F.linear(x, weight, bias), (3, 4))
        assert found[0].dtype == BF16
        assert all(map(torch.equal, found, expected))

    @pytest.mark.parametrize("policy", POLICIES)
    def test_a_scripted_head_trains_as_in_python(self, policy):
        backbone, head = nn.Conv2d(3, 3, 3), Head()
        other = copy.deepcopy(head)
        hmp.convert(policy=policy)
        scripted = torch.jit.script(other)
        x = torch.randn(2, 3, 8, 8)
        for _ in range(3):
            found, expected = scripted(backbone(x)), head(backbone(x))
            found.float().square().sum().backward()
            expected.float().square().sum().backward()
            assert torch.equal(found, expected)
        for ours, theirs in zip(scripted.parameters(), head.parameters(), strict=True):
            assert torch.equal(ours.grad, theirs.grad)

    def test_libraries_script_parts_of_an_autograd_function(self):
        hmp.convert()
        ours = SwishOf(torch.jit.script(swish), torch.jit.script(swish_backward))
        theirs = SwishOf(swish, swish_backward)
        assert all(map(torch.equal, run(ours.apply, (3, 3)), run(theirs.apply, (3, 3))))

    @pytest.mark.parametrize("make", [lambda: with_float32_inside, Float32Inside], ids=["function", "module"])
    def test_a_trace_runs_as_it_was_recorded_d35(self, make):
        """What is left in float32 on purpose stays so: the lists hold in scripted code alone."""
        x = torch.randn(3, 3)
        hmp.convert()
        traced = torch.jit.trace(make(), x)
        with hmp.disable_casts():
            full = x @ x
        assert torch.equal(traced(x), full + x @ x)
        assert (x @ x).dtype == BF16

    @pytest.mark.parametrize(
        "off",
        [hmp.disable_casts, lambda: torch.autocast("cpu", enabled=False)],
        ids=["disable_casts", "force float32 of a module"],
    )
    def test_where_casts_are_off_it_runs_as_torch_does(self, off):
        class Block(nn.Module):
            def forward(self, x):
                with off():
                    return scripted(x)

        x, scripted = torch.randn(2, 2), torch.jit.script(listed)
        expected = listed(x)
        hmp.convert(policy="hmp-o1")
        assert torch.equal(Block()(x), expected)

    @pytest.mark.parametrize("make", UNREACHED.values(), ids=UNREACHED.keys())
    def test_what_the_lists_do_not_reach(self, make):
        """As docs/limits.md says."""
        hmp.convert(policy="hmp-o1")
        assert make()(torch.eye(4)).dtype == torch.float32

    def test_the_report_has_its_ops(self):
        x, scripted = torch.randn(2, 2), torch.jit.script(listed)
        hmp.convert()
        with hmp.report() as report:
            scripted(x)
        assert (report.casts(op="mm", to="bfloat16"), report.casts(op="softmax", to="float32")) == (1, 1)

    def test_torchscript_optimizes_as_before_behind_a_call(self):
        scripted = torch.jit.script(product)
        hmp.convert()
        with pytest.raises(RuntimeError, match="must be a matrix"):
            scripted(torch.ones(()))
        assert torch._C._get_graph_executor_optimize()
        with torch.jit.optimized_execution(False):
            torch.jit.script(listed)(torch.eye(2))
            assert not torch._C._get_graph_executor_optimize()

    def test_script_if_tracing(self):
        """It scripts while something is traced, by a name that torch has bound for itself."""

        @torch.jit.script_if_tracing
        def doubled_until(x: torch.Tensor, most: float) -> torch.Tensor:
            while bool(F.relu(x).max() < most):
                x = x * 2
            return x

        hmp.convert()
        traced = torch.jit.trace(lambda x: doubled_until(x, 100.0) + 1, torch.ones(2))
        assert traced(torch.full((2,), 40.0)).tolist() == [161.0, 161.0]

    def test_code_without_listed_ops_runs(self):
        x = torch.randn(2, 2)
        expected = unlisted(x, 3)
        hmp.convert()
        assert torch.equal(torch.jit.script(unlisted)(x, 3), expected)
        assert torch.equal(torch.jit.script(Unlisted())(x), x.exp() + 1)

    def test_a_class_finds_the_names_of_its_module(self):
        """torch looks them up so many frames above the call."""
        hmp.convert()

        @torch.jit.script
        class Twice:
            def __init__(self, value: int):
                self.value = doubled(value)

        assert Twice(3).value == 6

    def test_torch_scripts_classes_of_its_own(self):
        """With listed ops in them, as the optimizers of torch.distributed.optim are."""
        code = "from habana_mp import hmp; hmp.convert(); import torch.distributed.optim as o; print(o.ZeroRedundancyOptimizer.__name__)"
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
        assert done.stdout == "ZeroRedundancyOptimizer\n", done.stderr

    def test_a_scripted_part_in_a_converted_model(self):
        scripted = torch.jit.script(Unlisted())
        hmp.convert()
        model = nn.Sequential(nn.Linear(4, 4), scripted, nn.Linear(4, 2))
        assert model(torch.randn(2, 4)).dtype == BF16

    def test_errors_of_script_come_through_and_restore(self):
        hmp.convert()
        with pytest.raises(RuntimeError, match="undefined value"):
            torch.jit.script(broken)
        assert torch.mm(torch.eye(2), torch.eye(2)).dtype == BF16

    def test_ignored_functions_are_cast(self):
        """What script leaves to Python runs there."""

        @torch.jit.ignore
        def python(x: torch.Tensor) -> torch.Tensor:
            return F.linear(x, x)

        class Calls(nn.Module):
            def forward(self, x):
                return python(x)

        hmp.convert()
        assert torch.jit.script(Calls())(torch.eye(2)).dtype == BF16


@pytest.mark.parametrize("order", [*itertools.permutations(["plain", "torch.autocast", "convert"])], ids=",".join)
def test_plans_of_one_do_not_serve_another(order):
    """torch keeps an optimized plan of a function; each way has the results and gradients that it has alone."""

    def layers(t: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.layer_norm(torch.mm(t, t) + 1, [4])

    def steps(function, way):
        found = []
        for seed in range(3):
            torch.manual_seed(seed)
            given = torch.randn(4, 4, requires_grad=True)
            if way == "convert":
                hmp.convert(policy="torch-cpu")
            with torch.autocast("cpu", torch.bfloat16, enabled=way == "torch.autocast"):
                result = function(given)
            hmp.revert()
            result.float().square().sum().backward()
            found += [result, given.grad]
        return found

    alone = {way: steps(torch.jit.script(layers), way) for way in order}
    script = torch.jit.script(layers)
    for way in order:
        assert all(map(torch.equal, steps(script, way), alone[way]))
