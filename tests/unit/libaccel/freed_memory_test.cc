// In child processes: the thresholds of malloc are the process's own.

#include "libaccel/engine/process/freed_memory.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <vector>

#include <gtest/gtest.h>
#include <malloc.h>
#include <sys/resource.h>

namespace accel::freed_memory_test {
namespace {

constexpr std::size_t kBlock = std::size_t{4} << 20;  // a gradient
constexpr int kNumBlocks = 8;

// Page faults of one step: blocks that are taken, written and freed.
long faults_of_a_step() {
  rusage before{};
  ::getrusage(RUSAGE_SELF, &before);
  {
    std::vector<std::unique_ptr<char[]>> blocks;
    for (int i = 0; i < kNumBlocks; ++i) {
      blocks.push_back(std::make_unique_for_overwrite<char[]>(kBlock));
      std::memset(blocks.back().get(), 1, kBlock);
    }
  }
  rusage after{};
  ::getrusage(RUSAGE_SELF, &after);
  return after.ru_minflt - before.ru_minflt;
}

struct Faults {
  long before = 0;  // as glibc gives back what is free
  long after = 0;
};

Faults faults_around_keep() {
  ::mallopt(M_MMAP_THRESHOLD, 128 * 1024);
  ::mallopt(M_TRIM_THRESHOLD, 128 * 1024);
  Faults faults;
  faults.before = faults_of_a_step();
  keep_freed_memory();
  (void)faults_of_a_step();  // takes the memory once
  faults.after = faults_of_a_step();
  std::fprintf(stderr, "faults before %ld, after %ld\n", faults.before, faults.after);
  return faults;
}

TEST(FreedMemory, IsThereForTheNextStep) {
  EXPECT_EXIT(
      {
        const Faults faults = faults_around_keep();
        std::_Exit(faults.before >= kNumBlocks && faults.after < faults.before / 4 ? 0 : 1);
      },
      ::testing::ExitedWithCode(0),
      "faults before");
}

TEST(FreedMemory, GoesBackWhereTheEnvironmentSetsAThreshold) {
  for (const char* setting : {"MALLOC_TRIM_THRESHOLD_=131072",
                              "MALLOC_MMAP_THRESHOLD_=131072",
                              "GLIBC_TUNABLES=glibc.malloc.trim_threshold=131072"}) {
    EXPECT_EXIT(
        {
          ::putenv(const_cast<char*>(setting));
          const Faults faults = faults_around_keep();
          std::_Exit(faults.after >= faults.before / 2 ? 0 : 1);
        },
        ::testing::ExitedWithCode(0),
        "faults before")
        << setting;
  }
}

}  // namespace
}  // namespace accel::freed_memory_test
