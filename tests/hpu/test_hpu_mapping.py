"""Whether "hpu" stands for another device: on and off again, where a real HPU is, and habana-mp run --device."""

import pickle
import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import pytest
import torch
from click.testing import CliRunner
from torch._subclasses.fake_tensor import FakeTensorMode

import habana_mp._core as _core
from habana_mp._hpu.mapping import map_hpu, unmap_hpu
from habana_mp.cli import main

pytestmark = pytest.mark.usefixtures("mapped")
X = torch.arange(12.0).reshape(3, 4)
TRUTH = torch.device("cpu")


def test_another_device_from_then_on() -> None:
    kept = torch.device("hpu:1")
    _core.map_hpu("cuda")  # there is none here to choose by map_hpu
    try:
        assert torch.device("hpu:1") == torch.device("cuda:1") != kept
        assert torch.device("hpu").index is None
        with FakeTensorMode():
            assert torch.zeros(1, device="hpu:1").device == torch.device("cuda:1")
            assert torch.zeros(1, device=torch.device("hpu")).device == torch.device("cuda:0")
    finally:
        assert map_hpu("cpu")
    assert torch.device("hpu:1") == TRUTH


def test_off_again() -> None:
    device = torch.device("hpu")
    unmap_hpu()
    unmap_hpu()
    assert (str(device), device.type, repr(device)) == ("cpu", "cpu", "device(type='cpu')")
    assert X.to(device) is X
    assert torch.device("hpu") != TRUTH
    assert not hasattr(torch, "hpu")
    assert "torch.hpu" not in sys.modules
    with pytest.raises(RuntimeError, match="Expected one of"):
        torch.device("habana")
    with pytest.raises(ModuleNotFoundError, match=r"torch\.hpu"):
        torch.zeros(1, device="hpu")
    assert map_hpu()
    assert map_hpu()
    assert str(torch.device("hpu")) == "hpu"


class Unique:
    """Pickled by its name alone, as the marks of some libraries are: pickle asks each module for it."""

    __module__ = None

    def __reduce__(self) -> str:
        return "OF_NO_MODULE"


def test_pickle_asks_the_module_of_a_device_that_is_off_again() -> None:
    unmap_hpu()
    try:
        with pytest.raises(pickle.PicklingError, match="OF_NO_MODULE"):
            pickle.dumps(Unique())
    finally:
        assert map_hpu()


@pytest.mark.parametrize(
    ("device", "error", "printed"),
    [
        pytest.param("hpu", ValueError, "not 'hpu'", id="itself"),
        pytest.param("habana", ValueError, "not 'habana'", id="habana"),
        pytest.param("cuda:1", ValueError, "not 'cuda:1'", id="index"),
        pytest.param("gpu", ValueError, "no device type 'gpu'", id="unknown"),
        pytest.param("", ValueError, "no device type ''", id="empty"),
        pytest.param(None, ValueError, "not None", id="none"),
        pytest.param(torch.device("cpu"), ValueError, r"not device\(type='cpu'\)", id="object"),
        pytest.param("xpu", RuntimeError, "'xpu' is not available here", id="absent"),
        pytest.param("meta", RuntimeError, "'meta' is not available here", id="meta"),
    ],
)
def test_what_hpu_cannot_stand_for(device, error: type[Exception], printed: str) -> None:
    with pytest.raises(error, match=printed):
        map_hpu(device)
    assert torch.zeros(1, device="hpu").device == TRUTH


def in_fresh_process(script: str, path: Path) -> str:
    first = f"import sys; sys.path.insert(0, {str(path)!r})\n"
    command = [sys.executable, "-c", first + dedent(script)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.parametrize(
    "real",
    [
        pytest.param("", id="package"),
        pytest.param("import types, torch; torch.hpu = types.ModuleType('torch.hpu')", id="torch.hpu"),
    ],
)
def test_a_real_hpu_is_left_alone(real: str, tmp_path: Path) -> None:
    if not real:
        (tmp_path / "habana_frameworks").mkdir()
        (tmp_path / "habana_frameworks" / "__init__.py").touch()
    printed = in_fresh_process(
        f"""
        {real}
        import torch
        from habana_mp._hpu.mapping import is_real, map_hpu
        before = dict(vars(torch))
        print(is_real(), map_hpu(), dict(vars(torch)) == before, torch.device("hpu") == torch.device("cpu"))
        """,
        tmp_path,
    )
    assert printed == "True False True False"


def test_the_stand_in_is_not_taken_for_real(tmp_path: Path) -> None:
    printed = in_fresh_process(
        """
        import habana_mp.gaudi, habana_frameworks.torch.core
        import torch
        from habana_mp._hpu.mapping import map_hpu
        print(map_hpu(), torch.hpu.is_available())
        from transformers.utils import is_torch_hpu_available
        print(is_torch_hpu_available())  # it would replace torch.gather, torch.compile and more
        """,
        tmp_path,
    )
    assert printed.split() == ["True", "True", "False"]


# habana-mp run --device

SAYS = """
import torch
device = torch.device("hpu")
print(device, torch.ones(2, device=device).device, torch.hpu.is_available(), torch.ones(1, 1, device="hpu").mm(torch.ones(1, 1)).dtype)
"""


@pytest.mark.parametrize(
    ("options", "code", "printed"),
    [
        pytest.param(["--device", "cpu"], 0, "hpu cpu True torch.bfloat16", id="cpu"),
        pytest.param(["--device", "xpu"], 2, "--device: 'xpu' is not available here", id="absent"),
        pytest.param(["--device", "gpu"], 2, "--device: torch has no device type 'gpu'", id="unknown"),
        pytest.param(["--device", "hpu"], 2, "not 'hpu'", id="itself"),
    ],
)
def test_run(options: list[str], code: int, printed: str, place_for_scripts: Path) -> None:
    (place_for_scripts / "script.py").write_text(SAYS)
    done = CliRunner().invoke(main, ["run", *options, "script.py"])
    assert (done.exit_code, printed in done.output) == (code, True), done.output


def test_run_where_hpu_is_real(place_for_scripts: Path) -> None:
    (place_for_scripts / "habana_frameworks.py").touch()
    (place_for_scripts / "script.py").write_text("print('ran')")
    command = [sys.executable, "-m", "habana_mp", "run", "--device", "cpu", "script.py"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=place_for_scripts)
    assert (done.stdout, done.returncode) == ("ran\n", 0)
    assert "Warning: --device has no effect" in done.stderr


def test_a_mapping_that_fails_leaves_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever raises while Python's part is made, Ctrl-C for one."""
    unmap_hpu()

    def interrupted(device: str) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("habana_mp._hpu.mapping.additions", interrupted)
        with pytest.raises(KeyboardInterrupt):
            map_hpu("cpu")
    assert _core.hpu_mapped_to() is None
    assert repr(torch.device("hpu")) == "device(type='hpu')"
    assert not hasattr(torch, "hpu")
    assert map_hpu("cpu")
    assert torch.ones(1, device="hpu").device == TRUTH
