"""Programs that are compiled now and run elsewhere: torch.export, AOTInductor, and inductor's C++ wrapper and frozen weights."""

from __future__ import annotations

import collections
import contextlib
import copy
import itertools
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import torch
from torch import nn
from torch._inductor import config
from torch._inductor.utils import run_and_get_code

from habana_mp import hmp

pytestmark = pytest.mark.filterwarnings("ignore")  # torch's own
SIZE = 128
FRONT_ENDS = {
    "convert": lambda policy="hmp": hmp.convert(policy=policy) and contextlib.nullcontext(),
    "autocast": lambda policy=None: hmp.autocast("cpu", policy=policy),
}
front_ends = pytest.mark.parametrize("front_end", FRONT_ENDS.values(), ids=FRONT_ENDS)


@pytest.fixture(autouse=True)
def _revert():
    yield
    hmp.revert()


def linears() -> nn.Module:
    return nn.Sequential(nn.Linear(SIZE, SIZE), nn.ReLU(), nn.Linear(SIZE, SIZE)).eval()


def batch() -> torch.Tensor:
    return torch.randn(8, SIZE)


def run_python(program: str, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", program, *map(str, arguments)], check=False, capture_output=True, text=True
    )


# torch.export

LOAD = """
import sys, torch
imports, *paths = sys.argv[1:]
if imports: import habana_mp
for path in paths:
    try:
        program = torch.export.load(path).module()
    except Exception:  # torch warns why
        if path.endswith("grad.pt2"): raise
        print("refused")
        continue
    x, expected = torch.load(path + ".results")
    assert torch.equal(program(x), expected)
assert ("habana_mp" in sys.modules) == bool(imports)
"""


@pytest.mark.parametrize(
    ("imports", "refused"), [("yes", []), ("", ["refused"] * 2)], ids=["with habana_mp", "without"]
)
def test_exported_programs_elsewhere(imports, refused, tmp_path):
    """Without gradients they hold our ops, which the process that loads them needs. Four programs: each front end in each mode."""
    paths = []
    for name, front_end in FRONT_ENDS.items():
        for mode, title in ((torch.no_grad, "frozen"), (contextlib.nullcontext, "grad")):
            model, x, path = linears(), batch(), tmp_path / f"{name}-{title}.pt2"
            with front_end(), mode():
                torch.save((x, model(x).detach()), f"{path}.results")
                torch.export.save(torch.export.export(model, (x,)), path)
            hmp.revert()
            paths.append(path)
    done = run_python(LOAD, imports, *paths)
    assert (done.returncode, done.stdout.split()) == (0, refused), done.stderr
    for words in ("failed to resolve torch.ops.habana_mp.linear.default", "Please import the custom op"):
        assert (words in done.stderr) == bool(refused)


LISTS = ("lower", "weight_int8", "int8")
NUMBERS = """
import sys, torch
for path in sys.argv[1:]:
    program = torch.export.load(path).module()
    x, exact, limit = torch.load(path + ".results")
    error = ((program(x).float() - exact).norm() / exact.norm()).item()
    assert limit / 2 < error < limit * 1.25, (path, error, limit)
assert "habana_mp" not in sys.modules
"""


def test_decomposed_programs_need_no_habana_mp(tmp_path):
    """Casts, or roundings to 8 bits, and ops of torch take the place of each op of ours. Errors are near those of uncompiled code.

    Twelve programs: each list, front end and mode.
    """
    model, x, paths = linears().requires_grad_(False), batch(), []
    with torch.no_grad():
        exact = model(x)
    for title, (name, front_end), mode in itertools.product(
        LISTS, FRONT_ENDS.items(), (torch.no_grad, contextlib.nullcontext)
    ):
        path = tmp_path / f"{title}-{name}-{mode.__name__}.pt2"
        with front_end(hmp.Policy.from_ops(**{title: ["linear"]})), mode():
            error = ((model(x).float() - exact).norm() / exact.norm()).item()
            program = torch.export.export(model, (x,))
        hmp.revert()
        assert "habana_mp.linear" in str(program.graph)
        decomposed = program.run_decompositions()
        table = torch.export.default_decompositions()
        assert str(program.run_decompositions(table).graph) == str(decomposed.graph)
        assert "habana_mp" not in str(decomposed.graph)
        assert "habana_mp.linear" in str(program.run_decompositions({}).graph)
        torch.export.save(decomposed, path)
        torch.save((x, exact, error), f"{path}.results")
        paths.append(path)
    done = run_python(NUMBERS, *paths)
    assert done.returncode == 0, done.stderr


# AOTInductor

RUN = """
import sys, torch
for path in sys.argv[1:]:
    program = torch._inductor.aoti_load_package(path)
    x, weights, *expected = torch.load(path + ".results")
    torch.testing.assert_close(program(x), expected[0], rtol=2e-2, atol=2e-2)
    if "frozen" not in path:
        program.load_constants(weights, check_full_update=True)
        torch.testing.assert_close(program(x), expected[1], rtol=2e-2, atol=2e-2)
assert "habana_mp" not in sys.modules
"""


HOW = {
    "plain": {},
    "folded": {"aot_inductor.use_runtime_constant_folding": True},
    "frozen": {"freezing": True},
}
# A cast of a weight where the program runs, as the generated C++ spells it.
CAST_IN_RUN = r"cpp_fused__to_copy\w*\(.*\(const float\*\)\(constant_"


