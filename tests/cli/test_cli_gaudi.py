"""habana-mp run on scripts for Gaudi: they say themselves what is cast, "hpu" is a device from their first line, and so in their processes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import pytest

ROOT = Path(__file__).parent.parent.parent


def run(script: str, *options: str, **environment: str) -> str:
    """What a script of these lines prints, in a process of its own; warnings are errors."""
    Path("script.py").write_text(dedent(script))
    command = [sys.executable, "-W", "error", "-m", "habana_mp", "run", *options, "script.py"]
    here = {**os.environ, **environment}
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120, env=here)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout.strip()


@pytest.fixture(autouse=True)
def _here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")


SAYS = """
    import torch
    {before}
    linear = torch.nn.Linear(4, 4)
    print(linear(torch.ones(2, 4)).dtype)
    {after}
    print(linear(torch.ones(2, 4)).dtype)
"""
BF16, FP32 = "torch.bfloat16", "torch.float32"
HMP = "from habana_frameworks.torch.hpex import hmp"


@pytest.mark.parametrize(
    ("before", "after", "options", "dtypes"),
    [
        ("", "", [], [BF16, BF16]),
        (HMP, "hmp.convert()", [], [FP32, BF16]),
        ("from hmp import hmp", "hmp.convert('O1')", [], [FP32, BF16]),
        ("import habana_frameworks.torch.core", "", [], [FP32, FP32]),
        (HMP, "hmp.convert()", ["--policy", "hmp"], [BF16, BF16]),
        (HMP, "", ["--policy", "hmp"], [BF16, BF16]),
    ],
    ids=["no Gaudi", "hmp", "older hmp", "without hmp", "policy given", "policy given, without hmp"],
)
def test_a_script_for_gaudi_is_cast_from_where_it_says_so(before, after, options, dtypes):
    assert run(SAYS.format(before=before, after=after), *options).split() == dtypes


def installed(name: str, lines: str) -> str:
    """A library of these lines, and the lines of a script that import it."""
    library = Path("site-packages", *name.split("."))
    library.mkdir(parents=True)
    (library / "__init__.py").write_text(dedent(lines))
    return f"import sys; sys.path.append('site-packages'); import {name}"


PROBES = {
    "import": "import habana_frameworks.torch.hpu",
    "spec": "found = find_spec('habana_frameworks') and find_spec('habana_frameworks.torch')",
    "deepspeed": "import os\n    found = os.environ.get('DS_ACCELERATOR', 'cpu') != 'cpu'\n    import habana_frameworks.torch.hpu; found = True",
}
PROBE = """
from importlib.util import find_spec
found = False
try:
    {}
except ImportError:
    pass
if found:
    raise RuntimeError("takes this machine for a Gaudi")
