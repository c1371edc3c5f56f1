"""The private names that the package relies on: habana_mp/_torch_private.py, src/base/torch_private.h and torch_private_python.h.

Each is what the package takes it for in the torch that is installed, and where it is missing its feature alone is off, and says so.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import json
import os
import re
import subprocess
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed._composable import checkpoint as composable_checkpoint
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

from habana_mp import _torch_private
from habana_mp._feature import Feature
from habana_mp._scope import checkpointing
from habana_mp._torch_private import CHECKPOINT, COMPOSABLE_CHECKPOINT

pytestmark = pytest.mark.xdist_group("torch_private")

ROOT = Path(__file__).parent.parent.parent
FEATURES = {name: value for name, value in vars(_torch_private).items() if isinstance(value, Feature)}
NAMES = [(feature, name) for feature, value in FEATURES.items() for name in value.paths]
OF_INSTANCES = [(feature, name) for feature, name in NAMES if "()" in FEATURES[feature].paths[name]]
OTHERS = [row for row in NAMES if row not in OF_INSTANCES]


def by_id(row: list[tuple[str, str]]) -> list[str]:
    return [".".join(each) for each in row]


def find(path: str) -> Any:
    module, _, name = path.partition("(")[0].partition(":")
    found: Any = importlib.import_module(module)
    for part in name.split("."):
        found = getattr(found, part)
    return found


# What is no function or class, and the first parameters of what is called or patched by their order.
TYPES = {
    "EXPORT.pre_dispatch": torch._C.DispatchKey,
    "EXPORT.parts": torch._C.DispatchKey,
    "WEIGHT_OPS.kernel": torch._C.DispatchKey,
    "COMPILE_FX.rounds": bool,
    "COMPILED_CALLS.kernels": object,
    "ROUND_TRIPS.patterns": dict,
    "COMPILED_GRAPHS.begins": list,
    "FASTPATH.enabled": bool,
    "HIGHER_ORDER_OPS.later_ones": list,
    "HIGHER_ORDER_OPS.all": dict,
    "FUNCTIONS.home": object,
    "VF.home": types.ModuleType,
    "LINALG.home": types.ModuleType,
    "FFT.home": types.ModuleType,
    "SPECIAL.home": types.ModuleType,
    "NN.home": types.ModuleType,
    "PADS.home": types.ModuleType,
    "MKLDNN.layout": torch.layout,
    "LOAD.registry": list,
    "TRACED_CODE.seen": list,
    "COPIES.shallow": dict,
    "COPIES.deep": dict,
    "HPU_BACKEND.names": dict,
    "HPU_BACKEND.by_name": dict,
}
PARAMETERS = {
    "HIGHER_ORDER_OPS.fall_through": ["self", "dispatch_key"],
    "EXPORT.handle": ["curr_mode", "op_overload"],
    "EXPORT.put_mode": ["mode"],
    "EXPORT.take_mode": [],
    "SET_POLICIES.map_tensors": ["type_or_types_or_pred", "func", "tree"],
    "MODULE_CALLS.call": ["self"],
    "SET_POLICIES.call": ["self"],
    "BACKWARD_TRACE.call": ["self"],
    "CHECKPOINT.generator": ["fn"],
    "OPTIMIZERS.hook": ["func"],
    "DTENSOR.in_redistribute": ["local_tensor"],
    "TRACE_RULES.look_up": ["obj"],
    "TRACE_RULES.methods": [],
    "HOOK_GUARDS.without_hooks": ["self", "guard"],
    "HOOK_GUARDS.length": ["self", "guard"],
    "COMPILE_FX.compile": ["model_", "example_inputs_", "inner_compile", "config_patches"],
    "COMPILE_FX.formulas": [],
    "NESTED_TRACES.trace": ["subgraph", "num_primals"],
    "ROUND_TRIPS.of_indices": ["self", "name", "args", "kwargs"],
    "ROUND_TRIPS.remember": ["self", "dst", "dst_dtype", "src", "src_dtype"],
    "ROUND_TRIPS.join": ["match", "arg", "dtype1", "dtype2"],
    "COMPILED_GRAPHS.number": [],
    "STORE.default": [],
    "DDP.exchange": ["process_group"],
    "MESH.set_up": ["self"],
    "CPU.avx512": [],
    "CPU.amx": [],
    "LOAD.restore": ["backend_name", "obj", "location"],
    "HPU_BACKEND.register": ["compiler_fn", "name"],
    "DEVICE_INDEX.of_cuda": ["device", "optional"],
    "ADAMW.init_group": ["self", "group"],
    "FRAMES_UP.parameter": ["obj", "optimize", "_frames_up"],
}


@pytest.mark.parametrize(("feature", "name"), OTHERS, ids=by_id(OTHERS))
def test_each_name_is_what_it_is_taken_for(feature: str, name: str) -> None:
    value = find(FEATURES[feature].paths[name])
    if feature == "CHECKPOINT":
        value = checkpointing._checkpoint_generator  # a region of another test may stand before it
    kind, parameters = TYPES.get(f"{feature}.{name}"), PARAMETERS.get(f"{feature}.{name}")
    assert callable(value) if kind is None else isinstance(value, kind)
    if parameters is not None:
        assert [*inspect.signature(value).parameters][: max(1, len(parameters))] == parameters


def composable(function: Callable[..., Any], x: torch.Tensor) -> Any:
    return composable_checkpoint(torch.nn.Sequential(Calls(function)))(x)


class Calls(torch.nn.Module):
    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: torch.Tensor) -> Any:
        return self.function(x)


CHECKPOINTED = {
    "checkpoint": lambda function, x: checkpoint(function, x, use_reentrant=False),
    "composable": composable,
}


@pytest.mark.parametrize("kind", CHECKPOINTED)
def test_torch_recomputes_by_the_generator_that_is_patched(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Having the name is not enough: torch 2.15 has the one of 2.14 too, and calls another."""
    owner, name = CHECKPOINT.place("generator")
    original, arguments = checkpointing._checkpoint_generator, []
    assert inspect.isgeneratorfunction(original), f"{CHECKPOINT.paths['generator']} is no generator"

    def seen(*args: Any, **kwargs: Any) -> Any:
        arguments.append(args[0])
        return original(*args, **kwargs)

    for holder in (owner, sys.modules[COMPOSABLE_CHECKPOINT]):
        monkeypatch.setattr(holder, name, seen)
    CHECKPOINTED[kind](torch.exp, torch.ones(1, requires_grad=True))
    assert len(arguments) == 1, f"torch.utils.checkpoint does not call {CHECKPOINT.paths['generator']}"
    assert callable(arguments[0])


