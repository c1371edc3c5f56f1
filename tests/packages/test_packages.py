"""What packages are made of: which torch a build takes, what a wheel asks for, the README on the package page, what an sdist holds."""

from __future__ import annotations

import ctypes
import os
import re
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
import torch

from tools import newcomer, torch_to_build_for, wheel
from tools.package_page import without_relative_links
from tools.torch_to_build_for import VARIABLE, minor_version, requirement

ROOT = Path(__file__).parent.parent.parent
TORCH = Path(torch.__file__).parent


def build_for(folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """What CMake asks."""
    clean = {name: value for name, value in os.environ.items() if name not in (VARIABLE, "VIRTUAL_ENV", "CONDA_PREFIX")}
    command = [sys.executable, ROOT / "tools/torch_to_build_for.py"]
    return subprocess.run(command, cwd=folder, env=clean | environment, capture_output=True, text=True, check=False)


class TestTorchToBuildFor:
    def test_is_the_one_that_is_installed(self, tmp_path):
        assert build_for(tmp_path).stdout == f"{TORCH}\n"

    def test_is_that_of_the_environment_which_pip_builds_for(self, tmp_path):
        """pip hides the packages of its Python by a sitecustomize on PYTHONPATH."""
        (tmp_path / "sitecustomize.py").write_text(
            "import sys; sys.path[:] = [p for p in sys.path if 'site-packages' not in p]"
        )
        hidden = subprocess.run(
            [sys.executable, "-c", "import torch"],
            env=os.environ | {"PYTHONPATH": str(tmp_path)},
            capture_output=True,
            check=False,
        )
        assert hidden.returncode == 1
        assert build_for(tmp_path, PYTHONPATH=str(tmp_path)).stdout == f"{TORCH}\n"

    def test_is_not_a_folder_that_is_named_torch(self, tmp_path):
        (tmp_path / "torch").mkdir()
        (tmp_path / "torch/__init__.py").touch()
        assert build_for(tmp_path).stdout == f"{TORCH}\n"

    def test_is_that_of_the_active_environment(self, tmp_path):
        """Other tools than pip build with a Python of their own."""
        bare = tmp_path / "bare"
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", bare], check=True)
        command = [bare / "bin/python", ROOT / "tools/torch_to_build_for.py"]
        active = {name: value for name, value in os.environ.items() if name != VARIABLE} | {"VIRTUAL_ENV": sys.prefix}
        assert subprocess.run(command, env=active, capture_output=True, text=True, check=True).stdout == f"{TORCH}\n"

    def test_is_those_that_are_named(self, tmp_path):
        given = os.pathsep.join([str(TORCH), str(TORCH)])
        assert build_for(tmp_path, **{VARIABLE: given}).stdout == f"{TORCH};{TORCH}\n"

    def test_must_be_installed(self, tmp_path):
        bare = tmp_path / "bare"
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", bare], check=True)
        clean = {
            name: value for name, value in os.environ.items() if name not in (VARIABLE, "VIRTUAL_ENV", "CONDA_PREFIX")
        }
        command = [bare / "bin/python", ROOT / "tools/torch_to_build_for.py"]
        done = subprocess.run(command, env=clean, capture_output=True, text=True, check=False)
        assert done.returncode == 1
        assert done.stderr == (
            "habana_mp is compiled for the torch that it will be used with, and none is installed here. Install torch first "
            "(pip install torch==2.13.0; 2.11 to 2.15 are supported), or name the folder of the package: "
            "HABANA_MP_TORCH=/path/to/site-packages/torch\n"
        )

    @pytest.mark.parametrize(
        ("files", "missing"),
        [((), "version.py and no include and no lib"), (("version.py", "lib"), "include")],
        ids=["an empty folder", "no headers"],
    )
    def test_must_be_the_folder_of_the_package(self, tmp_path, files, missing):
        for name in files:
            (tmp_path / name).touch()
        done = build_for(tmp_path, **{VARIABLE: str(tmp_path)})
        assert (done.returncode, done.stderr) == (
            1,
            f"{tmp_path} is no folder of the package torch: it has no {missing}.\n",
        )

    def test_its_version_is_read_without_it(self):
        assert minor_version(TORCH) == tuple(map(int, torch.__version__.split(".")[:2]))


@pytest.mark.parametrize(
    ("versions", "asked_for"),
    [
        ([(2, 13)], "torch>=2.13,<2.14"),
        ([(2, 12), (2, 11)], "torch>=2.11,<2.13"),
        ([(2, minor) for minor in range(11, 16)], "torch>=2.11,<2.16"),
        ([(2, 11), (2, 13)], "torch>=2.11,<2.14,!=2.12.*"),
        ([(2, 9), (2, 10)], "torch>=2.9,<2.11"),
    ],
    ids=str,
)
def test_a_wheel_asks_for_the_torches_that_it_was_compiled_for(versions, asked_for):
    """A wheel for 2.13 that let pip choose 2.15 would be refused at import."""
    assert requirement(versions) == asked_for


class TestPackagePage:
    def test_keeps_the_text_of_links_into_the_repository(self):
        text = "[Limits](docs/limits.md), [torch](https://pytorch.org), [below](#below) ![picture](docs/a.png)."
        assert without_relative_links(text, None) == "Limits, [torch](https://pytorch.org), [below](#below) ."

    def test_makes_links_absolute_where_the_address_is_known(self):
        text = "[Limits](docs/limits.md) ![picture](docs/a.png)"
        assert (
            without_relative_links(text, "https://x.org/")
            == "[Limits](https://x.org/docs/limits.md) ![picture](https://x.org/docs/a.png)"
        )

    def test_of_the_readme_has_no_link_that_leads_nowhere(self):
        text = without_relative_links((ROOT / "README.md").read_text(), None)
        assert re.findall(r"\]\((?!https://|#)[^)]*\)", text) == []


class TestSourceDistribution:
    @pytest.fixture(scope="class")
    @classmethod
    def files(cls, tmp_path_factory):
        folder = tmp_path_factory.mktemp("sdist")
        program = "import sys; from scikit_build_core.build import build_sdist; build_sdist(sys.argv[1])"
        subprocess.run([sys.executable, "-c", program, folder], cwd=ROOT, capture_output=True, check=True)
        with tarfile.open(next(folder.glob("*.tar.gz"))) as archive:
            root = archive.getnames()[0].split("/")[0]
            return {
                member.name.removeprefix(f"{root}/"): archive.extractfile(member).read()
                for member in archive.getmembers()
                if member.isfile()
            }

    def test_has_the_presets_once_as_files(self, files):
        presets = [name for name in files if name.endswith("/hmp/policy.toml")]
        assert presets == ["habana_mp/lists/hmp/policy.toml"]

    def test_has_what_a_build_takes(self, files):
        sources = {str(path.relative_to(ROOT)) for path in (ROOT / "src").rglob("*") if path.is_file()}
        assert sources <= files.keys()
        assert {
            "CMakeLists.txt",
            "pyproject.toml",
            "LICENSE",
            "README.md",
            "tools/torch_to_build_for.py",
        } <= files.keys()

    def test_has_nothing_else(self, files):
        allowed = ("LICENSES/", "habana_mp/", "src/", "third_party/", "tools/")
        assert [name for name in files if "/" in name and not name.startswith(allowed)] == []
        assert [name for name in files if name.endswith((".so", ".pyc"))] == []

    def test_asks_for_every_supported_torch(self, files):
        metadata = files["PKG-INFO"].decode()
        assert re.search(r"^Requires-Dist: torch(<2\.16,>=2\.11|>=2\.11,<2\.16)$", metadata, re.MULTILINE)
        assert "Dynamic: Requires-Dist" in metadata


def test_a_wheel_of_a_tag_is_of_its_commit_and_version(tmp_path, monkeypatch):
    origin = tmp_path / "origin"
    origin.mkdir()
    monkeypatch.setattr(wheel, "ROOT", origin)
    monkeypatch.setattr(wheel, "_TAGGED", tmp_path / "tagged")
    git = ["git", "-C", origin, "-c", "user.name=a", "-c", "user.email=a@b"]
    project = origin / "pyproject.toml"
    project.write_text('[project]\nversion = "0.2.0"\n')
    for command in (["init", "-q"], ["add", "."], ["commit", "-qm", "a"], ["tag", "v0.2.0"], ["tag", "v0.3.0"]):
        subprocess.run([*git, *command], check=True)
    project.write_text('[project]\nversion = "0.4.0"\n')
    (origin / "stray.py").touch()
    assert sorted(path.name for path in wheel.tagged("v0.2.0").iterdir()) == [".git", "pyproject.toml"]
    with pytest.raises(SystemExit, match=r"v0\.3\.0 is not the version of pyproject\.toml at this tag"):
        wheel.tagged("v0.3.0")


@pytest.mark.skipif(sys.platform != "linux", reason="wheels are made on Linux")
def test_a_wheel_is_linked_with_functions_that_old_linux_has(tmp_path):
    """manylinux_2_28, as torch's wheels: what the headers here make of these calls is newer. auditwheel then gave it the tag 2_34."""
    source = tmp_path / "calls.cpp"
    source.write_text(
        "#include <cmath>\n#include <mutex>\n#include <stdexcept>\n"
        "struct Derived : std::logic_error { using std::logic_error::logic_error; };\n"
        "static std::once_flag flag;\n"
        'extern "C" double calls(double number) {\n'
        "  std::call_once(flag, [&] { number *= 2; });\n"
        '  Derived error("8");\n'
        "  const Derived moved(std::move(error));\n"
        "  return std::log2(number) + (moved.what()[0] - '0');\n"
        "}\n"
    )
    library = tmp_path / "calls.so"
    flags = ("-std=c++20", "-O2", "-fPIC", "-shared")
    subprocess.run(["g++", *flags, source, wheel.for_old_linux(tmp_path, ROOT), "-o", library], check=True)
    needed = subprocess.run(["objdump", "-T", library], capture_output=True, text=True, check=True).stdout
    versions = {tuple(map(int, found.split("."))) for found in re.findall(r"\(GLIBC_([\d.]+)\)", needed)}
    assert versions
    assert max(versions) <= (2, 28)
    assert max(int(found) for found in re.findall(r"\(GLIBCXX_3\.4\.(\d+)\)", needed)) <= 24
    calls = ctypes.CDLL(str(library)).calls
    calls.restype, calls.argtypes = ctypes.c_double, [ctypes.c_double]
    assert calls(4.0) == 3 + 8
    assert calls(4.0) == 2 + 8


def test_newcomers_run_the_first_example_of_the_readme():
    example = newcomer.first_example()
    assert 'hmp.convert(policy="balanced")' in example
    assert example.endswith("model.weight.grad.dtype)\nprint(torch.__version__)\n")


def test_the_versions_named_are_those_of_the_matrix():
    from tools import matrix

    assert sorted({cell.split("/")[0] for cell in matrix.CELLS}) == [*wheel.MINORS]
    assert (
        torch_to_build_for.requirement([(2, int(minor.split(".")[1])) for minor in wheel.MINORS])
        in (ROOT / "pyproject.toml").read_text()
    )
