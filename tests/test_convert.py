"""convert, revert, is_converted: all of it or none of it, and every object comes back (D1, D7, D8, F5 to F8, F274)."""

from __future__ import annotations

import contextlib
import functools
import gc
import io
import subprocess
import sys
import textwrap
import threading
import tracemalloc
import types

import pytest
import torch
import torch.nn.functional as F
import torch.utils.checkpoint
from torch import nn

from habana_mp import _convert, _homes, hmp

F32, BF16, F16 = torch.float32, torch.bfloat16, torch.float16

OWNERS = [
    torch,
    F,
    torch.functional,
    torch._VF,
    torch.linalg,
    torch.fft,
    torch.special,
    torch._C._nn,
    sys.modules["torch._C._linalg"],
    sys.modules["torch._C._fft"],
    sys.modules["torch._C._special"],
    torch.Tensor,
    nn.Module,
    nn.RNNBase,
    nn.modules.rnn,
    nn.init,
    torch.jit,
    torch.utils.checkpoint,
    torch.utils.checkpoint.CheckpointFunction,
    torch.backends.mha,
]


def snapshot():
    """Every name of every namespace that a conversion may touch, in order, with the object that it holds."""
    return [list(vars(owner).items()) for owner in OWNERS]


def changed(before, after):
    """The names that hold another object, were added or removed."""
    names = []
    for owner, old, new in zip(OWNERS, before, after, strict=True):
        old, new = dict(old), dict(new)
        names += [f"{owner.__name__}.{name}" for name in old.keys() | new.keys() if old.get(name) is not new.get(name)]
    return sorted(names)


def a():
    return torch.ones(2, 2)


@pytest.fixture
def pristine():
    return snapshot()


# ---- arguments


@pytest.mark.parametrize("level", ["O1", "o1", "O2", "o2"])
def test_opt_level_in_any_case(level):
    """D1."""
    policy = hmp.convert(opt_level=level)
    assert policy.name == {"O1": "hmp", "O2": "hmp-o2"}[level.upper()]


@pytest.mark.parametrize("level", ["O0", "O3", "", "1", None, 1], ids=repr)
def test_another_opt_level_is_refused(level, pristine):
    """D1."""
    with pytest.raises((ValueError, TypeError), match=r"O1.*O2"):
        hmp.convert(opt_level=level)
    assert changed(pristine, snapshot()) == []


def test_the_defaults_are_the_newer_guides():
    """D3, F5, F6."""
    policy = hmp.convert()
    assert policy == hmp.convert(opt_level="O1", bf16_file_path="", fp32_file_path="", isVerbose=False)
    assert policy == hmp.convert("O1", None, None, False)
    assert policy == hmp.Policy.load("hmp")


@pytest.mark.parametrize(
    ("verbose", "level", "lines"),
    [
        (False, "O1", []),
        (True, "O1", ["hmp:verbose_mode  True", "hmp:opt_level O1"]),
        (True, "o2", ["hmp:verbose_mode  True", "hmp:opt_level O2"]),
    ],
)
def test_the_banner(verbose, level, lines, capsys):
    """D8."""
    hmp.convert(opt_level=level, isVerbose=verbose)
    assert capsys.readouterr().out.splitlines() == lines


# ---- being converted


def test_is_converted():
    assert not hmp.is_converted()
    hmp.convert()
    assert hmp.is_converted()
    hmp.convert()
    assert hmp.is_converted()
    hmp.revert()
    assert not hmp.is_converted()
    hmp.revert()
    assert not hmp.is_converted()


def test_models_made_before_and_after_follow_alike():
    """F7, F8."""
    before = nn.Linear(2, 2)
    hmp.convert()
    after = nn.Linear(2, 2)
    assert before(a()).dtype == after(a()).dtype == BF16
    assert {parameter.dtype for model in (before, after) for parameter in model.parameters()} == {F32}
    hmp.revert()
    assert before(a()).dtype == after(a()).dtype == F32


