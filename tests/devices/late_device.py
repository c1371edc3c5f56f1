"""The late device (tests/devices/late/): how it is compiled, and how a process gets it as the device "late"."""

from __future__ import annotations

import functools
import importlib.util
import subprocess
import sysconfig
from contextlib import AbstractContextManager, nullcontext
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.utils import cpp_extension

SOURCES = Path(__file__).parent / "late"


def build(folder: Path) -> Path:
    """Compiles the library into the folder: all sources as one, as most of the time is for torch's headers."""
    includes = [f"-I{path}" for path in (*cpp_extension.include_paths(), sysconfig.get_path("include"))]
    abi = f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.compiled_with_cxx11_abi())}"
    source, library = folder / "late.cpp", folder / "late.so"
    source.write_text("".join(f'#include "{path}"\n' for path in sorted(SOURCES.glob("*.cpp"))))
    command = ["c++", "-std=c++20", "-O0", "-fPIC", "-shared", "-w", abi, *includes, str(source), "-o", str(library)]
    libraries = [f"-L{path}" for path in cpp_extension.library_paths()]
    command += [*libraries, "-ltorch", "-ltorch_cpu", "-ltorch_python", "-lc10"]
    done = subprocess.run(command, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return library


class Backend:
    """``torch.late``: what torch asks of the module of a device in Python."""

    Event = torch.Event

    def Stream(self, priority: int = 0) -> torch.Stream:  # noqa: N802 - torch's name
        return torch.Stream("late", priority=priority)

    def stream(self, chosen: torch.Stream | None) -> AbstractContextManager[Any]:
        return nullcontext() if chosen is None else chosen

    def current_stream(self, device: Any = None) -> torch.Stream:
        return torch.accelerator.current_stream(device)

    def is_initialized(self) -> bool:
        return True

    def is_available(self) -> bool:
        return True

    def current_device(self) -> int:
        return torch.accelerator.current_device_index()

    def set_device(self, device: Any) -> None:
        torch.accelerator.set_device_index(device)

    def device_count(self) -> int:
        return 2

    def _is_in_bad_fork(self) -> bool:
        return False

    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        return [torch.float16, torch.bfloat16, torch.float32]

    # Its numbers are drawn by the generator of the CPU, which whoever saves this state has saved already.
    def manual_seed_all(self, seed: int) -> None:
        pass

    def get_rng_state(self, device: Any = None) -> torch.Tensor:
        return torch.empty(0, dtype=torch.uint8)

    def set_rng_state(self, state: torch.Tensor, device: Any = None) -> None:
        pass


def register(library: str, seed: int, microseconds: int = 200) -> None:
    """Once in a process. Tasks begin up to 8 times so many microseconds late, as the seed has it."""
    import torch._meta_registrations  # sizes of results that torch knows in Python alone

    torch.ops.load_library(library)
    torch.utils.rename_privateuse1_backend("late")
    torch._register_device_module("late", Backend())
    torch.utils.generate_methods_for_privateuse1_backend(for_storage=True)
    torch.ops.late.set_delays(seed, microseconds)
    dist.Backend.register_backend("late", functools.partial(_process_group, library), devices=["late"])


def _process_group(library: str, store: dist.Store, rank: int, size: int, timeout: timedelta) -> Any:
    """Gloo does on the host what is queued on the device."""
    spec = importlib.util.spec_from_file_location("late", library)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.process_group(dist.ProcessGroupGloo(store, rank, size, timeout))
