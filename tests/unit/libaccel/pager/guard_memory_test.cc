#include "libaccel/engine/pager/guard_memory.h"

#include <csignal>
#include <cstdlib>
#include <cstring>
#include <fstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <accel/error.h>

#include "libaccel/interception/parameter_operators.h"
#include "runtime/unique_fd.h"

namespace accel::pager::guard_memory_test {
namespace {

constexpr std::size_t kPage = 4096;

int read_byte(const std::byte* address) {
  return std::to_integer<int>(*static_cast<const volatile std::byte*>(address));
}

std::vector<GuardLabel> two_labels() {
  return {{0, 100, "fc1.weight"}, {128, 50, "fc1.bias"}};
}

TEST(GuardRange, HoldsZerosAfterEachCommitAndWhatIsWrittenUntilDecommit) {
  GuardRange range(3 * kPage + 1, two_labels());
  EXPECT_EQ(range.bytes(), 3 * kPage + 1);
  EXPECT_EQ(range.reserved_bytes(), 4 * kPage);

  for (int round = 0; round < 3; ++round) {
    const auto memory = range.commit();
    ASSERT_EQ(memory.size(), range.bytes());
    EXPECT_EQ(read_byte(memory.data() + 2 * kPage), 0);
    std::memset(memory.data(), 7, memory.size());
    EXPECT_EQ(read_byte(range.begin() + 3 * kPage), 7);
    range.decommit();
  }
}

TEST(GuardRange, LargeOnesBeginOnAHugePageAndAreAsGuarded) {
  constexpr std::size_t kBytes = (5 << 20) + 3;
  GuardRange range(kBytes, {{0, kBytes, "table"}});
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(range.begin()) % (2 << 20), 0u);
  EXPECT_EQ(range.reserved_bytes(), (5u << 20) + kPage);

  for (int round = 0; round < 2; ++round) {
    const auto memory = range.commit();
    EXPECT_EQ(read_byte(&memory.back()), 0);
    std::memset(memory.data(), 9, memory.size());
    range.decommit();
    EXPECT_EQ(::write(STDOUT_FILENO, range.begin() + kBytes - 1, 1), -1);
    EXPECT_EQ(errno, EFAULT);
  }
}

TEST(GuardRange, PiecesOfFilesLieSideBySide) {
  const UniqueFd low(::memfd_create("low", MFD_CLOEXEC));
  const UniqueFd high(::memfd_create("high", MFD_CLOEXEC));
  const std::string letters(2 * kPage, 'b');
  ASSERT_EQ(::ftruncate(low.get(), kPage), 0);
  ASSERT_EQ(::pwrite(high.get(), letters.data(), letters.size(), 0), ssize_t(letters.size()));
  GuardRange range(2 * kPage, {});

  range.map(low.get(), 0, 0, kPage, GuardRange::Access::kReadWrite);
  range.map(high.get(), kPage, kPage, kPage, GuardRange::Access::kRead);

  EXPECT_EQ(read_byte(range.begin()), 0);
  EXPECT_EQ(read_byte(range.begin() + kPage), 'b');
  range.begin()[5] = std::byte{'x'};
  char written = 0;
  ASSERT_EQ(::pread(low.get(), &written, 1, 5), 1);
  EXPECT_EQ(written, 'x');
  range.decommit();
  EXPECT_EQ(::write(low.get(), range.begin(), 1), -1) << "a system call gets EFAULT";
  EXPECT_EQ(errno, EFAULT);
  EXPECT_THROW(range.map(low.get(), 0, 100, kPage, GuardRange::Access::kRead), Error);
  EXPECT_THROW(range.map(low.get(), 0, kPage, 2 * kPage, GuardRange::Access::kRead), Error);
}

TEST(GuardRangeDeathTest, AMappedRangeIsWritableForAWhileAndKeepsItsPages) {
  const UniqueFd memory(::memfd_create("shard", MFD_CLOEXEC));
  ASSERT_EQ(::ftruncate(memory.get(), kPage), 0);
  GuardRange range(kPage, two_labels());
  range.map(memory.get(), 0, 0, kPage, GuardRange::Access::kRead);

  range.set_access(kPage, GuardRange::Access::kReadWrite);
  range.begin()[5] = std::byte{'x'};
  range.set_access(kPage, GuardRange::Access::kRead);

  EXPECT_EQ(read_byte(range.begin() + 5), 'x');
  char written = 0;
  ASSERT_EQ(::pread(memory.get(), &written, 1, 5), 1);
  EXPECT_EQ(written, 'x');
  EXPECT_EXIT(std::memset(range.begin(), 1, 4),
              ::testing::KilledBySignal(SIGSEGV),
              "'fc1.weight'.*, which the ranks of this node share");
}

TEST(GuardRangeDeathTest, AReadNamesTheParameterAndTheOperatorAndDiesBySegv) {
  GuardRange range(kPage, two_labels());
  range.commit();
  range.decommit();
  const interception::OperatorRun run("aten::addmm");

  EXPECT_EXIT(read_byte(range.begin() + 130),
              ::testing::KilledBySignal(SIGSEGV),
              "\\[pager.evicted\\]: parameter 'fc1.bias' was touched at byte 2 of 50"
              " while it was evicted\n.*aten::addmm\n.*with_params");
  EXPECT_EXIT(std::memset(range.begin(), 1, 4), ::testing::KilledBySignal(SIGSEGV), "fc1.weight");
  EXPECT_EXIT(read_byte(range.begin() + 110),
              ::testing::KilledBySignal(SIGSEGV),
              "memory behind a paged parameter");
}

TEST(GuardRangeDeathTest, OtherFaultsDieAsBeforeWithoutAWord) {
  const GuardRange range(kPage, two_labels());
  void* other = ::mmap(nullptr, kPage, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

  EXPECT_EXIT(read_byte(static_cast<std::byte*>(other)), ::testing::KilledBySignal(SIGSEGV), "^$");
  EXPECT_EXIT(::raise(SIGSEGV), ::testing::KilledBySignal(SIGSEGV), "^$");
  ::munmap(other, kPage);
}

// In a process of its own (the death test), where the handler is installed over another one.
void fault_below_another_handler() {
  struct sigaction ours = {};
  ::sigaction(SIGSEGV, nullptr, &ours);
  const GuardRange range(kPage, two_labels());
  (void)read_byte(range.begin());
}

TEST(GuardRangeDeathTest, TheHandlerOfBeforeIsCalled) {
  // The death test runs this in a fresh process (threadsafe style), where no range has been made yet.
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(
      {
        struct sigaction action = {};
        action.sa_handler = [](int) { ::_exit(42); };
        ::sigaction(SIGSEGV, &action, nullptr);
        fault_below_another_handler();
      },
      ::testing::ExitedWithCode(42),
      "parameter 'fc1.weight'");
}

}  // namespace
}  // namespace accel::pager::guard_memory_test
