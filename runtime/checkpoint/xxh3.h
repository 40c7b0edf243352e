// Xxh3: the hash of checkpoints, with the widest vectors of this processor.
//
// A load hashes every byte that it reads while it is in the cache: with vectors of 16 bytes, which any x86-64 has, at
// 11 GB/s, with those of AVX2 at 21 GB/s (Xeon of 2023). The values are the same.
//
// Threads:  any.
#pragma once

#include <cstddef>
#include <cstdint>

namespace accel::checkpoint {

struct Xxh3 {
  // Adds bytes to a hash that is under way. state: an XXH3_state_t.
  void (*update)(void* state, const void* bytes, std::size_t size) noexcept;
  // The hash of bytes, seed 0.
  std::uint64_t (*hash)(const void* bytes, std::size_t size) noexcept;
};

// What the compiler makes for every processor of this kind.
[[nodiscard]] const Xxh3& portable_xxh3() noexcept;
// With AVX2; nullptr: this processor has none.
[[nodiscard]] const Xxh3* wide_xxh3() noexcept;
// The best of the two.
[[nodiscard]] const Xxh3& xxh3_functions() noexcept;

}  // namespace accel::checkpoint
