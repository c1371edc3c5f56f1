"""habana-mp run: unmodified scripts, as Python runs them, in the policy that the command line or the script says."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner, Result

from habana_mp import hmp
from habana_mp._scope import in_force
from habana_mp.cli import main

DTYPE = "import torch\nprint((torch.ones(2, 2) @ torch.ones(2, 2)).dtype)\n"


@pytest.fixture
def here(place_for_scripts) -> Path:
    return place_for_scripts


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
    plain = python("portrait.py", "a", "--policy", "-m", cwd=here)
    ours = python("-m", "habana_mp", "run", "portrait.py", "a", "--policy", "-m", cwd=here)
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
    assert "/habana_mp/" not in printed
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


# --- In which policy


def test_it_is_converted_before_it_starts(here):
    Path("script.py").write_text(DTYPE)
    assert run("script.py").stdout == "torch.bfloat16\n"
    assert in_force.policy == hmp.Policy.load("hmp")


OWN = """
from habana_mp import hmp
import torch
before = (torch.ones(2, 2) @ torch.ones(2, 2)).dtype
policy = hmp.convert(policy='torch-cuda')
print(before, (torch.ones(2, 2) @ torch.ones(2, 2)).dtype, policy.name)
"""
REGION = """
from habana_mp import hmp
import torch
before = hmp.is_converted()
with hmp.autocast("cpu", torch.float16, policy="torch-cuda"):
    print(before, hmp.is_converted(), (torch.ones(2, 2) @ torch.ones(2, 2)).dtype)
