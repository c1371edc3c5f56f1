"""``habana-mp doctor``: what habana_mp finds on this machine, and what is wrong with it."""

from __future__ import annotations

import contextlib
import os
import platform
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal

import click
import torch

import habana_mp._core as _core
from habana_mp import _loading, _weights
from habana_mp._evidence.recordings.about import cpu_name
from habana_mp._hpu import gaudi_flags, gaudi_switches
from habana_mp._hpu.mapping import DEVICE_VARIABLE
from habana_mp._policy.environment import LIST_VARIABLES
from habana_mp._policy.list_file import read_list
from habana_mp._policy.names import nearest
from habana_mp._show import units
from habana_mp._watch import log
from habana_mp.cli.output import json_option, write_json
from habana_mp.cli.speed import Speed, measured
from habana_mp.hmp import Policy, presets

# What acts on habana_mp and on the speed of its casts. Those that begin with HABANA_MP_ are all that there are.
_VARIABLES = {
    log.VARIABLE: "the cast log",
    "HABANA_MP_CACHE_BYTES": "the limit of the weight cache",
    "HABANA_MP_PACKED_WEIGHTS": "whether the weight cache packs copies",
    "HABANA_MP_CAST_VARIANT": "the cast kernels",
    DEVICE_VARIABLE: 'the device that "hpu" stands for',
    **{name: f"the {title} list of hpu-autocast" for title, names in LIST_VARIABLES.items() for name in names},
    "OMP_NUM_THREADS": "threads of torch",
    "MKL_NUM_THREADS": "threads of MKL",
    "ATEN_CPU_CAPABILITY": "the instructions that torch uses",
    "ONEDNN_MAX_CPU_ISA": "the instructions that oneDNN uses",
    "CUDA_VISIBLE_DEVICES": "the GPUs that torch sees",
}
_FEATURES = ("avx2", "avx512_f", "bf16", "fp16", "f16c", "amx", "neon", "sve")
# From here on a ratio is more than the noise of a short measurement.
_FASTER = 1.2


@dataclass(frozen=True)
class Verdict:
    level: Literal["ok", "note", "problem"]
    text: str


@dataclass
class Examination:
    versions: dict[str, str]
    cpu: dict[str, Any]
    devices: list[str]
    cast_variants: list[str]
    cast_variant: str | None = None
    cache: dict[str, Any] = field(default_factory=dict)
    environment: dict[str, str] = field(default_factory=dict)
    flags: list[dict[str, str | None]] = field(default_factory=list)
    switches: list[dict[str, str]] = field(default_factory=list)
    speed: Speed | None = None
    verdicts: list[Verdict] = field(default_factory=list)

    def say(self, level: Literal["ok", "note", "problem"], text: str) -> None:
        self.verdicts.append(Verdict(level, text))

    @contextlib.contextmanager
    def noting_problem(self, text: str = "{}") -> Iterator[None]:
        """An error is a verdict with this text."""
        try:
            yield
        except OSError as error:
            self.say("problem", text.format(f"{error.filename}: {error.strerror}"))
        except ValueError as error:
            self.say("problem", text.format(error))


@click.command()
@click.option("--gaudi", is_flag=True, help="Also print the flags and switches of Gaudi, and what they do here.")
@json_option
def doctor(gaudi: bool, json_file: str | None) -> None:
    """Check this machine, and measure the speed of bfloat16 on it.

    The command checks versions, presets, CPU, cast kernels, weight cache and environment. The measurement takes a second.

    Exit code 0: no problem; 1: there is something to fix.

    \b
      habana-mp doctor
    """
    found = _examine()
    if json_file != "-":
        _show(found, gaudi)
    write_json(asdict(found), json_file)
    if any(verdict.level == "problem" for verdict in found.verdicts):
        raise SystemExit(1)


def _examine() -> Examination:
    found = Examination(
        versions={
            "habana_mp": version("habana_mp"),
            "torch": torch.__version__,
            "compiled for torch": ", ".join(_loading.torches(Path(_core.__file__).parents[1])),
            "python": platform.python_version(),
        },
        cpu=_cpu(),
        devices=_devices(),
        cast_variants=_core.cast_variants(),
    )
    # Another minor version does not get this far: the import raises.
    core = Path(_core.__file__).parent.name.removeprefix("torch")
    found.say("ok", f"torch {torch.__version__} runs with the core that was compiled for torch {core}")
    _examine_presets(found)
    _examine_kernels(found)
    _examine_cache(found)
    _examine_environment(found)
    if found.cast_variant:
        found.speed = speed = measured()
        ratio = speed.matmul_ratio
        products = "products on one thread: bfloat16 is"
        if ratio >= _FASTER:
            found.say("ok", f"{products} {ratio:.1f} x as fast as float32")
        else:
            found.say(
                "note",
                f"{products} {ratio:.2g} x as fast as float32: habana-mp tune --formats float32,lower,int8",
            )
        found.say("ok", f"casts to bfloat16: {speed.cast_ratio:.1f} x as fast as Tensor.to")
    return found


def _cpu() -> dict[str, Any]:
    able = torch.cpu.get_capabilities() if hasattr(torch.cpu, "get_capabilities") else {}
    return {
        "name": cpu_name(),
        "architecture": platform.machine(),
        "cpus": os.cpu_count(),
        "threads of torch": torch.get_num_threads(),
        "features": sorted(
            name for name, has in able.items() if has is True and any(part in name for part in _FEATURES)
        ),
    }


