// The hash of checkpoints has one value, whatever vectors computed it.

#include "runtime/checkpoint/xxh3.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include <gtest/gtest.h>

#include "runtime/checkpoint/hashed_file.h"

namespace accel::checkpoint::xxh3_test {
namespace {

std::vector<std::byte> some_bytes(std::size_t size) {
  std::vector<std::byte> bytes(size);
  std::uint32_t state = 1;
  for (std::byte& byte : bytes) {
    state = state * 1664525 + 1013904223;
    byte = static_cast<std::byte>(state >> 24);
  }
  return bytes;
}

// What other programs say of the same bytes.
TEST(Xxh3, HasTheValuesOfItsSpecification) {
  EXPECT_EQ(xxh3({}), 0x2D06800538D394C2U);
  EXPECT_EQ(RunningHash().digest().xxh3, 0x2D06800538D394C2U);
}

TEST(Xxh3, IsTheSameWithWideVectors) {
  const Xxh3* const wide = wide_xxh3();
  if (wide == nullptr) GTEST_SKIP() << "this processor has no AVX2";
  const std::vector<std::byte> bytes = some_bytes(5000);
  for (std::size_t size = 0; size <= bytes.size(); size += size < 600 ? 1 : 97) {
    EXPECT_EQ(wide->hash(bytes.data(), size), portable_xxh3().hash(bytes.data(), size)) << size;
  }
  EXPECT_EQ(wide->hash(bytes.data() + 3, 4000), portable_xxh3().hash(bytes.data() + 3, 4000));
}

TEST(Xxh3, OfPiecesIsThatOfTheWhole) {
  const std::vector<std::byte> bytes = some_bytes(100'000);
  for (const std::size_t piece : {1, 255, 256, 257, 1023, 1024, 4099, 65'536}) {
    RunningHash hash;
    for (std::size_t done = 0; done < bytes.size(); done += piece)
      hash.update(std::span(bytes).subspan(done, std::min(piece, bytes.size() - done)));
    EXPECT_EQ(hash.digest().xxh3, portable_xxh3().hash(bytes.data(), bytes.size())) << piece;
  }
}

}  // namespace
}  // namespace accel::checkpoint::xxh3_test
