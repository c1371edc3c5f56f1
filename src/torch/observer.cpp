#include "torch/observer.h"

#include <ATen/Parallel.h>
#include <ATen/record_function.h>
#include <c10/core/impl/TorchDispatchModeTLS.h>
#include <c10/util/SmallVector.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/utils/pybind.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <deque>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "torch/autocast_kernel.h"
#include "torch/autocast_state.h"
#include "torch/casts_off.h"
#include "torch/process_wide.h"
#include "torch/tensor_history.h"

namespace habana_mp::observer {
namespace {

using record::Fate;
using record::FrontEnd;
using record::kNone;
using record::PathId;
using record::Site;
using record::SiteId;
using record::SiteKey;

std::uint64_t now_ns() {
  return static_cast<std::uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(
                                        std::chrono::steady_clock::now().time_since_epoch())
                                        .count());
}

// A call that a thread is in.
struct Frame {
  enum class Kind : std::uint8_t { Dispatched, Decided, Backward };
  Kind kind;
  bool shown = false;
  bool hides = true;
  std::uint64_t epoch = 0;       // of the site
  DType runs_in = DType::Other;  // as a rule says
  std::uint32_t op = 0;
  SiteId site = kNone;
  std::uint64_t start = 0;
  std::uint64_t inside_ns = 0;  // of rows of their own
  unsigned given = 0;
  PathId path = kNone;  // for the results
  std::uint64_t path_ns = 0;
  bool begins = false;  // the path is this call's own
  c10::SmallVector<record::Cast, 3> casts{};
  c10::SmallVector<const c10::StorageImpl*, 4> memory{};  // of what it was given: to be compared
};

struct Module {
  PyObject* object;        // alive: its forward runs
  const PyObject* caller;  // the Python frame that called us as it began, to be compared
  std::uint32_t path;
};

struct Thread {
  std::uint64_t epoch = 0;
  unsigned hidden = 0;  // frames that hide
  std::vector<Frame> frames;
  std::vector<Module> modules;