def _devices() -> list[str]:
    found = ["cpu"]
    if torch.cuda.is_available():
        found += [f"cuda:{i} {torch.cuda.get_device_name(i)}" for i in range(torch.cuda.device_count())]
    elif torch.accelerator.is_available():
        found.append(str(torch.accelerator.current_accelerator()))
    return found


def _examine_presets(found: Examination) -> None:
    with found.noting_problem("the presets of this installation cannot be read: {}"):
        loaded = [Policy.load(name) for name in presets()]
        found.say("ok", f"all {len(loaded)} presets can be loaded")
        fused = [policy.name for policy in loaded if policy.compiled == "fused"]
        except_for = f", but for {', '.join(fused)}" if fused else ""
        found.say("ok", f"compiled code rounds where the lists of a preset say{except_for}")


def _examine_kernels(found: Examination) -> None:
    fastest = found.cast_variants[-1]
    with found.noting_problem():
        found.cast_variant = _core.cast_variant()
        if found.cast_variant == fastest:
            found.say("ok", f"casts run by the {fastest} kernels, the fastest for this CPU")
        else:
            asked = f"the {found.cast_variant} kernels, which HABANA_MP_CAST_VARIANT asks for"
            found.say("note", f"casts run by {asked}; this CPU runs {fastest}")


def _examine_cache(found: Examination) -> None:
    with found.noting_problem():
        limit, packing = _weights.asked()
        found.cache = {"on": limit > 0, "limit": limit}
        if not packing:
            found.say("note", "no weight is packed, by HABANA_MP_PACKED_WEIGHTS")
        if limit:
            found.say("ok", f"the weight cache is on; copies may take {units.size(limit)}")
        else:
            found.say("note", "the weight cache is off, by HABANA_MP_CACHE_BYTES: weights are cast at every use")


def _examine_environment(found: Examination) -> None:
    for name, value in sorted(os.environ.items()):
        if not value:
            continue
        if name in _VARIABLES:
            found.environment[name] = value
        elif name.startswith("HABANA_MP_"):
            near = nearest(name, frozenset(_VARIABLES))
            hint = f". Did you mean {near[0]}?" if near else ""
            found.say("problem", f"{name} is not a variable of habana_mp{hint}")
    with found.noting_problem():
        path = log.read_setting(os.environ.get(log.VARIABLE) or "off").path
        if path and not Path(path).parent.is_dir():
            found.say("problem", f"{log.VARIABLE}: there is no folder {str(Path(path).parent)!r} for the log")
    found.flags = [{**flag._asdict(), "value": os.environ.get(flag.name)} for flag in gaudi_flags.FLAGS]
    found.switches = [
        {
            "module": module,
            "names": switch.names,
            "on_gaudi": switch.on_gaudi,
            "here": gaudi_switches.said_of(switch),
        }
        for switch in gaudi_switches.SWITCHES
        for module in switch.modules.split()
    ]
    with found.noting_problem():
        gaudi_flags.asked_level()
    for name in (name for names in LIST_VARIABLES.values() for name in names if os.environ.get(name)):
        with found.noting_problem(f"{name}: {{}}"):
            read_list(os.environ[name])


def _show(found: Examination, gaudi: bool) -> None:
    cpu = found.cpu
    flags = [flag for flag in found.flags if gaudi or flag["value"]]
    switches = found.switches if gaudi else []
    rows = [
        ("versions", [f"{name} {number}" for name, number in found.versions.items()]),
        ("cpu", [f"{cpu['name']}, {cpu['architecture']}, {cpu['cpus']} CPUs, torch uses {cpu['threads of torch']}"]),
        ("features", [" ".join(cpu["features"]) or "unknown"]),
        ("devices", found.devices),
        ("kernels", [" ".join(f"[{name}]" if name == found.cast_variant else name for name in found.cast_variants)]),
        (
            "environment",
            [f"{name}={value} ({_VARIABLES[name]})" for name, value in found.environment.items()]
            or ["nothing set that acts"],
        ),
        ("gaudi flags", [line for flag in flags for line in _lines(flag)]),
        ("switches", [line for switch in switches for line in _of_switch(switch)]),
    ]
    if found.speed is not None:
        rows.append(("speed", found.speed.lines()))
    for title, lines in rows:
        for i, line in enumerate(lines):
            click.echo(click.style(f"{title if i == 0 else '':<12}", bold=True) + line)
    click.echo()
    marks = {"ok": "green", "note": "yellow", "problem": "red"}
    for verdict in found.verdicts:
        click.echo(f"{click.style(f'{verdict.level:<8}', fg=marks[verdict.level])} {verdict.text}")


def _lines(flag: dict[str, str | None]) -> list[str]:
    value = "" if flag["value"] is None else f"={flag['value']}"
    return [f"{flag['name']}{value}, on Gaudi: {flag['on_gaudi']}", f"    here: {flag['here']}"]


def _of_switch(switch: dict[str, str]) -> list[str]:
    return [
        f"{switch['module']}: {switch['names']}",
        f"    on Gaudi: {switch['on_gaudi']}",
        f"    here: {switch['here']}",
    ]
