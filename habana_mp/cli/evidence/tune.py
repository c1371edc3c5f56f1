"""``habana-mp tune``: a step of a script, searched for the fastest policy within an error budget."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import click

from habana_mp import hmp
from habana_mp._evidence.tune.tune import CHOSEN, needed_arguments
from habana_mp._evidence.tune.tuned import refuse_to_replace
from habana_mp._report.formats import FORMATS
from habana_mp._scope import in_force
from habana_mp._show.stream import say
from habana_mp.cli.console import Problem, user_errors
from habana_mp.cli.output import html_option, json_option, write_files
from habana_mp.cli.parameters import DEFAULT, formats_option, policy_options
from habana_mp.cli.script import as_python_ends, find_module
from habana_mp.hmp import Policy


@click.command()
@click.option(
    "--budget",
    type=float,
    required=True,
    metavar="E",
    help="The largest accepted error, above 0 and below 1: 0.01 is 1 % of the size of the results.",
)
@click.option(
    "--metric",
    type=click.Choice(["results", "gradients"]),
    default="results",
    show_default=True,
    help="The error: the difference of the results of the step, relative to their size; or 1 minus the cosine of the gradients.",
)
@click.option("--check", metavar="NAME", help="Another step of the same script, on data that the search does not see.")
@click.option(
    "--per",
    type=click.Choice(["op", "module"]),
    default="op",
    show_default=True,
    help="Decide for each op, or for each op in the modules of one path.",
)
@click.option(
    "--others",
    type=click.Choice(["lower", "start"]),
    default="start",
    show_default=True,
    help="The list for ops that do not go to float32: the one of the policy that the search starts from, or lower.",
)
@click.option(
    "--cost",
    type=click.Choice(["seconds", "numbers"]),
    default="seconds",
    show_default=True,
    help="The costs of a choice: seconds measured here; or how many numbers are computed in float32, for models that will run elsewhere.",
)
@formats_option(
    (*CHOSEN, *FORMATS),
    CHOSEN,
    f"What an op may run in, names between commas: {','.join(CHOSEN)} and, for inference, {' or '.join(FORMATS)}. Default: {','.join(CHOSEN)}.",
)
@click.option("--seed", type=int, default=0, show_default=True, help="The seed of the random numbers of each run.")
@click.option(
    "--output",
    metavar="FOLDER",
    type=click.Path(file_okay=False),
    help="Write the policy to this folder, with its evidence. It replaces the policy of an earlier search there, and changes that you made in its lists.",
)
@click.option(
    "--resume",
    metavar="FILE",
    type=click.Path(dir_okay=False, resolve_path=True),
    help="Keep the measurements in this file, and continue from it if it exists.",
)
@html_option
@json_option
@policy_options(
    ", or what the script converts with while it is imported. The search starts from this policy: its other lists and its low dtype stay."
)
@click.argument("target", metavar="SCRIPT.py:STEP")
def tune(
    *,
    target: str,
    policy: Policy | None,
    check: str | None,
    output: str | None,
    html: str | None,
    json_file: str | None,
    budget: float,
    **options: Any,
) -> None:
    """Find the fastest lists that stay within an error budget.

    STEP is a function of the script that takes no arguments, runs the model once, and returns its outputs or its loss. The command
    imports the script, so code under `if __name__ == "__main__"` does not run. SCRIPT.py may also be the name of a module.

    \b
      habana-mp tune train.py:step --budget 1e-2 --output my_policy
      habana-mp run --policy my_policy train.py

    The exit code is 1 if the step raises, or if the error on the data of --check is above the budget.
    """
    folder = _new_folder(output)
    step, checks = _steps(target, check)
    start = policy or in_force.policy or DEFAULT
    hmp.revert()  # what the script has converted, as scripts do at their top
    raised: list[Exception] = []
    with user_errors():
        try:
            found = hmp.tune(
                _noting(step, raised),
                budget,
                check=checks and _noting(checks, raised),
                start=start,
                progress=True,
                **options,
            )
        except KeyboardInterrupt:
            raise SystemExit(130) from None
        except Exception as error:
            if isinstance(error, (OSError, ValueError)) and error not in raised:
                raise
            as_python_ends(_raise_again)
    say(str(found), err=json_file == "-")
    if folder is not None:
        with user_errors():
            found.save(folder)
    write_files(found, html, json_file)
    if found.check_error is not None and found.check_error > budget:
        raise SystemExit(1)


def _noting(step: Callable[[], Any], raised: list[Exception]) -> Callable[[], Any]:
    """The step, whose errors are not those of the command line."""

    def call() -> Any:
        try:
            return step()
        except Exception as error:
            raised.append(error)
            raise

    return call


def _raise_again() -> None:
    raise  # noqa: PLE0704 - what is handled where this is called


def _new_folder(output: str | None) -> Path | None:
    """Refused before the search, which may take minutes."""
    if output is None:
        return None
    folder = Path(output).absolute()  # the script may change the folder
    try:
        refuse_to_replace(folder)
    except (OSError, ValueError) as error:
        raise Problem(f"--output {output}: {getattr(error, 'strerror', None) or error}") from None
    made = [each for each in (folder, *folder.parents) if not each.exists()]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
    except OSError as error:
        raise Problem(f"--output {output}: {error.strerror}") from None
    finally:
        for each in made:
            with contextlib.suppress(OSError):
                each.rmdir()
    return folder


def _steps(target: str, check: str | None) -> tuple[Callable[[], Any], Callable[[], Any] | None]:
    name, colon, step = target.rpartition(":")
    if not colon and (target.endswith(".py") or Path(target).is_file()):
        raise Problem(f"{target}: name the function, such as {target}:step")
    if not colon or not name or not step:
        raise Problem(f"{target}: is SCRIPT.py:STEP, a script and a function in it, such as train.py:step")
    module = as_python_ends(lambda: _imported(name))
    return _function(module, name, step), None if check is None else _function(module, name, check)


def _imported(name: str) -> ModuleType:
    sys.argv = [name]
    if not name.endswith(".py"):
        sys.path.insert(0, os.getcwd())  # noqa: PTH109
        if find_module(name) is None:
            raise Problem(f"no file and no module {name!r}")
        return importlib.import_module(name)
    path = Path(name)
    if not path.is_file():
        raise Problem(f"{name}: no such file")
    sys.path.insert(0, str(path.resolve().parent))
    spec = importlib.util.spec_from_file_location(path.stem, path.resolve())
    if spec is None or spec.loader is None:
        raise Problem(f"{name}: no Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module


def _function(module: ModuleType, name: str, function: str) -> Callable[[], Any]:
    missing = object()
    found = getattr(module, function, missing)
    if not callable(found):
        functions = [key for key, value in vars(module).items() if callable(value) and not key.startswith("_")]
        own = [key for key in functions if getattr(getattr(module, key), "__module__", None) == module.__name__]
        its = ", ".join(own) or "none"
        if found is missing:
            raise Problem(f"{name} has no function {function!r}; it has {its}")
        kind = type(found).__name__
        article = "an" if kind[0] in "aeiou" else "a"
        raise Problem(f"{function!r} in {name} is {article} {kind} and no function. Functions in {name}: {its}")
    if needed := needed_arguments(found):
        raise Problem(f"{name}:{function}: a step takes no arguments, but {function} takes {needed}")
    return found
