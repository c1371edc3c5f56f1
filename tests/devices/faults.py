"""Faults seeded on purpose: which of them the tests of this folder find on the late device. ``make faults`` builds the package with all of
them in build/faults/ and has each fault in force in processes of its own, one for each seed of the device's delays.

A fault is what one line would be if it were wrong. In the table it has a name, its file, the text that it takes the place of, which is there
once, and the text in its place, where FAULT is whether this fault is in force.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
BUILD = ROOT / "build/faults"
SEEDS = (1, 2)
_SECONDS = 240  # of a process: some faults have a stream wait for ever
_VARIABLE = "HABANA_MP_FAULT"
# What the package is built from.
_PARTS = (
    "CHANGELOG.md",
    "CMakeLists.txt",
    "LICENSE",
    "LICENSES",
    "README.md",
    "pyproject.toml",
    "habana_mp",
    "src",
    "third_party",
    "tools",
)

_CACHE, _COPY, _WEIGHT = (f"src/weights/{name}" for name in ("weight_cache.cpp", "weight_copy.h", "weight.h"))
_OPS, _CALL = "src/weights/op_watch.cpp", "src/call/cast_argument.cpp"
_CAST, _NODE = "src/cast/numbers.cpp", "src/cast/node.cpp"
_BY_ATEN, _WORDS, _CHOICES = (f"src/evidence/{name}.cpp" for name in ("numbers_by_aten", "words", "choices"))
_KEPT, _RUNS = "habana_mp/_evidence/kept_state.py", "habana_mp/_evidence/tune/runs.py"

_DENSE_CAST = "    if (strides.empty()) return source.to(type);"
_CAST_BACK = "    const at::ScalarType to = c10::typeMetaToScalarType(self_options.dtype());"
_HERE = "const bool here = entry.state.stream == now.stream;"

# By the file of accelerator/ whose tests find them.
FAULTS = {
    "streams": {
        "cache: another stream's copy is used": (_CACHE, _HERE, _HERE.replace("= e", "= FAULT || e")),
        "cache: the default stream's copy is used": (
            _CACHE,
            "&& !why && here;",
            "&& !why && (here || (FAULT && entry.state.stream->id() == 0));",
        ),
        "cache: streams are compared the wrong way round": (
            _CACHE,
            "entry.state.stream == now.stream;",
            "(entry.state.stream == now.stream) != FAULT;",
        ),
        "cache: another stream's copy is written": (_CACHE, "if (!here || !plain)", "if ((!here && !FAULT) || !plain)"),
        "cache: the stream of another device": (
            _CACHE,
            "current_stream(weight.device());",
            "current_stream(FAULT ? c10::Device(weight.device().type(), 0) : weight.device());",
        ),
        "cache: a copy that a graph holds is written": (
            _CACHE,
            "copy.use_count() == 1 && copy.storage().use_count() == 1",
            "((copy.use_count() == 1 && copy.storage().use_count() == 1) || FAULT)",
        ),
        "cast: on the default stream": (
            _CAST,
            _DENSE_CAST,
            """    std::optional<c10::StreamGuard> elsewhere;
    if (FAULT) elsewhere.emplace(c10::Stream(c10::Stream::DEFAULT, source.device()));