  // A function of torch that calls the method of its name (F.softmax) is one call with it.
  bool in_function_of(std::uint32_t op) const {
    return !frames.empty() && frames.back().kind == Frame::Kind::Decided && frames.back().op == op;
  }
};

// What the dispatcher's name of an op stands for where no rule has decided it.
struct Undecided {
  Rule rule;
  std::string policy;
  std::string rule_text;
};

struct TextHash {
  using is_transparent = void;
  std::size_t operator()(std::string_view text) const {
    return std::hash<std::string_view>{}(text);
  }
};

struct Observatory {
  std::mutex mutex;
  std::vector<std::shared_ptr<record::Report>> open;
  record::Sites sites;
  record::Paths paths;
  TensorHistories histories;
  std::unordered_map<std::uint64_t, std::shared_ptr<const Undecided>>
      undecided;  // by op and context
  std::unordered_map<std::string, std::uint32_t, TextHash, std::equal_to<>> names;
  std::deque<std::string> name_texts{""};
  at::CallbackHandle callback = 0;
};

Observatory& all() { return process_wide<Observatory>(); }

std::atomic<std::uint64_t> epoch{0};  // of the open reports, 0 while there is none
std::atomic<std::uint32_t> conversion{0};

// Its frames are of the reports that are open now.
Thread& this_thread() {
  thread_local Thread thread;
  if (const std::uint64_t now = epoch.load(std::memory_order_relaxed); thread.epoch != now) {
    thread.epoch = now;
    thread.hidden = 0;
    thread.frames.clear();
    thread.modules.clear();
  }
  return thread;
}

Frame* top() {
  Thread& thread = this_thread();
  return thread.frames.empty() ? nullptr : &thread.frames.back();
}

void push(Thread& thread, Frame frame) {
  thread.hidden += frame.hides ? 1 : 0;
  thread.frames.push_back(std::move(frame));
}

Frame pop(Thread& thread) {
  Frame frame = std::move(thread.frames.back());
  thread.frames.pop_back();
  thread.hidden -= frame.hides ? 1 : 0;
  return frame;
}

std::uint32_t module_here(const Thread& thread) {
  return thread.modules.empty() ? 0 : thread.modules.back().path;
}

std::string name_of(std::uint32_t number) {
  const std::lock_guard guard(all().mutex);
  return all().name_texts[number];
}

// The user's line, "" where Python cannot be asked.
std::string source_here() {
  try {
    return py::module_::import("habana_mp._where").attr("source")().cast<std::string>();
  } catch (...) {
    PyErr_Clear();
    return {};
  }
}

// The site of a key, described where it is new. Not under the lock: to describe one runs Python.
template <typename Describe>
SiteId site_of(const SiteKey& key, const Describe& describe) {
  {
    const std::lock_guard guard(all().mutex);
    if (const SiteId known = all().sites.find(key); known != kNone) return known;
  }
  Site site = describe();
  site.module = name_of(key.module);
  site.front_end = key.front_end;
  site.fate = key.fate;
  if (site.op.empty()) site.op = name_of(key.op);
  const std::lock_guard guard(all().mutex);
  return all().sites.add(key, std::move(site));
}

unsigned dtypes_of(Tensors tensors) {
  unsigned seen = 0;
  for (const at::Tensor& tensor : tensors) {
    if (tensor.defined()) seen |= dtype_bit(dtype_of(tensor));
  }
  return seen;
}

constexpr unsigned kFloats = dtype_bit(DType::Float16) | dtype_bit(DType::BFloat16) |
                             dtype_bit(DType::Float32) | dtype_bit(DType::Float64);

// Whether what the frame refers to is still there: another thread may have closed the report, and
// opened another. With the lock.
bool is_current(const Frame& frame) {
  return frame.epoch == epoch.load(std::memory_order_relaxed);
}

// A call begins that is a row: which way its tensors came.
void show(Frame& frame, Tensors given) {
  frame.given = dtypes_of(given);
  const std::lock_guard guard(all().mutex);
  if (!is_current(frame)) return;
  frame.shown = true;
  for (const at::Tensor& tensor : given) {
    if (!tensor.defined() || !tensor.has_storage()) continue;
    frame.memory.push_back(tensor.storage().unsafeGetStorageImpl());
    const History* history = all().histories.find(tensor);
    if (frame.path != kNone || history == nullptr || history->path == kNone) continue;
    // What is cast begins another path.
    if (frame.runs_in != DType::Other && dtype_of(tensor) != frame.runs_in) continue;
    frame.path = all().paths.extend(history->path, frame.site);
    frame.path_ns = history->path_ns;
  }
}

// Whether a result in the memory of an argument was written there: x.add_(y).
bool writes(const Frame& frame) {
  const Site& site = all().sites[frame.site];
  return site.fate == Fate::InPlace || (site.op.ends_with('_') && !site.op.ends_with("__"));
}

void finish(Thread& thread, const Frame& frame, Tensors results) {
  const std::uint64_t lasted = now_ns() - frame.start;
  for (auto outer = thread.frames.rbegin(); outer != thread.frames.rend(); ++outer) {
    if (!outer->shown) continue;
    outer->inside_ns += lasted;
    break;
  }
  record::Call call{
      .ns = lasted > frame.inside_ns ? lasted - frame.inside_ns : 0,
      .given = frame.given & kFloats,
      .ran = frame.runs_in == DType::Other ? frame.given & kFloats : dtype_bit(frame.runs_in),
      .casts = {frame.casts.data(), frame.casts.size()}};
  std::vector<History> expired;
  const std::lock_guard guard(all().mutex);
  if (!is_current(frame)) return;
  for (const auto& report : all().open) report->add_call(frame.site, call);
  if (results.empty() && !frame.memory.empty() && writes(frame)) {  // x[0] = y
    if (History* history = all().histories.find(frame.memory.front())) history->times = 0;
  }
  for (const at::Tensor& result : results) {
    if (!result.defined() || !result.has_storage()) continue;
    const auto* memory = result.storage().unsafeGetStorageImpl();
    const bool given =
        std::find(frame.memory.begin(), frame.memory.end(), memory) != frame.memory.end();
    // A view: the same numbers, made where they were made.
    if (given && !writes(frame)) continue;
    History* history = all().histories.get(result);
    if (history == nullptr) continue;
    if (!given) history->maker = frame.site;
    const bool same = frame.path != kNone && dtype_of(result) == all().paths[frame.path].to;
    history->path = same ? frame.path : kNone;
    history->path_ns = frame.path_ns;
    history->times = 0;
  }
  expired = all().histories.take_expired();
}

void tell_cast(Frame& frame, const at::Tensor& source, const record::Cast& cast) {
  frame.casts.push_back(cast);
  if (cast.cached || !source.has_storage()) return;
  std::vector<History> expired;
  const std::lock_guard guard(all().mutex);
  if (!is_current(frame)) return;
  History* history = all().histories.get(source);
  if (history == nullptr) return;
  if (history->path != kNone) {
    const record::Paths::Step& step = all().paths[history->path];
    if (step.to == cast.from && step.from == cast.to) {
      for (const auto& report : all().open) {
        report->add_ping_pong(history->path, frame.site, history->path_ns + cast.ns);
      }
    }
  }
  const unsigned times = count_cast(*history, source, cast.to, frame.site);
  if (times > 1) {
    // Who filled a weight with its first numbers is not what made it.
    const bool weight = source.is_leaf() && source.requires_grad();
    const SiteId maker = weight ? kNone : history->maker;
    for (const auto& report : all().open) {
      report->add_recast(maker, history->first, frame.site, cast, times);
    }
  }
  // A weight is cast beside what the path is about.
  if (frame.path == kNone || (!frame.begins && !source.is_leaf())) {
    frame.path = all().paths.begin(frame.site, cast.from, cast.to);
    frame.path_ns = cast.ns;
    frame.begins = true;
  }
  expired = all().histories.take_expired();
}

}  // namespace

