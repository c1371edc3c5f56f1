// The pages that memory lies in, as Linux keeps them.
#pragma once

#include <c10/util/FunctionRef.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

namespace habana_mp {

std::uintptr_t page_size();

struct Page {
  bool present, swapped, of_file;
  bool exclusive;  // no other process has it, and it is not the page of zeros
};

// Whether all pages of this memory, which begins and ends with one, are so; nothing where Linux
// does not tell.
std::optional<bool> every_page(std::span<const std::byte> pages, c10::function_ref<bool(Page)> is);

// Pages of 2 MiB in place of 4 KiB lie at multiples of their size. What is read from end to end is
// read faster from them: there are fewer addresses to translate, and the CPU fetches ahead up to
// the end of a page.
inline constexpr std::size_t kHugePage = std::size_t{2} << 20;

// Moves memory that is already written into such pages, where the system has them to give, and
// with its ends what lies beside them. Only where all of such a page is there, and no other process
// has any of it: so it takes no more memory.
void move_to_huge_pages(std::span<const std::byte> memory);

}  // namespace habana_mp
