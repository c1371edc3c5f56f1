"""habana_mp.gaudi: the names of Habana's package where it is not installed, and hands off where it is."""

import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import pytest


def run(script: str, *, path: Path | None = None) -> str:
    """Run a script in an interpreter of its own: what is importable is a property of the whole process."""
    first = f"import sys; sys.path.insert(0, {str(path)!r})\n" if path else ""
    command = [sys.executable, "-c", first + "import habana_mp.gaudi\n" + dedent(script)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.parametrize(
    ("statement", "value"),
    [
        pytest.param("from habana_frameworks.torch.hpex import hmp", "hmp is habana_mp.hmp", id="F1-hmp"),
        pytest.param("import habana_frameworks.torch.hpex.hmp as h", "h is habana_mp.hmp", id="hmp-as-module"),
        pytest.param(
            "from habana_frameworks.torch.hpex.hmp import convert", "convert is habana_mp.hmp.convert", id="from"
        ),
        pytest.param("import habana_frameworks.torch.core as htcore", "htcore.mark_step() is None", id="F223-core"),
        pytest.param("from habana_frameworks.torch.core import mark_step", "mark_step() is None", id="F213-mark-step"),
        pytest.param(
            "from habana_frameworks.torch.utils.library_loader import load_habana_module",
            "load_habana_module() is None",
            id="F221-load-habana-module",
        ),
        pytest.param("import habana_frameworks.torch as ht", "dir(ht) == ['core', 'hpex', 'utils']", id="dir"),
        pytest.param("import habana_frameworks.torch.core as c", "not hasattr(c, 'hpu')", id="hasattr"),
    ],
)
def test_importable(statement: str, value: str) -> None:
    assert run(f"{statement}\nprint({value})") == "True"


@pytest.mark.parametrize(
    ("statement", "error", "offender"),
    [
        pytest.param("import habana_frameworks.torch.hpu", "ModuleNotFoundError", "hpu", id="module"),
        pytest.param(
            "from habana_frameworks.torch.hpex import kernels", "ModuleNotFoundError", "hpex.kernels", id="package"
        ),
        pytest.param("from habana_frameworks.torch.core import quant", "ModuleNotFoundError", "core.quant", id="name"),
        pytest.param(
            "import habana_frameworks as h; h.torch.core.quant", "AttributeError", "core.quant", id="attribute"
        ),
    ],
)
def test_what_does_not_exist_is_told_with_what_does(statement: str, error: str, offender: str) -> None:
    told = run(f"""
        import habana_frameworks.torch.core
        try:
            {statement}
        except (ImportError, AttributeError) as e:
            print(type(e).__name__, e)
    """)
    assert told.startswith(f"{error} habana_mp.gaudi has no 'habana_frameworks.torch.{offender}'")
    for name in ("hpex.hmp", "core.mark_step", "utils.library_loader.load_habana_module"):
        assert f"habana_frameworks.torch.{name}" in told


def test_nothing_is_importable_before() -> None:
    script = "import importlib.util, habana_mp; print(importlib.util.find_spec('habana_frameworks'))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "None"


def test_a_real_package_is_left_alone(tmp_path: Path) -> None:
    real = tmp_path / "habana_frameworks" / "torch"
    (real / "hpex").mkdir(parents=True)
    (real.parent / "__init__.py").touch()
    (real / "__init__.py").touch()
    (real / "hpex" / "__init__.py").write_text("hmp = 'the real one'\n")
    assert run("from habana_frameworks.torch.hpex import hmp; print(hmp)", path=tmp_path) == "the real one"
    # What a real package lacks is its own matter: Python's own words.
    told = run(
        """
        try:
            import habana_frameworks.torch.core
        except ImportError as e:
            print(e)
        """,
        path=tmp_path,
    )
    assert told == "No module named 'habana_frameworks.torch.core'"


def test_a_reload_changes_nothing() -> None:
    told = run("""
        import importlib, sys
        before = list(sys.meta_path)
        importlib.reload(habana_mp.gaudi)
        print(sys.meta_path == before)
    """)
    assert told == "True"


def test_transformers_still_sees_no_gaudi() -> None:
    told = run("from transformers.utils import is_torch_hpu_available; print(is_torch_hpu_available())")
    assert told == "False"
