"""Which compiled core an import loads, and what it says where there is none: issue by issue what pip, clones and other Pythons lead to."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import habana_mp._core as _core

ROOT = Path(__file__).parent.parent.parent
CORE = Path(_core.__file__)
MINOR = ".".join(torch.__version__.split(".")[:2])
COMPILE = "pip install --force-reinstall --no-deps SOURCE, where SOURCE is a clone or habana_mp-*.tar.gz"
# What runs before: an editable install must not find the package that is meant to be hidden.
ALONE = (
    'import sys; sys.meta_path[:] = [finder for finder in sys.meta_path if "editable" not in type(finder).__module__]\n'
)


def printed(folder: Path, script: str, *paths: Path) -> str:
    """What a script prints in a folder, with the packages of other folders in front; an ImportError is printed too."""
    script = f"try:\n    import habana_mp\n{script}except ImportError as error:\n    print(error)\n"
    path = "".join(f"sys.path.insert(0, {str(each)!r})\n" for each in reversed(paths))
    command = [sys.executable, "-c", f"{ALONE}{path}{script}"]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True).stdout.strip()


def installed(folder: Path, *cores: str, suffix: str = "".join(CORE.suffixes)) -> Path:
    """A folder with the package, whose core is there for some versions of torch."""
    ignored = shutil.ignore_patterns("__pycache__", "_built")
    shutil.copytree(ROOT / "habana_mp", folder / "habana_mp", ignore=ignored, symlinks=True)
    for each in cores:
        built = folder / "habana_mp/_built" / f"torch{each}"
        built.mkdir(parents=True)
        (built.parent / "__init__.py").touch()
        (built / f"_core{suffix}").symlink_to(CORE)
    return folder


def test_the_core_is_that_of_the_torch_that_runs() -> None:
    assert CORE.parent.name == f"torch{MINOR}"


@pytest.mark.parametrize("others", [(), ("2.9",), ("2.99", "3.0"), ("2.1", "20.13")], ids=" ".join)
def test_of_several_cores_the_installed_torch_has_its_own(tmp_path: Path, others: tuple[str, ...]) -> None:
    path = installed(tmp_path, *others, MINOR)
    shown = printed(tmp_path, "    print(habana_mp._core.__file__)\n", path)
    assert Path(shown).parent == path / "habana_mp/_built" / f"torch{MINOR}"


def test_a_core_that_an_older_build_left_is_not_loaded(tmp_path: Path) -> None:
    path = installed(tmp_path, MINOR)
    (path / "habana_mp" / CORE.name).write_bytes(b"of another torch")
    assert f"torch{MINOR}" in printed(tmp_path, "    print(habana_mp._core.__file__)\n", path)


def test_another_torch_is_reported_in_words(tmp_path: Path) -> None:
    assert printed(tmp_path, "", installed(tmp_path, "1.13", "2.9", "2.10")) == (
        f"habana_mp was compiled for torch 1.13, 2.9, 2.10, and torch {torch.__version__} is installed. "
        f"Install a torch that it was compiled for, or compile it for this one: {COMPILE}."
    )


def test_another_build_of_the_same_torch_is_reported_in_words(tmp_path: Path) -> None:
    path = installed(tmp_path, MINOR)
    core = path / "habana_mp/_built" / f"torch{MINOR}" / CORE.name
    core.unlink()
    core.write_bytes(CORE.read_bytes().replace(b"_ZNK2at", b"_ZNK2ax"))  # a name that no torch has
    shown = printed(tmp_path, "", path)
    assert shown.startswith(
        f"habana_mp was compiled for another build of torch {MINOR} than the installed {torch.__version__} ("
    )
    assert "undefined symbol: _ZNK2ax" in shown
    assert COMPILE in shown


def test_another_python_is_reported_in_words(tmp_path: Path) -> None:
    path = installed(tmp_path, MINOR, suffix=".cpython-36m-x86_64-linux-gnu.so")
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    assert (
        printed(tmp_path, "", path)
        == f"habana_mp was compiled for another Python than this {version}: install it with this Python."
    )


def test_a_tree_that_is_not_built_is_reported_in_words(tmp_path: Path) -> None:
    shown = printed(tmp_path, "", installed(tmp_path))
    assert shown == "habana_mp is not built: run `make build` in its source tree, or install it with pip."


def test_a_tree_that_hides_an_installed_package_says_so(tmp_path: Path) -> None:
    """After `pip install .`, Python in the folder of the clone imports the clone."""
    tree, site = installed(tmp_path / "tree"), installed(tmp_path / "site", MINOR)
    assert printed(tree, "", tree, site) == (
        f"This is habana_mp's source tree, {tree}, which is not built. It hides the package that is installed in {site}. "
        "Run Python from another folder, or build the tree: make build."
    )


def test_sub_interpreters_are_refused_in_words(tmp_path: Path) -> None:
    inner = "try:\n    import habana_mp\nexcept ImportError as error:\n    print(error, flush=True)\n"
    script = f"""
import sys
try:
    import _interpreters as interpreters
except ImportError:
    import _xxsubinterpreters as interpreters
{ALONE}
interpreters.run_string(interpreters.create(), {f"import sys; sys.path.insert(0, {str(ROOT)!r})" + chr(10) + inner!r})
"""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", script], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert (
        done.stdout
        == "habana_mp does not support sub-interpreters, and neither does torch. Import it in the main interpreter.\n"
    )


def test_free_threaded_python_is_refused_in_words(tmp_path: Path) -> None:
    script = f"import sys; sys.abiflags = 't'; sys.path.insert(0, {str(ROOT)!r})\ntry:\n    import habana_mp\nexcept ImportError as error:\n    print(error)"
    done = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert (
        done.stdout
        == "habana_mp does not support free-threaded Python. Use the Python that has the GIL: python3.13, not python3.13t.\n"
    )
