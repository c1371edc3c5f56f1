"""Where the cast log goes: HABANA_MP_LOG, files, sys.stdout, forked processes. test_log_lines.py has what ops log."""

from __future__ import annotations

import contextlib
import io
import os
import re
import sys
import threading
from pathlib import Path

import pytest

import habana_mp._core as _core
from habana_mp._watch import log

OFF, CASTS, DETAIL = range(3)
BFLOAT16, FLOAT32 = 2, 3
LOWER = 1
LINE = "casting  <built-in function linear> to_bf16\n"


def write(op="<built-in function linear>", **more):
    _core._testing.write_event(op, BFLOAT16, LOWER, **more)


@pytest.fixture(autouse=True)
def _log_is_off_around(monkeypatch):
    monkeypatch.delenv("HABANA_MP_LOG", raising=False)
    yield
    log.close_log()


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
    lines = [LINE, LINE + "    nothing to cast\n"]
    assert capsys.readouterr().out == ["", *lines][level]


@pytest.mark.parametrize(
    "value", ["verbose", "CASTS", "1", "casts:", "off:", ":x.log", "x.log", "detail,x.log", " casts"]
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
    assert f"HABANA_MP_LOG='detail:{path}': the log file cannot be appended to" in str(raised.value)
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


def test_a_full_disk_is_reported(monkeypatch):
    monkeypatch.setenv("HABANA_MP_LOG", "casts:/dev/full")
    log.open_log(is_verbose=False)
    with pytest.raises(OSError, match="cast log /dev/full: No space left on device"):
        write()


def test_sys_stdout_is_looked_up_at_every_line(capsys):
    log.open_log(is_verbose=True)
    write("a")
    with contextlib.redirect_stdout(io.StringIO()) as redirected:
        write("b")
    write("c")
    assert redirected.getvalue() == "casting  b to_bf16\n"
    assert capsys.readouterr().out == "casting  a to_bf16\ncasting  c to_bf16\n"


def test_without_stdout_nothing_is_written(monkeypatch, capsys):
    log.open_log(is_verbose=True)
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", None)
        write()
    write()
    assert capsys.readouterr().out == LINE


def test_a_real_stream_has_each_line_at_once(tmp_path):
    log.open_log(is_verbose=True)
    file = tmp_path / "out.txt"
    with file.open("w") as stream, contextlib.redirect_stdout(stream):
        write()
        assert file.read_text() == LINE


class Failing(io.StringIO):
    """Raises once, at the first write."""

    def __init__(self, error):
        super().__init__()
        self.error = error

    def write(self, text):
        error, self.error = self.error, None
        if error is not None:
            raise error
        return super().write(text)


@pytest.mark.parametrize(
    "error", [BrokenPipeError("gone"), KeyboardInterrupt(), SystemExit(3), ValueError("closed file")]
)
def test_what_stdout_raises_reaches_the_caller_as_it_is(capfd, error):
    log.open_log(is_verbose=True)
    with contextlib.redirect_stdout(Failing(error)) as stdout:
        with pytest.raises(type(error)) as raised:
            write()
        write()
    assert raised.value is error
    assert stdout.getvalue() == LINE
    assert capfd.readouterr() == ("", ""), "spdlog itself says nothing"


def test_a_stdout_that_logs_does_not_call_itself():
    class Logging(io.StringIO):
        def write(self, text):
            write("of the stream")
            return super().write(text)

    log.open_log(is_verbose=True)
    with contextlib.redirect_stdout(Logging()) as stdout:
        write()
        write()
    assert stdout.getvalue() == LINE + LINE


def test_a_stdout_that_closes_the_log():
    class Closing(io.StringIO):
        def write(self, text):
            log.close_log()
            return super().write(text)

    log.open_log(is_verbose=True)
    with contextlib.redirect_stdout(Closing()) as stdout:
        write()
        write()
    assert stdout.getvalue() == LINE
    assert _core.log_level() == OFF


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
    assert own == "casting  parent to_bf16\n    nothing to cast\n"
    assert list(texts.values()) == ["casting  child to_bf16\n    nothing to cast\n"]


@fork_is_deprecated
def test_a_closed_log_stays_closed_in_a_forked_process(monkeypatch, tmp_path):
    monkeypatch.setenv("HABANA_MP_LOG", f"casts:{tmp_path}/%p.log")
    log.open_log(is_verbose=False)
    log.close_log()
    assert in_child(write)
    assert [file.name for file in tmp_path.iterdir()] == [f"{os.getpid()}.log"]


def test_detail(capsys, monkeypatch):
    monkeypatch.setenv("HABANA_MP_LOG", "detail")
    log.open_log(is_verbose=False)
    write(casts=[("0", FLOAT32), ("weight", FLOAT32)], rule="lower: my.txt:12", module="Net: fc1", source="train.py:31")
    assert capsys.readouterr().out == (
        LINE + "    0: float32 -> bfloat16, weight: float32 -> bfloat16 | lower: my.txt:12 | Net: fc1 | train.py:31\n"
    )


def test_names_that_are_no_utf8(capsys):
    """A file name may be any bytes; os.fsdecode makes surrogates of them."""
    log.open_log(is_verbose=True)
    write(os.fsdecode(b"caf\xe9 \xc3\xa9").encode("utf-8", "surrogateescape"))
    assert capsys.readouterr().out == "casting  caf\\xe9 é to_bf16\n"
