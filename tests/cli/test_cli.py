"""The command line as a whole: help, completion, explain and doctor."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest
import torch
from click.shell_completion import ShellComplete
from click.testing import CliRunner, Result

import habana_mp._core as _core
from habana_mp import hmp
from habana_mp.cli import main, speed

COMMANDS = ["run", "report", "find-nonfinite", "record", "compare", "tune", "diff", "explain", "lists", "doctor"]
LISTS = ["presets", "show", "diff", "check", "edit", "schema"]


def call(*arguments: str, **environment: str | None) -> Result:
    return CliRunner().invoke(main, [*arguments], env=environment)


# --- Help, version


@pytest.mark.parametrize(
    "command", [[], *([name] for name in COMMANDS), *(["lists", name] for name in LISTS)], ids=" ".join
)
def test_help(command):
    done = call(*command, "--help")
    assert done.exit_code == 0
    assert "Usage: " in done.stdout
    assert "\b" not in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 80
    if command not in ([], ["lists"]):
        assert f"  habana-mp {' '.join(command)}" in done.stdout


@pytest.mark.parametrize(("command", "names"), [([], COMMANDS), (["lists"], LISTS)], ids=["all", "lists"])
def test_help_names_the_commands(command, names):
    printed = call(*command, "--help").stdout.partition("Commands:\n")[2].partition("\n\n")[0]
    assert sorted(line.split()[0] for line in printed.splitlines()) == sorted(names)


def test_python_m():
    done = subprocess.run([sys.executable, "-m", "habana_mp", "--version"], capture_output=True, text=True, check=True)
    assert done.stdout == f"habana-mp, version {version('habana_mp')}\n"


@pytest.mark.parametrize(
    ("arguments", "printed"),
    [
        (["rnu"], "No such command 'rnu'"),
        (["explain"], "Missing argument 'OP...'"),
        (["explain", "mm", "--lower", "none.txt"], "File 'none.txt' does not exist"),
        (["explain", "mm", "--lower", "softmax"], "File 'softmax' does not exist. For the op write +softmax."),
        (["lists", "show"], "Missing argument 'POLICY'"),
        (["lists", "check"], "Missing argument 'FILE...'"),
        (["lists", "check", "/no/such"], "does not exist"),
        (["lists", "edit", "hmp"], "Missing argument 'EDIT...'"),
        (["doctor", "--jsno"], "No such option '--jsno'"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_wrong_command_line(arguments, printed):
    done = call(*arguments)
    assert done.exit_code == 2
    assert printed in done.stderr
    assert done.stdout == ""


# --- Completion


def completed(*words: str) -> list[str]:
    *before, incomplete = words
    shell = ShellComplete(main, {}, "habana-mp", "_HABANA_MP_COMPLETE")
    return [item.value for item in shell.get_completions(before, incomplete)]


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        (["r"], ["run", "report", "record"]),
        (["explain", "layer_"], ["layer_norm"]),
        (["explain", "pow.Tensor_S"], ["pow.Tensor_Scalar", "pow.Tensor_Scalar_out"]),
        (["explain", "mm", "--policy", "torch-c"], ["torch-cpu", "torch-cuda"]),
        (["run", "--policy", "hmp-"], ["hmp-o1", "hmp-o2", "hmp-resnet50"]),
        (["run", "--policy", "my/"], ["my/"]),
        (["lists", "diff", "hmp", "x"], ["xpu"]),
        (["lists", "edit", "hmp", "+layer_"], ["+layer_norm"]),
        (["lists", "edit", "hmp", "+layer_norm:"], ["+layer_norm:lower", "+layer_norm:fp32", "+layer_norm:promote"]),
        (["lists", "edit", "hmp", "+linear:w"], ["+linear:weight_int8"]),
        (["lists", "edit", "hmp", "+mm in head:i"], ["+mm in head:int8"]),
        (["lists", "edit", "hmp", "+embedding:i"], []),
        (["lists", "e"], ["edit"]),
        (["doctor", "--j"], ["--json"]),
    ],
    ids=" ".join,
)
def test_completion(words, offered):
    assert completed(*words) == offered


def test_completion_of_nothing_offers_no_private_names():
    names = completed("explain", "")
    assert {"mm", "linear", "softmax"} <= {*names}
    assert not [name for name in names if name.startswith("_") or "." in name]


# --- explain


def test_explain():
    done = call("explain", "torch.nn.functional.layer_norm")
    lines = done.stdout.splitlines()
    assert lines[0] == "layer_norm"
    assert lines[1].startswith("  rule       lower (bfloat16), listed as layer_norm in ")
    assert lines[2] == "  policy     hmp, what a plain convert() uses"
    assert done.exit_code == 0


@pytest.mark.parametrize("policy", ["torch-cuda", str(hmp.Policy.from_ops(fp32=["mm"]))], ids=["preset", "text"])
def test_explain_as_json(policy):
    printed = json.loads(call("explain", "mm", "--policy", policy, "--json", "-").stdout)
    rule = hmp.Policy.load(policy).rule("mm")
    assert printed["rule"]["action"] == rule.action
    assert printed["rule"]["low_dtype"] == str(rule.low_dtype).removeprefix("torch.")
    assert (printed["rule"]["file"], printed["rule"]["line"]) == (rule.file, rule.line)
    assert printed["rule"]["comment"] == rule.comment
    assert "torch.Tensor.mm" in printed["homes"]
    assert printed["policy"] == hmp.Policy.load(policy).name


def test_explain_several():
    lines = call("explain", "softmax", "nn.MultiheadAttention", "--lower", "+softmax").stdout.splitlines()
    assert lines[0] == "hmp+files, asked for here"
    assert lines[1].split()[:3] == ["softmax", "lower", "(bfloat16),"]
    ops = [line.split()[0] for line in lines[1:]]
    assert {"softmax", "linear", "bmm", "baddbmm"} <= {*ops}
    assert len(ops) == len({*ops})
    printed = json.loads(call("explain", "softmax", "mm", "--json", "-").stdout)
    assert [each["op"] for each in printed] == ["softmax", "mm"]


@pytest.mark.parametrize(
    ("arguments", "printed"),
    [(["lienar"], "Error: 'lienar' is not an op of torch"), (["mm", "--policy", "hpm"], "Error: Unknown policy 'hpm'")],
    ids=["op", "policy"],
)
def test_explain_used_wrongly(arguments, printed):
    done = call("explain", *arguments)
    assert (done.exit_code, done.stdout) == (2, "")
    assert done.stderr.startswith(printed)


# --- doctor

LOWER = Path(__file__).parents[2] / "lists/hmp/lower.txt"
JSON = {
    "explain": ("explain", "mm"),
    "explain, several": ("explain", "softmax", "mm"),
    "lists presets": ("lists", "presets"),
    "lists show": ("lists", "show", "hmp"),
    "lists diff": ("lists", "diff", "hmp", "hmp-resnet50"),
    "lists check": ("lists", "check", str(LOWER)),
}


@pytest.mark.parametrize("command", JSON)
def test_json_goes_to_a_file_or_is_all_of_stdout(command, tmp_path):
    call(*JSON[command])  # explain tells once in a process that the CPU has no bfloat16
    text = call(*JSON[command]).stdout
    (line,) = call(*JSON[command], "--json", "-").stdout.splitlines()
    done = call(*JSON[command], "--json", str(tmp_path / "found.json"))
    assert done.stdout == text
    assert json.loads((tmp_path / "found.json").read_text()) == json.loads(line)


VARIABLES = "HABANA_MP_LOG HABANA_MP_CACHE_BYTES HABANA_MP_PACKED_WEIGHTS HABANA_MP_CAST_VARIANT LOWER_LIST FP32_LIST OMP_NUM_THREADS".split()


@pytest.fixture
def examine(monkeypatch):
    """A function that calls doctor under these variables, and gives its JSON and the exit code."""
    monkeypatch.setattr(speed, "_SECONDS", 0.0)

    def called(**environment: str):
        _core._testing.reset_cast_variant()
        done = call("doctor", "--json", "-", **{**dict.fromkeys(VARIABLES), **environment})
        return json.loads(done.stdout), done.exit_code

    yield called
    _core._testing.reset_cast_variant()


def test_doctor(examine):
    found, code = examine()
    assert code == 0
    assert found["versions"]["torch"] == torch.__version__
    assert found["cast_variant"] in found["cast_variants"] == _core.cast_variants()
    assert found["cache"]["on"]
    assert found["environment"] == {}
    assert found["speed"]["matmul_ratio"] > 0
    assert found["speed"]["cast_ratio"] > 0
    assert len(found["verdicts"]) == 7
    assert "problem" not in {verdict["level"] for verdict in found["verdicts"]}


def test_doctor_reads_the_presets(examine, monkeypatch, tmp_path):
    (tmp_path / "hmp").mkdir()
    monkeypatch.setattr("habana_mp._policy.policy.SHIPPED", tmp_path)
    monkeypatch.setattr("habana_mp._policy.policy._loaded", {})
    found, code = examine()
    assert code == 1
    (verdict,) = [each for each in found["verdicts"] if each["level"] == "problem"]
    assert verdict["text"].startswith(f"the presets of this installation cannot be read: {tmp_path}")


def test_doctor_in_words(examine, monkeypatch):
    found, _ = examine()
    done = call("doctor", **dict.fromkeys(VARIABLES))
    lines = done.stdout.splitlines()
    assert [line.split()[0] for line in lines if line and line[0] != " "][:7] == (
        "versions cpu features devices kernels environment speed".split()
    )
    assert f"[{found['cast_variant']}]" in done.stdout
    assert sum(line.startswith(("ok ", "note ", "problem ")) for line in lines) == 7
    assert done.stderr == ""


def test_doctor_leaves_the_threads_of_torch(examine):
    before = torch.get_num_threads()
    examine()
    assert torch.get_num_threads() == before


@pytest.mark.parametrize(
    ("name", "value", "level", "printed"),
    [
        ("HABANA_MP_LOG", "loud", "problem", "HABANA_MP_LOG='loud': accepted are off, casts, detail"),
        ("HABANA_MP_LOG", "casts:/no/such/log.txt", "problem", "HABANA_MP_LOG: there is no folder '/no/such'"),
        ("HABANA_MP_CACHE_BYTES", "1e9", "problem", "HABANA_MP_CACHE_BYTES is '1e9'; it takes a whole number"),
        ("HABANA_MP_CACHE_BYTES", "0", "note", "the weight cache is off"),
        ("HABANA_MP_PACKED_WEIGHTS", "yes", "problem", "HABANA_MP_PACKED_WEIGHTS is 'yes'; it takes on or off"),
        ("HABANA_MP_PACKED_WEIGHTS", "off", "note", "no weight is packed, by HABANA_MP_PACKED_WEIGHTS"),
        ("HABANA_MP_CAST_VARIANT", "fast", "problem", "HABANA_MP_CAST_VARIANT=fast is not a variant"),
        ("HABANA_MP_CAST_VARIANT", "scalar", "note", "casts run by the scalar kernels, which HABANA_MP_CAST_VARIANT"),
        (
            "HABANA_MP_LOGS",
            "casts",
            "problem",
            "HABANA_MP_LOGS is not a variable of habana_mp. Did you mean HABANA_MP_LOG?",
        ),
        ("LOWER_LIST", "/no/such", "problem", "LOWER_LIST: /no/such: No such file or directory"),
    ],
    ids=lambda value: "" if " " in value else value,
)
def test_doctor_sees_the_environment(examine, name, value, level, printed):
    found, code = examine(**{name: value})
    assert code == (level == "problem")
    said = [each for each in found["verdicts"] if each["text"].startswith(printed)]
    assert [each["level"] for each in said] == [level]
    assert found["environment"] == ({} if name == "HABANA_MP_LOGS" else {name: value})
