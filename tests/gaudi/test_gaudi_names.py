"""The names that published scripts for Gaudi import or call, each as such a script uses it; counts are of Model-References, 1.2 to 1.23.

What can be imported is a property of the process, so all of them run in one interpreter of their own.
"""

from __future__ import annotations

import json
import subprocess
import sys
from textwrap import dedent

import pytest

pytestmark = pytest.mark.xdist_group("gaudi_names")

HT = "habana_frameworks.torch"
MODEL = "import torch; model = torch.nn.Linear(2, 2); x = torch.ones(1, 2)"
# id -> statements, and what is then true
NAMES = {
    "graphs-16": (f"{MODEL}; import {HT}.hpu.graphs as g", "g.wrap_in_hpu_graph(model, asynchronous=True, max_graphs=4) is model"),
    "graphs-cacher": (
        f"{MODEL}; import {HT}.hpu.graphs as g; made = g.ModuleCacher(max_graphs=10)(model=model, inplace=True, have_grad_accumulation=True)",
        "made is model and model.set_iteration_count(1) is None and made(x).shape == (1, 2)",
    ),
    "graphs-cacher-plain": (
        f"{MODEL}; import {HT} as ht; before = dict(vars(model)); ht.hpu.ModuleCacher()(model)",
        "vars(model) == before",
    ),
    "graphs-cacher-lfu": (
        f"{MODEL}; import {HT} as ht; ht.hpu.ModuleCacher()(model, True)",
        "model.capture_start() is model.capture_end() is None",
    ),
    "graphs-cacher-positional": (f"{MODEL}; import {HT} as ht", "ht.hpu.ModuleCacher()(model, allow_unused_input=True) is model"),
    "graphs-callables": (f"{MODEL}; import {HT} as ht", "ht.hpu.make_graphed_callables(model, (x,)) is model"),
    "graphs-function": (f"import {HT} as ht", "ht.hpu.wrap_in_hpu_graph_func(len) is len"),
    "hpu-wrap": (f"{MODEL}; from {HT}.hpu import wrap_in_hpu_graph", "wrap_in_hpu_graph(model) is model"),
    "HPUGraph-13": (f"import {HT} as ht, torch", "ht.hpu.HPUGraph is torch.hpu.HPUGraph is ht.hpu.graphs.HPUGraph"),
    "core.hpu-13": (f"import {HT} as ht", "ht.core.hpu.default_stream().synchronize() is None"),
    "dynamic-shape-12": (f"import {HT}.hpu as h", "h.enable_dynamic_shape() is None and h.disable_dynamic_shape() is None"),
    "gpu-migration-9": (f"import {HT}.gpu_migration; import torch", "torch.cuda.is_available() is False"),
    "hpu_initialize-7": (f"{MODEL}; import {HT}.core as c", "c.hpu_initialize(model, mark_only_scales_as_const=True) is model"),
    "hpu_set_env-6": (f"{MODEL}; import {HT}.core as c", "c.hpu_set_env() is None and c.hpu_set_env(model) is model"),
    "hpu_set_inference_env": (f"{MODEL}; import {HT}.core as c", "c.hpu_set_inference_env(model=model) is model"),
    "hpu_inference_initialize": (
        f"{MODEL}; import {HT}.core as c",
        "hasattr(c, 'hpu_inference_initialize') and c.hpu_teardown_inference_env() is None",
    ),
    "compiled-autograd-5": (
        f"from {HT}.dynamo.compile_backend.experimental import enable_compiled_autograd",
        "enable_compiled_autograd() is None",
    ),
    "compile-backend": (
        f"{MODEL}; import {HT}.dynamo.compile_backend, warnings; warnings.simplefilter('ignore')",
        "torch.compile(model, backend='aot_hpu_training_backend') is not None",
    ),
    "setDeterministic-5": (f"import {HT}.hpu as h, torch", "h.setDeterministic(True) is torch.hpu.setDeterministic(True)"),
    "hpu.memory-4": (f"import {HT} as ht, torch", "ht.hpu.memory.memory_stats()['MaxInUse'] > 0 < torch.hpu.memory.memory_allocated()"),
    "core.enable-4": (f"import {HT}.core as c", "c.enable() is c.remove_inplace_ops() is None"),
    "debug-layout": (f"import {HT}.utils.debug as d", "d._is_enabled_synapse_layout_handling() is True"),
    "debug-switches": (
        f"import {HT}.utils.debug as d; from {HT}.utils.debug import _enable_conv_bn_fusion",
        "d._enable_weight_permute(False) is d._disable_all() is _enable_conv_bn_fusion(True) is None",
    ),
    "passes": (
        f"import {HT}.core as c, {HT}.utils.debug as d",
        "{f() for m in (c, d) for f in (m.enable_weight_permute_pass, m.enable_fuse_t_mm_optimization)} == {None}",
    ),
    "sdp_kernel": (f"{MODEL}; import {HT}.hpu as h\nwith h.sdp_kernel(enable_recompute=True): y = model(x)", "y.shape == (1, 2)"),
    "transformer-engine-3": (
        (f"{MODEL}; import {HT}.hpex.experimental.transformer_engine as te; from {HT}.hpex.experimental.transformer_engine import recipe\n"
        "with te.fp8_autocast(enabled=True, fp8_recipe=recipe.DelayedScaling(fp8_format=recipe.Format.HYBRID)):\n"
        "    y = te.Linear(2, 3, bias=True)(x)"),
        "y.shape == (1, 3) and y.dtype == torch.float32 and te.recipe.Format is recipe.Format",
    ),
    "transformer-engine-weights": (
        (f"{MODEL}; import {HT}.hpex.experimental.transformer_engine as te\n"
        "made = te.Linear(2, 2, skip_weight_param_allocation=True); made.weight, made.bias = model.weight, model.bias"),
        "torch.equal(made(x), model(x))",
    ),
    "device-count": (f"import {HT}.core as c", "c.get_device_count() == 1"),
    "quantization": (
        f"{MODEL}; from {HT}.core.quantization import _mark_params_as_const, _check_params_as_const",
        "_mark_params_as_const(model) is _check_params_as_const(model) is None",
    ),
    "quantization-env": (f"{MODEL}; import {HT}.core as c", "c.quantization.hpu_set_inference_env() is None"),
    "default-generators": (f"import {HT}.hpu.random as r, torch", "r.default_generators[0] is torch.default_generator"),
    "is_habana_avaialble": (f"from {HT}.utils.library_loader import is_habana_avaialble as a", "a() is True"),
    "is_lazy": (f"import {HT} as ht", "ht.utils.internal.is_lazy() is False"),
    "is_lazy-F203": (
        (f"import os, {HT} as ht, {HT}.core as c; found = []\nfor mode in '102':\n"
        "    os.environ['PT_HPU_LAZY_MODE'] = mode; found += [ht.utils.internal.is_lazy(), c.is_lazy()]\ndel os.environ['PT_HPU_LAZY_MODE']"),
        "found == [True, True, False, False, False, False]",
    ),
    "step_closure": (f"import {HT}.core as c", "c.step_closure._mark_step_if_lazy() is None"),
    "distributed_utils-BART": (
        f"from {HT}.utils.distributed_utils import initialize_distributed_hpu as one; from {HT}.distributed.hccl import initialize_distributed_hpu as two",
        "one is two",
    ),
    "recompilation": (
        f"{MODEL}; from {HT}.utils.experimental import detect_recompilation_auto_model as detect; made = detect(model, waiting_time=2)",
        "made is model and model.analyse_dynamicity() is None",
    ),
    "profiler-memory": (f"import {HT}.utils.experimental as e", "e._set_profiler_tracer_memory(0) is None"),
    "experimental.hpu": (f"import {HT}.utils.experimental as e", "e.hpu.is_available() and e.hpu.device_count() == 1"),
    "Greco": (f"import {HT}.utils.experimental as e", "e._get_device_type() != e.synDeviceType.synDeviceGreco"),
    "graph-passes": (f"import {HT}.core as c", "c.enable_eliminate_common_subexpression(True) is c.enable_constant_pooling(True) is None"),
    "const-section": (f"import {HT}.hpu as h", "h.enable_const_section_serialization('folder', True, True) is None"),
    "hpu.hpu": (f"import {HT}.hpu as h; import {HT}.hpu.hpu", "h.hpu.memory_stats('hpu')['Limit'] > 0"),
    "metrics": (
        (f"from {HT}.hpu.metrics import metric_global, metric_localcontext; import {HT} as ht\n"
        "with metric_localcontext('cpu_fallback') as local: pass"),
        "metric_global('graph_compilation').stats()[0] == local.stats()[0] == ('TotalNumber', 0) and ht.hpu.metrics.metrics_dump() is None",
    ),
    "autocast-state": (
        f"import {HT}.hpu as h, torch\nwith torch.autocast('hpu'): inside = h.is_autocast_hpu_enabled(), h.get_autocast_hpu_dtype()",
        "inside == (True, torch.bfloat16) and not h.is_autocast_hpu_enabled()",
    ),
    "teardown": (f"import {HT}.core as c", "c.quantization.hpu_teardown_inference_env() is None"),
    "transformer-engine-fp8": (
        f"{MODEL}; import {HT}.hpex.experimental.transformer_engine as te; import {HT}.hpex.experimental.transformer_engine.fp8 as fp8",
        "fp8.is_fp8_available() == te.fp8.is_fp8_available() == (True, '')",
    ),
    "transformer-engine-distributed": (
        f"{MODEL}; import {HT}.hpex.experimental.transformer_engine as te",
        "torch.equal(te.distributed.activation_checkpointing()(model)(x), model(x))",
    ),
    "Fp8Ops": (
        f"from {HT}.hpex.kernels.Fp8Ops import cast_to_fp8_v2; import torch",
        "cast_to_fp8_v2(torch.ones(2), None, False, False)[0].dtype == torch.float8_e5m2",
    ),
    "torch.ops.hpu-without-an-import": ("import torch", "callable(torch.ops.hpu.optimizer_lamb_fused_norm)"),
    "torch.ops.hpu-others": ("import torch", "not hasattr(torch.ops.hpu, 'tape')"),
    "fp16": (f"import {HT}.utils.experimental as e", "e._is_fp16_supported() is True"),
    "profiler": ("import torch", "torch.profiler.ProfilerActivity.HPU is not None"),
    "graph-with": (f"import {HT} as ht", "callable(ht.hpu.graph)"),
    "inference-mode": (f"import {HT}.hpu as h", "h.enable_inference_mode() is h.enable_quantization() is None"),
}  # fmt: skip