def test_a_second_convert_replaces_the_first():
    """D7, F274."""
    hmp.convert()
    first = torch.mm
    assert (torch.mm(a(), a()).dtype, torch.softmax(a().bfloat16(), 0).dtype) == (BF16, F32)
    hmp.convert(policy=hmp.Policy.from_ops(lower=["softmax"], low_dtype=F16))
    assert (torch.mm(a(), a()).dtype, torch.softmax(a(), 0).dtype) == (F32, F16)
    hmp.convert()
    assert torch.mm is first
    assert (torch.mm(a(), a()).dtype, torch.softmax(a().bfloat16(), 0).dtype) == (BF16, F32)


def test_convert_while_casts_are_off():
    with hmp.disable_casts():
        hmp.convert()
        assert torch.mm(a(), a()).dtype == F32
    assert torch.mm(a(), a()).dtype == BF16


# ---- the very objects come back


def test_a_conversion_patches_and_revert_restores(pristine):
    """D7."""
    hmp.convert()
    patched = changed(pristine, snapshot())
    assert {"torch.mm", "Tensor.mm", "Tensor.__matmul__", "torch.nn.functional.linear", "torch._C._nn.linear"} <= set(
        patched
    )
    hmp.revert()
    assert changed(pristine, snapshot()) == []


SEQUENCES = {
    "one": ["hmp"],
    "the same again": ["hmp", "hmp"],
    "two": ["hmp", "hmp-o2"],
    "wide, then narrow": ["hmp-o2", "torch-cpu"],
    "every preset": hmp.presets(),
}


@pytest.mark.parametrize("presets", SEQUENCES.values(), ids=SEQUENCES.keys())
def test_everything_comes_back_after(presets, pristine):
    """D7: in order of names too."""
    for preset in presets:
        hmp.convert(policy=preset)
    hmp.revert()
    assert changed(pristine, snapshot()) == []
    for owner, before, after in zip(OWNERS, pristine, snapshot(), strict=True):
        assert [name for name, _ in before] == [name for name, _ in after], owner


def test_revert_without_convert_does_nothing(pristine):
    hmp.revert()
    assert changed(pristine, snapshot()) == []


def test_what_a_user_put_there_before_comes_back(monkeypatch):
    """Ops that a user wrapped are cast, called, and given back."""
    calls = []
    native = torch.mm

    @functools.wraps(native)
    def wrapped(*args, **kwargs):
        calls.append([tensor.dtype for tensor in args])
        return native(*args, **kwargs)

    monkeypatch.setattr(torch, "mm", wrapped)
    hmp.convert()
    assert torch.mm(a(), a()).dtype == BF16
    assert calls == [[BF16, BF16]]
    hmp.revert()
    assert torch.mm is wrapped
    monkeypatch.undo()


def test_revert_copes_with_names_that_others_removed_or_replaced(pristine):
    """D7, whatever the order."""
    hmp.convert()
    del torch.Tensor.mm
    torch.softmax = lambda *args: "mine"
    hmp.revert()
    assert changed(pristine, snapshot()) == []
    assert not hmp.is_converted()


def test_a_kept_patched_op_behaves_as_the_original_after_revert():
    """D7."""
    native = {
        "mm": torch.mm,
        "Tensor.mm": torch.Tensor.mm,
        "F.linear": F.linear,
        "F.softmax": F.softmax,
        "add": torch.Tensor.__add__,
    }
    hmp.convert()
    kept = {
        "mm": torch.mm,
        "Tensor.mm": torch.Tensor.mm,
        "F.linear": F.linear,
        "F.softmax": F.softmax,
        "add": torch.Tensor.__add__,
    }
    args = {"F.softmax": (a(), 0)}
    hmp.revert()
    for name, op in kept.items():
        given = args.get(name, (a(), a()))
        assert torch.equal(op(*given), native[name](*given)), name
        assert torch.equal(op.__call__(*given), native[name](*given)), name
        assert op.rule is None
    with pytest.raises(TypeError, match=r"mm\(\)"):
        kept["mm"](1)


def test_a_kept_patched_op_follows_the_next_convert():
    """D7."""
    hmp.convert()
    mm, method, bound = torch.mm, torch.Tensor.mm, a().mm
    hmp.revert()
    hmp.convert(low_precision_type=F16)
    assert (mm(a(), a()).dtype, method(a(), a()).dtype, bound(a()).dtype) == (F16, F16, F16)
    assert mm is torch.mm
    hmp.convert(policy=hmp.Policy.from_ops(lower=["softmax"]))
    assert (mm(a(), a()).dtype, method(a(), a()).dtype, bound(a()).dtype) == (F32, F32, F32)