PRE_DISPATCH = torch._C.DispatchKey.PreDispatch


def node_of(op: Callable[[torch.Tensor], torch.Tensor], shape: tuple[int, ...] = (1,)) -> Any:
    return op(torch.zeros(shape, requires_grad=True)).grad_fn


def convolution() -> Any:
    return node_of(lambda x: torch.nn.functional.conv1d(x, torch.zeros(1, 1, 1)), (1, 1, 3))


def timeout_options() -> Any:
    if not hasattr(torch.distributed, "ProcessGroupNCCL"):
        pytest.skip("this torch has no NCCL")
    return torch.distributed.ProcessGroupNCCL.Options()


def optimizer() -> torch.optim.Optimizer:
    return torch.optim.SGD([torch.zeros(1, requires_grad=True)])


def hooked() -> torch.Tensor:
    tensor = torch.zeros(1, requires_grad=True)
    tensor.register_hook(print)
    tensor.register_post_accumulate_grad_hook(print)
    return tensor


# Something that has the attribute, and what it holds.
INSTANCES: dict[str, tuple[Callable[[], Any], Callable[[Any], bool]]] = {
    "EXPORT.mode_key": (lambda: TorchDispatchMode(PRE_DISPATCH), lambda value: value == PRE_DISPATCH),
    "EXPORT.run_at": (lambda: torch.ops.aten.mm.default, callable),
    "EXPORT.schema": (lambda: torch.ops.aten.mm.default, lambda value: value.name == "aten::mm"),
    "EXPORT.overload": (lambda: torch.ops.aten.add.Tensor, lambda value: value == "Tensor"),
    "WEIGHT_OPS.run_at": (lambda: torch.ops.aten.mm.default, callable),
    "WEIGHT_OPS.schema": (lambda: torch.ops.aten.mm.default, lambda value: value.name == "aten::mm"),
    "HOOK_GUARDS.hooks": (lambda: torch.nn.Linear(1, 1), lambda value: len(value) == 0),
    "SET_POLICIES.before": (lambda: torch.nn.Linear(1, 1), lambda value: len(value) == 0),
    "SET_POLICIES.after": (lambda: torch.nn.Linear(1, 1), lambda value: len(value) == 0),
    "HOOKS.before_step": (optimizer, lambda value: len(value) == 0),
    "HOOKS.after_step": (optimizer, lambda value: len(value) == 0),
    "HOOKS.of_gradient": (hooked, lambda value: len(value) == 1),
    "HOOKS.after_gradient": (hooked, lambda value: len(value) == 1),
    "VERSION_OF.version": (lambda: torch.zeros(1).add_(1), lambda value: value == 1),
    "DRAW.results": (lambda: node_of(torch.exp), lambda value: value[0].dtype is torch.float32 and value[0].shape == [1]),
    "DRAW.born": (lambda: node_of(torch.exp), lambda value: isinstance(value(), int)),
    "DRAW.transposed": (convolution, lambda value: value is False),
    "NCCL.timeout": (timeout_options, lambda value: value.total_seconds() > 0),
}  # fmt: skip


