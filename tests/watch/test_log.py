"""Where the cast log goes: HABANA_MP_LOG, files, forked processes, filters. test_log_lines.py has what ops log."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
import warnings
from collections import OrderedDict
from pathlib import Path

import pytest
import torch
from log_events import LINE, write

import habana_mp._core as _core
from habana_mp import hmp
from habana_mp._watch import log

pytestmark = pytest.mark.usefixtures("log_is_off_around")
OFF, CASTS, DETAIL = range(3)


@pytest.mark.parametrize(
    ("value", "is_verbose", "level"),
    [
        (None, False, OFF),
        (None, True, CASTS),
        ("", False, OFF),
        ("", True, CASTS),
        ("off", True, OFF),
        ("off", False, OFF),
        ("casts", False, CASTS),
        ("detail", False, DETAIL),
        ("detail", True, DETAIL),
    ],
)
def test_level(monkeypatch, capsys, value, is_verbose, level):
    if value is not None:
        monkeypatch.setenv("HABANA_MP_LOG", value)
    log.open_log(is_verbose)
    assert _core.log_level() == level
    write()
    assert capsys.readouterr().out == ("" if level == OFF else LINE)


@pytest.mark.parametrize(
    "value", ["verbose", "CASTS", "1", "casts:", "off:", ":x.log", "x.log", " casts", "casts::x.log"]
)
def test_a_malformed_value_is_named_with_what_is_accepted(monkeypatch, capsys, value):
    log.open_log(is_verbose=True)
    monkeypatch.setenv("HABANA_MP_LOG", value)
    with pytest.raises(ValueError, match=re.escape(f"HABANA_MP_LOG={value!r}: accepted are off, casts, detail, and")):
        log.open_log(is_verbose=False)
    write()
    assert capsys.readouterr().out == LINE, "the log is what it was"


@pytest.mark.parametrize(
    ("path", "error"),
    [
        ("/nowhere/casts.log", FileNotFoundError),
        ("/", IsADirectoryError),
        ("/proc/version/casts.log", NotADirectoryError),
        ("/" + "x" * 300, OSError),
    ],
)
def test_a_file_that_cannot_be_opened(monkeypatch, capsys, path, error):
    log.open_log(is_verbose=True)
    monkeypatch.setenv("HABANA_MP_LOG", f"detail:{path}")
    with pytest.raises(error) as raised:
        log.open_log(is_verbose=True)
    assert f"HABANA_MP_LOG='detail:{path}': cannot append to the log file" in str(raised.value)
    assert raised.value.filename == path
    write()
    assert capsys.readouterr().out == LINE, "the log is what it was"


def test_a_file_is_appended_to_and_closed(monkeypatch, capsys, tmp_path):
    file = tmp_path / "a:b.log"
    file.write_text("before\n")
    monkeypatch.setenv("HABANA_MP_LOG", f"casts:{file}")
    log.open_log(is_verbose=True)
    log.banner("O1")
    write()
    banner = "hmp:verbose_mode  True\nhmp:opt_level O1\n"
    assert file.read_text() == "before\n" + banner + LINE, "each line is there at once"
    log.close_log()
    write()
    assert file.read_text() == "before\n" + banner + LINE
    assert capsys.readouterr().out == ""
    assert str(file) not in {str(fd.resolve()) for fd in Path("/proc/self/fd").iterdir()}


def test_the_paths_of_the_variable(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    for path, name in [
        ("~/home.log", "home.log"),
        ("here.log", "here.log"),
        ("of%p-%p.log", f"of{os.getpid()}-{os.getpid()}.log"),
    ]:
        monkeypatch.setenv("HABANA_MP_LOG", f"casts:{path}")
        log.open_log(is_verbose=False)
        write()
        assert (tmp_path / name).read_text() == LINE


def test_opening_again_replaces_the_former_sink(monkeypatch, capsys, tmp_path):
    first, second = tmp_path / "first.log", tmp_path / "second.log"
    for file in (first, second):
        monkeypatch.setenv("HABANA_MP_LOG", f"casts:{file}")
        log.open_log(is_verbose=False)
        write()
    monkeypatch.delenv("HABANA_MP_LOG")
    log.open_log(is_verbose=True)
    write()
    assert (first.read_text(), second.read_text(), capsys.readouterr().out) == (LINE, LINE, LINE)


def test_a_pipe_without_reader_as_log_file(monkeypatch, tmp_path):
    """Opened as other files, it would wait for one."""
    os.mkfifo(tmp_path / "pipe")
    monkeypatch.setenv("HABANA_MP_LOG", f"casts:{tmp_path}/pipe")
    with pytest.raises(OSError, match="cannot append to the log file: No such device or address"):
        log.open_log(is_verbose=False)


def test_threads_write_whole_lines(capsys):
    """Also while others open and close the log: the stream lets other threads run amid a line."""
    log.open_log(is_verbose=True)

    def work(name):
        for number in range(200):
            write(f"{name} {number}")
            if number % 10 == 0:
                log.open_log(is_verbose=True)

    threads = [threading.Thread(target=work, args=(name,)) for name in "abcd"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    lines = capsys.readouterr().out.splitlines()
    assert sorted(lines) == sorted(f"casting  {name} {number} to_bf16" for name in "abcd" for number in range(200))


def in_child(work):
    """Runs work in a forked process and says whether it went well."""
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            work()
            status = 0
        finally:
            os._exit(status)
    return os.waitpid(pid, 0)[1] == 0


fork_is_deprecated = pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning")


@fork_is_deprecated
def test_a_forked_process_goes_on_with_the_file(monkeypatch, tmp_path):
    file = tmp_path / "casts.log"
    monkeypatch.setenv("HABANA_MP_LOG", f"casts:{file}")
    log.open_log(is_verbose=False)
    write("parent")
    assert in_child(lambda: write("child"))
    write("parent again")
    assert file.read_text().splitlines() == [f"casting  {who} to_bf16" for who in ("parent", "child", "parent again")]


@fork_is_deprecated
def test_a_forked_process_has_its_own_file_by_percent_p(monkeypatch, tmp_path):
    monkeypatch.setenv("HABANA_MP_LOG", f"detail:{tmp_path}/%p.log")
    log.open_log(is_verbose=False)
    write("parent")
    assert in_child(lambda: write("child"))
    texts = {file.name: file.read_text() for file in Path(tmp_path).iterdir()}
    own = texts.pop(f"{os.getpid()}.log")
    assert own == "casting  parent to_bf16\n"
    assert list(texts.values()) == ["casting  child to_bf16\n"]


@fork_is_deprecated
def test_a_closed_log_stays_closed_in_a_forked_process(monkeypatch, tmp_path):
    monkeypatch.setenv("HABANA_MP_LOG", f"casts:{tmp_path}/%p.log")
    log.open_log(is_verbose=False)
    log.close_log()
    assert in_child(write)
    assert [file.name for file in tmp_path.iterdir()] == [f"{os.getpid()}.log"]


@fork_is_deprecated
def test_a_forked_process_that_cannot_have_its_own_file_goes_on_without(monkeypatch, tmp_path):  # D47
    folder = tmp_path / "logs"
    folder.mkdir()
    monkeypatch.setenv("HABANA_MP_LOG", f"casts:{folder}/%p.log")
    log.open_log(is_verbose=False)
    own = folder / f"{os.getpid()}.log"
    own.rename(tmp_path / "own.log")
    folder.rmdir()

    def child():
        assert _core.log_level() == OFF
        write("child")

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert in_child(child)
    write("parent")
    assert (tmp_path / "own.log").read_text() == "casting  parent to_bf16\n"


def test_control_characters_of_names(capsys, monkeypatch):
    monkeypatch.setenv("HABANA_MP_LOG", "detail")
    model = torch.nn.Sequential(OrderedDict({"a\nb\x1b[2J": torch.nn.Linear(2, 2)}))
    hmp.convert()
    model(torch.ones(1, 2))
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2
    assert "Sequential: a\\nb\\x1b[2J | " in lines[1]


def test_names_that_are_no_utf8(capsys):
    """A file name may be any bytes; os.fsdecode makes surrogates of them."""
    log.open_log(is_verbose=True)
    _core.write_log_text(os.fsdecode(b"caf\xe9 \xc3\xa9").encode("utf-8", "surrogateescape"))
    assert capsys.readouterr().out == "caf\\xe9 é\n"


# --- Filters

CALLED = """
import torch
from habana_mp import hmp
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
        self.decoder = nn.Linear(4, 4)

    def forward(self, x):
        return self.decoder(self.encoder(x)).softmax(-1) @ x.transpose(0, 1)

