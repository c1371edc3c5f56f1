"""The libraries of the trainers are optional."""

from __future__ import annotations

import subprocess
import sys

LIBRARIES = ("lightning", "transformers", "accelerate")


def run(code):
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.splitlines()


def test_nothing_of_them_is_imported_with_the_package():
    assert run(f"import sys, habana_mp.trainers\nprint({{*{LIBRARIES}}} & {{*sys.modules}})") == ["set()"]


def test_a_library_that_is_not_there():
    code = f"""
import importlib, sys
for name in {LIBRARIES}:
    sys.modules[name] = None  # what Python takes for not installed
    try:
        importlib.import_module("habana_mp.trainers." + name)
    except ModuleNotFoundError as error:
        print(error)
"""
    assert run(code) == [
        f"habana_mp.trainers.{name} needs {name}, which is not installed: pip install {name}" for name in LIBRARIES
    ]