@pytest.mark.parametrize(("feature", "name"), OF_INSTANCES, ids=by_id(OF_INSTANCES))
def test_each_attribute_holds_what_it_is_taken_for(feature: str, name: str) -> None:
    make, holds = INSTANCES[f"{feature}.{name}"]
    assert holds(FEATURES[feature].of(make(), name))


@pytest.mark.parametrize(("feature", "name"), OF_INSTANCES, ids=by_id(OF_INSTANCES))
def test_an_attribute_that_is_missing_is_told_with_what_is_lost(feature: str, name: str) -> None:
    known = FEATURES[feature]
    fresh = Feature(known.lost, **known.paths)
    attribute = known.paths[name].rpartition(".")[2]
    with pytest.raises(RuntimeError, match=rf" has no .*\.{attribute}: {re.escape(known.lost)}"):
        fresh.of(object(), name)
    with pytest.warns(UserWarning, match=rf" has no .*\.{attribute}: {re.escape(known.lost)}"):
        assert fresh.of(object(), name, None) is None


def test_the_mark_for_constants_is_that_of_torch() -> None:
    """``run_while_traced`` says what ``torch.compiler.assume_constant_result`` says."""

    def function() -> int:
        return 1

    torch.compiler.assume_constant_result(function)
    assert vars(function) == vars(_torch_private.run_while_traced(lambda: 1))


# Where a feature is used first; the words are in a warning there, or in the error.
REGION = "with hmp.autocast('cpu'): pass"
CONVERT = "pass"
USES = {
    "OWN_BACKEND": "with hmp.autocast('hpu'): pass",
    "DECORATORS": "hmp.disable_casts()(len); hmp.autocast('cpu')(len)\nasync def wait(): pass\nhmp.disable_casts()(wait)",
    "HIGHER_ORDER_OPS": REGION,
    "EXPORT": REGION,
    "SET_POLICIES": "hmp.set_policies(torch.nn.Linear(1, 1), {'': 'fp32'})",
    "FASTPATH": REGION,
    "CHECKPOINT": REGION,
    "PADS": "hmp.convert(policy=hmp.Policy.from_files(lower='/dev/stdin'))",
    "DTENSOR": "import torch.distributed.tensor; hmp.convert()",
    "FRAMES_UP": "torch.jit.script(torch.nn.ReLU())",
    "TRACE_RULES": "torch.compile(torch.nn.ReLU(), backend='eager')(torch.ones(1))",
    "DRAW": "hmp.draw(torch.ones(1, requires_grad=True) * 2)",
    "CPU": "hmp.explain('mm')",
    "LOAD": "from habana_mp._hpu.mapping import map_hpu; map_hpu('cpu')",
    "COPIES": "from habana_mp._hpu.mapping import map_hpu; map_hpu('cpu')",
}
PROGRAM = """
import contextlib, importlib, json, os, sys, warnings
import torch

def run(path, use):
    said = []
    warnings.showwarning = lambda message, *_: said.append(str(message))
    warnings.simplefilter("always")
    module, _, name = path.partition(":")
    owner = importlib.import_module(module)
    if name.endswith("(_frames_up)"):
        script = torch.jit._script._script_impl
        torch.jit._script._script_impl = lambda *args, **named: script(*args, **named)
    else:
        *parents, last = name.split(".")
        for parent in parents:
            owner = getattr(owner, parent)
        bases = [base for base in getattr(owner, "__mro__", ()) if last in vars(base)]
        delattr(bases[0] if bases else owner, last)
    import habana_mp
    from habana_mp import hmp
    from habana_mp import _torch_private
    feature = next(f for f in vars(_torch_private).values() if getattr(f, "lost", None) == lost)
    hmp.convert()
    dtype = torch.nn.functional.linear(torch.ones(2, 4), torch.ones(3, 4)).dtype
    if use:
        try:
            exec(use, {"hmp": hmp, "torch": torch})
        except Exception as error:
            said.append(str(error))
            if error.__cause__: said.append(str(error.__cause__))
    elif use is None:
        feature.works
    return {"dtype": str(dtype), "said": said}

for path, lost, use in json.load(sys.stdin):
    importlib.import_module(path.partition(":")[0])
    reads, writes = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            answer = run(path, use)
        except BaseException as error:
            answer = {"dtype": f"{type(error).__name__}: {error}", "said": []}
        with os.fdopen(writes, "w") as out:
            out.write(json.dumps(answer))
        os._exit(0)
    os.close(writes)
    with os.fdopen(reads) as answer:
        print(answer.read(), flush=True)
    os.waitpid(child, 0)
"""
"""``use`` None: what needs more than a line, or what torch itself cannot do without, is asked by ``works``, as its user does."""