EACH = """
    import json, sys
    import habana_mp.gaudi
    results = {}
    for case, (statements, value) in json.loads(sys.stdin.read()).items():
        names = {}
        try:
            exec(statements, names)
            results[case] = str(eval(value, names))
        except Exception as error:
            results[case] = f"{type(error).__name__} {error}"
    print(json.dumps(results))
"""


@pytest.fixture(scope="module")
def results() -> dict[str, str]:
    command = [sys.executable, "-W", "error", "-c", dedent(EACH)]
    done = subprocess.run(command, input=json.dumps(NAMES), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("case", NAMES)
def test_does_what_its_scripts_need(results: dict[str, str], case: str) -> None:
    assert results[case] == "True"


# What an inference script in the manner of the published ones does, before it makes its model and after.
INFERENCE = """
    import sys
    import torch
    import habana_frameworks.torch as ht
    import habana_frameworks.torch.core as htcore
    import habana_frameworks.torch.hpu.graphs as htgraphs
    from habana_frameworks.torch.dynamo.compile_backend.experimental import enable_compiled_autograd

    if "--hmp" in sys.argv:
        from habana_frameworks.torch.hpex import hmp
        hmp.convert()
    enable_compiled_autograd()
    activities = [torch.profiler.ProfilerActivity.HPU]
    torch.manual_seed(0)
    model = htcore.hpu_set_inference_env(torch.nn.Linear(4, 2).eval()).to("hpu")
    htcore.hpu_initialize(model)
    model = htgraphs.wrap_in_hpu_graph(model)
    x = torch.ones(1, 4).to("hpu")

    graph, stream = ht.hpu.HPUGraph(), ht.hpu.Stream()
    with torch.no_grad(), ht.hpu.stream(stream):
        graph.capture_begin()
        y = model(x)
        graph.capture_end()
    first = y.clone()
    x.copy_(torch.full((1, 4), 2.0))
    graph.replay()
    ht.core.mark_step()
    ht.core.hpu.default_stream().synchronize()
    print(y.dtype, torch.equal(y, model(x)), torch.equal(y, first))
"""


@pytest.mark.parametrize("argument", ["", "--hmp"])
def test_an_inference_script(tmp_path, argument: str) -> None:
    script = tmp_path / "inference.py"
    script.write_text(dedent(INFERENCE))
    command = [sys.executable, "-W", "error", "-m", "habana_mp", "run", script, *filter(None, [argument])]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stdout.strip() == f"torch.{'bfloat16' if argument else 'float32'} True False", done.stderr
