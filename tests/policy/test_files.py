"""Files that are no plain ones, and names with characters that nobody sees: each ends in a clear error, and nothing waits (D20, D24)."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner

from habana_mp import hmp
from habana_mp._policy.environment import read_environment
from habana_mp.cli import main

TOML = 'name = "mine"\nlow_dtype = "bfloat16"\nrest = "inputs"\n'
MIB = 1 << 20


@pytest.fixture
def folder(tmp_path):
    def folder(description):
        (tmp_path / "policy.toml").write_bytes(description if isinstance(description, bytes) else description.encode())
        for title in ("lower", "fp32", "promote"):
            (tmp_path / f"{title}.txt").write_text("mm\n" if title == "lower" else "")
        return tmp_path

    return folder


def of_list(path):
    return hmp.Policy.from_files(path)


def of_gaudi_config(path):
    link = path.parent / "gaudi_config.json"
    link.symlink_to(path)
    return hmp.Policy.load(link)


def of_description(path):
    (path.parent / "mine").mkdir()
    (path.parent / "mine" / "policy.toml").symlink_to(path)
    return hmp.Policy.load(path.parent / "mine")


def of_report(path):
    return hmp.CastReport.load(path)


READERS = [of_list, of_gaudi_config, of_description, of_report]


@pytest.mark.parametrize("read", READERS)
class TestFilesThatAreNone:
    def test_a_pipe_that_nobody_writes_to(self, read, tmp_path):
        os.mkfifo(tmp_path / "pipe")
        with pytest.raises(ValueError, match="no process writes to this pipe"):
            read(tmp_path / "pipe")

    def test_a_folder(self, read, tmp_path):
        (tmp_path / "folder").mkdir()
        with pytest.raises(IsADirectoryError) as raised:
            read(tmp_path / "folder")
        assert str(tmp_path) in raised.value.filename

    def test_none(self, read, tmp_path):
        with pytest.raises(FileNotFoundError) as raised:
            read(tmp_path / "none")
        assert str(tmp_path) in raised.value.filename


@pytest.mark.parametrize("read", READERS[:3])
def test_a_device_without_end(read, tmp_path):
    (tmp_path / "zero").symlink_to("/dev/zero")
    with pytest.raises(ValueError, match="the file is larger than 1 MiB"):
        read(tmp_path / "zero")


def test_an_empty_device_is_an_empty_list():
    assert hmp.Policy.from_files("/dev/null").lists["lower"] == ()


def test_a_pipe_that_somebody_writes_to(tmp_path):
    """As the shell's <(sort ops.txt)."""
    reader, writer = os.pipe()
    thread = threading.Thread(target=lambda: (os.write(writer, b"mm\n"), os.close(writer)))
    thread.start()
    try:
        assert hmp.Policy.from_files(f"/dev/fd/{reader}").lists["lower"] == ("mm",)
    finally:
        thread.join()
        os.close(reader)


@pytest.mark.parametrize("name", ["policy.toml", "gaudi_config.json", "lower.txt"])
def test_a_file_of_over_1_mib(folder, name):
    path = folder(TOML)
    (path / name).write_bytes((path / name).read_bytes() + b" " * MIB if (path / name).exists() else b" " * (MIB + 1))
    with pytest.raises(ValueError, match=f"{name}: the file is larger than 1 MiB"):
        hmp.Policy.load(path / name if name.endswith(".json") else path)


def test_a_byte_order_mark_in_policy_toml(folder):
    assert hmp.Policy.load(folder(b"\xef\xbb\xbf" + TOML.encode())).name == "mine"


@pytest.mark.parametrize(
    ("description", "message"),
    [
        pytest.param("name = " + "[" * 200_000, "its values are nested too deeply", id="nested"),
        pytest.param(b"name = '\xff'", "'utf-8' codec", id="bytes"),
        pytest.param(TOML.encode("utf-16"), "'utf-8' codec", id="UTF-16"),
        pytest.param(TOML.replace("mine", r"mi\u0000ne"), r"'mi\\x00ne' is not a policy name", id="NUL in the name"),
        pytest.param(TOML.replace("mine", r"mi\u001bne"), r"'mi\\x1bne' is not a policy name", id="ESC in the name"),
        pytest.param(TOML.replace("inputs", r"in\u0000puts"), r"'in\\x00puts' is not a rest", id="NUL in rest"),
        pytest.param(TOML + r'error = ["m\u0000m"]', r"'m\\x00m' is not an op name", id="NUL in error"),
    ],
)
def test_a_description_that_is_none(folder, description, message):
    with pytest.raises(ValueError, match=message) as raised:
        hmp.Policy.load(folder(description))
    assert str(raised.value).startswith(f"{folder(description)}{os.sep}policy.toml: ")


