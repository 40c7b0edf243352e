#include "libaccel/engine/pager/read_ahead.h"

#include <cstddef>
#include <cstdio>
#include <thread>
#include <vector>

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

namespace accel::pager {
namespace {

constexpr std::size_t kBytes = 64U << 10;
constexpr std::size_t kNumWeights = 16;

// Weights one behind the other in a file without a name.
class MappedFile {
 public:
  MappedFile() : file_(std::tmpfile()) {
    EXPECT_NE(file_, nullptr);
    EXPECT_EQ(::ftruncate(::fileno(file_), kNumWeights * kBytes), 0);
    pages_ = ::mmap(
        nullptr, kNumWeights * kBytes, PROT_READ, MAP_PRIVATE, ::fileno(file_), /*offset=*/0);
    EXPECT_NE(pages_, MAP_FAILED);
  }
  ~MappedFile() {
    ::munmap(pages_, kNumWeights * kBytes);
    std::fclose(file_);
  }
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  [[nodiscard]] std::vector<MappedWeight> weights() const {
    std::vector<MappedWeight> all;
    for (std::size_t i = 0; i < kNumWeights; ++i)
      all.push_back({static_cast<std::byte*>(pages_) + i * kBytes, kBytes});
    return all;
  }

 private:
  std::FILE* file_;
  void* pages_ = nullptr;
};

TEST(ReadAhead, KeepsNoMoreThanTheLimitInMemory) {
  const MappedFile file;
  ReadAhead ahead(file.weights(), 4 * kBytes);
  for (int forward = 0; forward < 3; ++forward) {
    for (std::size_t weight = 0; weight < kNumWeights; ++weight) ahead.use(weight);
  }
  const auto seen = ahead.statistics();
  EXPECT_LE(seen.peak_bytes, 4 * kBytes);
  EXPECT_GE(seen.num_reads,
            3 * (kNumWeights - 4));  // what does not fit comes again in each forward
}

// One that waits for its weight is served, whatever others want meanwhile, and whatever has to leave for them.
TEST(ReadAhead, ServesEachThreadThatWaits) {
  const MappedFile file;
  constexpr std::size_t kNumThreads = 4;
  ReadAhead ahead(file.weights(), 2 * kBytes);
  {
    std::vector<std::jthread> threads;
    for (std::size_t thread = 0; thread < kNumThreads; ++thread) {
      threads.emplace_back([&ahead, thread] {
        for (std::size_t i = 0; i < 500; ++i)
          ahead.use((i * (2 * thread + 1) + thread) % kNumWeights);
      });
    }
  }
  EXPECT_LE(ahead.statistics().peak_bytes, (2 + kNumThreads) * kBytes);
}

}  // namespace
}  // namespace accel::pager
