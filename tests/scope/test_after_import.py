"""What waits for the import of a module."""

import importlib
import sys

from habana_mp._scope.after_import import after_import


def test_all_who_wait_for_a_module_hear_of_its_import_once(monkeypatch):
    """Where two waited, the second was never called: the import asks the first finder alone."""
    monkeypatch.delitem(sys.modules, "colorsys", raising=False)
    before, heard = [*sys.meta_path], []
    after_import("colorsys", lambda: heard.append("first"))
    after_import("colorsys", lambda: heard.append("second"))
    assert heard == []
    importlib.import_module("colorsys")
    importlib.import_module("colorsys")
    assert heard == ["first", "second"]
    assert sys.meta_path == before


def test_of_a_module_that_is_there_it_is_called_at_once():
    heard = []
    after_import("sys", lambda: heard.append("now"))
    assert heard == ["now"]