hmp.convert()
net = Net()
for _ in range(3):
    net(torch.ones(2, 4))
"""
# filter -> the ops of the lines of one pass, and how many lines there are of three
FILTERS = {
    "": (["linear", "relu", "linear", "softmax", "matmul"], 15),
    "op=softmax": (["softmax"], 3),
    "op=F.softmax": (["softmax"], 3),
    "op=aten::softmax": (["softmax"], 3),
    "op=matmul": (["matmul"], 3),
    "op=softmax,op=relu": (["relu", "softmax"], 6),
    "op=*l*u": (["relu"], 3),
    "module=encoder": (["linear", "relu"], 6),
    "module=encoder.0": (["linear"], 3),
    "module=*coder*": (["linear", "relu", "linear"], 9),
    "op=linear,module=decoder": (["linear"], 3),
    "first=4": (["linear", "relu", "linear", "softmax"], 4),
    "op=relu,first=2": (["relu"], 2),
    "module=none": ([], 0),
}


@pytest.mark.parametrize("filters", FILTERS)
def test_filters(tmp_path, filters):
    ops, count = FILTERS[filters]
    script = tmp_path / "script.py"
    script.write_text(CALLED)
    setting = ",".join(filter(None, ["casts", filters])) + f":{tmp_path}/log.txt"
    subprocess.run([sys.executable, script], env={**os.environ, "HABANA_MP_LOG": setting}, check=True)
    lines = (tmp_path / "log.txt").read_text().splitlines()
    shown = [re.search(r"(linear|relu|softmax|matmul)", line)[1] for line in lines]
    assert (shown[: len(ops)], len(shown)) == (ops, count)


@pytest.mark.parametrize(
    ("value", "op", "path"),
    [
        ("detail,op=aten::mm", "mm", ""),
        ("detail,op=aten::mm:x.log", "mm", "x.log"),
        ("detail,op=aten::mm,first=3:/tmp/x:y.log", "mm", "/tmp/x:y.log"),
        ("detail,op=mm:a::b.log", "mm", "a::b.log"),
        ("detail,op=mm:a:b::c.log", "mm", "a:b::c.log"),
    ],
)
def test_the_colons_of_an_op_begin_no_path(value, op, path):
    setting = log.read_setting(value)
    assert (setting.ops, setting.path) == ((op,), path)


@pytest.mark.parametrize(
    ("filters", "said"),
    [
        ("op=sofmax", "'sofmax' is not an op of torch .*. Did you mean 'softmax'"),
        ("op=", "'op=' is not a filter. Accepted are op=NAME, module=PATH .* and first=NUMBER"),
        ("first=0", "'first=0' is not a filter"),
        ("first=-1", "'first=-1' is not a filter"),
        ("first=99999999999999999999", "is not a filter"),
        ("last=3", "'last=3' is not a filter"),
        ("softmax", "'softmax' is not a filter"),
        (",", "'' is not a filter"),
    ],
)
def test_filters_that_are_none(monkeypatch, capsys, filters, said):
    log.open_log(is_verbose=True)
    monkeypatch.setenv("HABANA_MP_LOG", f"detail,{filters}")
    with pytest.raises(ValueError, match=f"^HABANA_MP_LOG='detail,{re.escape(filters)}': .*{said}"):
        log.open_log(is_verbose=False)
    write()
    assert capsys.readouterr().out == LINE, "the log is what it was"
