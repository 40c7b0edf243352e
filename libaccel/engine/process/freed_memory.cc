#include "libaccel/engine/process/freed_memory.h"

#include <cstdlib>
#include <string_view>

#include <malloc.h>

namespace accel {
namespace {

bool is_chosen_by_the_user() {
  for (const char* name : {"MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "MALLOC_TOP_PAD_"}) {
    if (std::getenv(name) != nullptr) return true;
  }
  const char* const tunables = std::getenv("GLIBC_TUNABLES");
  return tunables != nullptr &&
         std::string_view(tunables).find("glibc.malloc.") != std::string_view::npos;
}

}  // namespace

void return_freed_memory() noexcept {
#ifdef __GLIBC__
  if (is_chosen_by_the_user()) return;
  ::mallopt(M_MMAP_THRESHOLD, static_cast<int>(kSmallestReturnedBlock));
  ::malloc_trim(0);
#endif
}

void keep_freed_memory() noexcept {
#ifdef __GLIBC__
  if (is_chosen_by_the_user()) return;
  ::malloc_trim(0);  // what was freed so far is not of a step
  ::mallopt(M_MMAP_THRESHOLD, static_cast<int>(kLargestKeptBlock));
  ::mallopt(M_TRIM_THRESHOLD, static_cast<int>(kMostKeptFree));
#endif
}

}  // namespace accel
