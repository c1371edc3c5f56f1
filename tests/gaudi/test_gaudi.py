"""habana_mp.gaudi: the names of Habana's package where it is not installed, and hands off where it is (F1, F211 to F223).

What is importable is a property of the whole process, so the statements run in interpreters of their own: each group of cases in one.
"""

import ast
import json
import os
import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import pytest

pytestmark = pytest.mark.xdist_group("gaudi")

HT = "habana_frameworks.torch"


def run(script: str, *, path: Path | None = None) -> str:
    """What a script prints in an interpreter of its own, where habana_mp.gaudi is imported and warnings are errors."""
    first = f"import sys; sys.path.insert(0, {str(path)!r})\n" if path else ""
    command = [sys.executable, "-W", "error", "-c", first + "import habana_mp.gaudi\n" + dedent(script)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout.strip()


EACH = """
    import json, sys
    results = []
    for statement, value in json.loads(sys.stdin.read()):
        names = {"habana_mp": habana_mp}
        try:
            exec(statement, names)
            results.append(str(eval(value, names)))
        except (ImportError, AttributeError) as error:
            results.append(f"{type(error).__name__} {error}")
    print(json.dumps(results))
"""


def each(cases: dict[str, tuple[str, str]]) -> dict[str, str]:
    """For each case its statement is run and its value printed, or the error that there was."""
    command = [sys.executable, "-W", "error", "-c", "import habana_mp.gaudi\n" + dedent(EACH)]
    done = subprocess.run(command, input=json.dumps([*cases.values()]), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return dict(zip(cases, json.loads(done.stdout), strict=True))


# --- What there is

IMPORTS = {
    "F1-hmp": (f"from {HT}.hpex import hmp", "hmp is habana_mp.hmp"),
    "hmp-as-module": (f"import {HT}.hpex.hmp as h", "h is habana_mp.hmp"),
    "from-hmp": (f"from {HT}.hpex.hmp import convert", "convert is habana_mp.hmp.convert"),
    "the-older-hmp": ("from hmp import hmp", "hmp is habana_mp.hmp"),
    "F223-core": (f"import {HT}.core as htcore", "htcore.mark_step() is None"),
    "F213-mark-step": (f"from {HT}.core import mark_step", "mark_step() is None"),
    "no-permuted-weights": (f"import {HT}.core as htcore", "htcore.is_enabled_weight_permute_pass() is True"),
    "core-hccl": (f"import {HT}.core.hccl, torch", "torch.distributed.is_backend_available('hccl')"),
    "F221-load": (
        f"from {HT}.utils.library_loader import load_habana_module",
        "load_habana_module() is None",
    ),
    "F215-kernels": (f"from {HT}.hpex.kernels import EmbeddingBag, EmbeddingBagPreProc", "callable(EmbeddingBag)"),
    "F216-normalization": (f"from {HT}.hpex.normalization import FusedClipNorm", "callable(FusedClipNorm)"),
    "F218-optimizers": (
        f"from {HT}.hpex.optimizers import FusedAdagrad, FusedAdamW, FusedLamb, FusedSGD",
        "callable(FusedLamb)",
    ),
    "D48-distributed": (
        f"from {HT}.distributed.hccl import initialize_distributed_hpu",
        "initialize_distributed_hpu() == (1, -1, -1)",
    ),
    "hpu": (f"import {HT}.hpu as hthpu", "(hthpu.is_available(), hthpu.current_device()) == (True, 0)"),
    "which-gaudi": (
        f"import {HT}.utils.experimental as htexp",
        "htexp._get_device_type() == htexp.synDeviceType.synDeviceGaudi2",
    ),
    "below-without-an-import": (f"import {HT} as ht", "ht.hpu.is_available() and ht.core.mark_step() is None"),
    "hpu-is-torch-hpu": (
        f"import {HT}.hpu as hthpu, torch",
        "all(getattr(hthpu, n) == getattr(torch.hpu, n) for n in 'Event Stream mem_get_info set_device empty_cache'.split())",
    ),
    "hpu-random": (
        f"import {HT}.hpu.random as htrandom, torch; htrandom.manual_seed_all(5)",
        "torch.initial_seed() == htrandom.initial_seed() == torch.hpu.random.initial_seed() == 5",
    ),
    "a-probe": (
        f"import {HT}; from importlib.util import find_spec",
        f"(find_spec('{HT}.tape'), find_spec('{HT}.core') is not None) == (None, True)",
    ),
    "dir": (
        f"import {HT} as ht",
        "dir(ht) == ['core', 'distributed', 'dynamo', 'gpu_migration', 'hpex', 'hpu', 'utils']",
    ),
    "star": (f"from {HT}.hpex.optimizers import *", "FusedSGD is not None"),
    "hasattr": (f"import {HT}.core as c", "not hasattr(c, 'tape')"),
    "xpu-amp": ("from torch.xpu.amp import autocast", "callable(autocast)"),
    "xpu-amp-attribute": ("import torch", "callable(torch.xpu.amp.autocast)"),
}


@pytest.fixture(scope="module")
def imported() -> dict[str, str]:
    return each(IMPORTS)


@pytest.mark.parametrize("case", IMPORTS)
def test_importable(imported: dict[str, str], case: str) -> None:
    assert imported[case] == "True"


def test_the_docs_name_every_module_and_name() -> None:
    page = (Path(__file__).parent.parent.parent / "docs" / "gaudi.md").read_text()
    names = "[name for name in [*contents.HOMES, *contents.REFUSED] if contents.HOMES.get(name, True)]"
    shown = each({"names": ("from habana_mp._gaudi import contents", names)})["names"]
    assert [name for name in ast.literal_eval(shown) if f"`{name.removeprefix(HT + '.')}`" not in page] == []


# --- What there is not

# statement -> error, what is missing, and what is said of it
MISSING = {
    "module": (f"import {HT}.tape", "ModuleNotFoundError", f"{HT}.tape", f"dir({HT}) lists what there is"),
    "name": (f"from {HT}.core import quant", "ModuleNotFoundError", f"{HT}.core.quant", f"dir({HT}.core) lists"),
    "a-near-one": (
        f"from {HT}.hpex.optimizers import FusedLARS2",
        "ModuleNotFoundError",
        f"{HT}.hpex.optimizers.FusedLARS2",
        "Did you mean FusedLars",
    ),
    "of-another-module": (
        f"from {HT}.hpex import FusedSDPA",
        "ModuleNotFoundError",
        f"{HT}.hpex.FusedSDPA",
        f"Did you mean {HT}.hpex.kernels.FusedSDPA",
    ),
    "attribute": (
        "import habana_frameworks as h; h.torch.hpu.Tape",
        "AttributeError",
        f"{HT}.hpu.Tape",
        f"dir({HT}.hpu) lists what there is",
    ),
    "the-older-hmp": ("from hmp import amp", "ModuleNotFoundError", "hmp.amp", "dir(hmp) lists what there is"),
    "xpu-amp": (
        "import torch; torch.xpu.amp.GradScaler",
        "AttributeError",
        "torch.xpu.amp.GradScaler",
        "dir(torch.xpu.amp) lists",
    ),
}


@pytest.fixture(scope="module")
def missing() -> dict[str, str]:
    return each({case: (statement, "None") for case, (statement, *_) in MISSING.items()})


@pytest.mark.parametrize("case", MISSING)
def test_what_does_not_exist_names_the_nearest(missing: dict[str, str], case: str) -> None:
    _, error, name, hint = MISSING[case]
    shown = f"{error} habana_mp.gaudi has no '{name}', and the real one is not installed. {hint}"
    assert missing[case].startswith(shown)
    assert len(missing[case]) < 250


def test_the_nearest_name_is_told_once() -> None:
    command = [sys.executable, "-c", f"import habana_mp.gaudi, {HT}.core as c; c.mark_stpe()"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stderr.splitlines()[-1].endswith(". Did you mean mark_step?")


# statement -> what is refused, and why
HARDWARE = {
    "dataloader": (
        "import habana_dataloader.habana_dl_app",
        "'habana_dataloader.habana_dl_app': it reads and decodes images by Gaudi's hardware and libraries; use torch",
    ),
    "TPC-kernels": (
        f"from {HT}.utils.lib_utils import get_include_dir, get_lib_dir",
        f"'{HT}.utils.lib_utils': it is for building kernels of Gaudi's tensor cores (TPC), which run nowhere else",
    ),
    "CustomNms": (
        f"from {HT}.hpex.kernels import CustomNms",
        f"'{HT}.hpex.kernels.CustomNms': it runs a kernel of Gaudi; use torchvision.ops.nms",
    ),
    "fbgemm": (f"from {HT}.hpex.kernels.fbgemm import split_permute_cat", f"'{HT}.hpex.kernels.fbgemm': it runs"),
}


def test_what_needs_the_hardware_says_so_in_one_line() -> None:
    shown = each({case: (statement, "None") for case, (statement, _) in HARDWARE.items()})
    for case, (_, said) in HARDWARE.items():
        assert shown[case].startswith(f"ModuleNotFoundError habana_mp.gaudi has no {said}"), case
        assert "\n" not in shown[case]


def test_probes_of_what_is_refused() -> None:
    shown = each(
        {
            "dataloader": (
                "import importlib.util, habana_dataloader",
                "importlib.util.find_spec('habana_dataloader.habana_dl_app') is None",
            ),
            "TPC-kernels": (
                f"import importlib.util, {HT}.utils",
                f"importlib.util.find_spec('{HT}.utils.lib_utils') is None",
            ),
        }
    )
    assert shown == {"dataloader": "True", "TPC-kernels": "True"}


def test_what_is_below_torch_is_torch_s_own_matter() -> None:
    shown = each({"xpu": ("import torch.xpu.none", "None")})["xpu"]
    assert shown == "ModuleNotFoundError No module named 'torch.xpu.none'"


# --- Where it stays out of the way


def test_nothing_is_importable_before() -> None:
    script = """
        import importlib.util, torch, habana_mp
        print(*map(importlib.util.find_spec, ("habana_frameworks", "hmp")), hasattr(torch.xpu, "amp"))
    """
    done = subprocess.run([sys.executable, "-c", dedent(script)], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "None None False"


def test_a_real_package_is_left_alone(tmp_path: Path) -> None:
    real = tmp_path / "habana_frameworks" / "torch"
    (real / "hpex").mkdir(parents=True)
    (real.parent / "__init__.py").touch()
    (real / "__init__.py").touch()
    (real / "hpex" / "__init__.py").write_text("hmp = 'the real one'\n")
    (tmp_path / "hmp.py").write_text("hmp = 'a real one too'\n")
    shown = run(
        """
        from habana_frameworks.torch.hpex import hmp
        print(hmp)
        from hmp import hmp
        print(hmp)
        # What a real package lacks is its own matter: Python's own words.
        for name in ("habana_frameworks.torch.core", "hmp.amp"):
            try:
                __import__(name)
            except ImportError as error:
                print(error)
        """,
        path=tmp_path,
    )
    assert shown.splitlines() == [
        "the real one",
        "a real one too",
        "No module named 'habana_frameworks.torch.core'",
        "No module named 'hmp.amp'; 'hmp' is not a package",
    ]


def test_a_real_torch_xpu_amp_is_left_alone() -> None:
    script = """
        import torch
        torch.xpu.amp = "the real one"
        import habana_mp.gaudi
        print(torch.xpu.amp)
    """
    done = subprocess.run([sys.executable, "-c", dedent(script)], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "the real one"


def test_a_reload_changes_nothing() -> None:
    shown = run("""
        import importlib, sys
        before = list(sys.meta_path)
        importlib.reload(habana_mp.gaudi)
        print(sys.meta_path == before)
    """)
    assert shown == "True"


DEEPSPEED = """
    import os
    try:
        import habana_frameworks.torch.hpu
        found = os.environ.get("DS_ACCELERATOR", "hpu")
    except ImportError:
        found = os.environ.get("DS_ACCELERATOR", "cpu")
"""


@pytest.mark.parametrize("first", ["", f"import {HT}.hpu"], ids=["nothing else", "Gaudi script"])
@pytest.mark.parametrize("given", [None, "cpu"], ids=["", "DS_ACCELERATOR"])
def test_deepspeed_takes_its_ways_for_a_gaudi(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first: str, given: str | None
) -> None:
    """It takes what it can import for the device, unless DS_ACCELERATOR names one; written in the manner of its real_accelerator.py."""
    if given:
        monkeypatch.setenv("DS_ACCELERATOR", given)
    (tmp_path / "deepspeed").mkdir()
    (tmp_path / "deepspeed" / "__init__.py").write_text(dedent(DEEPSPEED))
    assert run(f"{first}\nimport deepspeed\nprint(deepspeed.found)", path=tmp_path) == (given or "hpu")


def test_hpu_is_mapped_before_the_first_import_of_habana() -> None:
    assert run("import torch; print(torch.ones(1, device='hpu').device, torch.device('hpu'))") == "cpu hpu"


def test_a_device_that_is_not_there() -> None:
    command = [sys.executable, "-c", "import habana_mp.gaudi"]
    environment = {**os.environ, "HABANA_MP_DEVICE": "mps"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.stderr.splitlines()[-1].startswith("RuntimeError: HABANA_MP_DEVICE: 'mps' is not available here")


def test_transformers_still_sees_no_gaudi() -> None:
    shown = run("from transformers.utils import is_torch_hpu_available; print(is_torch_hpu_available())")
    assert shown == "False"


# --- What it does


def test_memory_figures() -> None:
    shown = run("""
        import torch
        import habana_frameworks.torch.hpu as hpu

        before = hpu.memory_allocated()
        held = torch.ones(64 << 20, dtype=torch.uint8)
        assert hpu.memory_allocated("hpu:0") - before > 60e6
        assert hpu.max_memory_allocated(torch.device("hpu")) - before > 60e6
        del held
        hpu.reset_peak_memory_stats()
        stats = hpu.memory_stats()
        assert list(stats) == ["Limit", "InUse", "MaxInUse"]
        assert stats["InUse"] < stats["Limit"]
        hpu.synchronize()
        hpu.manual_seed(0)
        first = torch.rand(1)
        hpu.manual_seed_all(0)
        assert torch.equal(first, torch.rand(1))
        print(hpu.device_count() >= 1, hpu.get_device_name(), len(hpu.memory_summary().splitlines()))
    """)
    assert shown.startswith("True ")
    assert shown.endswith(" 3")


def test_xpu_amp_f23_f24_f166() -> None:
    shown = run("""
        import torch
        x = torch.ones(2, 2)
        with torch.xpu.amp.autocast():
            low = x @ x
            high = torch.nn.functional.mse_loss(low, low)
        with torch.xpu.amp.autocast(dtype=torch.float16):
            half = x @ x
        with torch.xpu.amp.autocast(enabled=False):
            off = x @ x
        @torch.xpu.amp.autocast()
        def decorated():
            return x @ x
        print(*(str(t.dtype).removeprefix("torch.") for t in (low, high, half, off, decorated(), x @ x)))
    """)
    assert shown == "bfloat16 float32 float16 float32 bfloat16 float32"