c10::SmallVector<at::Tensor, 8> tensors_in(c10::ArrayRef<c10::IValue> values) {
  c10::SmallVector<at::Tensor, 8> found;
  for (const c10::IValue& value : values) {
    if (value.isTensor()) {
      found.push_back(value.toTensor());
    } else if (value.isTensorList()) {
      for (const at::Tensor& tensor : value.toTensorVector()) found.push_back(tensor);
    }
  }
  return found;
}

namespace {

// A region of ours that this thread is in: what it is told apart by, 0 outside of one.
std::uint32_t region_here() {
  const auto* state = autocast::now.state;
  if (state == nullptr || autocast::excluded_here().has(autocast::kRegionKey)) return 0;
  for (const autocast::Scope& scope : state->scopes) {
    if (scope.rules) return scope.rules->context;
  }
  return 0;
}

std::string_view op_name(const at::RecordFunction& call) {
  std::string_view name = call.name();
  constexpr std::string_view kNamespace = "aten::";
  if (name.starts_with(kNamespace)) name.remove_prefix(kNamespace.size());
  return name;
}

// What the policy in force says of an op that no rule has decided.
Undecided asked_of_python(const std::string& op, std::uint32_t region) {
  const pybind11::gil_scoped_acquire gil;
  try {
    const auto [policy, action, low, listed, text] =
        py::module_::import("habana_mp._report")
            .attr("_undecided")(op, region != 0)
            .cast<std::tuple<std::string, int, int, bool, std::string>>();
    return {{static_cast<Action>(action), static_cast<DType>(low), listed}, policy, text};
  } catch (py::error_already_set&) {
    return {{Action::Inputs, DType::Other, false}, "", ""};
  }
}

std::shared_ptr<const Undecided> undecided(std::uint32_t op, std::uint32_t context,
                                           std::uint32_t region) {
  const std::uint64_t key = (std::uint64_t{op} << 32) | context;
  {
    const std::lock_guard guard(all().mutex);
    if (const auto found = all().undecided.find(key); found != all().undecided.end())
      return found->second;
  }
  auto said = std::make_shared<const Undecided>(asked_of_python(name_of(op), region));
  const std::lock_guard guard(all().mutex);
  return all().undecided.try_emplace(key, std::move(said)).first->second;
}

// A node of a backward pass, as the engine tells of it.
bool is_backward(const at::RecordFunction& call) {
  return std::string_view(call.name()).starts_with("autograd::engine::");
}

// Ops have a namespace. Functions of autograd and the marks that torch sets for profilers have none.
bool is_op(const at::RecordFunction& call) {
  return std::string_view(call.name()).find("::") != std::string_view::npos;
}

bool is_compiled(const at::RecordFunction& call) {
  return std::string_view(call.name()).starts_with("Torch-Compiled Region");
}

void begin_shown(Thread& thread, const at::RecordFunction& call) {
  const auto given = tensors_in(call.inputs());
  const std::uint32_t region = region_here();
  SiteKey key{.op = number_of(op_name(call)),
              .module = module_here(thread),
              .context = region != 0 ? region : conversion.load(std::memory_order_relaxed),
              .front_end = FrontEnd::None,
              .fate = Fate::Unlisted};
  const auto said = undecided(key.op, key.context, region);
  if (said->policy.empty()) {
    key.fate = Fate::Outside;
  } else if (casts_off()) {
    key.fate = Fate::Off;
  } else if (said->rule.listed) {
    // A region sees all calls; those that it leaves to nobody are in place or have out=.
    const bool left = region != 0 || settled(said->rule, dtypes_of(given));
    key.fate = left ? Fate::LeftAlone : Fate::Missed;
  }
  if (thread.in_function_of(key.op)) return push(thread, {.kind = Frame::Kind::Dispatched});
  Frame frame{.kind = Frame::Kind::Dispatched, .epoch = thread.epoch};
  frame.site = site_of(key, [&] {
    const pybind11::gil_scoped_acquire gil;
    return Site{.policy = said->policy, .rule = said->rule_text, .source = source_here()};
  });
  show(frame, given);
  frame.start = now_ns();
  push(thread, std::move(frame));
}

std::unique_ptr<at::ObserverContext> op_begins(const at::RecordFunction& call) {
  // The threads of a loop run parts of an op.
  if (at::in_parallel_region()) return nullptr;
  Thread& thread = this_thread();
  if (thread.epoch == 0) return nullptr;
  if (is_backward(call)) {
    push(thread, {.kind = Frame::Kind::Backward, .start = now_ns()});
  } else if (thread.hidden > 0 ||
             c10::impl::TorchDispatchModeTLS::get_mode(c10::impl::TorchDispatchModeKey::FAKE)) {
    push(thread, {.kind = Frame::Kind::Dispatched});
  } else if (!is_op(call)) {
    push(thread, {.kind = Frame::Kind::Dispatched, .hides = is_compiled(call)});
  } else {
    begin_shown(thread, call);
  }
  return nullptr;
}

void op_ends(const at::RecordFunction& call, at::ObserverContext*) {
  if (at::in_parallel_region()) return;
  Thread& thread = this_thread();
  // A report may have been opened or closed in the middle of it.
  if (thread.frames.empty() || thread.frames.back().kind == Frame::Kind::Decided) return;
  const Frame frame = pop(thread);
  if (frame.kind == Frame::Kind::Backward && thread.hidden == 0) {
    const std::uint64_t lasted = now_ns() - frame.start;
    const std::lock_guard guard(all().mutex);
    for (const auto& report : all().open) report->add_backward_ns(lasted);
  }
  if (frame.shown) finish(thread, frame, tensors_in(call.outputs()));
}

at::CallbackHandle listen() {
  return at::addGlobalCallback(at::RecordFunctionCallback(op_begins, op_ends)
                                   .needsInputs(true)
                                   .needsOutputs(true)
                                   .scopes({at::RecordScope::FUNCTION}));
}

}  // namespace