"""


@pytest.mark.parametrize("probe", PROBES)
def test_an_installed_library_that_looks_for_a_gaudi_finds_none(probe):
    before = installed("deepspeed" if probe == "deepspeed" else "somebody", PROBE.format(PROBES[probe]))
    assert run(SAYS.format(before=before, after="")).split() == [BF16, BF16]


def test_an_installed_library_that_needs_a_gaudi_is_told_how():
    Path("script.py").write_text(installed("somebody", "import habana_frameworks.torch.core"))
    command = [sys.executable, "-m", "habana_mp", "run"]
    done = subprocess.run([*command, "script.py"], capture_output=True, text=True, check=False)
    assert done.stderr.splitlines()[-1] == (
        "ModuleNotFoundError: No module named 'habana_frameworks': habana_mp shows it only to programs for Gaudi, "
        "and this one does not name it. If it is one, choose its device: habana-mp run --device cpu"
    )
    subprocess.run([*command, "--device", "cpu", "script.py"], check=True)


CORE = "import habana_frameworks.torch.core"
FOR_GAUDI = {
    "by its name": ("optimum_habana", CORE, []),
    "below such a one": ("optimum.habana.transformers", CORE, []),
    "later": ("some_gaudi.library", f"def use():\n    {CORE}", []),
    "in an argument": ("somebody", CORE, ["--use_habana"]),
    "in a value": ("somebody", CORE, ["--device=hpu"]),
    "--device": ("somebody", CORE, []),
}


@pytest.mark.parametrize("case", FOR_GAUDI)
def test_a_program_whose_libraries_alone_are_for_gaudi_says_itself_what_is_cast(case):
    """As under `import habana_mp.gaudi`: float32, until it calls hmp.convert or enters a region."""
    name, lines, arguments = FOR_GAUDI[case]
    before = installed(name, lines) + (f"; {name}.use()" if "def use" in lines else "")
    after = "from habana_mp import hmp; hmp.convert()"
    Path("script.py").write_text(dedent(SAYS.format(before=before, after=after)))
    options = ["--device", "cpu"] if case == "--device" else []
    command = [sys.executable, "-W", "error", "-m", "habana_mp", "run", *options, "script.py", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stdout.split() == [FP32, BF16], done.stderr


def test_a_module_of_an_installed_package_is_the_script():
    installed("somebody.train", "")
    Path("site-packages/somebody/__init__.py").touch()
    Path("site-packages/somebody/train/__main__.py").write_text("import somebody.model")
    Path("site-packages/somebody/model.py").write_text(
        dedent(SAYS.format(before="import habana_frameworks.torch.core", after=""))
    )
    command = [sys.executable, "-m", "habana_mp", "run", "-m", "somebody.train"]
    environment = {**os.environ, "PYTHONPATH": "site-packages"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert done.stdout.split() == [FP32, FP32], done.stderr


def test_a_probe_of_the_script_ends_no_conversion():
    before = "from importlib.util import find_spec; print(find_spec('habana_frameworks.torch') is not None)"
    assert run(SAYS.format(before=before, after="")).split() == ["True", BF16, BF16]


def test_a_library_that_would_make_itself_ready_sees_no_gaudi_but_the_script_does():
    before = "import transformers; print(transformers.utils.is_torch_hpu_available()); import habana_frameworks.torch"
    assert run(SAYS.format(before=before, after="")).split() == ["False", FP32, FP32]


@pytest.mark.parametrize("asks", ["", "hmp.convert()"], ids=["the program asks for float32", "hmp"])
def test_a_library_scripts_while_it_is_imported(asks):
    """As timm and transformers do, with ops of the lists: `run` has put its default in force by then."""
    Path("library.py").write_text("""if True:
        import torch, warnings
        warnings.simplefilter("ignore")  # torch.jit is deprecated
        @torch.jit.script
        def swish(x):
            return x.mul(x.sigmoid())
        @torch.jit.script
        def product(x):
            return torch.mm(x, x)
    """)
    printed = run(f"""
        import library, torch
        from habana_frameworks.torch.hpex import hmp
        {asks}
        print(library.product(torch.ones(2, 2)).dtype, library.swish(torch.zeros(1)).item())
    """)
    assert printed == f"{BF16 if asks else FP32} 0.0"


@pytest.mark.parametrize(
    "device",
    ['torch.device("hpu")', 'torch.device("habana", 0)', 'torch.device(":".join(["hpu", "0"]))', "torch.device(torch.hpu.current_device())"],
    ids=["hpu", "habana", "computed", "torch.hpu"],
)  # fmt: skip
def test_a_device_that_is_made_before_the_first_import(device):
    printed = run(f"""
        import torch
        def made():
            return {device if "current" not in device else 'torch.device("hpu", torch.hpu.current_device())'}
        device = made()
        import habana_frameworks.torch.core
        x = torch.ones(2).to(device)
        print(x.device == device == torch.device("hpu", 0) or device)
    """)
    assert printed == "True"


def test_a_script_that_says_no_hpu_has_none():
    assert run("import torch\nprint(hasattr(torch, 'HPU'.lower()))") == "False"


@pytest.mark.parametrize("variables", [("LOWER_LIST", "FP32_LIST"), ("PT_HPU_AUTOCAST_LOWER_PRECISION_OPS_LIST", "PT_HPU_AUTOCAST_FP32_OPS_LIST")], ids=["old", "new"])  # fmt: skip
def test_lists_that_the_script_names_before_the_import_f119_f120(variables):
    Path("lower.txt").write_text("softmax\n")
    Path("fp32.txt").write_text("linear\n")
    printed = run(f"""
        import os, torch
        os.environ["{variables[0]}"] = "lower.txt"
        os.environ["{variables[1]}"] = "fp32.txt"
        import habana_frameworks.torch.core as htcore
        os.environ["{variables[0]}"] = "too late"
        import pathlib; pathlib.Path("fp32.txt").write_text("softmax")
        with torch.autocast(device_type="hpu", dtype=torch.bfloat16):
            x = torch.nn.Linear(4, 4)(torch.ones(2, 4))
            print(x.dtype, torch.softmax(x, -1).dtype)
    """)
    assert printed.split() == [FP32, BF16]


CHILD = """
    import habana_frameworks.torch.core as htcore, torch
    from habana_frameworks.torch.hpex import hmp
    print(torch.ones(1, device="hpu").sum().item(), torch.hpu.is_available(), hmp.is_converted())