"""
            + _DENSE_CAST,
        ),
    },
    "functions": {
        "cache: an alias ends no copy": (
            _CACHE,
            "then.ends) return Ended::Alias",
            "then.ends && !FAULT) return Ended::Alias",
        ),
        "cache: a weight in other memory keeps its copy": (
            _CACHE,
            "if (!torch_private::is_same_counter(then.counter, now.counter) ||",
            "if (FAULT) return std::nullopt;\n  if (!torch_private::is_same_counter(then.counter, now.counter) ||",
        ),
        "cache: versions are not compared": (
            _CACHE,
            "then.version != now.version)",
            "then.version != now.version && !FAULT)",
        ),
        "cache: a written copy is used": (_CACHE, "!= entry.copy._version())", "!= entry.copy._version() && !FAULT)"),
        "cache: shared memory is kept": (_CACHE, "if (is_shared(weight))", "if (is_shared(weight) && !FAULT)"),
        "ops: what writes unseen ends no copy": (
            _OPS,
            "    weight_cache().end_alias(tensor, /*exported=*/false);",
            "    if (!FAULT) weight_cache().end_alias(tensor, /*exported=*/false);",
        ),
        "memory: given away, and kept as its own": (
            _WEIGHT,
            "if (!weight.is_cpu()) return storage.resizable();",
            "if (!weight.is_cpu()) return storage.resizable() || FAULT;",
        ),
        "samples: read on the host": (
            _WEIGHT,
            "if (!weight.is_cpu()) return 0;",
            "if (!weight.is_cpu() && !FAULT) return 0;",
        ),
        "copy: handed out itself": (
            _COPY,
            "  at::Tensor result = torch_private::alias_of(copy);",
            "  if (FAULT) return copy;\n  at::Tensor result = torch_private::alias_of(copy);",
        ),
        "copy: without a node": (
            _COPY,
            "} else if (weight.requires_grad()) {",
            "} else if (weight.requires_grad() && !FAULT) {",
        ),
        "call: a lent copy leaves it": (_CALL, "if (cast.has_storage() &&", "if (cast.has_storage() && !FAULT &&"),
        "cache: a copy is overwritten when its gradient is there": (
            _CACHE,
            "  it->second.after_backward = true;",
            "  it->second.after_backward = true;\n  if (FAULT) it->second.copy.zero_();",
        ),
        "cast: on the host": (_CAST, "return !source.is_cpu() ||", "return (!source.is_cpu() && !FAULT) ||"),
        "cast: tangents are dropped": (
            _CAST,
            "!tensor._fw_grad(/*level=*/0).defined();",
            "(!tensor._fw_grad(/*level=*/0).defined() || FAULT);",
        ),
        "node: a gradient is written in place": (
            _NODE,
            _CAST_BACK,
            "    if (FAULT) grads[0].mul_(0.5);\n" + _CAST_BACK,
        ),
        "node: left out": (_NODE, "if (records_graph(source)) record", "if (records_graph(source) && !FAULT) record"),
    },
    "graphs": {
        "cache: a capture is not seen": (
            _CACHE,
            "stream && torch_private::is_capturing(*stream);",
            "stream && torch_private::is_capturing(*stream) && !FAULT;",
        ),
        "cache: a capture takes a copy": (_CACHE, "found = captured ? Found{}", "found = captured && !FAULT ? Found{}"),
        "cache: a captured cast is kept": (
            _CACHE,
            "  if (!found) return {};",
            """  if (captured && FAULT) {
    found = find(weight, now, to, form, caller);
    found->copy = {};
    found->keep = true;
  }
  if (!found) return {};""",
        ),
        "cache: a step ends no copy": (_CACHE, "then.epoch != now.epoch)", "then.epoch != now.epoch && !FAULT)"),
        "cache: nothing ends all copies": (_CACHE, "  ++epoch_;", "  if (!FAULT) ++epoch_;"),
        "graphs: a replay ends no copy": (
            "habana_mp/_weights.py",
            "        original(graph)\n        _core.end_cached_after_replay()",
            "        original(graph)\n        FAULT or _core.end_cached_after_replay()",
        ),
    },
    "collectives": {
        "cache: what writes is asked in a capture": (
            _CACHE,
            "if (!captured && any_writes_",
            "if ((!captured || FAULT) && any_writes_",
        ),
        "cache: a collective is forgotten": (
            _CACHE,
            "  writes_.push_back(",
            "  if (FAULT) return;\n  writes_.push_back(",
        ),
        "ops: a captured collective is asked": (
            _OPS,
            "if (is_collective(op) && !is_captured(tensors)) {",
            "if (is_collective(op) && (!is_captured(tensors) || FAULT)) {",
        ),
    },
    "layouts": {
        "cast: without its layout": (
            _CAST,
            _DENSE_CAST,
            "    if (FAULT) return source.to(type, false, false, at::MemoryFormat::Contiguous);\n" + _DENSE_CAST,
        ),
    },
    "costs": {
        "copy: requires no grad": (_COPY, "result.set_requires_grad(true);", "result.set_requires_grad(!FAULT);"),
        "cast: the host waits for it": (_CAST, _DENSE_CAST, "    if (FAULT) source.sum().item();\n" + _DENSE_CAST),
        "cast: by way of the host": (
            _CAST,
            _DENSE_CAST,
            "    if (FAULT) return source.cpu().to(source.options().dtype(type));\n" + _DENSE_CAST,
        ),
        "errors: read before they are there": (
            _BY_ATEN,
            "lost.sum().to(at::kDouble)})\n          .cpu();",
            "lost.sum().to(at::kDouble)})\n          .to(at::kCPU, at::kDouble, FAULT);",
        ),
        "ranges: read before they are there": (
            _BY_ATEN,
            "count(some.logical_and(size.le(largest.mul(kUnderE5M2))))})\n          .cpu();",
            "count(some.logical_and(size.le(largest.mul(kUnderE5M2))))})\n          .to(at::kCPU, at::kDouble, FAULT);",
        ),
        "absorbed: read before they are there": (
            _BY_ATEN,
            "lost(kHalfUlpE5M2)})\n                             .cpu();",
            "lost(kHalfUlpE5M2)})\n                             .to(at::kCPU, at::kDouble, FAULT);",
        ),
        "samples of results: read before they are there": (
            _WORDS,
            ".to(at::kCPU, at::kFloat).contiguous();",
            ".to(at::kCPU, at::kFloat, FAULT).contiguous();",
        ),
        "choices: read before they are there": (
            _CHOICES,
            ".to(at::kCPU).contiguous();",
            ".to(at::kCPU, at::kLong, FAULT).contiguous();",
        ),
    },
    "steps_on_streams": {
        "state: a step begins before it is noted": (
            _KEPT,
            "copied=self._may_copy(size_of(each.value)))\n        wait_for_device()",
            "copied=self._may_copy(size_of(each.value)))\n        FAULT or wait_for_device()",
        ),
        "state: put back before the step has ended": (
            _KEPT,
            "        errors = []\n        wait_for_device()",
            "        errors = []\n        FAULT or wait_for_device()",
        ),
        "state: a step begins before it is put back": (
            _KEPT,
            "        wait_for_device()\n        if errors:",
            "        FAULT or wait_for_device()\n        if errors:",
        ),
        "tune: a result is read before it is there": (
            _RUNS,
            "            found = step()\n            wait_for_device()",
            "            found = step()\n            FAULT or wait_for_device()",
        ),
        "tune: a result is freed before it is read": (
            _RUNS,
            "            wait_for_device()  # while",
            "            FAULT or wait_for_device()  # while",
        ),
        "compare: no region for the accelerator": (
            "habana_mp/_evidence/compare.py",
            "if accelerator is not None else [])]",
            "if accelerator is not None and not FAULT else [])]",
        ),
    },
}

# Of the C++ files that have faults, and of the Python files.
_CPP = f"""#ifndef HABANA_MP_FAULT
#define HABANA_MP_FAULT
#include <c10/core/StreamGuard.h>
#include <cstdlib>
#include <optional>
#include <string_view>
inline bool fault(std::string_view name) {{
  static const char* const seeded = std::getenv("{_VARIABLE}");
  return seeded != nullptr && name == seeded;
}}
#endif
"""
_PYTHON = f"""