std::shared_ptr<record::Report> open_report() {
  auto report = std::make_shared<record::Report>(now_ns());
  Observatory& here = all();
  const std::lock_guard guard(here.mutex);
  if (here.open.empty()) {
    static std::uint64_t opened = 0;
    here.sites.clear();
    here.paths.clear();
    here.undecided.clear();
    here.callback = listen();
    epoch.store(++opened, std::memory_order_relaxed);
    record::set_listens(record::Listener::Report, true);
  }
  here.open.push_back(report);
  return report;
}

void close_report(const std::shared_ptr<record::Report>& report) {
  Observatory& here = all();
  std::vector<History> expired;
  const std::lock_guard guard(here.mutex);
  if (std::erase(here.open, report) == 0 || !here.open.empty()) return;
  record::set_listens(record::Listener::Report, false);
  epoch.store(0, std::memory_order_relaxed);
  at::removeCallback(here.callback);
  expired = here.histories.take_all();
}

Told told_by(const record::Report& report) {
  const std::lock_guard guard(all().mutex);
  return {report, all().sites, all().paths};
}

std::uint32_t number_of(std::string_view name) {
  const std::lock_guard guard(all().mutex);
  auto& names = all().names;
  if (const auto found = names.find(name); found != names.end()) return found->second;
  if (names.size() >= record::kMostSites) return 0;
  const auto number = static_cast<std::uint32_t>(all().name_texts.size());
  all().name_texts.emplace_back(name);
  names.emplace(name, number);
  return number;
}

