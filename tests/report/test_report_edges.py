"""The report where it could break: threads, forks, exceptions, traces and compilers, subclasses and modes, memory, other observers."""

from __future__ import annotations

import copy
import gc
import os
import pickle
import subprocess
import sys
import textwrap
import threading
import time
import weakref

import pytest
import torch
import torch.fx.experimental.proxy_tensor
from arrived_calls import casts_of
from torch import nn
from torch.nn import functional as F
from torch.nn.modules import module as nn_module

import habana_mp._core as _core
from habana_mp import hmp

X, W, LOW = torch.randn(4, 8), torch.randn(8, 8), torch.randn(4, 8).bfloat16()


@pytest.fixture(autouse=True)
def _converted(_converted_by_none):
    hmp.convert()
    yield
    hmp.revert()
    assert not _core.reporting()
    assert not nn_module._global_forward_hooks
    assert not nn_module._global_forward_pre_hooks
    assert not nn_module._global_forward_hooks_always_called


def table(report):
    return {(row["op"], row["decision"]): row["calls"] for row in report.to_dict()["rows"]}


# Reports in reports, and beside each other.


def test_nested_reports_each_count_their_block():
    with hmp.report() as outer:
        torch.mm(X, W)
        with hmp.report() as inner:
            torch.mm(X, W)
            assert (outer.casts(), inner.casts()) == (4, 2)
        torch.mm(X, W)
    assert (outer.casts(), inner.casts()) == (6, 2)


def test_reports_may_end_in_any_order():
    first, second = hmp.report(), hmp.report()
    first.__enter__()
    torch.mm(X, W)
    second.__enter__()
    torch.mm(X, W)
    first.__exit__(None, None, None)
    torch.mm(X, W)
    second.__exit__(None, None, None)
    assert (first.casts(), second.casts()) == (4, 4)


def enter_twice():
    report = hmp.report()
    with report, report:
        pass


def enter_again():
    report = hmp.report()
    with report:
        pass
    with report:
        pass


def leave_twice():
    report = hmp.report()
    with report:
        pass
    report.__exit__(None, None, None)


MISUSED = {
    "entered twice": (enter_twice, "for one with block"),
    "entered again": (enter_again, "for one with block"),
    "left twice": (leave_twice, "never entered"),
    "never entered": (lambda: hmp.report().__exit__(None, None, None), "never entered"),
    "asked before": (lambda: hmp.report().casts(), "nothing has been counted yet"),
    "written before": (lambda: hmp.report().to_json(), "nothing has been counted yet"),
}


@pytest.mark.parametrize("case", MISUSED)
def test_misuse_is_an_error_that_leaves_nothing_open(case):
    misuse, message = MISUSED[case]
    with pytest.raises(RuntimeError, match=message):
        misuse()


def test_an_empty_report_tells_so():
    with hmp.report() as report:
        pass
    assert (report.casts(), report.to_dict()["rows"], report.advice) == (0, [], ())
    assert repr(report) == "<CastReport: 0 casts, 0 of them from the weight cache, 0 rows>"
    assert repr(hmp.report()) == "<CastReport: not begun>"


COPIES = {"copy": copy.copy, "deepcopy": copy.deepcopy, "pickle": lambda report: pickle.loads(pickle.dumps(report))}


@pytest.mark.parametrize("how", COPIES)
def test_a_copy_is_what_was_counted_by_then(how):
    with hmp.report() as report:
        torch.mm(X, W)
        early = COPIES[how](report)
        torch.mm(X, W)
    late = COPIES[how](report)
    assert (early.casts(), late.casts(), report.casts()) == (2, 4, 4)
    with pytest.raises(RuntimeError, match="for one with block"), early:
        pass
    with COPIES[how](hmp.report()) as fresh:
        torch.mm(X, W)
    assert fresh.casts() == 2


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, GeneratorExit], ids=lambda error: error.__name__)
def test_a_block_that_raises_keeps_its_counts(error):
    report = hmp.report()

    def fails():
        with report:
            nn.Linear(8, 8)(X)
            raise error

    with pytest.raises(error):
        fails()
    assert report.casts() == 3


def test_a_generator_may_hold_a_report_open():
    def generator():
        with hmp.report() as report:
            yield torch.mm(X, W)
            yield report

    running = generator()
    next(running)
    torch.mm(X, W)
    report = next(running)
    assert report.casts() == 4
    running.close()
    assert not _core.reporting()
    abandoned = generator()
    next(abandoned)
    del abandoned
    gc.collect()
    assert not _core.reporting()