def test_a_module_that_kept_a_patched_op():
    hmp.convert()

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.activation = F.relu
            self.op = torch.mm

        def forward(self, x):
            return self.op(self.activation(x), x)

    model = Model()
    assert model(a()).dtype == BF16
    hmp.revert()
    assert model(a()).dtype == F32


# ---- a convert that fails


class Refusing(types.ModuleType):
    """A module that refuses one name, as a frozen or lazy one would."""

    refused: str

    def __setattr__(self, name, value):
        if name == type(self).refused:
            raise AttributeError(f"{name} is frozen")
        super().__setattr__(name, value)


@contextlib.contextmanager
def refusing(module, name):
    kind = type(module)
    module.__class__ = type("Refusing", (Refusing,), {"refused": name})
    try:
        yield
    finally:
        module.__class__ = kind


class Broken(io.StringIO):
    def write(self, text):
        raise OSError("the terminal is gone")


def bad_level(tmp_path, monkeypatch):
    return {"opt_level": "O7"}, ValueError


def bad_dtype(tmp_path, monkeypatch):
    return {"low_precision_type": F32}, ValueError


def missing_list(tmp_path, monkeypatch):
    return {"bf16_file_path": tmp_path / "absent.txt"}, FileNotFoundError


def directory_as_list(tmp_path, monkeypatch):
    return {"fp32_file_path": tmp_path}, IsADirectoryError


def bad_line(tmp_path, monkeypatch):
    (tmp_path / "list.txt").write_text("mm\nno op!\n")
    return {"bf16_file_path": tmp_path / "list.txt"}, ValueError


def unknown_name(tmp_path, monkeypatch):
    (tmp_path / "list.txt").write_text("mm\nlienar\n")
    return {"bf16_file_path": tmp_path / "list.txt", "strict": True}, ValueError


def op_in_both_lists(tmp_path, monkeypatch):
    for name in ("lower.txt", "fp32.txt"):
        (tmp_path / name).write_text("mm\n")
    return {"bf16_file_path": tmp_path / "lower.txt", "fp32_file_path": tmp_path / "fp32.txt"}, ValueError


def unknown_policy(tmp_path, monkeypatch):
    return {"policy": "no-such-preset"}, ValueError


def log_that_cannot_be_opened(tmp_path, monkeypatch):
    monkeypatch.setenv("HABANA_MP_LOG", f"casts:{tmp_path}/absent/log.txt")
    return {}, OSError


def bad_log_level(tmp_path, monkeypatch):
    monkeypatch.setenv("HABANA_MP_LOG", "loud")
    return {}, ValueError


def banner_that_cannot_be_written(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "stdout", Broken())
    return {"isVerbose": True}, OSError


FAILURES = [
    bad_level,
    bad_dtype,
    missing_list,
    directory_as_list,
    bad_line,
    unknown_name,
    op_in_both_lists,
    unknown_policy,
    log_that_cannot_be_opened,
    bad_log_level,
    banner_that_cannot_be_written,
]


@pytest.mark.parametrize("failure", FAILURES, ids=lambda failure: failure.__name__)
def test_a_convert_that_fails_converts_nothing(failure, tmp_path, monkeypatch, pristine):
    """D7, D24."""
    arguments, error = failure(tmp_path, monkeypatch)
    with pytest.raises(error):
        hmp.convert(**arguments)
    monkeypatch.undo()
    assert changed(pristine, snapshot()) == []
    assert not hmp.is_converted()
    assert torch.mm(a(), a()).dtype == F32
    assert gc.isenabled()


@pytest.mark.parametrize("failure", FAILURES, ids=lambda failure: failure.__name__)
def test_a_second_convert_that_fails_leaves_the_first_in_force(failure, tmp_path, monkeypatch, pristine, capsys):
    """D7."""
    hmp.convert(low_precision_type=F16, isVerbose=True)
    first, mm = snapshot(), repr(pristine[0][[name for name, _ in pristine[0]].index("mm")][1])
    arguments, error = failure(tmp_path, monkeypatch)
    with pytest.raises(error):
        hmp.convert(**arguments)
    monkeypatch.undo()
    assert changed(first, snapshot()) == []
    assert hmp.is_converted()
    capsys.readouterr()
    assert torch.mm(a(), a()).dtype == F16
    assert capsys.readouterr().out == f"casting  {mm} to_fp16\n"
    hmp.revert()
    assert changed(pristine, snapshot()) == []