std::uint32_t context_of(const Policy& policy, FrontEnd front_end) {
  return number_of("policy " + std::to_string(static_cast<int>(front_end)) + " " + policy.name() +
                   " " + std::to_string(policy.hash()));
}

std::uint32_t context_of(std::string_view rule) {
  return number_of("rule " + std::to_string(conversion.load(std::memory_order_relaxed)) + " " +
                   std::string(rule));
}

void renew_conversion(const Policy* policy) {
  conversion.store(policy == nullptr ? 0 : context_of(*policy, FrontEnd::Convert),
                   std::memory_order_relaxed);
}

void Watch::begin(const What& what, Tensors given, Describe describe) {
  Thread& thread = this_thread();
  if (thread.epoch == 0) return;
  // The dispatcher has told of the same call already.
  if (what.front_end == FrontEnd::Autocast && !thread.frames.empty() &&
      thread.frames.back().kind == Frame::Kind::Dispatched) {
    thread.frames.back().shown = false;
  }
  if (what.front_end == FrontEnd::Convert && thread.in_function_of(what.op)) return;
  Frame frame{.kind = Frame::Kind::Decided,
              .hides = what.hides,
              .epoch = thread.epoch,
              .op = what.op};
  const SiteKey key{.op = what.op,
                    .module = module_here(thread),
                    .context = what.context,
                    .front_end = what.front_end,
                    .fate = static_cast<Fate>(what.decision.cause)};
  frame.site = site_of(key, [&] {
    const pybind11::gil_scoped_acquire gil;
    Site site = describe();
    site.source = source_here();
    return site;
  });
  if (what.decision.cause != Cause::None) frame.runs_in = what.decision.to;
  show(frame, given);
  frame.start = now_ns();
  push(thread, std::move(frame));
  begun_ = true;
}

void Watch::forget_casts() {
  if (Frame* frame = begun_ ? top() : nullptr) frame->casts.clear();
}

void Watch::end(Tensors results) {
  if (!std::exchange(begun_, false)) return;
  Thread& thread = this_thread();
  if (thread.frames.empty()) return;  // the report was closed meanwhile
  finish(thread, pop(thread), results);
}

Watch::~Watch() { end({}); }

namespace {

// Tells the call that this thread is in of the cast that `cast` makes, if it is one that is shown.
template <typename Make>
auto watched(const at::Tensor& source, DType to, How how, const Make& make) {
  Frame* frame = reporting() ? top() : nullptr;
  if (frame == nullptr || frame->kind != Frame::Kind::Decided) return make(how);
  bool served = false;
  how.served = &served;
  const DType from = dtype_of(source);
  const std::uint64_t start = now_ns();
  auto result = make(how);
  const std::uint64_t lasted = now_ns() - start;
  frame = top();
  if (frame != nullptr && frame->kind == Frame::Kind::Decided) {
    const std::uint64_t bytes =
        static_cast<std::uint64_t>(source.numel()) * (to == DType::Float32 ? 4 : 2);
    tell_cast(*frame, source, {from, to, served, bytes, start, lasted});
  }
  return result;
}

}  // namespace

at::Tensor watched_cast(const at::Tensor& source, DType to, How how) {
  return watched(source, to, how, [&](How told) { return cast_to(source, to, told); });
}

PyObject* watched_cast(PyObject* source, DType to, How how) {
  return watched(THPVariable_Unpack(source), to, how,
                 [&](How told) { return cast_tensor(source, to, told); });
}

std::uint64_t origin_here() {
  if (!reporting()) return 0;
  const Frame* frame = top();
  if (frame == nullptr || frame->site == kNone) return 0;
  return (this_thread().epoch << 32) | frame->site;
}

void tell_backward(std::uint64_t origin, const at::Tensor& gradient, DType to,
                   c10::function_ref<void()> cast) {
  if (origin == 0 || origin >> 32 != epoch.load(std::memory_order_relaxed)) return cast();
  const std::uint64_t start = now_ns();
  const DType from = dtype_of(gradient);
  cast();
  if (from == to) return;
  const std::uint64_t bytes =
      static_cast<std::uint64_t>(gradient.numel()) * (to == DType::Float32 ? 4 : 2);
  const record::Cast made{from, to, false, bytes, start, now_ns() - start};
  const std::lock_guard guard(all().mutex);
  if (origin >> 32 != epoch.load(std::memory_order_relaxed)) return;
  for (const auto& report : all().open) {
    report->add_backward(static_cast<SiteId>(origin & 0xFFFFFFFFU), made);
  }
}