def test_a_program_of_aotinductor_needs_no_habana_mp(tmp_path):
    """It sees new weights, and casts them once where it folds constants."""
    model, x, hits = linears(), batch(), {}
    weights = {name: value * 2 for name, value in model.state_dict().items()}
    hmp.convert()
    with torch.no_grad():
        program = torch.export.export(model, (x,))
        assert "habana_mp.linear" in str(program.graph)
        expected = [model(x), torch.func.functional_call(model, weights, (x,))]
        for how, settings in HOW.items():
            path = tmp_path / f"{how}.pt2"
            torch._inductor.aoti_compile_and_package(program, package_path=str(path), inductor_configs=settings)
            torch.save((x, weights, *expected), f"{path}.results")
            with zipfile.ZipFile(path) as package:
                source = next(name for name in package.namelist() if name.endswith("wrapper.cpp"))
                code = package.read(source).decode()
            assert "habana_mp::" not in code
            hits[how] = len(re.findall(CAST_IN_RUN, code[code.index("::run_impl(") :]))
    assert hits == {"plain": 2, "folded": 0, "frozen": 0}
    done = run_python(RUN, *(tmp_path / f"{how}.pt2" for how in HOW))
    assert done.returncode == 0, done.stderr


def test_a_program_of_aotinductor_rounds_its_weights_to_8_bits(tmp_path):
    """New ones, too, where nobody imports habana_mp. One weight a row is so large that the others are 0 in 8 bits."""
    model, path = nn.Sequential(nn.Linear(SIZE, SIZE), nn.ReLU()).eval(), tmp_path / "int8.pt2"
    with torch.no_grad():
        model[0].weight[:, 0] = 1000
    x = batch().index_fill(1, torch.tensor(0), 0.0)
    weights = {name: value * 2 for name, value in model.state_dict().items()}
    hmp.convert(policy=hmp.Policy.from_ops(int8=["linear"]))
    with torch.no_grad():
        program, expected = torch.export.export(model, (x,)), model(x)
    hmp.revert()
    assert torch.equal(expected, model[0].bias.bfloat16().relu().expand(8, -1))
    torch._inductor.aoti_compile_and_package(program, package_path=str(path))
    torch.save((x, weights, expected, 2 * expected), f"{path}.results")
    done = run_python(RUN, path)
    assert done.returncode == 0, done.stderr


# Inductor's settings


def casts_in_two_calls(compiled, x) -> int:
    """Calls of the cache that cast."""
    compiled(x)
    before = hmp.cache.info()
    compiled(x)
    after = hmp.cache.info()
    return after.misses + after.refreshed - before.misses - before.refreshed


@front_ends
def test_the_cpp_wrapper_takes_weights_from_the_cache(front_end):
    model, x = linears(), batch()
    with front_end(), torch.no_grad():
        compiled = torch.compile(model, fullgraph=True, options={"cpp_wrapper": True})
        for factor in (1, 2):
            model[0].weight.mul_(factor)
            assert torch.equal(compiled(x), model(x))
        before = hmp.cache.info().hits
        assert casts_in_two_calls(compiled, x) == 0
        assert hmp.cache.info().hits == before + 4


def products(code: str) -> collections.Counter[str]:
    return collections.Counter(re.findall(r"(?:torch\.ops|extern_kernels)\.[\w.]+(?=\()", code))


@front_ends
def test_frozen_code_is_that_of_the_model_in_bfloat16(front_end):
    model, x = linears(), batch()
    held = copy.deepcopy(model).bfloat16()
    with torch.no_grad(), config.patch(freezing=True):
        _, (code_of_held,) = run_and_get_code(torch.compile(held, fullgraph=True), x.bfloat16())
        with front_end():
            expected = model(x)
            result, (code,) = run_and_get_code(torch.compile(model, fullgraph=True), x)
    torch.testing.assert_close(result, expected, rtol=2e-2, atol=2e-2)
    assert products(code) == products(code_of_held)
    assert "habana_mp" not in code
    assert re.findall(r"^ +(\S.*) = args$", code, re.MULTILINE) == ["arg4_1,"]  # the batch; four weights are gone


SETTINGS = {
    # torch.compile has read the weights before it reads its options.
    "options": (torch.no_grad, {"freezing": True}, False),
    "grad mode": (contextlib.nullcontext, None, True),
}


@front_ends
@pytest.mark.parametrize(("mode", "options", "in_config"), SETTINGS.values(), ids=SETTINGS)
def test_where_inductor_freezes_nothing_the_cache_is_used(front_end, mode, options, in_config):
    model, x = linears().requires_grad_(False), batch()
    with front_end(), mode(), config.patch(freezing=in_config):
        compiled = torch.compile(model, fullgraph=True, options=options)
        expected = model(x)
        result, (code,) = run_and_get_code(compiled, x)
        assert torch.equal(result, expected)
        assert code.count("torch.ops.habana_mp.linear.default(") == 2
        assert casts_in_two_calls(compiled, x) == 0
        with torch.no_grad():
            model[0].weight.mul_(2)
        assert torch.equal(compiled(x), model(x))
