"""`make wheel`: dist/ gets the source distribution, and a wheel for the Python that runs this with a core for each torch named. Standard library alone.

With --tag both are made of a clone at this tag, so that nothing is in them that is not committed. Of each torch the headers and the libraries
to link against are taken from its wheel; torch is not installed. The wheel is built in pip's own environment, so any Python does. It must run on
every Linux that torch's wheels run on: auditwheel, from .venv, gives it the tag, or fails.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).parent.parent
DIST = ROOT / "dist"
MINORS = ("2.11", "2.12", "2.13", "2.14", "2.15")
_TORCHES = ROOT / "build/torches"
_WHEELS = ROOT / "build/wheel"
_TAGGED = ROOT / "build/tagged"
_LINKED = {f"torch/lib/lib{name}.so" for name in ("torch", "torch_cpu", "torch_python", "c10")}
# Headers of the system that the distribution is made on, so that no other system need have them.
_THIRD_PARTY = ("spdlog", "fmt")
# The oldest Linux that torch's wheels run on.
_LINUX = f"manylinux_2_28_{platform.machine()}"


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "minors", nargs="*", default=MINORS, metavar="TORCH", help=f"versions of torch; without any, {' '.join(MINORS)}"
    )
    parser.add_argument("--tag", help="of which both are made; without it, of this tree")
    given = parser.parse_args(arguments)
    source = tagged(given.tag) if given.tag else ROOT
    DIST.mkdir(exist_ok=True)
    print(source_distribution(source).relative_to(ROOT), flush=True)
    folders = [folder for minor in given.minors if (folder := torch_folder(minor))]
    if not folders:
        raise SystemExit("There is no torch to build for.")
    wheel = built(folders, source)
    print(
        f"{wheel.relative_to(ROOT)}: {wheel.stat().st_size / 1e6:.1f} MB, torch {', '.join(folder.parent.name for folder in folders)}"
    )


def tagged(tag: str) -> Path:
    """A clone at the tag of the version that it has."""
    shutil.rmtree(_TAGGED, ignore_errors=True)
    _run("git", "clone", "--quiet", "--depth=1", f"--branch={tag}", f"file://{ROOT}", _TAGGED)
    if f'\nversion = "{tag.removeprefix("v")}"\n' not in (_TAGGED / "pyproject.toml").read_text(encoding="utf-8"):
        raise SystemExit(f"{tag} is not the version of pyproject.toml at this tag.")
    return _TAGGED


def source_distribution(source: Path) -> Path:
    with _third_party(source):
        program = "import sys; from scikit_build_core.build import build_sdist; print(build_sdist(sys.argv[1]))"
        name = _run(ROOT / ".venv/bin/python", "-c", program, DIST, folder=source).splitlines()[-1]
    return DIST / name


@contextlib.contextmanager
def _third_party(source: Path) -> Iterator[None]:
    """The folder for as long as the distribution is made. One that is there stays."""
    folder = source / "third_party"
    if folder.exists():
        yield
        return
    try:
        for name in _THIRD_PARTY:
            shutil.copytree(Path("/usr/include", name), folder / name)
        yield
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def torch_folder(minor: str) -> Path | None:
    """The folder of the package, as far as a build needs it. None where this Python has no such torch."""
    folder = _TORCHES / minor
    done = folder / ".done"
    if not done.exists():
        with tempfile.TemporaryDirectory(dir=_made(_TORCHES)) as downloads:
            pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:"]
            code = subprocess.run(
                [*pip, "--dest", downloads, f"torch=={minor}.*"], stderr=subprocess.PIPE, text=True, check=False
            )
            if code.returncode:
                print(f"torch {minor} is left out: {code.stderr.strip().splitlines()[-1]}", flush=True)
                return None
            with zipfile.ZipFile(next(Path(downloads).glob("*.whl"))) as wheel:
                for name in wheel.namelist():
                    if name in _LINKED or name == "torch/version.py" or name.startswith("torch/include/"):
                        wheel.extract(name, folder)
        done.touch()
    return folder / "torch"


def built(torches: list[Path], source: Path) -> Path:
    with tempfile.TemporaryDirectory(dir=_made(_WHEELS)) as made:
        pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", made, source]
        settings = [
            each
            for text in (
                f"build-dir={source / _WHEELS.relative_to(ROOT)}/{{wheel_tag}}",
                "cmake.define.HABANA_MP_WERROR=ON",
                f"cmake.define.CMAKE_MODULE_LINKER_FLAGS={for_old_linux(Path(made), source)}",
            )
            for each in ("--config-settings", text)
        ]
        _run(*pip, *settings, HABANA_MP_TORCH=os.pathsep.join(map(str, torches)))
        wheel = next(Path(made).glob("*.whl"))
        # torch's libraries are those of the torch that is installed.
        repair = [
            ROOT / ".venv/bin/auditwheel",
            "repair",
            "--plat",
            _LINUX,
            "--wheel-dir",
            DIST,
            "--exclude",
            "libtorch*",
            "--exclude",
            "libc10*",
            wheel,
        ]
        _run(*repair, PATH=f"{ROOT / '.venv/bin'}{os.pathsep}{os.environ['PATH']}")
    return max(DIST.glob("*.whl"), key=lambda path: path.stat().st_mtime)


def for_old_linux(folder: Path, source: Path) -> Path:
    """The object file, in this folder, that a wheel is linked with."""
    made = folder / "old_linux.o"
    _run(os.environ.get("CXX", "g++"), "-O2", "-fPIC", "-c", source / "tools/old_linux.cpp", "-o", made)
    return made


def _made(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _run(*command: str | Path, folder: Path = ROOT, **environment: str) -> str:
    done = subprocess.run(
        [*map(str, command)], cwd=folder, env={**os.environ, **environment}, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise SystemExit(f"{' '.join(map(str, command[:4]))} ... failed:\n{done.stdout}{done.stderr}")
    return done.stdout


if __name__ == "__main__":
    main()