@pytest.mark.parametrize(
    ("line", "hint"),
    [
        pytest.param("low_dtype = bfloat16", '. Strings need quotes: low_dtype = "bfloat16"', id="without-quotes"),
        pytest.param("cache = yes", '. Strings need quotes: cache = "yes"', id="no-boolean"),
        pytest.param("low_dtype = [", "", id="no-end"),
    ],
)
def test_a_description_whose_strings_have_no_quotes(folder, line, hint):
    with pytest.raises(ValueError, match=r"policy\.toml: ") as raised:
        hmp.Policy.load(folder(line))
    assert str(raised.value).endswith(hint or ")")
    assert ("quotes" in str(raised.value)) == bool(hint)


@pytest.mark.parametrize(
    ("path", "hint"),
    [
        pytest.param("balancd", "Did you mean 'balanced'?", id="misspelt"),
        pytest.param("mine/policy.toml", "Pass the folder of the file, 'mine'.", id="its-description"),
        pytest.param(Path("mine/policy.toml"), "Pass the folder of the file, 'mine'.", id="path"),
        pytest.param("my.txt", "It is a file. For a list file, use Policy.from_files, such as", id="list-file"),
        pytest.param("other/mine", "There is no folder 'other/mine'.", id="no-folder"),
        pytest.param("qqqq", "Accepted are a preset (balanced, ", id="nothing-near"),
    ],
)
def test_what_is_no_policy_is_reported_with_what_was_meant(tmp_path, monkeypatch, path, hint):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "policy.toml").write_text(TOML)
    (tmp_path / "my.txt").write_text("mm\n")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError) as raised:
        hmp.Policy.load(path)
    assert str(raised.value).startswith(f"Unknown policy {str(path)!r}. {hint}")


def test_a_folder_in_place_of_a_list_file_is_reported_with_the_argument(tmp_path):
    with pytest.raises(IsADirectoryError, match=r"lower takes .* list file, and Policy\.load takes a folder") as raised:
        hmp.Policy.from_files(lower=tmp_path)
    assert raised.value.filename == str(tmp_path)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        pytest.param(lambda: hmp.Policy.from_ops(name="a\0b"), r"'a\x00b' is not a policy name", id="name"),
        pytest.param(lambda: hmp.Policy.from_ops(lower=["m\0m"]), r"'m\x00m' is not an op name", id="op"),
        pytest.param(lambda: hmp.Policy.from_ops(lower=["m\n\x1bm"]), r"'m\x0a\x1bm' is not an op name", id="newline"),
        pytest.param(lambda: hmp.Policy.from_ops(lower=["m\udcff"]), r"'m\udcff' is not an op name", id="no UTF-8"),
        pytest.param(
            lambda: hmp.Policy.from_ops(name="m\udcff"), r"'m\udcff' is not a policy name", id="name, no UTF-8"
        ),
        pytest.param(
            lambda: hmp.Policy.from_ops(rest="m\udcff"), r"'m\udcff' is not a rest of a policy", id="rest, no UTF-8"
        ),
        pytest.param(
            lambda: hmp.Policy.load("name=m\udcff low_dtype=bfloat16 rest=inputs lower= fp32= promote= error="),
            r"'m\udcff' is not a policy name",
            id="text, no UTF-8",
        ),
        pytest.param(lambda: hmp.Policy.load("hmp").rule("mm\udcff"), r"'mm\udcff' is not an op", id="rule, no UTF-8"),
        pytest.param(
            lambda: hmp.Policy.load("hmp").with_edits("+m\udcff:fp32"),
            r"'+m\udcff:fp32' is not an edit of a policy: 'm\udcff' is not the name of an op",
            id="edit, no UTF-8",
        ),
        pytest.param(
            lambda: hmp.Policy.from_ops(lower=["m@\0"]), r"'m@\x00' is not an entry of a list", id="condition"
        ),
        pytest.param(
            lambda: hmp.Policy.load("name=a\0b low_dtype=bfloat16 rest=inputs lower= fp32= promote= error="),
            r"'a\x00b' is not a policy name",
            id="text",
        ),
        pytest.param(lambda: hmp.Policy.from_files("a\0b"), r"'a\x00b' is not a path: it has a NUL", id="list path"),
        pytest.param(
            lambda: hmp.convert(bf16_file_path=b"a\0b"), r"'a\x00b' is not a path: it has a NUL", id="bytes path"
        ),
        pytest.param(lambda: hmp.Policy.load(Path("a\0b")), r"b/policy.toml' is not a path: it has a NUL", id="folder"),
        pytest.param(lambda: hmp.Policy.load("a\0b.json"), r"'a\x00b.json' is not a path: it has a NUL", id="json"),
        pytest.param(lambda: hmp.CastReport.load("a\0b"), r"'a\x00b' is not a path: it has a NUL", id="report"),
    ],
)
def test_characters_that_nobody_sees(make, message):
    with pytest.raises(ValueError) as raised:
        make()
    assert message in str(raised.value)