# Threads and processes.


def in_threads(*functions):
    errors = []

    def run(function):
        try:
            function()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(function,)) for function in functions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not any(thread.is_alive() for thread in threads)
    assert not errors, errors


@pytest.mark.parametrize("front_end", ["convert", "autocast"])
def test_a_report_counts_the_calls_of_all_threads(front_end):
    net = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
    if front_end == "autocast":
        hmp.revert()

    def work():
        with hmp.autocast("cpu", enabled=front_end == "autocast"):
            for _ in range(50):
                net(X).sum().backward()

    with hmp.report() as report:
        in_threads(work, work, work)
    assert {row["module"]: row["calls"] for row in report.to_dict()["rows"] if row["op"] == "linear"} == {
        "Sequential: 0": 150,
        "Sequential: 1": 150,
    }
    assert (report.casts("linear"), report.backward_casts("linear")) == (750, 600)


def test_threads_may_each_have_a_report():
    def work():
        for _ in range(30):
            with hmp.report() as report:
                nn.Linear(8, 8)(X)
                torch.mm(X, W)
            assert report.casts() >= 5  # those of the others too

    in_threads(*[work] * 4)


def test_calls_that_outlive_a_report_tell_the_next_one_nothing():
    """Each of these is in the middle of something as reports open and close."""
    stop = threading.Event()
    net = nn.Sequential(nn.Linear(8, 8), nn.Softmax(-1), nn.Linear(8, 8))

    def work():
        while not stop.is_set():
            net(X).sum().backward()
            with hmp.autocast("cpu"):
                F.mse_loss(net(X).float(), X)

    def reports():
        try:
            for turn in range(200):
                with hmp.report() as report:
                    for _ in range(turn % 4):
                        torch.mm(X, W)
                for row in report.to_dict()["rows"]:
                    assert row["calls"] >= 0
                    assert row["op"]
                assert casts_of(report, "mm") == 2 * (turn % 4)
        finally:
            stop.set()

    in_threads(work, work, reports)


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_fork_inside_of_a_report_does_not_hang():
    stop = threading.Event()

    def work():
        while not stop.is_set():
            X + LOW

    threads = [threading.Thread(target=work) for _ in range(2)]
    with hmp.report():
        for thread in threads:
            thread.start()
        try:
            for _ in range(30):
                child = os.fork()
                if child == 0:
                    X + LOW
                    os._exit(0)
                end = time.monotonic() + 20
                while (done := os.waitpid(child, os.WNOHANG)) == (0, 0) and time.monotonic() < end:
                    time.sleep(0.001)
                if done == (0, 0):
                    os.kill(child, 9)
                    os.waitpid(child, 0)
                    pytest.fail("the child hangs")
                assert done[1] == 0
        finally:
            stop.set()
            for thread in threads:
                thread.join()


class Squares(torch.utils.data.Dataset):
    def __len__(self):
        return 4

    def __getitem__(self, index):
        return torch.mm(X, W).float() * index


def test_workers_of_a_data_loader_are_not_counted_and_not_disturbed():
    with hmp.report() as report:
        for batch in torch.utils.data.DataLoader(Squares(), num_workers=2):
            F.linear(batch, W)
    assert (report.casts("linear"), casts_of(report, "mm")) == (4, 0)  # the batches come in bfloat16


def test_a_process_may_end_inside_of_a_report():
    script = """
        import torch
        from habana_mp import hmp
        hmp.convert()
        r = hmp.report()
        r.__enter__()
        net = torch.nn.Linear(8, 8)
        net(torch.randn(4, 8)).sum().backward()
        print(r.casts() >= 3)
    """
    ran = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True, timeout=60, check=False
    )
    assert (ran.returncode, ran.stdout) == (0, "True\n"), ran.stderr


# Transforms, traces, compilers.

