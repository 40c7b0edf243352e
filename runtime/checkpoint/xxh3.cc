#include "runtime/checkpoint/xxh3.h"

#include <xxhash.h>

namespace accel::checkpoint {

const Xxh3& portable_xxh3() noexcept {
  static constexpr Xxh3 kFunctions{
      [](void* state, const void* bytes, std::size_t size) noexcept {
        XXH3_64bits_update(static_cast<XXH3_state_t*>(state), bytes, size);
      },
      [](const void* bytes, std::size_t size) noexcept -> std::uint64_t {
        return XXH3_64bits(bytes, size);
      }};
  return kFunctions;
}

const Xxh3& xxh3_functions() noexcept {
  static const Xxh3& best = wide_xxh3() != nullptr ? *wide_xxh3() : portable_xxh3();
  return best;
}

}  // namespace accel::checkpoint