# Without it Dynamo cannot be reset, which convert does where Dynamo is imported, and asking for the name imports it.
NEEDED_BY_DYNAMO = [("COMPILED_GRAPHS", "begins"), ("TRACED_CODE", "seen")]
COMPILERS = ("torch._dynamo", "torch._functorch", "torch._inductor")
# Those of compilers are last: their imports take seconds, and most programs convert without them.
REMOVED = sorted(
    (
        (feature, name)
        for feature, name in OTHERS
        if not FEATURES[feature].paths[name].startswith(("accelerate",)) and (feature, name) not in NEEDED_BY_DYNAMO
    ),
    key=lambda row: FEATURES[row[0]].paths[row[1]].startswith(COMPILERS),
)


def test_one_worker_runs_this_file(request: pytest.FixtureRequest) -> None:
    """pytest-xdist 3.8 forgets its groups under pytest 9.2: each worker then made the fixtures of all files that are one."""
    assert "PYTEST_XDIST_WORKER" not in os.environ or request.node.nodeid.endswith("@torch_private")


@pytest.fixture(scope="module")
def without_each(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, str], dict[str, Any]]:
    """What a process says that lacks one of the names: each is a fork of one that has imported torch, and what the names up to it are in."""
    reflect = tmp_path_factory.mktemp("lists") / "lower.txt"
    reflect.write_text("reflection_pad1d\nlinear\n")
    uses = USES | {"PADS": f"hmp.convert(bf16_file_path={str(reflect)!r})"}
    rows = [(FEATURES[feature].paths[name], FEATURES[feature].lost, uses.get(feature)) for feature, name in REMOVED]
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], input=json.dumps(rows), capture_output=True, text=True, cwd=ROOT, check=False
    )
    lines = done.stdout.splitlines()
    assert len(lines) == len(rows), done.stderr
    return {row: json.loads(line) for row, line in zip(REMOVED, lines, strict=True)}


@pytest.mark.timeout(900)
@pytest.mark.parametrize(("feature", "name"), REMOVED, ids=by_id(REMOVED))
def test_without_a_name_its_feature_alone_is_off(
    feature: str, name: str, without_each: dict[tuple[str, str], dict[str, Any]]
) -> None:
    answer = without_each[feature, name]
    assert answer["dtype"] == "torch.bfloat16"
    path = FEATURES[feature].paths[name].replace(":", ".").replace("()", "")
    root = f"torch {torch.__version__}" if path.startswith("torch") else "Python 3"
    words = [text for text in answer["said"] if path in text and f": {FEATURES[feature].lost}" in text]
    assert words, answer["said"]
    assert root in words[0]


def of_torch(node: ast.AST) -> bool:
    """Whether an expression begins with a module of torch or of CPython."""
    while isinstance(node, (ast.Attribute, ast.Call)):
        node = node.value if isinstance(node, ast.Attribute) else node.func
    return isinstance(node, ast.Name) and node.id in {"torch", "dist", "F", "_nn_module", "sys", "copy", "super"}


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.endswith("__")


def private_names_in(tree: ast.AST, known: set[str]) -> set[str]:
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and is_private(node.attr) and (of_torch(node.value) or node.attr in known):
            found.add(node.attr)
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            module = [] if isinstance(node, ast.Import) else [node.module or ""]
            names = [part for alias in node.names for part in (*module, alias.name)]
            # Of the package itself too: its modules say with their names that they are private.
            if not any(name.startswith("habana_mp") for name in names):
                found |= {name for name in names if any(map(is_private, name.split("."))) and name != "__future__"}
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and re.fullmatch(r"[\w.:]+", node.value):
            text = node.value
            if text in known or re.match(r"torch[\w.]*[.:]_[a-z]", text):
                found.add(text)
    return found