FROZEN = {
    "torch.nn.functional": (F, "relu"),
    "torch": (torch, "mm"),
    "torch.special": (torch.special, "softmax"),
    "torch._C._linalg": (sys.modules["torch._C._linalg"], "linalg_inv"),
    "torch.jit": (torch.jit, "script"),
    "torch.utils.checkpoint": (torch.utils.checkpoint, "_checkpoint_without_reentrant_generator"),
    "the last one": (sys.modules["habana_mp._state"], "verbose"),
}


@pytest.mark.parametrize(("module", "name"), FROZEN.values(), ids=FROZEN.keys())
def test_a_home_that_cannot_be_patched_fails_the_whole_conversion(module, name, pristine):
    """D7: at the first home, in between and at the last assignment."""
    with refusing(module, name), pytest.raises(AttributeError, match=f"{name} is frozen"):
        hmp.convert(opt_level="O2")
    assert changed(pristine, snapshot()) == []
    assert not hmp.is_converted()
    assert torch.mm(a(), a()).dtype == F32


def test_a_second_convert_that_fails_in_a_home_leaves_the_first_in_force(pristine):
    """D7: the first one does not touch that home."""
    hmp.convert(policy=hmp.Policy.from_ops(lower=["mm", "conv2d"], low_dtype=F16))
    first = snapshot()
    with refusing(torch.special, "softmax"), pytest.raises(AttributeError, match="softmax is frozen"):
        hmp.convert(opt_level="O2")
    assert changed(first, snapshot()) == []
    assert torch.mm(a(), a()).dtype == F16
    assert torch.softmax(a().half(), 0).dtype == F16
    hmp.revert()
    assert changed(pristine, snapshot()) == []


# ---- interrupts and threads

INTERRUPTED = """
    import random, signal, sys, time
    import torch
    from habana_mp import hmp, _homes

    homes = _homes.homes()
    def held():
        return [getattr(home.owner, home.attribute) for home in homes]
    native = held()
    hmp.convert()
    converted = held()
    hmp.revert()

    start = time.perf_counter()
    for _ in range(5):
        hmp.convert()
        hmp.revert()
    both = (time.perf_counter() - start) / 5

    random.seed(0)
    interrupts = 0
    for round in range(200):
        try:
            signal.setitimer(signal.ITIMER_REAL, random.uniform(1e-5, both * 1.1))
            hmp.convert()
            hmp.revert()
            signal.setitimer(signal.ITIMER_REAL, 0)
        except KeyboardInterrupt:
            interrupts += 1
        now = held()
        expected = converted if hmp.is_converted() else native
        assert all(x is y for x, y in zip(now, expected)), "half converted"
        dtype = torch.mm(torch.ones(2, 2), torch.ones(2, 2)).dtype
        assert (dtype == torch.bfloat16) == hmp.is_converted(), dtype
        hmp.revert()
        assert all(x is y for x, y in zip(held(), native)), "not all came back"
    import gc
    assert gc.isenabled()
    print("interrupts", interrupts)
"""


def test_an_interrupt_leaves_all_or_nothing():
    """A real signal, at any moment of convert and revert."""
    script = "import signal\nsignal.signal(signal.SIGALRM, signal.default_int_handler)\n" + textwrap.dedent(INTERRUPTED)
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=False)
    assert result.returncode == 0, result.stderr
    assert int(result.stdout.split()[1]) > 50


class Interrupting:
    """Stands for a ``__setattr__`` in Python, which the interpreter interrupts at its start or its end at the nth of its calls."""

    def __init__(self, monkeypatch, nth, late):
        self.kind, self.nth, self.late, self.calls = type(torch.compiler.config), nth, late, 0
        native = self.kind.__setattr__

        def setattr_(module, name, value):
            self.calls += 1
            if late:
                native(module, name, value)
            if self.calls == nth:
                raise KeyboardInterrupt
            if not late:
                native(module, name, value)

        monkeypatch.setattr(self.kind, "__setattr__", setattr_)