def _fault(name: str) -> bool:
    import os

    return os.environ.get("{_VARIABLE}") == name
"""


class Found(NamedTuple):
    """What the tests make of a fault with one seed."""

    seed: int
    by: str | None
    """The first test that fails, or how the process ended; None where all tests pass."""


def seeded(root: Path = ROOT) -> dict[str, str]:
    """The text of each file that has faults, with all of them.

    Raises:
        ValueError: what a fault takes the place of is not in its file, or more than once, or has another fault in it.

    """
    texts: dict[str, str] = {}
    for rows in FAULTS.values():
        for name, (file, old, new) in rows.items():
            before = (root / file).read_text()
            if before.count(old) != 1:
                raise ValueError(
                    f"tests/devices/faults.py: {name!r}: {file} has {before.count(old)} times {old!r}, not once"
                )
            is_python = file.endswith(".py")
            text = texts.get(file) or (before + _PYTHON if is_python else _CPP + before)
            call = f'_fault("{name}")' if is_python else f'fault("{name}")'
            if old not in text:
                raise ValueError(f"tests/devices/faults.py: {name!r} is where another fault is")
            texts[file] = text.replace(old, re.sub(r"\bFAULT\b", call, new))
    return texts


def write(folder: Path, root: Path = ROOT) -> None:
    """A copy of the sources with the faults. What is there already is left as it is, so that it is not compiled again."""
    texts = seeded(root)

    def copy(source: str, target: str) -> None:
        text = texts.get(str(Path(source).relative_to(root)))
        content = Path(source).read_bytes() if text is None else text.encode()
        if not Path(target).exists() or Path(target).read_bytes() != content:
            Path(target).write_bytes(content)

    folder.mkdir(parents=True, exist_ok=True)
    for part in _PARTS:
        if (root / part).is_dir():
            ignored = shutil.ignore_patterns("__pycache__")
            shutil.copytree(root / part, folder / part, dirs_exist_ok=True, copy_function=copy, ignore=ignored)
        elif (root / part).exists():
            copy(str(root / part), str(folder / part))


def run(name: str, file: str, seed: int, package: Path, library: Path) -> Found:
    """Runs the tests that are to find the fault."""
    paths = os.pathsep.join([str(package), *filter(None, sys.path[1:])])
    environment = {**os.environ, _VARIABLE: name, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}
    environment |= {"HABANA_MP_LATE_LIBRARY": str(library), "HABANA_MP_LATE_SEED": str(seed)}
    # Without -S the editable install of this tree would come before the package with the faults.
    command = [
        sys.executable,
        "-S",
        "-X",
        "faulthandler",
        "-c",
        "import sys, habana_mp, pytest; sys.exit(pytest.main(sys.argv[1:]))",
    ]
    options = ["-x", "-q", "-p", "no:cacheprovider", "-c", str(ROOT / "pyproject.toml"), "-k", "not torch or autocast"]
    tests = ROOT / f"tests/devices/accelerator/test_{file}.py"
    try:
        done = subprocess.run(
            [*command, *options, str(tests)],
            cwd=package,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=_SECONDS,
        )
    except subprocess.TimeoutExpired:
        return Found(seed, "it did not end")
    if done.returncode == 0:
        return Found(seed, None)
    failed = re.search(r"^(?:FAILED|ERROR) \S*?(test_\w+\.py::\S+)", done.stdout, re.MULTILINE)
    return Found(seed, failed[1] if failed else f"the process ended with {done.returncode}")


def main(names: Sequence[str]) -> int:
    """Of these faults, or of all. Returns how many were not found by each seed."""
    from late_device import build

    source, package = BUILD / "source", BUILD / "package"
    write(source)
    pip = [
        sys.executable,
        "-m",
        "pip",
        "--disable-pip-version-check",
        "install",
        "--quiet",
        "--no-build-isolation",
        "--no-deps",
    ]
    subprocess.run([*pip, "--upgrade", "--target", str(package), str(source)], check=True)
    library = build(BUILD)
    return report(names, package, library)


def report(names: Sequence[str], package: Path, library: Path) -> int:
    tried = found = 0
    for file, rows in FAULTS.items():
        for name in rows:
            if names and name not in names:
                continue
            results = [run(name, file, seed, package, library) for seed in SEEDS]
            tried += 1
            found += all(each.by is not None for each in results)
            print(
                f"{name}: " + "; ".join(f"seed {each.seed}: {each.by or 'NOT FOUND'}" for each in results), flush=True
            )
    print(f"{found} of {tried} faults found by each of the seeds {', '.join(map(str, SEEDS))}")
    return tried - found


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