# Attributes of instances and of modules that are private to torch, wherever they are read.
KNOWN = {re.split(r"[.:(]", path.rstrip(")"))[-1] for value in FEATURES.values() for path in value.paths.values()}
FILES = [path for path in (ROOT / "habana_mp").rglob("*.py") if path.name != "_torch_private.py"]


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_other_file_names_what_is_private(path: Path) -> None:
    # What torch.load asks torch.hpu for, and modules of Python.
    ours = {
        "torch_hpu.py": {"_get_device_index"},
        "_loading.py": {"_interpreters", "_xxsubinterpreters"},
    }.get(path.name, set())
    private = {name for name in KNOWN if is_private(name)}
    assert private_names_in(ast.parse(path.read_text()), private) - ours == set()


def test_what_is_private_is_found() -> None:
    program = "import torch\nfrom torch._ops import x\ntorch._C._nn.pad\nnode._sequence_nr()\nname = 'torch._dynamo'\nself._own"
    assert private_names_in(ast.parse(program), {"_sequence_nr"}) == {
        "torch._ops", "_C", "_nn", "_sequence_nr", "torch._dynamo"
    }  # fmt: skip


# What src/base/torch_private.h and torch_private_python.h name, and a test that fails where it is not what it is taken for.
OF_CPP = {
    "TESTING_ONLY_": "autocast/test_autocast_agreement.py",
    "AutocastIPU": "scope/test_disable_casts.py",
    "AutocastXLA": "autocast/test_set_policies.py",
    "AutocastMAIA": "autocast/test_autocast_scope.py",
    "AutocastMTIA": "autocast/test_autocast_scope.py",
    "->is_wrapped_number": "autocast/test_autocast.py",
    "pyobj_slot": "weights/test_cache.py",
    "sizeof(c10::VariableVersion)": "weights/test_cache.py",
    "shallow_copy_and_detach": "weights/test_cache.py",
    "empty_strided_generic": "cast/test_cast_results.py",
    "VirtualGuardImpl": "weights/test_cache.py",
    "is_current_stream_capturing": "weights/test_cache.py",
    "FakeTensor": "report/test_report.py",
    "FunctionalTensor": "report/test_report.py",
    "::ToCopyBackward0": "cast/test_cast_node.py",
    "unsafe_steal_from_new": "cast/test_cast_node.py",
    "deleteNode": "cast/test_cast_node.py",
    "_initFunctionPyTypeObject": "cast/test_cast_node.py",
    "registerCppFunction": "cast/test_cast_node.py",
    '"PyNode"': "evidence/choices/test_untouched.py",
    '"CppFunction"': "evidence/choices/test_choices.py",
    "SavedTensorDefaultHooks": "evidence/choices/test_untouched.py",
    "get_current_graph_task_id": "autocast/test_autocast_training.py",
    "get_current_node": "evidence/test_compare.py",
    "AccumulateGrad*": "evidence/test_compare.py",
    "getStepCallbacksUnlessEmpty": "cast/test_casts.py",
    "ThreadLocalPythonObjects": "evidence/rerun/test_threads.py",
    "TorchDispatchModeTLS": "report/test_report.py",
    "torch_function_mode_enabled": "convert/programs/test_modes.py",
    "_ZN3c106DeviceC1": "hpu/test_hpu_device.py",
    "realSingleton": "hpu/test_hpu_compile.py",
    "_PyType_Lookup": "convert/programs/test_subclasses.py",
    "PyFunctionObject": "convert/test_convert_interrupts.py",
}
PLACES = [ROOT / "src/base" / name for name in ("torch_private.h", "torch_private_python.h")]
SOURCES = [path for path in (ROOT / "src").rglob("*") if path.is_file() and path not in PLACES]


@pytest.mark.parametrize("name", OF_CPP)
def test_a_private_name_of_libtorch_stands_once(name: str) -> None:
    assert any(name in path.read_text() for path in PLACES)
    assert [str(path.relative_to(ROOT)) for path in SOURCES if name in path.read_text()] == []
    assert (ROOT / "tests" / OF_CPP[name]).exists()


def test_no_source_uses_what_libtorch_and_cpython_call_private() -> None:
    private = re.compile(r"\b_Py[A-Z]\w+|\b(?:at|c10|torch)::(?:\w+::)*(?:detail|internal)::\w+|\bTESTING_ONLY_\w+")
    found = {str(path.relative_to(ROOT)): private.findall(path.read_text()) for path in SOURCES}
    assert {path: names for path, names in found.items() if names} == {}
