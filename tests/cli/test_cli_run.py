"""habana-mp run: unmodified scripts, as Python runs them, and wrong input. test_cli_run_policy.py has the policies."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

import habana_mp
from habana_mp.cli import main

DTYPE = "import torch\nprint((torch.ones(2, 2) @ torch.ones(2, 2)).dtype)\n"


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["run", *arguments])


def python(*arguments: str, **how) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *arguments], capture_output=True, text=True, check=False, **how)


# --- As Python runs it

PORTRAIT = '''"""A script that looks at itself."""
import atexit, dataclasses, inspect, multiprocessing, pickle, sys, typing
import __main__

@dataclasses.dataclass
class Point:
    x: int = 1

def double(x):
    return 2 * x

if __name__ == "__main__":
    print(__doc__, __name__, __file__, __package__, __cached__, __spec__ and __spec__.name, type(__loader__).__name__)
    print(sys.argv, sys.path, __main__.Point is Point, pickle.loads(pickle.dumps(Point(3))))
    print(inspect.getsource(double), typing.get_type_hints(Point), flush=True)
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        print(pool.map(double, [1, 2]))
    atexit.register(lambda: print("at exit", __main__.Point is Point))
    raise ValueError("the end")
'''


def test_a_script_cannot_tell_it_from_python(here):
    Path("portrait.py").write_text(PORTRAIT)
    plain = python("portrait.py", "a", "--seed", "-m", cwd=here)
    ours = python("-m", "habana_mp", "run", "portrait.py", "a", "--seed", "-m", cwd=here)
    assert plain.returncode == 1
    assert (ours.stdout, ours.stderr, ours.returncode) == (plain.stdout, plain.stderr, 1)


def test_a_module_cannot_tell_it_from_python(here):
    Path("portrait.py").write_text(
        "import sys\nprint(__name__, __file__, __package__, __cached__, __spec__.name, sys.argv, sys.path[0])\n"
    )
    plain = python("-m", "portrait", "a", "-m")
    assert run("-m", "portrait", "a", "-m").stdout == plain.stdout


@pytest.mark.parametrize("kind", ["folder", "archive"])
def test_a_container_cannot_tell_it_from_python(here, kind):
    main = (
        "import sys, beside\n"
        "print(__name__, __file__, __package__, __spec__.name, type(__loader__), sys.argv, sys.path[0], beside.__name__)\n"
        "1 / 0\n"
    )
    if kind == "folder":
        Path(kind).mkdir()
        Path(kind, "__main__.py").write_text(main)
        Path(kind, "beside.py").write_text("")
    else:
        with zipfile.ZipFile(kind, "w") as archive:
            archive.writestr("__main__.py", main)
            archive.writestr("beside.py", "")
    plain = python(kind, "a", "-m", cwd=here)
    ours = python("-m", "habana_mp", "run", kind, "a", "-m", cwd=here)
    # Python's own traceback goes through its runpy.
    ends = [done.stderr[done.stderr.index("__main__.py") :] for done in (ours, plain)]
    assert (ours.stdout, ends[0], ours.returncode) == (plain.stdout, ends[1], 1)
    assert "__main__ " in plain.stdout
    assert "habana_mp" not in ours.stderr


@pytest.mark.parametrize(
    ("ending", "code", "printed"),
    [
        ("", 0, ""),
        ("import sys; sys.exit()", 0, ""),
        ("import sys; sys.exit(7)", 7, ""),
        ("raise SystemExit(True)", 1, ""),
        ("1 / 0", 1, "ZeroDivisionError"),
        ("raise KeyboardInterrupt", 130, "KeyboardInterrupt"),
        ("x = = 1", 1, "SyntaxError"),
        ("from habana_mp.no import thing", 1, "ModuleNotFoundError"),
        ("class Odd(BaseException): pass\nraise Odd", 1, "Odd"),
    ],
)
def test_exit_codes(here, ending, code, printed):
    Path("script.py").write_text(ending)
    done = run("script.py")
    assert done.exit_code == code
    assert printed in done.stderr
    assert "habana_mp/" not in done.stderr.replace("habana_mp.no", "")
    assert done.stdout == ""


def test_a_message_of_sys_exit_is_reported(here):
    Path("script.py").write_text("import sys; sys.exit('too bad')")
    done = run("script.py")
    assert (done.exit_code, done.output) == (1, "too bad\n")


def test_a_traceback_has_no_frames_of_ours(here):
    Path("script.py").write_text("import torch\ntorch.nn.Linear(2, 3)(torch.ones(5))\n")
    printed = run("script.py").stderr
    assert printed.splitlines()[1].strip() == f'File "{here}/script.py", line 2, in <module>'
    assert str(Path(habana_mp.__file__).parent) not in printed
    assert "click" not in printed


def test_the_script_s_own_excepthook_serves(here):
    Path("script.py").write_text("import sys\nsys.excepthook = lambda kind, error, trace: print('hook', error)\n1 / 0")
    done = run("script.py")
    assert (done.exit_code, done.stdout, done.stderr) == (1, "hook division by zero\n", "")


@pytest.fixture
def interruptible():
    """Processes inherit what this one ignores, and `nohup make test &` has it ignore Ctrl-C."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def test_ctrl_c(here, interruptible):
    Path("script.py").write_text("import time\nprint('ready', flush=True)\ntime.sleep(60)\n")
    with subprocess.Popen(
        [sys.executable, "-m", "habana_mp", "run", "script.py"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGINT)
        printed = process.communicate(timeout=30)[1]
    assert process.returncode == 130
    assert printed.splitlines()[0] == "Traceback (most recent call last):"
    assert printed.splitlines()[-1] == "KeyboardInterrupt"


def test_options_behind_the_script_are_its_own(here):
    Path("script.py").write_text("import sys\nprint(sys.argv)")
    assert (
        run("script.py", "--policy", "x", "--help", "--", "-m").stdout
        == "['script.py', '--policy', 'x', '--help', '--', '-m']\n"
    )


def test_a_package_is_run_by_its_main_module(here):
    Path("package").mkdir()
    Path("package/__init__.py").write_text("print('package')")
    Path("package/__main__.py").write_text("import sys\nprint(__package__, sys.argv)")
    assert run("-m", "package", "x").stdout == f"package\npackage ['{here}/package/__main__.py', 'x']\n"
    sys.modules.pop("package")


def test_a_module_in_an_archive(here, monkeypatch):
    with zipfile.ZipFile("archive", "w") as archive:
        archive.writestr("inside.py", "print(__name__, __spec__.name)")
    monkeypatch.syspath_prepend("archive")
    monkeypatch.setattr(sys, "path", ["", *sys.path])  # its first one is the script's
    assert run("-m", "inside").stdout == "__main__ inside\n"


def test_an_error_in_a_package_round_a_module_is_the_script_s(here):
    Path("broken").mkdir()
    Path("broken/__init__.py").write_text("raise ValueError('no luck')")
    done = run("-m", "broken.module")
    assert done.exit_code == 1
    assert done.stderr.splitlines()[1:] == [
        f'  File "{here}/broken/__init__.py", line 1, in <module>',
        "    raise ValueError('no luck')",
        "ValueError: no luck",
    ]


# --- Used wrongly


@pytest.mark.parametrize(
    ("arguments", "printed"),
    [
        (["none.py"], "Error: none.py: No such file or directory"),
        (["folder"], "Error: 'folder' is not a script, and has no __main__.py in it"),
        (["a.json"], "Error: a.json is not a script but JSON, such as a report: habana-mp diff compares two of them"),
        (["a.rec"], "Error: a.rec is not a script but a recording: habana-mp compare takes two"),
        (["a.txt"], "Error: a.txt is not a script but a text, such as a list file: --lower, --fp32 and --edit take it"),
        (["-m", "no_module"], "Error: no module named 'no_module'"),
        (["-m", "no_module.inner"], "Error: no module named 'no_module.inner'"),
        (["-m", "json.none"], "Error: no module named 'json.none'"),
        (["-m", ".json"], "Error: no module named '.json'"),
        (["-m", "__main__"], "Error: no module named '__main__'"),
        (["-m", "xml"], "Error: no module named 'xml.__main__'"),
        (["-m", "sys"], "Error: module 'sys' has no Python code to run"),
        (["-m", "script.py"], "Error: 'script.py' is a file. To run it, leave out -m"),
        (["--policy", "nope", "script.py"], "Error: Unknown policy 'nope'. Accepted are a preset (balanced, hmp, "),
        (["--policy", "folder", "script.py"], "Error: folder/policy.toml: No such file or directory"),
        (["--lower", "bad.txt", "script.py"], "Error: bad.txt:1: 'mm mm' is not an op name"),
        (["--lower", "+mm mm", "script.py"], "Error: --lower:1: 'mm mm' is not an op name"),
        (["--lower", "+lienar", "script.py"], "Error: --lower:1: 'lienar' is not an op of torch"),
        (
            ["--fp32", "+mm", "--fp32", "-mm", "script.py"],
            "Error: --fp32:2: 'mm' is taken out here and added in line 1",
        ),
        (
            ["--lower", "a.txt", "--lower", "b.txt", "script.py"],
            "Error: --lower takes one file, and any number of +op and -op, not a.txt",
        ),
        (
            ["--edit", "mm", "script.py"],
            "Error: --edit mm: an edit begins with + or -. Accepted",
        ),
        (["--edit", "+lienar:lower", "script.py"], "Error: 'lienar' is not an op of torch"),
        (
            ["--low-dtype", "fp8", "script.py"],
            "Error: --low-dtype must be torch.bfloat16 or torch.float16, or its name (bfloat16, bf16, float16 or fp16), not",
        ),
        (
            ["--low-dtype", "float32", "script.py"],
            "Error: --low-dtype must be torch.bfloat16 or torch.float16, or its name (",
        ),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_wrong_input_is_reported_in_one_line(here, arguments, printed):
    Path("folder").mkdir()
    Path("bad.txt").write_text("mm mm\n")
    for name in ("a.json", "a.rec", "a.txt", "b.txt"):
        Path(name).write_text("mm\n")
    Path("script.py").write_text("print('ran')")
    done = run(*arguments)
    assert done.exit_code == 2
    assert done.stderr.startswith(printed)
    assert done.output.count("\n") == 1


@pytest.mark.parametrize(("variable", "value"), [("HABANA_MP_LOG", "loud"), ("HABANA_MP_CACHE_BYTES", "1e9")])
def test_a_wrong_environment_is_reported_in_one_line(here, monkeypatch, variable, value):
    monkeypatch.setenv(variable, value)
    Path("script.py").write_text("print('ran')")
    done = run("script.py")
    assert (done.exit_code, done.stdout) == (2, "")
    assert done.stderr.startswith(f"Error: {variable}")
    assert done.stderr.count("\n") == 1


def test_names_that_torch_does_not_have_are_reported_and_it_runs(here):
    Path("lower.txt").write_text("matmul\nlienar\n")
    Path("script.py").write_text(DTYPE)
    done = run("--lower", "lower.txt", "script.py")
    assert (done.exit_code, done.stdout) == (0, "torch.bfloat16\n")
    assert done.stderr.startswith("Warning: names without effect in lower.txt:\nlower.txt:2: 'lienar' is not an op")


def test_names_that_no_module_has_are_reported_at_the_end(here):
    Path("script.py").write_text(
        "import torch; torch.nn.Sequential(torch.nn.Linear(2, 2))(torch.ones(2)); print('ran')"
    )
    done = run("--edit", "+linear in hed:fp32", "script.py")
    assert (done.exit_code, done.stdout) == (0, "ran\n")
    assert done.stderr == (
        "Warning: balanced+edits names modules that none of the called models has:\n'linear in hed' names no module\n"
    )


def test_the_package_alone_imports_neither_click_nor_rich():
    done = python("-c", "import sys, habana_mp.hmp; print({'click', 'rich'} & {*sys.modules})")
    assert done.stdout == "set()\n"


def test_torchrun_converts_its_ranks(here):
    Path("script.py").write_text(DTYPE)
    torchrun = ["-m", "torch.distributed.run", "--nproc-per-node", "1", "-m", "habana_mp", "run", "script.py"]
    done = python(*torchrun, env={**os.environ, "OMP_NUM_THREADS": "1"})
    assert done.stdout.splitlines() == ["torch.bfloat16"], done.stderr
