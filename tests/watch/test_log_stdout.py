"""The cast log on sys.stdout: whatever stream is there, and one that cannot be written (D47). test_log.py has files and settings."""

from __future__ import annotations

import contextlib
import io
import os
import sys
import warnings
from pathlib import Path

import pytest
import torch
from log_events import LINE, write

import habana_mp._core as _core
from habana_mp import hmp
from habana_mp._watch import log

pytestmark = pytest.mark.usefixtures("log_is_off_around")
OFF, CASTS, DETAIL = range(3)


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


@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit(3)])
def test_what_is_to_end_the_program_reaches_the_caller(capfd, error):
    log.open_log(is_verbose=True)
    with contextlib.redirect_stdout(Failing(error)) as stdout:
        with pytest.raises(type(error)) as raised:
            write()
        write()
    assert raised.value is error
    assert stdout.getvalue() == LINE
    assert capfd.readouterr() == ("", ""), "spdlog itself says nothing"


@contextlib.contextmanager
def all_warnings():
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        yield warned


class WriteAlone:
    """As loguru's StreamToLoguru: no closed, encoding, isatty or fileno."""

    def __init__(self):
        self.text = ""

    def write(self, text):
        self.text += text


class AllElseRaises(WriteAlone):
    def __getattr__(self, name):
        raise RuntimeError(name)


class Flushless(WriteAlone):
    def flush(self):
        raise OSError("no flush")


class Encodes(WriteAlone):
    encoding = "no such encoding"
    closed = True


@pytest.mark.parametrize("make", [WriteAlone, AllElseRaises, Flushless, Encodes])
def test_any_object_with_write_will_do(monkeypatch, make):
    stream = make()
    with monkeypatch.context() as patch, all_warnings() as warned:
        patch.setattr(sys, "stdout", stream)
        hmp.convert(isVerbose=True)
        torch.mm(torch.ones(2, 2), torch.ones(2, 2))
    assert stream.text.splitlines()[0] == "hmp:verbose_mode  True"
    assert stream.text.splitlines()[-1].endswith("to_bf16")
    assert warned == []


class WordlessError(Exception):
    def __str__(self):
        raise RuntimeError("no words")


def full_disk():
    return Path("/dev/full").open("w")


def pipe_without_reader():
    reader, writer = os.pipe()
    os.close(reader)
    return open(writer, "w")  # noqa: PTH123 - of a descriptor; the test closes it


def closed():
    stream = io.StringIO()
    stream.close()
    return stream


@pytest.mark.parametrize(
    ("stream", "why"),
    [
        pytest.param(full_disk, "OSError: [Errno 28] No space left", id="full disk"),
        pytest.param(pipe_without_reader, "BrokenPipeError: [Errno 32] Broken pipe", id="pipe"),
        pytest.param(closed, "ValueError: I/O operation on closed file", id="closed"),
        pytest.param(lambda: Failing(RuntimeError("my stream")), "RuntimeError: my stream", id="stream of the user's"),
        pytest.param(lambda: Failing(WordlessError()), "WordlessError", id="an error without words"),
        pytest.param(object, "AttributeError: 'object' object has no attribute 'write'", id="no stream"),
        pytest.param(lambda: Failing(ValueError("caf\udce9")), "ValueError: caf\\udce9", id="surrogate"),
    ],
)
def test_a_stdout_that_cannot_be_written_ends_the_log_with_one_warning(monkeypatch, stream, why):  # D47
    hmp.convert(isVerbose=False)
    log.open_log(is_verbose=True)
    out = stream()
    with monkeypatch.context() as patch, all_warnings() as warned:
        patch.setattr(sys, "stdout", out)
        for _ in range(3):
            assert torch.mm(torch.ones(2, 2), torch.ones(2, 2)).dtype == torch.bfloat16
    (one,) = warned
    assert str(one.message).startswith(f"the cast log cannot be written and stops: sys.stdout: {why}")
    assert _core.log_level() == OFF
    with contextlib.suppress(OSError, AttributeError):  # what a stream still holds
        out.close()


def test_a_file_that_cannot_be_written_ends_the_log_with_one_warning(monkeypatch):  # D47
    monkeypatch.setenv("HABANA_MP_LOG", "casts:/dev/full")
    with all_warnings() as warned:
        for _ in range(3):
            with hmp.autocast("cpu"):
                torch.mm(torch.ones(2, 2), torch.ones(2, 2))
    (one,) = warned
    assert str(one.message).startswith("the cast log cannot be written and stops: /dev/full: No space left")
    hmp.convert()
    assert _core.log_level() == CASTS, "who asks again gets another log"
    hmp.revert()


def test_the_banner_of_convert_into_a_closed_stdout(monkeypatch):  # D47
    monkeypatch.setattr(sys, "stdout", closed())
    with pytest.warns(UserWarning, match="the cast log cannot be written and stops"):
        hmp.convert(isVerbose=True)
    assert hmp.is_converted()


def test_no_stream_is_left_for_the_warning(monkeypatch):  # D47
    log.open_log(is_verbose=True)
    with monkeypatch.context() as patch, warnings.catch_warnings():
        warnings.simplefilter("always")
        patch.setattr(sys, "stdout", closed())
        patch.setattr(sys, "stderr", closed())
        patch.setattr(warnings, "showwarning", lambda *args: sys.stderr.write("warning"))
        write()
    assert _core.log_level() == OFF


def test_a_warning_into_a_stderr_that_raises_ends_no_conversion(monkeypatch, tmp_path):
    """Python's own warnings let through all but OSError."""
    (tmp_path / "lower.txt").write_text("mm\nlienar\n")
    with monkeypatch.context() as patch, warnings.catch_warnings():
        warnings.simplefilter("always")
        patch.setattr(sys, "stderr", Failing(RuntimeError("my stream")))
        patch.setattr(warnings, "showwarning", lambda *args: sys.stderr.write("warning"))
        hmp.convert(bf16_file_path=tmp_path / "lower.txt")
    assert hmp.is_converted()


def test_a_warning_that_the_filter_makes_an_error_is_one(monkeypatch):
    log.open_log(is_verbose=True)
    with monkeypatch.context() as patch, warnings.catch_warnings():
        warnings.simplefilter("error")
        patch.setattr(sys, "stdout", closed())
        with pytest.raises(UserWarning, match="cannot be written"):
            write()
    write()
    assert _core.log_level() == OFF


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
