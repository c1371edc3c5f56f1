#include "hpu/hpu_device.h"

#include <torch/csrc/Device.h>
#include <torch/csrc/python_headers.h>

#include <atomic>
#include <map>
#include <new>
#include <stdexcept>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "base/torch_private.h"
#include "hpu/import_slot.h"

namespace habana_mp::hpu_device {
namespace {

using c10::Device;
using c10::DeviceType;

constexpr std::string_view kHpu = "hpu";
constexpr std::string_view kHabana = "habana";
constexpr DeviceType kNone = DeviceType::COMPILE_TIME_MAX_DEVICE_TYPES;

// The device that an object prints itself as.
struct Name {
  std::string_view type;
  c10::DeviceIndex index;  // -1: none

  std::string text() const {
    return index < 0 ? std::string(type) : std::string(type) + ":" + std::to_string(index);
  }
  auto operator<=>(const Name&) const = default;
};

std::atomic<DeviceType> target = kNone;

// Where the libraries of torch call its parser.
ImportSlot in_python;   // libtorch_python: every argument that is a device
ImportSlot in_scripts;  // libtorch_cpu: the constants of TorchScript

// Which of the two names a device string begins with; empty for any other.
std::string_view name_in(std::string_view text) {
  if (text.empty() || text.front() != 'h') return {};
  for (const std::string_view name : {kHpu, kHabana}) {
    if (text.starts_with(name) && (text.size() == name.size() || text[name.size()] == ':')) {
      return name;
    }
  }
  return {};
}

Device mapped(Device hpu) {
  const DeviceType type = target.load(std::memory_order_relaxed);
  if (type == kNone) return hpu;  // another thread has just switched it off
  return {type, type == DeviceType::CPU ? c10::DeviceIndex{-1} : hpu.index()};
}

// The common forms take less time here than in torch's parser, which the others are left to, errors
// and all.
Device read(const std::string& text, std::string_view name) {
  const std::string_view rest = std::string_view(text).substr(name.size());
  if (rest.empty()) return {DeviceType::HPU};
  if (rest.size() == 2 && rest[1] >= '0' && rest[1] <= '9') {
    return {DeviceType::HPU, static_cast<c10::DeviceIndex>(rest[1] - '0')};
  }
  return Device(std::string(kHpu).append(rest));
}

// While torch.device(...) is made: the name that was read, with the device left as HPU, so that
// torch's own checks hold (an index given twice, "hpu:x").
struct Naming {
  std::string_view read;
};
thread_local Naming* naming = nullptr;

// In place of the constructor of c10::Device for a string.
void parse(Device* self, const std::string& text) {
  const std::string_view name = name_in(text);
  if (name.empty()) {
    new (self) Device(text);
    return;
  }
  const Device hpu = read(text, name);
  if (naming != nullptr) naming->read = name;
  new (self) Device(naming != nullptr ? hpu : mapped(hpu));
}

// torch.device

// Never destroyed: devices may be asked while the process ends. The objects are kept for good.
auto& objects = *new std::map<Name, PyObject*>;                // of the mapping in force
auto& names = *new std::unordered_map<const PyObject*, Name>;  // of all

newfunc original_new = nullptr;
reprfunc original_str = nullptr;
reprfunc original_repr = nullptr;

const Name* name_of(const PyObject* device) {
  const auto found = names.find(device);
  return found == names.end() ? nullptr : &found->second;
}

PyObject* named_object(const Name& name) {
  PyObject*& object = objects[name];
  if (object == nullptr) {
    object = THPDevice_New(mapped({DeviceType::HPU, name.index}));
    names.emplace(object, name);
  }
  return Py_NewRef(object);
}

PyObject* new_device(PyTypeObject* type, PyObject* args, PyObject* kwargs) {
  if (PyTuple_GET_SIZE(args) == 1 && kwargs == nullptr) {
    PyObject* argument = PyTuple_GET_ITEM(args, 0);
    if (name_of(argument) != nullptr) return Py_NewRef(argument);
  }
  Naming here;
  Naming* before = std::exchange(naming, &here);
  PyObject* made = original_new(type, args, kwargs);
  naming = before;
  if (made == nullptr || here.read.empty()) return made;
  const Name name{here.read, reinterpret_cast<THPDevice*>(made)->device.index()};
  Py_DECREF(made);
  return named_object(name);
}

PyObject* to_python(std::string_view text) {
  return PyUnicode_FromStringAndSize(text.data(), static_cast<Py_ssize_t>(text.size()));
}

PyObject* str_device(PyObject* self) {
  const Name* name = name_of(self);
  return name == nullptr ? original_str(self) : to_python(name->text());
}

PyObject* repr_device(PyObject* self) {
  const Name* name = name_of(self);
  if (name == nullptr) return original_repr(self);
  std::string text = "device(type='" + std::string(name->type) + "'";
  if (name->index >= 0) text += ", index=" + std::to_string(name->index);
  return to_python(text + ")");
}

PyObject* get_type(PyObject* self, void* closure);
PyObject* get_index(PyObject* self, void* closure);

// An attribute of torch.device: its descriptor stays the object that it is, and asks another
// getter.
struct Property {
  const char* name;
  getter get;
  PyGetSetDef* original = nullptr;
  PyGetSetDef patched = {};

