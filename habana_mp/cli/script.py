"""Running a script as ``python script.py`` and ``python -m module`` do, also one in a folder or an archive. Knows nothing of policies.

The script is ``__main__``, with the ``sys.argv`` and ``sys.path`` that Python would give it, and stays it until the process ends:
pickle, multiprocessing and what the script registered for the exit look it up.
"""

from __future__ import annotations

import builtins
import importlib.util
import io
import os
import pkgutil
import sys
from collections.abc import Callable, Iterator, Sequence
from importlib.machinery import ModuleSpec, SourceFileLoader
from types import CodeType, ModuleType
from typing import NamedTuple, TypeVar

from habana_mp.cli.console import Problem

_T = TypeVar("_T")
# Files of other commands and options, by their ends: as Python they would end with a NameError or a SyntaxError.
_NO_SCRIPTS = {
    ".json": "JSON, such as a report: habana-mp diff compares two of them",
    ".rec": "a recording: habana-mp compare takes two of them, or one as --with",
    ".txt": "a text, such as a list file: --lower, --fp32 and --edit take it",
}
# The frames between Python and the script: this package, and what finds and compiles modules.
_NOT_OF_SCRIPT = (
    os.path.dirname(os.path.dirname(__file__)) + os.sep,  # noqa: PTH120
    os.path.dirname(importlib.util.__file__) + os.sep,  # noqa: PTH120
    "<frozen ",
)


class Script(NamedTuple):
    """A script that is ready to run: its name for people, its code, and the module that it runs in."""

    name: str
    code: CodeType
    module: ModuleType


def open_script(target: str, arguments: Sequence[str], *, is_module: bool) -> Script:
    """Set ``sys.argv`` and ``sys.path`` and read the script. Packages round a module are imported by it, as by Python.

    Raises:
        Problem: there is no such script.
        SystemExit: its source is no Python, or a package round it raised; the traceback has been printed.
    """
    sys.argv = [target, *arguments]
    if not (sys.flags.isolated or getattr(sys.flags, "safe_path", False)):  # safe_path: from Python 3.11 on
        sys.path[0] = os.getcwd() if is_module else os.path.dirname(os.path.realpath(target))  # noqa: PTH109, PTH120
    return as_python_ends(lambda: _module_named(target) if is_module else _at(target))


def constants(code: CodeType, *, names: bool = True) -> Iterator[str]:
    """The names and the strings in a script, those in its functions too. Or its strings alone."""
    if names:
        yield from code.co_names
    values = [*code.co_consts]
    while values:
        value = values.pop()
        if isinstance(value, CodeType):
            yield from constants(value, names=names)
        elif isinstance(value, (tuple, frozenset)):
            values.extend(value)
        elif isinstance(value, str):
            yield value


def run_script(script: Script) -> None:
    """Run it to its end.

    Raises:
        SystemExit: its own, or 1 for an exception and 130 for Ctrl-C, whose traceback has been printed.
    """
    sys.modules["__main__"] = script.module
    as_python_ends(lambda: exec(script.code, vars(script.module)))  # noqa: S102 - running it is what was asked for


def ending_of(script: Script) -> SystemExit | None:
    """``run_script``, whose SystemExit is returned."""
    try:
        run_script(script)
    except SystemExit as error:
        return error
    return None


def _at(path: str) -> Script:
    """A file, or the __main__ module of a folder or a zip archive."""
    place = os.path.abspath(path)  # noqa: PTH100
    finder = pkgutil.get_importer(place)
    if finder is None:
        return _file(path)
    spec = finder.find_spec("__main__")
    if spec is None:
        raise Problem(f"{path!r} is not a script, and has no __main__.py in it")
    sys.path[0] = place
    return Script(os.path.basename(place), _code_of(spec), _main_module(spec.origin, spec, spec.loader))  # noqa: PTH119


def _file(path: str) -> Script:
    try:
        with io.open_code(os.path.abspath(path)) as file:  # noqa: PTH100
            source = file.read()
            location = file.name
    except OSError as error:
        raise Problem(f"{path}: {error.strerror}") from None
    if (what := _NO_SCRIPTS.get(os.path.splitext(path)[1])) is not None:  # noqa: PTH122
        raise Problem(f"{path} is not a script but {what}")
    code = compile(source, location, "exec", dont_inherit=True)
    module = _main_module(location, None, SourceFileLoader("__main__", location))
    return Script(os.path.basename(path), code, module)  # noqa: PTH119


def _module_named(name: str) -> Script:
    if name.endswith(".py") and os.path.exists(name):  # noqa: PTH110
        raise Problem(f"{name!r} is a file. To run it, leave out -m")
    spec = find_module(name)
    if spec is None:
        raise Problem(f"no module named {name!r}")
    if spec.submodule_search_locations is not None:
        if name.endswith(".__main__"):
            raise Problem(f"{name!r} is a package and cannot be run")
        return _module_named(f"{name}.__main__")
    code = _code_of(spec)
    sys.argv[0] = spec.origin or name
    return Script(name.removesuffix(".__main__"), code, _main_module(spec.origin, spec, spec.loader))


def _code_of(spec: ModuleSpec) -> CodeType:
    get_code = getattr(spec.loader, "get_code", None)  # the loader of archives is no InspectLoader
    code: CodeType | None = get_code(spec.name) if get_code else None
    if code is None:
        raise Problem(f"module {spec.name!r} has no Python code to run")
    return code


def find_module(name: str) -> ModuleSpec | None:
    """None where there is none. Packages round it are imported."""
    if name == "__main__" or not all(name.split(".")):
        return None
    outer = name.rpartition(".")[0]
    try:
        if outer:
            importlib.import_module(outer)
        return importlib.util.find_spec(name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise
        return None


def _main_module(file: str | None, spec: ModuleSpec | None, loader: object) -> ModuleType:
    module = ModuleType("__main__")
    vars(module).update(
        __builtins__=builtins,
        __cached__=spec.cached if spec else None,
        __file__=file,
        __loader__=loader,
        __package__=spec.parent if spec else None,
        __spec__=spec,
    )
    return module


def as_python_ends(call: Callable[[], _T]) -> _T:
    try:
        return call()
    except (SystemExit, Problem):
        raise
    except BaseException as error:  # noqa: BLE001 - as the interpreter
        trace = error.__traceback__
        while trace is not None and trace.tb_frame.f_code.co_filename.startswith(_NOT_OF_SCRIPT):
            trace = trace.tb_next
        error.__traceback__ = trace
        sys.excepthook(type(error), error, trace)
        raise SystemExit(130 if isinstance(error, KeyboardInterrupt) else 1) from None