"""
OPTIONAL = (
    "import sys\nif 'convert' in sys.argv:\n    from habana_mp import hmp\n    hmp.convert(policy='torch-cuda')\n"
    + DTYPE
)
HIDDEN = "import library\n" + DTYPE
LIBRARY = "from habana_mp import hmp\nhmp.convert(policy='torch-cuda')\n"
GAUDI_BELOW = "import gaudi_library\n" + DTYPE
GAUDI_LIBRARY = "from habana_frameworks.torch.hpex import hmp\nhmp.convert(policy='torch-cuda')\n"
GAUDI = "def f():\n    from habana_frameworks.torch.hpex import hmp\n    hmp.convert()\nf()\n" + DTYPE


@pytest.mark.parametrize(
    ("script", "options", "printed"),
    [
        (DTYPE, ["--policy", "torch-cuda"], "torch.float16"),
        (OWN, [], "torch.bfloat16 torch.float16 torch-cuda"),
        (OWN, ["--policy", "hmp-o1"], "torch.bfloat16 torch.bfloat16 hmp-o1"),
        (REGION, [], "True False torch.float16"),
        (REGION, ["--policy", "hmp"], "True True torch.float16"),
        (OPTIONAL, [], "torch.bfloat16"),
        (HIDDEN, [], "torch.float16"),
        (HIDDEN, ["--policy", "hmp"], "torch.bfloat16"),
        (GAUDI, [], "torch.bfloat16"),
        (GAUDI, ["--policy", "torch-cuda"], "torch.float16"),
        (GAUDI_BELOW, [], "torch.float16"),
        (DTYPE, ["--lower", "none.txt"], "torch.float32"),
        (DTYPE, ["--lower", "edits.txt"], "torch.float32"),
        (DTYPE, ["--fp32", "matmul.txt"], "torch.float32"),
        (DTYPE, ["--policy", "torch-cuda", "--lower", "edits.txt"], "torch.float32"),
        (DTYPE, ["--policy", "folder"], "torch.float16"),
        (DTYPE, ["--policy", str(hmp.Policy.from_ops(lower=["matmul"], low_dtype=torch.float16))], "torch.float16"),
    ],
    ids=[
        "preset", "own", "policy over own", "own region", "policy before a region",
        "own if asked", "own in an import", "policy over that", "Gaudi", "policy over Gaudi",
        "Gaudi in an import", "a list", "edits", "fp32", "edits of a policy", "folder", "text",
    ],
)  # fmt: skip
def test_policy(here, script, options, printed):
    Path("script.py").write_text(script)
    Path("library.py").write_text(LIBRARY)
    Path("gaudi_library.py").write_text(GAUDI_LIBRARY)
    Path("none.txt").write_text("conv2d\n")
    Path("edits.txt").write_text("-matmul\n-__matmul__\n")
    Path("matmul.txt").write_text("matmul\n")
    edit = CliRunner().invoke(main, ["lists", "edit", "torch-cuda", "-mm", "--output", "folder"])
    assert edit.exit_code == 0
    done = run(*options, "script.py")
    sys.modules.pop("library", None)
    sys.modules.pop("gaudi_library", None)
    assert (done.stdout.strip(), done.stderr, done.exit_code) == (printed, "", 0)


# options -> what the script prints of 2 @ 2 and of softmax under them, and the notes
CHANGES = {
    "an edit of a list": (["--lower", "+softmax"], "bfloat16 bfloat16", ""),
    "edits of both": (["--lower", "+softmax", "--fp32", "+matmul"], "float32 bfloat16", ""),
    "a file and an edit": (
        ["--lower", "lower.txt", "--lower", "-relu", "--fp32", "+matmul"],
        "float32 bfloat16",
        "Note: relu now follows its first input; +relu:fp32 keeps it in float32\n",
    ),
    "an edit": (["--edit", "+softmax:lower"], "bfloat16 bfloat16", ""),
    "the later edit wins": (["--edit", "+softmax:lower", "--edit", "+softmax:fp32"], "bfloat16 float32", ""),
    "taken out": (
        ["--edit", "-matmul"],
        "float32 float32",
        "Note: matmul now follows its first input; +matmul:fp32 keeps it in float32\n",
    ),
    "taken out of one list": (
        ["--lower", "-matmul"],
        "float32 float32",
        "Note: matmul now follows its first input; +matmul:fp32 keeps it in float32\n",
    ),
    "of a policy": (
        ["--policy", "torch-cpu", "--edit", "-matmul"],
        "float32 float32",
        "Note: matmul now runs in the dtypes of its inputs; +matmul:fp32 keeps it in float32\n",
    ),
    "a dtype": (["--dtype", "fp16"], "float16 float32", ""),
    "a dtype by torch's name": (["--dtype", "torch.float16", "--lower", "+softmax@fp16"], "float16 float16", ""),
    "for the other dtype": (["--lower", "+softmax@fp16"], "bfloat16 float32", ""),
}


@pytest.mark.parametrize("case", CHANGES)
def test_a_policy_changed_on_the_command_line(here, case):
    options, printed, notes = CHANGES[case]
    Path("lower.txt").write_text("softmax\nrelu\n")
    Path("script.py").write_text(
        "import torch\nx = torch.ones(2, 2)\nprint(*(str(y.dtype)[6:] for y in (x @ x, x.softmax(0))))"
    )
    done = run(*options, "script.py")
    assert (done.stdout.strip(), done.stderr, done.exit_code) == (printed, notes, 0)


def test_reverting_is_the_script_s_right(here):
    Path("script.py").write_text("from habana_mp import hmp\nhmp.revert()\n" + DTYPE)
    assert run("--policy", "hmp", "script.py").stdout == "torch.float32\n"


def test_the_log_of_the_environment(here, monkeypatch):
    monkeypatch.setenv("HABANA_MP_LOG", "casts:log.txt")
    Path("script.py").write_text(DTYPE)
    assert run("script.py").stdout == "torch.bfloat16\n"
    assert "to_bf16" in Path("log.txt").read_text()


# --- Used wrongly


@pytest.mark.parametrize(
    ("arguments", "printed"),
    [
        (["none.py"], "Error: none.py: No such file or directory"),
        (["folder"], "Error: 'folder' is no file with a script, and has no __main__.py in it"),
        (["-m", "no_module"], "Error: no module named 'no_module'"),
        (["-m", "no_module.inner"], "Error: no module named 'no_module.inner'"),
        (["-m", "json.none"], "Error: no module named 'json.none'"),
        (["-m", ".json"], "Error: no module named '.json'"),
        (["-m", "__main__"], "Error: no module named '__main__'"),
        (["-m", "xml"], "Error: no module named 'xml.__main__'"),
        (["-m", "sys"], "Error: module 'sys' has no Python code that could be run"),
        (["-m", "script.py"], "Error: 'script.py' is a file; without -m it is run as one"),
        (["--policy", "nope", "script.py"], "Error: 'nope' is no policy: accepted are a preset (hmp, "),
        (["--policy", "folder", "script.py"], "Error: folder/policy.toml: No such file or directory"),
        (["--lower", "bad.txt", "script.py"], "Error: bad.txt:1: 'mm mm' is no op name"),
        (["--lower", "+mm mm", "script.py"], "Error: --lower:1: 'mm mm' is no op name"),
        (["--lower", "+lienar", "script.py"], "Error: --lower:1: 'lienar' is no op of torch"),
        (
            ["--fp32", "+mm", "--fp32", "-mm", "script.py"],
            "Error: --fp32:2: 'mm' is taken out here and added in line 1",
        ),
        (
            ["--lower", "a.txt", "--lower", "b.txt", "script.py"],
            "Error: --lower takes one file, and any number of +op and -op, not a.txt",
        ),
        (["--edit", "mm", "script.py"], "Error: 'mm' is no edit of a policy: '+op:list' and '-op' are accepted"),
        (["--edit", "+lienar:lower", "script.py"], "Error: 'lienar' is no op of torch"),
        (
            ["--dtype", "fp8", "script.py"],
            "Error: --dtype is torch.bfloat16 or torch.float16, or its name, not 'fp8'",
        ),
        (["--dtype", "float32", "script.py"], "Error: --dtype is torch.bfloat16 or torch.float16, or its name, not"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_wrong_input_is_reported_in_one_line(here, arguments, printed):
    Path("folder").mkdir()
    Path("bad.txt").write_text("mm mm\n")
    for name in ("a.txt", "b.txt"):
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
    assert done.stderr.startswith("Warning: lower.txt has names that decide nothing:\nlower.txt:2: 'lienar' is no op")


def test_the_package_alone_imports_neither_click_nor_rich():
    done = python("-c", "import sys, habana_mp.hmp; print({'click', 'rich'} & {*sys.modules})")
    assert done.stdout == "set()\n"


def test_torchrun_converts_its_ranks(here):
    Path("script.py").write_text(DTYPE)
    torchrun = ["-m", "torch.distributed.run", "--nproc-per-node", "1", "-m", "habana_mp", "run", "script.py"]
    done = python(*torchrun, env={**os.environ, "OMP_NUM_THREADS": "1"})
    assert done.stdout.splitlines() == ["torch.bfloat16"], done.stderr