  PyGetSetDescrObject* find() const {
    PyObject* found = PyDict_GetItemString(THPDeviceType.tp_dict, name);
    if (found == nullptr || Py_TYPE(found) != &PyGetSetDescr_Type) {
      throw std::runtime_error(std::string("torch.device has no attribute ") + name);
    }
    return reinterpret_cast<PyGetSetDescrObject*>(found);
  }
  void patch() {
    original = find()->d_getset;
    patched = *original;
    patched.get = get;
    find()->d_getset = &patched;
  }
  void restore() const { find()->d_getset = original; }
};
Property type_property{"type", get_type};
Property index_property{"index", get_index};

PyObject* get_type(PyObject* self, void* closure) {
  const Name* name = name_of(self);
  return name == nullptr ? type_property.original->get(self, closure) : to_python(name->type);
}

PyObject* get_index(PyObject* self, void* closure) {
  const Name* name = name_of(self);
  if (name == nullptr) return index_property.original->get(self, closure);
  if (name->index < 0) Py_RETURN_NONE;
  return PyLong_FromLong(name->index);
}

// The functions of torch's own type, not objects: nothing is replaced that Python can hold.
void patch_type() {
  type_property.patch();
  index_property.patch();
  original_new = std::exchange(THPDeviceType.tp_new, new_device);
  original_str = std::exchange(THPDeviceType.tp_str, str_device);
  original_repr = std::exchange(THPDeviceType.tp_repr, repr_device);
  PyType_Modified(&THPDeviceType);
}

void restore_type() {
  type_property.restore();
  index_property.restore();
  THPDeviceType.tp_new = original_new;
  THPDeviceType.tp_str = original_str;
  THPDeviceType.tp_repr = original_repr;
  PyType_Modified(&THPDeviceType);
}

// All of them or none.
void exchange_parsers() {
  in_python.replace(reinterpret_cast<void*>(&parse));
  if (!in_scripts) return;
  try {
    in_scripts.replace(reinterpret_cast<void*>(&parse));
  } catch (...) {
    in_python.restore();
    throw;
  }
}

}  // namespace

void map_to(DeviceType type) {
  if (target.load() == kNone) {
    in_python = ImportSlot::find(&THPDeviceType, torch_private::kDeviceParser);
    in_scripts =
        ImportSlot::find(torch_private::inside_libtorch_cpu(), torch_private::kDeviceParser);
    if (!in_python) {
      throw std::runtime_error(
          "this build of torch does not read device names through c10::Device: \"hpu\" cannot be "
          "mapped to another device");
    }
    type_property.find();
    index_property.find();
    exchange_parsers();
    patch_type();
  }
  if (target.exchange(type) != type) objects.clear();
}

void unmap() {
  if (target.load() == kNone) return;
  in_python.restore();
  if (in_scripts) in_scripts.restore();
  restore_type();
  target = kNone;
}

std::optional<DeviceType> mapped_to() {
  const DeviceType type = target.load();
  return type == kNone ? std::nullopt : std::optional(type);
}

}  // namespace habana_mp::hpu_device
