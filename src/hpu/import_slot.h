// The slot of a loaded library through which it calls a function of another library: the entry of
// its global offset table that the dynamic linker fills in. Knows nothing of torch. ELF only.
#pragma once

namespace habana_mp {

class ImportSlot {
 public:
  // The slot for the function that the linker knows as `symbol`, in the library that `inside` lies
  // in. Not found: an empty slot.
  static ImportSlot find(const void* inside, const char* symbol);

  explicit operator bool() const { return address_ != nullptr; }

  // From now on the library calls `function`, until restore(). std::system_error where the system
  // does not let the slot be written.
  void replace(void* function) { original_ = exchange(function); }
  void restore() { exchange(original_); }

 private:
  void* exchange(void* function);

  void** address_ = nullptr;
  void* original_ = nullptr;
  bool read_only_ = false;
};

}  // namespace habana_mp
