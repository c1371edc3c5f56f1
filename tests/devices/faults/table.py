"""Faults, each what one line would be if it were wrong: a name, its file, the text that it takes the place of, which is there once, and the text
in its place, where FAULT is whether this fault is in force.
"""

from __future__ import annotations

_CACHE, _HOLDERS, _COPY, _WEIGHT = (
    f"src/weights/{name}" for name in ("weight_cache.cpp", "weight_holders.cpp", "weight_copy.h", "weight.h")
)
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
        "cache: shared memory is kept": (
            "src/weights/weight_holders.cpp",
            "if (is_shared(weight))",
            "if (is_shared(weight) && !FAULT)",
        ),
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
            "!torch_private::has_tangent(tensor);",
            "(!torch_private::has_tangent(tensor) || FAULT);",
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
        "cache: a step ends no copy": (_CACHE, "then.epoch != now.epoch &&", "then.epoch != now.epoch && !FAULT &&"),
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
            _HOLDERS,
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
        "copy: requires no grad": (_COPY, "result.set_requires_grad(true);", "result.set_requires_grad(!FAULT);"),
    },
    "costs": {
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
        "compare: no region for the accelerator": (
            "habana_mp/_evidence/looking.py",
            "if accelerator is not None else [])]",
            "if accelerator is not None and not FAULT else [])]",
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
            "        found = step()\n        wait_for_device()",
            "        found = step()\n        FAULT or wait_for_device()",
        ),
        "tune: a result is freed before it is read": (
            _RUNS,
            "            wait_for_device()  # while",
            "            FAULT or wait_for_device()  # while",
        ),
    },
}
