"""The reader of list files, on anything: it parses or names the line, and what it has parsed it parses again."""

from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st

import habana_mp._core as _core

lines = st.one_of(
    st.text(alphabet=st.sampled_from("abm_.+-# \t\r09\u00e9"), max_size=12),
    st.from_regex(r"[+-]?[a-z_]{1,8}(\.[A-Z]{1,4})?", fullmatch=True),
)


@given(st.binary(max_size=400) | st.lists(lines, max_size=12).map(lambda parts: "\n".join(parts).encode()))
@example(b"\xef\xbb\xbf")
@example(b"+mm\r\n-mm")
def test_reader_on_any_bytes(data):
    try:
        edits, named, removed, _ = _core.parse_op_list(data, "my.txt")
    except ValueError as error:
        assert str(error).startswith("my.txt:")  # noqa: PT017 - most bytes are refused, some are not
        return
    signs = {entry.line: "-" for entry in removed} | {entry.line: "+" if edits else "" for entry in named}
    entries = sorted([*named, *removed], key=lambda entry: entry.line)
    assert len(signs) == len(entries)
    written = "\n".join(f"{signs[entry.line]}{entry}" for entry in entries)
    assert _core.parse_op_list(written, "my.txt")[:3] == (edits, named, removed)


@given(st.text(max_size=200))
def test_reader_on_any_text(text):
    try:
        _core.parse_op_list(text, "my.txt")
    except ValueError as error:
        assert str(error).startswith("my.txt:")  # noqa: PT017
