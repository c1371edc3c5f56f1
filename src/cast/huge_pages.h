// Pages of 2 MiB in place of 4 KiB. What is read from end to end is read faster from them: there
// are fewer addresses to translate, and the CPU fetches ahead up to the end of a page.
#pragma once

#include <cstddef>
#include <span>

namespace habana_mp {

// They lie at multiples of their size.
inline constexpr std::size_t kHugePage = std::size_t{2} << 20;

// Moves memory that is already written into such pages, where the system has them to give, and
// those at its ends with what lies beside it. Takes no more memory than there was.
void move_to_huge_pages(std::span<const std::byte> memory);

}  // namespace habana_mp
