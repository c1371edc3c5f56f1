"""The private names of torch that this package relies on, by the feature that needs them; src/base/torch_private.h has those of C++.

Nothing else in the package writes one (tests/project/test_torch_private.py). Where torch has a name no more, the feature that needs it is
off (habana_mp/_feature.py). tests/project/test_what_stays.py lists what of torch stays changed after ``revert``.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import TYPE_CHECKING, Any, TypeVar

import torch

from habana_mp._feature import Feature, the_generator

_F = TypeVar("_F", bound=Callable[..., Any])
VERSION = tuple(map(int, torch.__version__.split(".")[:2]))


# Regions of autocast

# The name of a device type that somebody else has registered.
OWN_BACKEND = Feature(
    "hmp.autocast knows a device type of your own as 'privateuseone' alone",
    name="torch._C:_get_privateuse1_backend_name",
)
# How torch decorates functions and generators; context_decorator is for coroutines.
DECORATORS = Feature(
    "hmp.autocast and hmp.disable_casts decorate no functions",
    with_arguments="torch.utils._contextlib:_DecoratorContextManager",
    without_arguments="torch.utils._contextlib:_NoParamDecoratorContextManager",
    in_steps="torch.utils._contextlib:context_decorator",
)
# Higher-order ops refuse a dispatch key that they do not know.
HIGHER_ORDER_OPS = Feature(
    "torch.cond and flex_attention raise in regions of hmp.autocast",
    key="torch._C:_dispatch_key_parse",
    fall_through="torch._ops:HigherOrderOperator.fallthrough",
    later_ones="torch._ops:_HIGHER_ORDER_OP_DEFAULT_FALLTHROUGH_DISPATCH_KEYS",
    all="torch._ops:_higher_order_ops",
)
# The modes of make_fx see an op before the dispatcher does.
EXPORT = Feature(
    "torch.export records no casts of hmp.autocast, and under convert none inside compound ops",
    handle="torch._library.utils:handle_dispatch_mode",
    mode_key="torch.utils._python_dispatch:TorchDispatchMode()._dispatch_key",
    pre_dispatch="torch._C:DispatchKey.PreDispatch",
    parts="torch._C:DispatchKey.CompositeImplicitAutograd",
    key="torch._C:_dispatch_key_parse",
    included="torch._C:_dispatch_tls_is_dispatch_key_included",
    excluded="torch._C:_dispatch_tls_is_dispatch_key_excluded",
    put_mode="torch._ops:_set_mode_pre_dispatch",
    take_mode="torch._ops:_pop_mode_from_pre_dispatch",
    run_at="torch._ops:OpOverload()._op_dk",
    schema="torch._ops:OpOverload()._schema",
    overload="torch._ops:OpOverload()._overloadname",
    leaves="torch.utils._pytree:tree_leaves",
)
# Before torch 2.13 the exporter to ONNX calls an op, and takes what its modes see first for the op.
ONNX_PROMOTION = "torch.onnx._internal.fx.passes.type_promotion"
ONNX_OVERLOADS = (
    Feature(
        "torch.onnx.export raises in regions of hmp.autocast where an op takes a number",
        find=f"{ONNX_PROMOTION}:find_compatible_op_overload",
        keys="torch._C:DispatchKeySet",
        key="torch._C:_dispatch_key_parse",
        without="torch._C:_ExcludeDispatchKeyGuard",
    )
    if VERSION < (2, 13)
    else None
)
# Up to torch 2.12 the keys hold whether autocast is on, and not the dtypes.
AOT_CACHE = "torch._functorch._aot_autograd.autograd_cache"
AOT_CACHE_KEYS = Feature(
    "torch.compile may take a graph of another policy from its cache",
    key=f"{AOT_CACHE}:AOTAutogradCacheDetails",
    devices="torch._C:_autocast_supported_devices",
)
# What Dynamo does when its trace ends.
TRACE_END = Feature(
    "a region of hmp.autocast cannot be entered in compiled code",
    translator="torch._dynamo.symbolic_convert:InstructionTranslator",
)
# What every call of a module passes.
MODULE_CALLS = Feature(
    "torch.autocast(enabled=False) inside a module leaves the casts of hmp.convert on, hmp.set_policies does not work, and reports know no modules",
    call="torch.nn:Module._call_impl",
)
# Dynamo traces the backward pass of an autograd.Function where its forward is called.
BACKWARD_TRACE = Feature(
    "a backward pass of torch.amp.custom_bwd is compiled without the casts of hmp.convert",
    call="torch._dynamo.variables.higher_order_ops:AutogradFunctionApplyVariable.trace_backward_graph",
)
# Where higher-order ops trace their functions once more.
BACKWARD_TRACES = Feature(
    "the gradients of torch.cond, map and while_loop in regions of hmp.autocast come from functions without casts",
    cond="torch._higher_order_ops.cond:CondAutogradOp",
    map="torch._higher_order_ops.map:MapAutogradOp",
    while_loop="torch._higher_order_ops.while_loop:WhileLoopAutogradOp",
)
NESTED_TRACES = Feature(
    "torch.compiler.nested_compile_region may be without casts in regions of hmp.autocast",
    op="torch._higher_order_ops.invoke_subgraph:InvokeSubgraphAutogradOp",
    trace="torch._higher_order_ops.invoke_subgraph:trace_joint_graph_as_bwd",
)
# Of the frames in which Dynamo traces the call of a module.
TRACED_MODULES = "torch._dynamo.variables.nn_module"
# The arguments of a module whose policy is "fp32".
SET_POLICIES = Feature(
    "hmp.set_policies does not work",
    call="torch.nn:Module._call_impl",
    map_tensors="torch.utils._pytree:tree_map_only",
    before="torch.nn:Module()._forward_pre_hooks",
    after="torch.nn:Module()._forward_hooks",
)
# What a step runs besides the code that it names.
HOOKS = Feature(
    "hmp.compare and hmp.tune do not restore tensors that hooks of optimizers and gradients change",
    before_step="torch.optim:Optimizer()._optimizer_step_pre_hooks",
    after_step="torch.optim:Optimizer()._optimizer_step_post_hooks",
    of_gradient="torch:Tensor()._backward_hooks",
    after_gradient="torch:Tensor()._post_accumulate_grad_hooks",
    unseen="torch._C:DisableTorchFunctionSubclass",
)
# The fused encoder layer of inference asks it; torch's own autocast switches it off too.
FASTPATH = Feature(
    "nn.TransformerEncoderLayer may run uncast in inference", enabled="torch.backends.mha:_is_fastpath_enabled"
)
# The kernel of an op of ours, called with tensors that stand for others while their mode looks on; and its arguments.
WEIGHT_OPS = Feature(
    "torch.compile raises for convolutions of images with their channels last, and programs for ONNX keep our ops",
    run_at="torch._ops:OpOverload()._op_dk",
    kernel="torch._C:DispatchKey.CompositeExplicitAutograd",
    schema="torch._ops:OpOverload()._schema",
)
# Where torch recomputes; the other form is a public class. From 2.15 on the older name only calls the newer one, which torch's own
# callers call themselves. The one that recomputes is a generator.
CHECKPOINT = Feature(
    "torch.utils.checkpoint(use_reentrant=False) recomputes under the policy of the backward pass",
    generator=the_generator(
        "torch.utils.checkpoint:_checkpoint_without_reentrant_generator_impl",
        "torch.utils.checkpoint:_checkpoint_without_reentrant_generator",
    ),
)
# Wraps the step of an optimizer's class; the wrapper has it in a cell named func.
OPTIMIZERS = Feature("the steps of optimizers run under casts", hook="torch.optim:Optimizer.profile_hook_step")
# Has the generator of checkpointing too, once it is imported.
COMPOSABLE_CHECKPOINT = "torch.distributed._composable.checkpoint_activation"

# Homes of ops. One that is missing is passed over.
FUNCTIONS = Feature("hmp.convert casts no calls of torch.mm and its like", home="torch._C:_VariableFunctions")
VF = Feature("hmp.convert casts no calls of torch._VF", home="torch:_VF")
LINALG = Feature("hmp.convert casts no calls of torch._C._linalg", home="torch._C:_linalg")
FFT = Feature("hmp.convert casts no calls of torch._C._fft", home="torch._C:_fft")
SPECIAL = Feature("hmp.convert casts no calls of torch._C._special", home="torch._C:_special")
NN = Feature("hmp.convert casts no calls of torch._C._nn", home="torch._C:_nn")

# Conversions

# The ops behind F.pad.
PADS = Feature(
    "reflection_pad1d and its like in lists do not concern F.pad", home="torch._C:_nn", pad="torch._C._nn:pad"
)
# A tensor of this layout has no numbers that could be cast.
MKLDNN = Feature("torch.compile may trace casts of tensors in the layout of MKLDNN", layout="torch:_mkldnn")
# DTensor divides and adds up amid an op whose casts are done.
DTENSOR = Feature(
    "ops inside the redistribution of a DTensor are cast",
    in_redistribute="torch.distributed.tensor._redistribute:redistribute_local_tensor",
    in_dispatch="torch.distributed.tensor._dispatch:redistribute_local_tensor",
    in_api="torch.distributed.tensor._api:redistribute_local_tensor",
)
# What compiles TorchScript, and what runs a method of it.
SCRIPTED = Feature(
    "torch.jit.script fails under convert, or what it makes has no casts",
    compile="torch.jit._script:_script_impl",
    compile_module="torch.jit._recursive:create_script_module",
    method="torch._C:ScriptMethod",
)
# Whose names torch.jit.script sees.
FRAMES_UP = Feature(
    "torch.jit.script finds no names of the function that scripts a class",
    parameter="torch.jit._script:_script_impl(_frames_up)",
)
# The tables by which Dynamo knows the functions of torch.
DYNAMO = "torch._dynamo"
TRACE_RULES = Feature(
    "torch.compile takes the patched ops of hmp.convert for torch's own and traces none of their casts",
    look_up="torch._dynamo.trace_rules:_lookup_inner",
    methods="torch._dynamo.trace_rules:get_tensor_method",
)
TRACED_CODE = Feature("hmp.convert and hmp.revert take longer", seen="torch._dynamo.convert_frame:input_codes.seen")
# The guard of a module that had no hooks, which guards on nothing, and the one of a length.
HOOK_GUARDS = Feature(
    "a compiled model does not see what hmp.set_policies does after its first call",
    without_hooks="torch._dynamo.guards:GuardBuilder.EMPTY_NN_MODULE_HOOKS_DICT",
    length="torch._dynamo.guards:GuardBuilder.SEQUENCE_LENGTH",
    hooks="torch.nn:Module()._forward_pre_hooks",
)
# What compiles a graph, its first graph compiler, the formulas of ops and the name that it reads them by, and the setting that keeps the roundings of fused kernels.
INDUCTOR = "torch._inductor.compile_fx"
COMPILE_FX = Feature(
    "code that torch.compile makes with Inductor may round less often than the lists say",
    compile=f"{INDUCTOR}:compile_fx",
    inner=f"{INDUCTOR}:compile_fx_inner",
    formulas=f"{INDUCTOR}:select_decomp_table",
    rounds="torch._inductor.config:emulate_precision_casts",
)
# What is computed of indices, casts among it. Before 2.13 also what a kernel on the CPU remembers of a cast, and what joins two casts in a row,
# among the patterns of its pass.
ROUND_TRIPS = Feature(
    "code that torch.compile makes with Inductor may leave out a cast and the one back",
    of_indices="torch._inductor.index_propagation:IndexPropagation.propagate_sympy",
    **{
        "remember": "torch._inductor.codegen.cpp:CppKernel.cache_dtype_convert",
        "join": "torch._inductor.fx_passes.joint_graph:pointless_convert",
        "patterns": "torch._inductor.fx_passes.joint_graph:patterns.patterns",
    }
    if VERSION < (2, 13)
    else {},
)
COMPILED_CALLS = Feature(
    "a convolution in compiled code may be cast once more, where Inductor is imported under convert",
    kernels="torch._inductor.select_algorithm:extern_kernels",
)
# The graph that a formula is traced into; at the nodes that are marked in it Inductor keeps the rounding.
TRACED_FORMULAS = Feature(
    "the gradient of glu in compiled code may differ from that of uncompiled code",
    mode="torch.fx.experimental.proxy_tensor:get_proxy_mode",
)
# The number of the graph that is compiled now.
COMPILED_GRAPHS = Feature(
    "a report does not know the casts of compiled graphs",
    number="torch._guards:CompileContext.current_compile_id",
    begins="torch._dynamo:callback_handler.start_callbacks",
)

# Ways past the version counter of a weight.
CAPSULES = Feature(
    "hmp.cache does not see what is written to a weight through a DLPack capsule",
    capsule="torch._C:_to_dlpack",
    versioned="torch._C:_to_dlpack_versioned",
)
VERSIONS = Feature(
    "hmp.cache does not see what is written while torch preserves the version of a weight",
    put_back="torch._C._autograd:_unsafe_set_version_counter",
)

# Ranks: by the store that init_process_group has made, before what DistributedDataParallel and a DeviceMesh do first.
STORE = Feature(
    "the policies of the ranks are not compared", default="torch.distributed.distributed_c10d:_get_default_store"
)
DDP = Feature(
    "DistributedDataParallel does not compare the policies of the ranks",
    exchange="torch.nn.parallel.distributed:_verify_param_shape_across_processes",
)
MESH = Feature(
    "a DeviceMesh does not compare the policies of the ranks",
    set_up="torch.distributed.device_mesh:DeviceMesh._setup_world_group_and_device",
)

# What is shown

VERSION_OF = Feature(
    "hmp.tune reads all weights before each call that it times, which takes them into the CPU's caches",
    version="torch:Tensor()._version",
)
DRAW = Feature(
    "hmp.draw does not work",
    results="torch.autograd.graph:Node()._input_metadata",
    born="torch.autograd.graph:Node()._sequence_nr",
    born_next="torch.autograd:_get_sequence_nr",
    transposed="torch.autograd.graph:Node()._saved_transposed",
    path_text="torch.utils._pytree:keystr",
    leaves="torch.utils._pytree:tree_flatten_with_path",
    map_tensors="torch.utils._pytree:tree_map_only",
)
CPU = Feature(
    "hmp.explain does not show whether this CPU has bfloat16 instructions",
    avx512="torch.cpu:_is_avx512_bf16_supported",
    amx="torch.cpu:_is_amx_tile_supported",
)

# Names of Gaudi

LOAD = Feature(
    "torch.load does not read checkpoints that name 'habana'",
    registry="torch.serialization:_package_registry",
    restore="torch.serialization:_deserialize",
)
COPIES = Feature("a copy of torch.device('hpu') has the name of the device that it is mapped to", shallow="copy:_copy_dispatch", deep="copy:_deepcopy_dispatch")  # fmt: skip
DEVICE_INDEX = Feature("torch.load finds no device for 'hpu'", of_cuda="torch.cuda:_utils._get_device_index")
RECORDING = Feature(
    "torch.hpu.HPUGraph does not work",
    mode="torch.utils._python_dispatch:TorchDispatchMode",
    map_tensors="torch.utils._pytree:tree_map_only",
)
NCCL = Feature(
    "process groups for 'hpu' on CUDA have torch's own timeout",
    timeout="torch.distributed:ProcessGroupNCCL.Options()._timeout",
)
HPU_BACKEND = Feature(
    "torch.compile has no backend 'hpu_backend'",
    look_up="torch._dynamo:lookup_backend",
    register="torch._dynamo:register_backend",
    names="torch._dynamo.backends.registry:_BACKENDS",
    by_name="torch._dynamo.backends.registry:_COMPILER_FNS",
)
# Asked for when a graph is compiled: while torch imports Dynamo, its module may be half imported.
DONATED = Feature(
    "torch.compile cannot compile for 'hpu_backend'",
    indices="torch._functorch._aot_autograd.graph_compile:collect_bw_donated_buffer_idxs",
)
FIND_SPEC = "importlib._bootstrap"  # the module of the frames between an import and its finders
# torch's own modules that make themselves ready for a Gaudi where they see one.
ASKING_FOR_HPU = ("torch._subclasses.", "torch.autograd.profiler.")
ADAMW = Feature("FusedAdamW does not run with bias_correction=False", init_group="torch.optim:AdamW._init_group")
FOREACH = Feature(
    "FusedLamb does not run",
    **{name: f"torch:_foreach_{name}" for name in "lerp_ mul_ addcmul_ sqrt div div_ add_ norm".split()},
)


class _NoDecorator:
    def __call__(self, *_: Any) -> Any:
        DECORATORS.need()


if TYPE_CHECKING:
    from torch.utils import _contextlib

    DecoratorContextManager = _contextlib._DecoratorContextManager
    NoParamDecoratorContextManager = _contextlib._NoParamDecoratorContextManager
else:
    DecoratorContextManager = DECORATORS.get("with_arguments") or _NoDecorator
    NoParamDecoratorContextManager = DECORATORS.get("without_arguments") or _NoDecorator


def run_while_traced(function: _F) -> _F:
    """Has Dynamo run a function while it traces, on constants, and keep the answer.

    torch.compiler.assume_constant_result does the same, and would import Dynamo. Without the mark a graph breaks here.
    """
    function._dynamo_marked_constant = True  # type: ignore[attr-defined]
    return function


_frames: Any = torch._C._dynamo.eval_frame


def never_compiled(function: _F, *, inside: bool = False) -> _F:
    """Keeps Dynamo from compiling a function that runs while it is on, as those do that C calls, and, unless ``inside``, what it calls.

    torch.compiler.disable does the same, and would import Dynamo.
    """
    actions = _frames._FrameAction
    _frames.set_code_exec_strategy(
        function.__code__,
        _frames._FrameExecStrategy(actions.SKIP, actions.DEFAULT if inside else actions.SKIP),
    )
    return function


def calling_frame() -> FrameType | None:
    """The frame that called the function that asks; None outside of CPython, and on top.

    With inspect.currentframe a function would hold its own frame in a local: a cycle, which keeps the tensors of its callers alive.
    """
    try:
        return sys._getframe(2)
    except (AttributeError, ValueError):
        return None


# Functions that traced code calls, which Dynamo reads.


def _switch_in_graph(device_type: str, on: bool) -> None:
    torch.set_autocast_enabled(device_type, on)


@run_while_traced
def _prepare_switch(device_type: str) -> None:
    torch.compiler.allow_in_graph(_switch_in_graph)  # type: ignore[no-untyped-call]
    before = torch.is_autocast_enabled(device_type)
    TRACE_END.translator.current_tx().output.add_cleanup_hook(lambda: torch.set_autocast_enabled(device_type, before))


def _set_autocast_enabled(device_type: str, on: bool) -> None:
    if torch.compiler.is_dynamo_compiling():
        _prepare_switch(device_type)
        _switch_in_graph(device_type, on)
    else:
        torch.set_autocast_enabled(device_type, on)


if VERSION < (2, 12):
    # Where Dynamo has given up a frame, it would compile this one by itself, and finds the switch changed after its trace.
    never_compiled(_set_autocast_enabled, inside=True)

# From 2.12 on Dynamo traces that of torch.
set_autocast_enabled: Callable[[str, bool], None] = (
    _set_autocast_enabled if VERSION < (2, 12) else torch.set_autocast_enabled
)


def is_fastpath_enabled() -> bool:
    return bool(torch.backends.mha._is_fastpath_enabled)


def nn_modules_of(trace: Any) -> Any:
    """The modules that the code which Dynamo traces just now is called in, by the translator of that code."""
    return getattr(trace, "nn_module_stack", None)


def add_call(trace: Any, function: Callable[..., Any], *args: Any) -> None:
    """Puts a call into the graph that Dynamo makes just now."""
    trace.output.create_node("call_function", function, args, {})


def mode_key(mode: Any) -> Any:
    """The dispatch key of a mode; None for one that acts at the usual place."""
    return getattr(mode, "_dispatch_key", None)


def device_index(module: Any, index: Any, optional: bool) -> int:
    """``torch.cuda._utils._get_device_index`` and its like."""
    return int(module._utils._get_device_index(index, optional))


def one_frame_up(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments of _script_impl behind the first (optimize, _frames_up, ...) for a call from a function around it."""
    if len(args) > 1:
        return (args[0], args[1] + 1, *args[2:]), kwargs
    return args, kwargs | {"_frames_up": kwargs.get("_frames_up", 0) + 1}