TRANSFORMS = {
    "vmap": (lambda: torch.func.vmap(lambda x: torch.mv(W, x))(X), "mv", 2),
    "grad": (lambda: torch.func.grad(lambda x: F.linear(x, W).sum())(X), "linear", 2),
    "jvp": (lambda: torch.func.jvp(lambda x: F.linear(x, W), (X,), (X,)), "linear", 2),
    "jacrev": (lambda: torch.func.jacrev(lambda x: F.linear(x, W))(X[0]), "linear", 2),
    "jacfwd": (lambda: torch.func.jacfwd(lambda x: F.linear(x, W))(X[0]), "linear", 2),
    "hessian": (lambda: torch.func.hessian(lambda x: F.linear(x, W).float().sum())(X[0]), "linear", 2),
    "no_grad": (torch.no_grad()(lambda: F.linear(X, W)), "linear", 2),
    "inference_mode": (torch.inference_mode()(lambda: F.linear(X, W)), "linear", 2),
    "make_fx": (lambda: torch.fx.experimental.proxy_tensor.make_fx(lambda x: F.linear(x, W))(X), "linear", 2),
    "symbolic_trace": (lambda: torch.fx.symbolic_trace(nn.Linear(8, 8)), "linear", 0),
    "export": (lambda: torch.export.export(nn.Linear(8, 8), (X,)), "linear", 0),
    "meta": (lambda: torch.mm(torch.empty(4, 8, device="meta"), torch.empty(8, 8, device="meta")), "mm", 2),
    "nothing in it": (lambda: torch.mm(torch.empty(0, 8), W), "mm", 2),
    "sparse": (lambda: torch.mm(torch.eye(4).to_sparse(), X), "mm", 2),
    "jagged": (lambda: F.linear(torch.nested.nested_tensor([X, X], layout=torch.jagged), W), "linear", 2),
}


@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning", "ignore::DeprecationWarning")
@pytest.mark.parametrize("case", TRANSFORMS)
def test_casts_in_transforms_are_counted_and_change_nothing(case):
    call, op, casts = TRANSFORMS[case]
    plain = call()
    with hmp.report() as report:
        result = call()
    assert casts_of(report, op) == casts
    if isinstance(plain, torch.Tensor) and plain.layout is torch.strided and plain.device.type == "cpu":
        torch.testing.assert_close(result, plain, rtol=0, atol=0)


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::torch.jit.TracerWarning")
def test_a_trace_is_the_same_inside_of_a_report():
    layer = nn.Linear(8, 8)
    plain = torch.jit.trace(layer, X, check_trace=False)
    with hmp.report() as report:
        traced = torch.jit.trace(layer, X, check_trace=False)
    assert [node.kind() for node in traced.graph.nodes()] == [node.kind() for node in plain.graph.nodes()]
    assert report.casts() == 3


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_compiled_code_runs_and_counts_no_casts(backend):
    net = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Softmax(-1))
    with torch.no_grad():
        plain = net(X)
        torch._dynamo.reset()
        compiled = torch.compile(net, backend=backend, fullgraph=True)
        for _ in range(10):  # more than dynamo compiles anew before it gives up
            with hmp.report() as report:
                assert torch.equal(compiled(X), plain)
            assert torch.equal(compiled(X), plain)
        assert report.casts() == 0
        assert not [op for op, _ in table(report) if "ompile" in op or "Dynamo" in op]
        with hmp.report() as report:
            compiled(X)
            net(X)
        assert report.casts() == 3 + 1
    torch._dynamo.reset()


class Scaled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return torch.sin(x)

    @staticmethod
    def backward(ctx, gradient):
        return torch.cos(gradient)


def marks():
    with torch.profiler.record_function("a mark"), torch._C._profiler._RecordFunctionFast("another"):
        torch.tan(X)
    Scaled.apply(X.clone().requires_grad_())


def test_only_ops_are_rows():
    """Not autograd functions, nor what is marked for profilers, which hide nothing either."""
    with hmp.report() as report:
        marks()
    assert {op for op, _ in table(report)} == {"tan", "clone", "sin"}


# Subclasses, modes, other observers.


class Plain(torch.Tensor):
    pass


class Passing(torch.Tensor):
    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        return super().__torch_function__(function, types, args, kwargs or {})


def two_tensor(x):
    from torch.testing._internal.two_tensor import TwoTensor

    return TwoTensor(x, x.clone())


KINDS = {
    "plain subclass": lambda x: x.as_subclass(Plain),
    "with __torch_function__": lambda x: x.as_subclass(Passing),
    "wrapper": two_tensor,
    "parameter": nn.Parameter,
}


