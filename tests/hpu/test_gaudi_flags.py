"""The runtime flags of Gaudi: the log masks ask for the cast log, the others are shown by doctor (F196 to F210)."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys

import pytest
from click.testing import CliRunner

from habana_mp._hpu import gaudi_flags
from habana_mp._hpu.gaudi_switches import SWITCHES
from habana_mp.cli import main, speed

MODULES, LEVELS, CONSOLE = "PT_HPU_LOG_MOD_MASK", "PT_HPU_LOG_TYPE_MASK", "ENABLE_CONSOLE"


@pytest.fixture
def applied(monkeypatch, tmp_path):
    """A function that heeds these variables, and gives what HABANA_MP_LOG then is."""
    monkeypatch.setenv("HOME", str(tmp_path))
    for flag in gaudi_flags.FLAGS:
        monkeypatch.delenv(flag.name, raising=False)

    def heed(environment: dict[str, str]) -> str | None:
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        gaudi_flags.apply_log_masks()
        return os.environ.pop("HABANA_MP_LOG", None)

    return heed


@pytest.mark.parametrize(
    ("environment", "level"),
    [
        ({}, None),
        ({LEVELS: "8"}, "detail"),
        ({LEVELS: "4"}, "casts"),
        ({LEVELS: "0xF"}, "detail"),
        ({LEVELS: "3"}, None),
        ({LEVELS: "0"}, None),
        ({MODULES: "0x2", LEVELS: "0x4"}, "casts"),
        ({MODULES: "0xFF", LEVELS: "0x8"}, "detail"),
        ({MODULES: "0x80", LEVELS: "0x8"}, None),
        ({MODULES: "0x2"}, None),
        ({MODULES: "", LEVELS: "8"}, "detail"),
        ({LEVELS: "8", "HABANA_MP_LOG": "off"}, "off"),
        ({LEVELS: "8", "HABANA_MP_LOG": "casts:mine.log"}, "casts:mine.log"),
        ({"PT_HPU_LAZY_MODE": "1", "LOG_LEVEL_ALL": "0", "GRAPH_VISUALIZATION": "1"}, None),
    ],
    ids=[
        "none", "DEBUG", "TRACE", "all levels", "FATAL and WARNING", "no level", "ops", "all modules", "F199 CPU fallback",
        "a module alone", "empty", "HABANA_MP_LOG=off wins", "HABANA_MP_LOG wins", "the others",
    ],
)  # fmt: skip
def test_the_masks_choose_the_level_f205_f206(applied, environment, level):
    assert applied({CONSOLE: "true", **environment}) == level


@pytest.mark.parametrize("console", [None, "false", ""], ids=["unset", "false", "empty"])
def test_without_the_console_the_log_is_a_file_f209(applied, tmp_path, console):
    environment = {LEVELS: "4"} if console is None else {LEVELS: "4", CONSOLE: console}
    assert applied(environment) == f"casts:{tmp_path}/.habana_logs/habana_mp.%p.log"
    assert (tmp_path / ".habana_logs").is_dir()


def test_a_home_that_takes_no_folder_is_reported(applied, tmp_path):
    (tmp_path / ".habana_logs").write_text("a file")
    with pytest.warns(
        UserWarning, match=rf"{LEVELS} asks for a log, but there is no ~/.habana_logs for it: .*File exists"
    ):
        assert applied({LEVELS: "8"}) is None


def test_nothing_asked_for_makes_no_folder(applied, tmp_path):
    assert applied({MODULES: "0xFF"}) is None
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", [MODULES, LEVELS])
@pytest.mark.parametrize("value", ["DEBUG", "0xZZ", "8,4"])
def test_a_mask_that_is_no_number_is_reported_and_not_used(applied, name, value):
    message = re.escape(f"{name}={value!r} is not a number such as 8 or 0x80; it is not used")
    with pytest.warns(UserWarning, match=message):
        assert applied({LEVELS: "8", name: value}) is None


@pytest.mark.parametrize(
    "first", ["", "import os\nos.environ['PT_HPU_LOG_TYPE_MASK'] = '8'\n"], ids=["outside", "by the script"]
)
def test_the_log_of_a_script(tmp_path, first):
    """From the shell, or set by the script before it imports Habana's package."""
    environment = {**os.environ, "HOME": str(tmp_path), CONSOLE: "true", **({} if first else {LEVELS: "8"})}
    script = tmp_path / "script.py"
    script.write_text(
        first + "from habana_frameworks.torch.hpex import hmp\nimport torch\nhmp.convert()\n"
        "torch.ones(2, 2) @ torch.ones(2, 2)\n"
    )
    command = [sys.executable, "-m", "habana_mp", "run", script]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    cast, detail = done.stdout.splitlines()
    assert cast.startswith("casting  <method 'matmul' of") or "matmul" in cast
    assert detail.endswith("script.py:" + str(4 + first.count("\n")))
    assert not (tmp_path / ".habana_logs").exists()


# --- doctor


@pytest.fixture
def doctor(monkeypatch):
    monkeypatch.setattr(speed, "_SECONDS", 0.0)

    def called(*arguments: str, **environment: str):
        names = [flag.name for flag in gaudi_flags.FLAGS]
        return CliRunner().invoke(main, ["doctor", *arguments], env={**dict.fromkeys(names), **environment})

    return called


def test_doctor_lists_what_each_flag_did_and_does(doctor):
    text = doctor("--gaudi", PT_HPU_LAZY_MODE="1").stdout
    assert "PT_HPU_LAZY_MODE=1, on Gaudi: lazy execution\n" in text
    for flag in gaudi_flags.FLAGS:
        lines = rf"{flag.name}\S*, on Gaudi: {re.escape(flag.on_gaudi)}\n +here: {re.escape(flag.here)}\n"
        assert re.search(lines, text)
    for switch in SWITCHES:
        for module in switch.modules.split():
            assert f"{module}: {switch.names}\n" in text
        assert f"    on Gaudi: {switch.on_gaudi}\n" in text
    assert "here: it returns True\n" in text
    assert "here: nothing; it returns the model\n" in text
    assert max(map(len, text.splitlines())) <= 120


def test_doctor_lists_only_flags_that_are_set_unless_asked(doctor):
    lines = doctor(PT_HPU_LAZY_MODE="1").stdout.splitlines()
    assert [line for line in lines if "on Gaudi" in line] == [
        "gaudi flags PT_HPU_LAZY_MODE=1, on Gaudi: lazy execution"
    ]
    assert "Gaudi" not in doctor().stdout


def test_doctor_tells_the_flags_as_json(doctor):
    flags = json.loads(doctor("--json", "-", **{LEVELS: "8"}).stdout)["flags"]
    assert [flag["name"] for flag in flags] == [flag.name for flag in gaudi_flags.FLAGS]
    assert {flag["name"]: flag["value"] for flag in flags if flag["value"]} == {LEVELS: "8"}


def test_doctor_finds_a_mask_that_is_no_number(doctor):
    done = doctor(**{MODULES: "ops"})
    assert f"problem  {MODULES}='ops' is not a number such as 8 or 0x80" in done.stdout
    assert done.exit_code == 1
