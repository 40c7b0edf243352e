#include "libaccel/engine/shm/memory/peer_memory.h"

#include <array>
#include <csignal>
#include <cstdint>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "runtime/page_size.h"

namespace accel::shm::peer_memory_test {
namespace {

using ::testing::HasSubstr;

// A process with a copy of this one's memory.
class Child {
 public:
  Child() : pid_(::fork()) {
    while (pid_ == 0) ::pause();
  }
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;
  ~Child() {
    kill();
    ::waitpid(pid_, nullptr, 0);
  }
  void kill() const { ::kill(pid_, SIGKILL); }
  [[nodiscard]] pid_t pid() const { return pid_; }

 private:
  pid_t pid_;
};

std::uint64_t address_of(const std::byte* data) {
  return reinterpret_cast<std::uintptr_t>(data);
}

// More than the kernel pins at once, and no whole pages.
constexpr std::size_t kBytes = (std::size_t{9} << 20) + 12'345;

TEST(PeerMemoryTest, WhatIsWrittenThereIsReadThereAndStaysOutOfThisProcess) {
  const std::vector<std::byte> kept(kBytes, std::byte{1});
  std::vector<std::byte> room = kept;
  const Child child;
  const std::vector<std::byte> sent(kBytes, std::byte{2});
  std::vector<std::byte> seen(kBytes);

  ASSERT_TRUE(read_memory(child.pid(), address_of(room.data()), seen.data(), kBytes));
  EXPECT_TRUE(seen == kept);
  ASSERT_TRUE(write_memory(child.pid(), address_of(room.data()), sent.data(), kBytes));
  ASSERT_TRUE(read_memory(child.pid(), address_of(room.data()), seen.data(), kBytes));
  EXPECT_TRUE(seen == sent);
  EXPECT_TRUE(room == kept);
}

TEST(PeerMemoryTest, WhatIsNotMappedThereIsAnErrorEvenWhereItsBeginningIs) {
  const std::size_t page = page_bytes();
  void* const pages =
      ::mmap(nullptr, 2 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(pages, MAP_FAILED);
  auto* const begin = static_cast<std::byte*>(pages);
  ::munmap(begin + page, page);
  std::vector<std::byte> room(2 * page);
  const auto read = read_memory(::getpid(), address_of(begin), room.data(), room.size());
  ASSERT_FALSE(read);
  EXPECT_EQ(read.error().code(), ErrorCode::kInternal);
  EXPECT_THAT(read.error().message(), HasSubstr("cannot be read: Bad address"));
  EXPECT_FALSE(write_memory(::getpid(), address_of(begin), room.data(), room.size()));
  EXPECT_EQ(reachable_address(begin, 2 * page), 0U);
  EXPECT_EQ(reachable_address(begin, page), address_of(begin));
  ::munmap(begin, page);
}

TEST(PeerMemoryTest, ADeadProcessIsALossEvenBeforeItIsReaped) {
  std::array<std::byte, 8> room = {};
  const Child child;
  child.kill();
  siginfo_t info = {};
  ::waitid(P_PID, static_cast<id_t>(child.pid()), &info, WEXITED | WNOWAIT);
  const auto read = read_memory(child.pid(), address_of(room.data()), room.data(), room.size());
  ASSERT_FALSE(read);
  EXPECT_EQ(read.error().code(), ErrorCode::kPeerLost);
}

TEST(PeerMemoryTest, NoBytesHaveNoAddress) {
  const std::byte one{};
  EXPECT_EQ(reachable_address(&one, 0), 0U);
  EXPECT_EQ(reachable_address(&one, 1), address_of(&one));
}

}  // namespace
}  // namespace accel::shm::peer_memory_test