"""
PARENTS = {
    "spawned": """
        import multiprocessing, torch
        import habana_frameworks.torch.core as htcore
        def total(i):
            return torch.full((2,), float(i)).to("hpu").sum().item()
        if __name__ == "__main__":
            with multiprocessing.get_context("spawn").Pool(1) as pool:
                print(*pool.map(total, [1, 5]))
    """,
    "subprocess": """
        import subprocess, sys
        import habana_frameworks.torch
        subprocess.run([sys.executable, "-W", "error", "child.py"], check=True)
    """,
    "older": """
        import subprocess, sys
        from hmp import hmp
        hmp.convert()
        subprocess.run([sys.executable, "-c", "from hmp import hmp; print(hmp.is_converted())"], check=True)
    """,
    "says hpu": """
        import torch
        def there(rank): print(torch.ones(1, device="hpu").sum().item())
        if __name__ == "__main__":
            import subprocess, sys
            there(0)
            subprocess.run([sys.executable, "-W", "error", "child.py"], check=True)
    """,
    "run again": """
        import subprocess, sys
        import habana_frameworks.torch
        subprocess.run([sys.executable, "-W", "error", "-m", "habana_mp", "run", "--policy", "hmp", "child.py"], check=True)
    """,
}


@pytest.mark.parametrize(
    ("parent", "printed"),
    [
        ("spawned", "2.0 10.0"),
        ("subprocess", "1.0 True False"),
        ("older", "False"),
        ("says hpu", "1.0\n1.0 True False"),
        ("run again", "1.0 True True"),
    ],
)
def test_processes_of_a_script(parent, printed):
    """They have the names and the device. What is cast in them they say themselves."""
    Path("child.py").write_text(dedent(CHILD))
    assert run(PARENTS[parent]) == printed


def test_what_only_its_arguments_say():
    Path("script.py").write_text("import sys, torch; print(torch.ones(1, device=sys.argv[1].partition('=')[2]).device)")
    command = [
        sys.executable,
        "-W",
        "error",
        "-m",
        "habana_mp",
        "run",
        "--device",
        "cpu",
        "script.py",
        "--device=hpu:0",
    ]
    for words in (command, [*command[:6], *command[8:]]):
        assert subprocess.run(words, capture_output=True, text=True, check=True).stdout == "cpu\n"


def test_a_script_that_only_knows_the_word_starts_without_the_device():
    script = (
        "import argparse; argparse.ArgumentParser().add_argument('--device', choices=['cpu', 'hpu']); print('started')"
    )
    assert run(script, HABANA_MP_DEVICE="tpu") == "started"


def test_another_environment_has_its_own_packages(tmp_path):
    """Without habana_mp in it."""
    other = tmp_path / "other"
    (other / "hmp").mkdir(parents=True)
    (other / "hmp" / "__init__.py").write_text("name = 'its own'")
    printed = run(f"""
        import subprocess, sys
        import habana_frameworks.torch
        code = (
            "import sys; sys.path[:] = [p for p in sys.path if 'site-packages' not in p and p != {str(ROOT)!r}]; sys.path.append({str(other)!r});"
            "sys.meta_path[:] = [f for f in sys.meta_path if 'editable' not in type(f).__module__]\\n"
            "import hmp; print(hmp.name)\\n"
            "try: import habana_frameworks\\n"
            "except ModuleNotFoundError as error: print(error)"
        )
        subprocess.run([sys.executable, "-c", code], check=True)
    """)
    assert printed.splitlines() == ["its own", "No module named 'habana_frameworks'"]


def test_the_sitecustomize_of_the_environment_still_runs(tmp_path):
    (tmp_path / "sitecustomize.py").write_text("print('of the environment', __name__)")
    Path("child.py").write_text(dedent(CHILD))
    printed = run(PARENTS["subprocess"], PYTHONPATH=str(tmp_path)).splitlines()
    assert printed == ["of the environment sitecustomize"] * 2 + ["1.0 True False"]


def test_a_process_that_asks_for_no_gaudi_imports_nothing():
    printed = run("""
        import subprocess, sys
        import habana_frameworks.torch
        subprocess.run([sys.executable, "-c", "import sys; print({'torch', 'habana_mp'} & {*sys.modules})"], check=True)
    """)
    assert printed == "set()"


def test_a_real_package_wins_in_the_processes_of_a_script(tmp_path):
    (tmp_path / "site" / "hmp").mkdir(parents=True)
    (tmp_path / "site" / "hmp" / "__init__.py").write_text("name = 'of somebody else'")
    printed = run(f"""
        import subprocess, sys
        import habana_frameworks.torch
        code = "import sys; sys.path.append({str(tmp_path / "site")!r}); import hmp; print(hmp.name)"
        subprocess.run([sys.executable, "-c", code], check=True)
    """)
    assert printed == "of somebody else"


@pytest.mark.parametrize(
    ("device", "printed"),
    [("cpu", "cpu"), ("tpu", "HABANA_MP_DEVICE: torch has no device type 'tpu'"), ("cuda:1", 'HABANA_MP_DEVICE: the device for "hpu" must be a device type')],
)  # fmt: skip
def test_the_variable_chooses_the_device(device, printed, monkeypatch):
    monkeypatch.setenv("HABANA_MP_DEVICE", device)
    Path("script.py").write_text(
        "import habana_mp.gaudi, habana_frameworks.torch.core, torch; print(torch.ones(1, device='hpu').device)"
    )
    plain = subprocess.run([sys.executable, "script.py"], capture_output=True, text=True, check=False)
    ours = subprocess.run(
        [sys.executable, "-m", "habana_mp", "run", "script.py"], capture_output=True, text=True, check=False
    )
    assert printed in (plain.stdout or plain.stderr)
    assert printed in (ours.stdout or ours.stderr)
    assert ours.returncode == plain.returncode == (0 if device == "cpu" else 1)


def test_a_list_that_the_script_writes_before_the_import():
    """The environment named it from the start."""
    Path("lower.txt").write_text("mm\n")
    printed = run(
        """
        import pathlib; pathlib.Path("lower.txt").write_text("softmax")
        import habana_frameworks.torch.core
        from habana_mp import Policy
        print(Policy.load("hpu-autocast").lists["lower"])
        """,
        LOWER_LIST="lower.txt",
    )
    assert printed == "('softmax',)"
