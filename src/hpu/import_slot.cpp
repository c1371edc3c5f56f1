#include "hpu/import_slot.h"

#include <elf.h>
#include <link.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <span>
#include <system_error>

namespace habana_mp {
namespace {

#if defined(__x86_64__)
constexpr unsigned kJumpSlot = R_X86_64_JUMP_SLOT;
constexpr unsigned kGlobalData = R_X86_64_GLOB_DAT;
#elif defined(__aarch64__)
constexpr unsigned kJumpSlot = R_AARCH64_JUMP_SLOT;
constexpr unsigned kGlobalData = R_AARCH64_GLOB_DAT;
#else
#error "the relocations of this processor are to be named here"
#endif

struct Library {
  std::uintptr_t base = 0;
  std::span<const ElfW(Rela)> calls;  // functions that are called through stubs
  std::span<const ElfW(Rela)> data;   // all others
  const ElfW(Sym) * symbols = nullptr;
  const char* names = nullptr;
  std::uintptr_t read_only_begin = 0;
  std::uintptr_t read_only_end = 0;

  void read_dynamic(const ElfW(Dyn) * entries) {
    const auto value = [&](std::int64_t tag) {
      const ElfW(Dyn)* entry = entries;
      while (entry->d_tag != DT_NULL && entry->d_tag != tag) ++entry;
      return entry->d_tag == tag ? std::uintptr_t{entry->d_un.d_ptr} : 0;
    };
    const auto at = [&]<typename T>(std::int64_t tag, const T*& place) {
      const std::uintptr_t address = value(tag);
      if (address == 0) return;
      // glibc has relocated it, musl has not
      place = reinterpret_cast<const T*>(address < base ? address + base : address);
    };
    const auto relocations = [&](std::int64_t tag, std::int64_t tag_of_bytes) {
      const ElfW(Rela)* first = nullptr;
      at(tag, first);
      return std::span(first, value(tag_of_bytes) / sizeof(ElfW(Rela)));
    };
    calls = relocations(DT_JMPREL, DT_PLTRELSZ);
    data = relocations(DT_RELA, DT_RELASZ);
    at(DT_SYMTAB, symbols);
    at(DT_STRTAB, names);
  }

  void* slot_of(const char* symbol) const {
    if (symbols == nullptr || names == nullptr) return nullptr;
    for (const auto& relocations : {calls, data}) {
      for (const ElfW(Rela) & relocation : relocations) {
        const auto kind = static_cast<unsigned>(ELF64_R_TYPE(relocation.r_info));
        if (kind != kJumpSlot && kind != kGlobalData) continue;
        const ElfW(Sym) & named = symbols[ELF64_R_SYM(relocation.r_info)];
        if (std::strcmp(names + named.st_name, symbol) == 0) {
          return reinterpret_cast<void*>(base + relocation.r_offset);
        }
      }
    }
    return nullptr;
  }
};

struct Search {
  std::uintptr_t inside;
  Library found;
};

// One loaded library; nonzero ends the search.
int look_at(dl_phdr_info* info, std::size_t, void* data) {
  auto& search = *static_cast<Search*>(data);
  Library library;
  library.base = info->dlpi_addr;
  const ElfW(Dyn)* dynamic = nullptr;
  bool here = false;
  for (const ElfW(Phdr) & header : std::span(info->dlpi_phdr, info->dlpi_phnum)) {
    const std::uintptr_t begin = info->dlpi_addr + header.p_vaddr;
    const std::uintptr_t end = begin + header.p_memsz;
    if (header.p_type == PT_LOAD) {
      here = here || (begin <= search.inside && search.inside < end);
    } else if (header.p_type == PT_DYNAMIC) {
      dynamic = reinterpret_cast<const ElfW(Dyn)*>(begin);
    } else if (header.p_type == PT_GNU_RELRO) {
      library.read_only_begin = begin;
      library.read_only_end = end;
    }
  }
  if (!here || dynamic == nullptr) return 0;
  library.read_dynamic(dynamic);
  search.found = library;
  return 1;
}

}  // namespace

ImportSlot ImportSlot::find(const void* inside, const char* symbol) {
  Search search{reinterpret_cast<std::uintptr_t>(inside), {}};
  ImportSlot slot;
  if (dl_iterate_phdr(look_at, &search) == 0) return slot;
  slot.address_ = static_cast<void**>(search.found.slot_of(symbol));
  const auto address = reinterpret_cast<std::uintptr_t>(slot.address_);
  slot.read_only_ = search.found.read_only_begin <= address && address < search.found.read_only_end;
  return slot;
}

void* ImportSlot::exchange(void* function) {
  const auto page_size = static_cast<std::uintptr_t>(sysconf(_SC_PAGESIZE));
  const auto page = reinterpret_cast<std::uintptr_t>(address_) & ~(page_size - 1);
  const auto protect = [&](int protection) {
    if (mprotect(reinterpret_cast<void*>(page), page_size, protection) != 0) {
      throw std::system_error(errno, std::generic_category(), "mprotect");
    }
  };
  if (read_only_) protect(PROT_READ | PROT_WRITE);
  void* before = __atomic_exchange_n(address_, function, __ATOMIC_ACQ_REL);
  if (read_only_) protect(PROT_READ);
  return before;
}

}  // namespace habana_mp