@pytest.mark.parametrize("front_end", ["convert", "autocast"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_call_with_a_subclass_is_one_call(kind, front_end):
    x = KINDS[kind](X)
    if front_end == "autocast":
        hmp.revert()
    with hmp.report() as report, hmp.autocast("cpu", policy=hmp.Policy.load("hmp"), enabled=front_end == "autocast"):
        torch.mm(x, W)
        F.softmax(KINDS[kind](LOW), -1)
    assert (table(report)["mm", "lower"], report.casts("mm")) == (1, 2)
    assert (table(report)["softmax", "fp32"], report.casts("softmax")) == (1, 1)


class DispatchMode(torch.utils._python_dispatch.TorchDispatchMode):
    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        return function(*args, **(kwargs or {}))


class FunctionMode(torch.overrides.TorchFunctionMode):
    def __torch_function__(self, function, types, args=(), kwargs=None):
        return function(*args, **(kwargs or {}))


def debug_mode():
    from torch.utils._debug_mode import DebugMode

    return DebugMode()


WATCHERS = {
    "dispatch mode": DispatchMode,
    "function mode": FunctionMode,
    "debug mode": debug_mode,
    "profiler": lambda: torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]),
    "anomaly detection": torch.autograd.detect_anomaly,
}


@pytest.mark.filterwarnings("ignore:Anomaly Detection")
@pytest.mark.parametrize("outside", [True, False], ids=["around", "inside"])
@pytest.mark.parametrize("watcher", WATCHERS)
def test_others_may_watch_at_the_same_time(watcher, outside):
    layer = nn.Linear(8, 8)
    report = hmp.report()
    first, second = (WATCHERS[watcher](), report) if outside else (report, WATCHERS[watcher]())
    with first, second:
        layer(X)
        F.softmax(LOW, -1)
    assert (report.casts("linear"), report.casts("softmax"), report.casts()) == (3, 1, 4)
    assert (table(report)["linear", "lower"], table(report)["softmax", "fp32"]) == (1, 1)


# Results and memory.


@pytest.mark.parametrize("front_end", ["convert", "autocast"])
def test_results_are_the_same_bits(front_end):
    def run():
        torch.manual_seed(0)
        net = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
        optimizer = torch.optim.AdamW(net.parameters(), lr=0.1)
        for _ in range(3):
            with hmp.autocast("cpu", enabled=front_end == "autocast"):
                loss = net(torch.randn(2, 4, 16)).float().square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        return [loss.detach(), *[p.detach() for p in net.parameters()]]

    if front_end == "autocast":
        hmp.revert()
    plain = run()
    with hmp.report() as report:
        watched = run()
    assert report.casts() > 0
    assert all(torch.equal(a, b) for a, b in zip(plain, watched, strict=True))


class Drops(nn.Module):
    def forward(self, x):
        y = torch.cos(x)
        gone = weakref.ref(y)
        y = torch.sin(y)
        y = torch.tan(y)
        return gone() is None


def test_it_keeps_no_tensor_and_no_module_alive():
    with hmp.report() as report:
        x = torch.randn(4, 8)
        net = nn.Sequential(nn.Linear(8, 8), nn.ReLU())
        y = net(x)
        storage = y.untyped_storage()
        gone = [weakref.ref(value) for value in (x, net, net[0], net[0].weight, y, storage)]
        del x, net, y, storage
        gc.collect()
        assert [value() for value in gone] == [None] * 6
        assert Drops()(X)
        assert Drops().forward(X)
    assert report.casts() > 0


def resident():
    with open("/proc/self/statm") as file:  # noqa: PTH123
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.unsanitized(reason="the sanitizer keeps freed memory back")
@pytest.mark.skipif(not os.path.exists("/proc/self/statm"), reason="there is no /proc")  # noqa: PTH110
def test_memory_that_is_freed_serves_again():
    """Of 400 MB that are used one after the other, not at once."""

    def use(count):
        for _ in range(count):
            torch.sin(torch.randn(500_000))

    with hmp.report():
        use(40)
        before = resident()
        use(100)
        assert resident() - before < 60 << 20


@pytest.mark.skipif(not os.path.exists("/proc/self/statm"), reason="there is no /proc")  # noqa: PTH110
def test_a_long_loop_does_not_grow():
    def step():
        net = nn.Sequential(nn.Linear(8, 8), nn.ReLU())
        net(torch.randn(4, 8)).sum().backward()

    with hmp.report() as report:
        for _ in range(200):
            step()
        gc.collect()
        before, rows = resident(), len(report.to_dict()["rows"])
        for _ in range(800):
            step()
        gc.collect()
        assert resident() - before < 8 << 20
        assert len(report.to_dict()["rows"]) == rows
    assert {row["module"] for row in report.to_dict()["rows"]} == {"", "Sequential: 0", "Sequential: 1"}