late = pytest.mark.parametrize("late", [False, True], ids=["before", "after"])


@late
def test_an_interrupt_inside_the_first_convert_converts_nothing(late, monkeypatch, pristine):
    """D7: one assignment runs Python code, where a signal handler can raise."""
    tag = torch.compiler.config.cache_key_tag
    with monkeypatch.context() as patch:
        Interrupting(patch, 1, late)
        with pytest.raises(KeyboardInterrupt):
            hmp.convert()
    assert changed(pristine, snapshot()) == []
    assert not hmp.is_converted()
    assert torch.mm(a(), a()).dtype == F32
    assert torch.compiler.config.cache_key_tag == tag


@late
@pytest.mark.parametrize("nth", [1, 2])
def test_an_interrupt_inside_a_second_convert_leaves_the_first_in_force(nth, late, monkeypatch, pristine):
    """D7: while the first is undone, and while the second is made."""
    untagged = torch.compiler.config.cache_key_tag
    hmp.convert(low_precision_type=F16)
    first, tag = snapshot(), torch.compiler.config.cache_key_tag
    with monkeypatch.context() as patch:
        Interrupting(patch, nth, late)
        with pytest.raises(KeyboardInterrupt):
            hmp.convert("O2")
    assert changed(first, snapshot()) == []
    assert hmp.is_converted()
    assert torch.mm(a(), a()).dtype == F16
    assert torch.compiler.config.cache_key_tag == tag
    hmp.revert()
    assert changed(pristine, snapshot()) == []
    assert torch.compiler.config.cache_key_tag == untagged


@late
def test_an_interrupt_inside_revert_undoes_all(late, monkeypatch, pristine, tmp_path):
    """D7: and what belongs to the conversion besides its patches goes with it."""
    tag, ended = torch.compiler.config.cache_key_tag, []
    monkeypatch.setenv("HABANA_MP_LOG", f"casts:{tmp_path / 'log'}")
    hmp.convert()
    with monkeypatch.context() as patch:
        Interrupting(patch, 1, late)
        patch.setattr(_convert._log, "close_log", lambda: ended.append("log"))
        patch.setattr(_convert._dynamo, "drop_stale_graphs", lambda: ended.append("graphs"))
        with pytest.raises(KeyboardInterrupt):
            hmp.revert()
    _convert._log.close_log()
    assert ended == ["log", "graphs"]
    assert changed(pristine, snapshot()) == []
    assert not hmp.is_converted()
    assert torch.mm(a(), a()).dtype == F32
    assert torch.compiler.config.cache_key_tag == tag


def test_a_revert_undoes_all_but_what_refuses(pristine):
    """A home that cannot be undone keeps no other from it."""
    mm = torch.mm
    hmp.convert()
    with refusing(torch, "mm"), pytest.raises(AttributeError, match="mm is frozen"):
        hmp.revert()
    assert changed(pristine, snapshot()) == ["torch.mm"]
    assert not hmp.is_converted()
    assert torch.mm(a(), a()).dtype == F32
    torch.mm = mm


def test_a_second_convert_that_cannot_undo_the_first_leaves_it_in_force(pristine):
    """D7."""
    hmp.convert(low_precision_type=F16)
    first = snapshot()
    with refusing(torch, "mm"), pytest.raises(AttributeError, match="mm is frozen"):
        hmp.convert("O2")
    assert changed(first, snapshot()) == []
    assert torch.mm(a(), a()).dtype == F16
    hmp.revert()
    assert changed(pristine, snapshot()) == []


FORKED = """
    import os, signal, sys, threading, warnings
    import torch
    from habana_mp import _convert, hmp

    warnings.simplefilter("ignore")
    hmp.convert()
    held, done = threading.Event(), threading.Event()

    def hold():
        with _convert._lock:
            held.set()
            done.wait()

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait()
    child = os.fork()
    if child == 0:
        signal.alarm(20)
        hmp.revert()
        hmp.convert("O2")
        os._exit(0 if hmp.is_converted() else 1)
    status = os.waitpid(child, 0)[1]
    done.set()
    thread.join()
    hmp.revert()
    sys.exit(status != 0)
"""