@pytest.mark.parametrize(
    ("make", "why"),
    [
        pytest.param(os.mkfifo, "no process writes to this pipe", id="pipe"),
        pytest.param(lambda path: path.symlink_to("/dev/zero"), "the file is larger than 1 MiB", id="device"),
        pytest.param(lambda path: path.mkdir(), "Is a directory", id="folder"),
        pytest.param(lambda path: path.write_bytes(b"m\0m"), r"'m\x00m' is not an op name", id="NUL"),
    ],
)
def test_a_list_of_the_environment_that_is_none_warns(monkeypatch, tmp_path, make, why):  # D30
    path = tmp_path / "lower.txt"
    make(path)
    default = hmp.Policy.load("hpu-autocast")
    monkeypatch.setenv("LOWER_LIST", str(path))
    with pytest.warns(UserWarning, match="is not used. The default list of hpu-autocast stays") as warned:
        read_environment()
    assert why in str(warned[0].message)
    assert hmp.Policy.load("hpu-autocast") == default
    monkeypatch.delenv("LOWER_LIST")
    read_environment()


def measured():
    with hmp.autocast("cpu"), hmp.report() as report:
        torch.ones(2, 2) @ torch.ones(2, 2)
    return report


def compared():
    return hmp.compare(lambda: torch.ones(2).exp(), None)


def tuned():
    return hmp.tune(lambda: torch.ones(2, 2) @ torch.ones(2, 2), 0.1, cost="numbers")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no such device")
@pytest.mark.parametrize(
    "write",
    [
        pytest.param(lambda path: measured().to_json(path), id="report"),
        pytest.param(lambda path: measured().to_html(path), id="page"),
        pytest.param(lambda path: measured().to_chrome_trace(path), id="trace"),
        pytest.param(lambda path: measured().diff(measured()).to_html(path), id="diff"),
        pytest.param(lambda path: compared().to_json(path), id="comparison"),
        pytest.param(lambda path: compared().to_html(path), id="page of a comparison"),
        pytest.param(lambda path: tuned().to_json(path), id="search"),
        pytest.param(lambda path: tuned().to_html(path), id="page of a search"),
    ],
)
def test_a_full_disk_is_reported_with_the_file(write):
    with pytest.raises(OSError, match=r"No space left on device: '/dev/full'$") as raised:
        write("/dev/full")
    assert raised.value.filename == "/dev/full"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no such device")
@pytest.mark.parametrize("option", ["--html", "--json", "--write-edits"])
def test_a_command_reports_a_full_disk_with_the_file(option, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text("import torch\ntorch.ones(2, 2) @ torch.ones(2, 2)\n")
    done = CliRunner().invoke(main, ["report", "--values", option, "/dev/full", "train.py"])
    hmp.revert()
    assert done.exit_code == 2
    assert done.stderr.splitlines()[-1] == "Error: /dev/full: No space left on device"
