"""habana-mp run: the policy that the command line, the script or the environment chooses; options behind a script."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner, Result

from habana_mp import hmp
from habana_mp._scope import in_force
from habana_mp.cli import main

DTYPE = "import torch\nprint((torch.ones(2, 2) @ torch.ones(2, 2)).dtype)\n"


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["run", *arguments])


def test_it_is_converted_before_it_starts(here):
    Path("script.py").write_text(DTYPE)
    assert run("script.py").stdout == "torch.bfloat16\n"
    assert in_force.policy == hmp.Policy.load("balanced")


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
    Path("edits.txt").write_text("-matmul\n")
    Path("matmul.txt").write_text("matmul\n")
    edit = CliRunner().invoke(main, ["lists", "edit", "torch-cuda", "-mm", "--output", "folder"])
    assert edit.exit_code == 0
    done = run(*options, "script.py")
    sys.modules.pop("library", None)
    sys.modules.pop("gaudi_library", None)
    assert (done.stdout.strip(), done.stderr, done.exit_code) == (printed, "", 0)


# script, options -> the policy at its end
ENDS = {
    "nobody chooses": ("", [], "balanced"),
    "convert()": ("from habana_mp import hmp\nhmp.convert()", [], "hmp"),
    "opt_level": ("from habana_mp import hmp\nhmp.convert('O2')", [], "hmp-o2"),
    "Gaudi": ("from habana_frameworks.torch.hpex import hmp\nhmp.convert()", [], "hmp"),
    "edits": ("", ["--edit", "+softmax:lower"], "balanced+edits"),
    "edits over convert()": ("from habana_mp import hmp\nhmp.convert()", ["--lower", "+softmax"], "balanced+files"),
}


@pytest.mark.parametrize("command", ["run", "report", "find-nonfinite"])
@pytest.mark.parametrize("case", ENDS)
def test_without_a_policy_it_is_balanced_until_the_script_chooses(here, case, command):
    script, options, policy = ENDS[case]
    Path("script.py").write_text(script)
    assert CliRunner().invoke(main, [command, *options, "script.py"]).exit_code == 0
    assert in_force.policy.name == policy


# options -> what the script prints of 2 @ 2 and of softmax under them, and the notes
CHANGES = {
    "an edit of a list": (["--lower", "+softmax"], "bfloat16 bfloat16", ""),
    "edits of both": (["--lower", "+softmax", "--fp32", "+matmul"], "float32 bfloat16", ""),
    "a file and an edit": (
        ["--lower", "lower.txt", "--lower", "-relu", "--fp32", "+matmul"],
        "float32 bfloat16",
        "Note: relu now runs in the dtypes of its inputs; +relu:fp32 keeps it in float32\n",
    ),
    "an edit": (["--edit", "+softmax:lower"], "bfloat16 bfloat16", ""),
    "the later edit wins": (["--edit", "+softmax:lower", "--edit", "+softmax:fp32"], "bfloat16 float32", ""),
    "taken out": (
        ["--edit", "-matmul"],
        "float32 float32",
        "Note: matmul now runs in the dtypes of its inputs; +matmul:fp32 keeps it in float32\n",
    ),
    "taken out of one list": (
        ["--policy", "hmp", "--lower", "-matmul"],
        "float32 float32",
        "Note: matmul now follows its first input; +matmul:fp32 keeps it in float32\n",
    ),
    "taken out, with a comment": (
        ["--policy", "hmp", "--lower", "-matmul # slow"],
        "float32 float32",
        "Note: matmul now follows its first input; +matmul:fp32 keeps it in float32\n",
    ),
    "of a policy": (
        ["--policy", "torch-cpu", "--edit", "-matmul"],
        "float32 float32",
        "Note: matmul now runs in the dtypes of its inputs; +matmul:fp32 keeps it in float32\n",
    ),
    "a dtype": (["--low-dtype", "fp16"], "float16 float32", ""),
    "a dtype by torch's name": (["--low-dtype", "torch.float16", "--lower", "+softmax@fp16"], "float16 float16", ""),
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


# --- Options behind the script, which gets them

ARGPARSE = "import argparse\nparser = argparse.ArgumentParser()\nparser.add_argument('--policy')\nparser.parse_args()\n"
FIELD = "import dataclasses\n@dataclasses.dataclass\nclass Arguments:\n    low_dtype: str = 'bf16'\n"
USAGE = '"""Usage: script.py [--policy=P]"""\n'
FLAG = "define_string = print\ndef flags():\n    define_string('policy', None, 'of the robot')\n"
OTHERS = "import torch\nprint(torch.ones(2, device='cpu').shape, 'A'.lower(), {}.values())\n"

# script, arguments of run -> the options that the warning names
BEHIND = {
    "an option": (OTHERS, ["script.py", "--policy", "hmp"], "--policy"),
    "with =": (OTHERS, ["script.py", "--policy=hmp"], "--policy"),
    "some, each once": (OTHERS, ["script.py", "--lower", "+mm", "--edit", "-mm", "--lower", "+bmm"], "--lower, --edit"),
    "a module": (OTHERS, ["-m", "script", "--low-dtype", "fp16"], "--low-dtype"),
    "the script after --": (OTHERS, ["--", "script.py", "--policy", "hmp"], "--policy"),
    "one is known": (ARGPARSE, ["script.py", "--policy", "x"], ""),
    "known as a field": (FIELD, ["script.py", "--low_dtype", "x", "--low-dtype", "x"], ""),
    "known as a usage": (USAGE, ["script.py", "--policy=x"], ""),
    "known as a flag": (FLAG, ["script.py", "--policy", "x"], ""),
    "known to a module beside it": ("import parser_of_it\n", ["script.py", "--policy", "x"], ""),
    "known to a module of a package": ("from pack_of_it import part\n", ["-m", "pack_of_it", "--policy", "x"], ""),
    "a broken module beside it": ("try:\n    import broken\nexcept SyntaxError: pass", ["script.py", "--policy", "x"], "--policy"),
    "of another command": (OTHERS, ["script.py", "--values"], ""),
    "of the script": (OTHERS, ["script.py", "--seed", "3", "--help"], ""),
    "for the script by --": (OTHERS, ["script.py", "--", "--policy", "hmp"], ""),
    "before the script": (OTHERS, ["--policy", "hmp", "script.py", "--seed", "3"], ""),
}  # fmt: skip


@pytest.mark.parametrize("case", BEHIND)
def test_a_warning_names_what_the_script_does_not_know(here, case):
    script, arguments, named = BEHIND[case]
    Path("script.py").write_text(script)
    Path("parser_of_it.py").write_text(ARGPARSE)
    Path("broken.py").write_text("x = = 1")
    Path("pack_of_it").mkdir()
    Path("pack_of_it/__init__.py").touch()
    Path("pack_of_it/__main__.py").write_text(script)
    Path("pack_of_it/part.py").write_text(ARGPARSE)
    name = "script" if "-m" in arguments else "script.py"
    warning = f"Warning: the script gets {named}. Put options of habana-mp before {name}\n" if named else ""
    done = run(*arguments)
    assert (done.exit_code, done.stderr) == (0, warning)


@pytest.mark.parametrize(
    ("command", "option"),
    [("report", "--values"), ("report", "--json"), ("find-nonfinite", "--device"), ("compare", "--html")],
)
def test_the_options_are_those_of_the_command(here, command, option):
    Path("script.py").write_text("pass")
    done = CliRunner().invoke(main, [command, "script.py", option, "x"])
    warning = f"Warning: the script gets {option}. Put options of habana-mp before script.py\n"
    assert done.stderr.startswith(warning)
    assert done.stderr.count("Warning") == 1


def test_compare_reads_its_policies_behind_the_script(here):
    Path("script.py").write_text("pass")
    done = CliRunner().invoke(main, ["compare", "script.py", "--policy", "hmp", "--with", "torch-cpu"])
    assert "Warning" not in done.stderr