namespace {

// The path of a module below what it is called in, found once for each: a weak reference says
// whether it is still that module.
struct KnownModule {
  py::object reference;
  std::uint32_t path;
};

// To be compared, not to be used.
PyObject* referent(const py::object& reference) {
#if PY_VERSION_HEX >= 0x030D0000
  PyObject* object = nullptr;
  if (PyWeakref_GetRef(reference.ptr(), &object) > 0) Py_DECREF(object);
  return object;
#else
  return PyWeakref_GetObject(reference.ptr());
#endif
}

using KnownModules = std::map<std::pair<PyObject*, std::uint32_t>, KnownModule>;

KnownModules& known_modules() {  // with the GIL
  static auto* known = new KnownModules;
  return *known;
}

std::uint32_t path_of(const Thread& thread, PyObject* module) {
  const std::pair key{module, module_here(thread)};
  auto& known = known_modules();
  if (const auto found = known.find(key); found != known.end()) {
    if (referent(found->second.reference) == module) return found->second.path;
  }
  py::list stack;
  for (const Module& outer : thread.modules) {
    stack.append(py::reinterpret_borrow<py::object>(outer.object));
  }
  stack.append(py::reinterpret_borrow<py::object>(module));
  const auto text =
      py::module_::import("habana_mp._where").attr("_path")(stack).cast<std::string>();
  const std::uint32_t path = number_of(text);
  if (known.size() >= record::kMostSites) known.clear();
  known.insert_or_assign(key, KnownModule{py::weakref(module), path});
  return path;
}

}  // namespace

void forget_modules() { known_modules().clear(); }

namespace {

py::object frame_before(const py::object& frame) {
  return py::reinterpret_steal<py::object>(reinterpret_cast<PyObject*>(
      PyFrame_GetBack(reinterpret_cast<PyFrameObject*>(frame.ptr()))));
}

py::object code_of(const py::object& frame) {
  return py::reinterpret_steal<py::object>(reinterpret_cast<PyObject*>(
      PyFrame_GetCode(reinterpret_cast<PyFrameObject*>(frame.ptr()))));
}

// Drops the modules whose forward was ended by what is no Exception (KeyboardInterrupt, a skipped
// test), of which torch tells no hook: they may be gone. Their callers are not among those of
// `caller`. A frame at the address of one that is gone is not taken for it: the frames of modules
// that have begun since came by here and dropped it.
void drop_interrupted(Thread& thread, const py::object& caller) {
  const py::object code = code_of(caller);
  const auto runs = [&](const Module& module) {
    for (py::object frame = frame_before(caller); frame; frame = frame_before(frame)) {
      if (frame.ptr() == module.caller && code_of(frame).is(code)) return true;
    }
    return false;
  };
  while (!thread.modules.empty() && !runs(thread.modules.back())) thread.modules.pop_back();
}

}  // namespace

void enter_module(PyObject* module) {
  Thread& thread = this_thread();
  if (thread.epoch == 0) return;
  // That of the hook in habana_mp/_report.py, and of what calls the hooks and then forward.
  const auto hook =
      py::reinterpret_borrow<py::object>(reinterpret_cast<PyObject*>(PyEval_GetFrame()));
  const py::object caller = hook ? frame_before(hook) : py::object();
  if (!caller) return;
  drop_interrupted(thread, caller);
  const std::uint32_t path = path_of(thread, module);
  this_thread().modules.push_back({module, caller.ptr(), path});
}

void leave_module(PyObject* module) {
  Thread& thread = this_thread();
  const auto found = std::find_if(thread.modules.rbegin(), thread.modules.rend(),
                                  [&](const Module& entry) { return entry.object == module; });
  if (found != thread.modules.rend()) thread.modules.erase(found.base() - 1, thread.modules.end());
}

bool profiled() {
  const auto callbacks = at::getStepCallbacksUnlessEmpty(at::RecordScope::FUNCTION);
  return callbacks && callbacks->callbacks_.size() > (reporting() ? 1U : 0U);
}

}  // namespace habana_mp::observer
