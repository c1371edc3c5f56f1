"""`make package-test`: installs the package as a newcomer does, in fresh environments, and runs the README's first example with it.

wheel: dist/*.whl, with no compiler on the path. sdist: dist/*.tar.gz, compiled in pip's own environment. clone: a clone, compiled in the
environment itself. Root does all of it as the user nobody, if that one may run this Python. Standard library alone.
"""

from __future__ import annotations

import argparse
import functools
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parent.parent
WAYS = ("wheel", "sdist", "clone")


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("ways", nargs="*", default=WAYS, metavar="WAY", help=f"of {' '.join(WAYS)}; without any, all")
    parser.add_argument("--torch", default="2.13.0", help="the torch to install first (2.13.0)")
    given = parser.parse_args(arguments)
    for way in given.ways:
        # Not below the home of root, which others may not enter.
        with tempfile.TemporaryDirectory(prefix="newcomer", dir="/var/tmp") as folder:
            Path(folder).chmod(0o777)
            print(f"{way}: {Newcomer(Path(folder)).tries(way, given.torch)}", flush=True)


class Newcomer:
    def __init__(self, home: Path) -> None:
        self.home = home
        self.python = home / "venv/bin/python"

    def tries(self, way: str, torch: str) -> str:
        """What the example printed. SystemExit with all that was printed where something fails."""
        self.run(sys.executable, "-m", "venv", self.python.parent.parent)
        self.pip("numpy", f"torch=={torch}")
        if way == "wheel":
            # The newest that fits this Python.
            tag = f"cp{sys.version_info.major}{sys.version_info.minor}"
            self.pip(self.copied(f"habana_mp-*-{tag}-*.whl"), tools="")
        elif way == "sdist":
            self.pip(self.copied("habana_mp-*.tar.gz"))
        else:
            clone = self.home / "clone"
            self.run("git", "clone", "--quiet", f"file://{ROOT}", clone)
            self.pip("scikit-build-core", "pybind11", "cmake", "ninja")
            self.pip("--no-build-isolation", clone, tools=f"{self.python.parent}{os.pathsep}{os.environ['PATH']}")
        example = self.home / "example.py"
        example.write_text(first_example(), encoding="utf-8")
        self.run(self.python.parent / "habana-mp", "doctor")
        return ", torch ".join(self.run(self.python, example).strip().splitlines())

    def copied(self, pattern: str) -> Path:
        found = sorted((ROOT / "dist").glob(pattern), key=lambda path: path.stat().st_mtime)
        if not found:
            raise SystemExit(f"There is no dist/{pattern}: make wheel")
        return Path(shutil.copy(found[-1], self.home))

    def pip(self, *arguments: str | Path, tools: str | None = None) -> None:
        """With the programs of ``tools`` on the path alone, where it is given."""
        self.run(self.python, "-m", "pip", "--disable-pip-version-check", "install", "--quiet", *arguments, tools=tools)

    def run(self, *command: str | Path, tools: str | None = None) -> str:
        environment = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("HABANA_MP_", "VIRTUAL_ENV", "MAKE"))
        }
        environment |= {"HOME": str(self.home), "CMAKE_BUILD_PARALLEL_LEVEL": "2"}
        if tools is not None:
            environment["PATH"] = tools
        done = subprocess.run(
            [*_as_nobody(), *map(str, command)],
            cwd=self.home,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise SystemExit(f"{' '.join(map(str, command[:6]))} ... failed:\n{done.stdout}{done.stderr}")
        return done.stdout


@functools.cache
def _as_nobody() -> list[str]:
    """What a command begins with that is not to have the rights of root."""
    if os.getuid() != 0:
        return []
    command = ["/usr/bin/setpriv", "--reuid=nobody", "--regid=nogroup", "--clear-groups"]
    # Twice: setpriv itself may still enter a folder of root, and what it runs may not.
    program = "import subprocess, sys; subprocess.run([sys.executable, '-c', ''], check=True)"
    if subprocess.run([*command, sys.executable, "-c", program], capture_output=True, check=False).returncode:
        print(f"nobody may not run {sys.executable}: this runs as root", flush=True)
        return []
    return command


def first_example() -> str:
    """Of README.md, and a line that prints which torch ran it."""
    block = re.search(
        r"^```python\n(.*?)^```", (ROOT / "README.md").read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL
    )
    assert block
    return f"{block[1]}print(torch.__version__)\n"


if __name__ == "__main__":
    main()
