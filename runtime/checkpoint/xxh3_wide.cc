// Compiled for AVX2 where the compiler has it: nothing in here runs before the processor was asked, and nothing but xxhash.h is
// instantiated, whose functions are this file's own.

#include <xxhash.h>

#include "runtime/checkpoint/xxh3.h"

namespace accel::checkpoint {

#if defined(__AVX2__)
const Xxh3* wide_xxh3() noexcept {
  static constexpr Xxh3 kFunctions{
      [](void* state, const void* bytes, std::size_t size) noexcept {
        XXH3_64bits_update(static_cast<XXH3_state_t*>(state), bytes, size);
      },
      [](const void* bytes, std::size_t size) noexcept -> std::uint64_t {
        return XXH3_64bits(bytes, size);
      }};
  return __builtin_cpu_supports("avx2") != 0 ? &kFunctions : nullptr;
}
#else
const Xxh3* wide_xxh3() noexcept {
  return nullptr;
}
#endif

}  // namespace accel::checkpoint
