"""Runs the tests of the engine in a process with torch and without habana_mp: python tests/cpp/engine/run.py LIBRARY.

The engine needs the libraries of torch and an interpreter. ctypes resolves every symbol when it loads the library, so an engine
that calls one of the instruments does not load.
"""

from __future__ import annotations

import ctypes
import sys

import torch  # noqa: F401  its libraries come with it

if __name__ == "__main__":
    failed = ctypes.PyDLL(sys.argv[1]).run_tests()
    assert "habana_mp" not in sys.modules
    sys.exit(failed)
