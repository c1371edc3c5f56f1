"""Functions of Habana's package that switch the device, its graphs or its compiler: what each did there. Here they do nothing.

They take any arguments. `habana-mp doctor` prints this table.
"""  # (F213, F220, F229)

from __future__ import annotations

import contextlib
import fnmatch
import functools
import os
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

FIRST = object()  # returned: the first argument, which is a model


class Switch(NamedTuple):
    """``modules`` and ``names`` are separated by spaces; a name that ends in * stands for all that begin so. ``returns`` is what a call gives
    here, or a function that computes it and says so in its docstring.
    """

    modules: str
    names: str
    on_gaudi: str
    returns: Any = None


def _is_lazy() -> bool:
    """whether PT_HPU_LAZY_MODE is 1"""
    return os.environ.get("PT_HPU_LAZY_MODE") == "1"


class _Unchanged(contextlib.nullcontext[None], contextlib.ContextDecorator):
    """a ``with`` statement or decorator that changes nothing"""


_PERMUTES = "returns whether the device permutes the weights of convolutions; if not, scripts do it"
_CONSTANTS = "treats parameters as constants in graphs"
_STEP = "runs the operations gathered so far"
_FP8 = "fp8_autocast activation_checkpointing"
_HAS_FP8 = "returns whether the device has 8-bit floats, and why not"
_IN_FP8 = "computes in 8-bit floats, or scales what is recomputed, in a `with` statement"
_ENGINE = "hpex.experimental.transformer_engine"
_PASSES = "switches passes over graphs on or off"

SWITCHES = (
    Switch("core", "mark_step", _STEP),
    Switch("core", "enable remove_inplace_ops", "makes TorchScript graphs ready for the device"),
    Switch("core", "hpu_set_env", "prepares for inference", FIRST),
    Switch("core core.quantization", "hpu_set_inference_env hpu_inference_set_env", "prepares for inference", FIRST),
    Switch("core core.quantization", "hpu_initialize hpu_inference_initialize", _CONSTANTS, FIRST),
    Switch("core core.quantization", "hpu_teardown_inference_env hpu_inference_reset_env", "undoes hpu_set_env"),
    Switch("core core.quantization", "hpu_reset_env", "undoes hpu_set_env"),
    Switch("core", "is_enabled_weight_permute_pass", _PERMUTES, True),
    Switch("core utils.debug", "enable_weight_permute_pass enable_fuse_t_mm_optimization", _PASSES),
    Switch("core", "enable_eliminate_common_subexpression enable_constant_pooling", _PASSES),
    Switch("core utils.internal", "is_lazy", "returns whether operations are gathered into graphs", _is_lazy),
    Switch("core.step_closure", "_mark_step_if_lazy", _STEP),
    Switch("core.quantization", "_mark_params_as_const _check_params_as_const", _CONSTANTS),
    Switch("dynamo.compile_backend.experimental", "enable_compiled_autograd", "compiles backward passes, too"),
    Switch(_ENGINE, "fp8_autocast", "computes in 8-bit floats, in a `with` statement", _Unchanged),
    Switch(f"{_ENGINE}.fp8", _FP8, _IN_FP8, _Unchanged),
    Switch(f"{_ENGINE}.fp8", "is_fp8_available", _HAS_FP8, (True, "")),
    Switch(f"{_ENGINE}.distributed", _FP8, _IN_FP8, _Unchanged),
    Switch(f"{_ENGINE}.distributed", "is_fp8_available", _HAS_FP8, (True, "")),
    Switch("hpu", "enable_dynamic_shape disable_dynamic_shape", "lets graphs take tensors of any shape"),
    Switch("hpu", "enable_inference_mode disable_inference_mode", "optimizes graphs for inference"),
    Switch("hpu", "enable_const_section_serialization", "writes the constants of graphs to files"),
    Switch("hpu", "enable_quantization disable_quantization", "runs quantized graphs"),
    Switch("hpu", "setDeterministic", "takes kernels that are deterministic; see torch.use_deterministic_algorithms"),
    Switch("hpu", "sdp_kernel", "chooses how attention saves memory, in a `with` statement", _Unchanged),
    Switch("hpu", "init", "makes the device ready"),
    Switch("hpu", "is_initialized is_bf16_supported", "returns whether the device is ready, and has bfloat16", True),
    Switch(
        "hpu hpu.graphs",
        "wrap_in_hpu_graph wrap_in_hpu_graph_func make_graphed_callables",
        "records the operations of a model once and runs them again without Python",
        FIRST,
    ),
    Switch("hpu.metrics", "metrics_dump metrics_dump_and_reset", "writes how often graphs were compiled to a file"),
    Switch("utils.debug", "_is_enabled_synapse_layout_handling _is_enabled_weight_permute_pass", _PERMUTES, True),
    Switch("utils.debug", "_enable_* _disable_*", _PASSES),
    Switch("utils.experimental", "_set_profiler_tracer_memory", "says how much memory the profiler may take"),
    Switch("utils.experimental", "_is_fp16_supported", "returns whether the device has float16", True),
    Switch(
        "utils.library_loader", "is_habana_available is_habana_avaialble", "returns whether there is a device", True
    ),
    Switch("utils.library_loader", "load_habana_module", "loads the libraries that register the device"),
)


def said_of(switch: Switch) -> str:
    """What a switch does here."""
    if switch.returns is FIRST:
        return "nothing; it returns the model"
    if callable(switch.returns):
        return f"it returns {switch.returns.__doc__}"
    return f"it returns {switch.returns}" if isinstance(switch.returns, (bool, tuple)) else "nothing"


def names_of(module: str) -> Iterator[str]:
    """The names in a module, without those that stand for others."""
    for switch in SWITCHES:
        if module in switch.modules.split():
            yield from (name for name in switch.names.split() if "*" not in name)


@functools.cache
def switch_named(module: str, name: str) -> Callable[..., Any] | None:
    """The function for a name of a module below ``habana_frameworks.torch``; None where that is no switch."""
    for each in SWITCHES:
        if module in each.modules.split() and any(fnmatch.fnmatchcase(name, pattern) for pattern in each.names.split()):
            return _function(each, name)
    return None


def _function(switch: Switch, name: str) -> Callable[..., Any]:
    def function(*args: Any, **kwargs: Any) -> Any:
        if callable(switch.returns):
            return switch.returns()
        if switch.returns is not FIRST:
            return switch.returns
        return args[0] if args else next(iter(kwargs.values()), None)

    function.__name__ = function.__qualname__ = name
    function.__doc__ = f"Do nothing. On Gaudi: {switch.on_gaudi}."
    return function