def test_a_child_forked_while_another_thread_converts():
    result = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(FORKED)], capture_output=True, text=True, timeout=120, check=False
    )
    assert result.returncode == 0, result.stderr


def test_threads_that_compute_while_another_converts():
    stop = threading.Event()
    wrong: list[object] = []
    linear, norm = nn.Linear(4, 4), nn.LayerNorm(4)
    x = torch.ones(4, 4)
    large = torch.ones(300, 300)  # casts of this size let go of the GIL

    def compute():
        try:
            while not stop.is_set():
                results = [
                    torch.mm(x, x),
                    x @ x,
                    linear(x),
                    norm(x),
                    torch.cat([x, x]),
                    1 / x,
                    F.softmax(x, 0),
                    F.relu(x.clone(), inplace=True),
                    torch.mm(large, large),
                    F.mse_loss(x, x),
                ]
                wrong.extend(result.dtype for result in results if result.dtype not in (F32, BF16, F16))
        except Exception as error:
            wrong.append(error)

    threads = [threading.Thread(target=compute) for _ in range(4)]
    for thread in threads:
        thread.start()
    for turn in range(30):
        hmp.convert(policy=("hmp", "hmp-o2", "torch-cuda")[turn % 3])
        torch.mm(x, x)
        hmp.revert()
    stop.set()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_two_threads_that_convert(pristine):
    wrong = []

    def work(preset):
        try:
            for _ in range(10):
                hmp.convert(policy=preset)
                hmp.revert()
        except Exception as error:
            wrong.append(error)

    threads = [threading.Thread(target=work, args=(preset,)) for preset in ("hmp", "hmp-o2", "torch-cpu")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    hmp.revert()
    assert changed(pristine, snapshot()) == []


# ---- memory


def test_conversions_do_not_accumulate():
    ops = [torch.mm, torch.Tensor.mm, F.linear, F.relu, torch.Tensor.__add__, torch.einsum]

    def cycle(times):
        for _ in range(times):
            hmp.convert()
            torch.mm(a(), a())
            hmp.convert(opt_level="O2")
            hmp.revert()

    cycle(3)
    gc.collect()
    before = [sys.getrefcount(op) for op in ops]
    objects = len(gc.get_objects())
    tracemalloc.start()
    try:
        cycle(2)
        gc.collect()
        base = tracemalloc.get_traced_memory()[0]
        cycle(50)
        gc.collect()
        growth = tracemalloc.get_traced_memory()[0] - base
    finally:
        tracemalloc.stop()
    assert [sys.getrefcount(op) for op in ops] == before
    assert len(gc.get_objects()) - objects < 200
    assert growth < 50_000


def test_calls_do_not_leak():
    """References of arguments, casts, containers and results, of calls that pass and calls that fail."""
    hmp.convert()
    x, y = torch.ones(2, 2), torch.ones(2, 2).bfloat16()
    tensors = [x, y]
    keywords = {"mat2": y}

    def calls():
        torch.mm(x, y)
        torch.mm(x, **keywords)
        torch.cat(tensors)
        torch.cat((x, y))
        F.linear(x, weight=y)
        F.layer_norm(x, (2,))
        F.mse_loss(y, x)
        y.clone().add_(x)
        for call in (lambda: torch.mm(x, 3), lambda: torch.cat([x, y, 3]), lambda: torch.mm(x, torch.ones(3, 3))):
            with pytest.raises((TypeError, RuntimeError)):
                call()

    calls()
    gc.collect()
    before = [sys.getrefcount(value) for value in (x, y, tensors, keywords, None.__class__, torch.mm)]
    objects = len(gc.get_objects())
    for _ in range(50):
        calls()
    gc.collect()
    assert [sys.getrefcount(value) for value in (x, y, tensors, keywords, None.__class__, torch.mm)] == before
    assert len(gc.get_objects()) - objects < 50


def test_a_conversion_leaves_the_table_of_homes_alone():
    homes = _homes.homes()
    hmp.convert()
    assert _homes.homes() is homes
    assert all(not hasattr(home.function(), "rule") for home in homes)
