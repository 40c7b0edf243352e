// Two ranks that copy straight out of and into each other's memory: processes, where it matters whether they may.

#include <algorithm>
#include <atomic>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/support/shm_ranks.h"

namespace accel::shm::shm_straight_test {
namespace {

using test::bytes_of;
using ::testing::HasSubstr;
using ChildRank = test::ShmChildRank;
using Ranks = test::ShmRanks;

constexpr std::size_t kNever = SIZE_MAX;

// Sums of these depend on the order of their addends in the last bit.
std::vector<float> input_of(int rank, std::size_t count) {
  std::vector<float> values(count);
  for (std::size_t i = 0; i < count; ++i)
    values[i] = static_cast<float>(rank + 1) * (0.1F + static_cast<float>(i % 1'013));
  return values;
}

// What a rank does, and how many of its results are wrong.
using Body = std::function<int(ShmGroup&)>;

// Rank 1 is a process of its own. The results of both are added.
int num_wrong(const Ranks& ranks, const Body& body) {
  const auto sum_of = [](ShmGroup& group, int own) {
    std::vector<int> sum = {own};
    or_throw(group.all_reduce(bytes_of(sum), bytes_of(sum), 1, DataType::kInt32, ReduceOp::kSum));
    return sum[0];
  };
  const ChildRank child(ranks, 1, [&](ShmGroup& group) { (void)sum_of(group, body(group)); });
  const auto group = ranks.join(0);
  return sum_of(*group, body(*group));
}

// Numbers that no whole blocks, halves or cache lines make up, and more than a block of an all-reduce.
constexpr std::size_t kCounts[] = {1, 2, 17, 1'000, 32'769, 300'001};

int broadcast_all(ShmGroup& group) {
  int wrong = 0;
  for (const std::size_t count : kCounts) {
    for (const int root : {0, 1}) {
      std::vector<float> values = input_of(group.rank(), count);
      or_throw(group.broadcast(bytes_of(values), count * sizeof(float), root, "Float"));
      wrong += values == input_of(root, count) ? 0 : 1;
    }
  }
  return wrong;
}

int reduce_all(ShmGroup& group) {
  int wrong = 0;
  for (const std::size_t count : kCounts) {
    const std::vector<float> zero = input_of(0, count);
    const std::vector<float> one = input_of(1, count);
    const std::vector<float> own = input_of(group.rank(), count);
    for (const bool is_in_place : {false, true}) {
      std::vector<float> sum = is_in_place ? own : std::vector<float>(count);
      const std::byte* const in = is_in_place ? bytes_of(sum) : bytes_of(own);
      or_throw(group.all_reduce(in, bytes_of(sum), count, DataType::kFloat32, ReduceOp::kSum));
      for (std::size_t i = 0; i < count; ++i) wrong += sum[i] == zero[i] + one[i] ? 0 : 1;
    }
  }
  return wrong;
}

const std::vector<Body> kBodies = {broadcast_all, reduce_all};

TEST(ShmStraight, ResultsAreThoseOfTheWayThroughSlots) {
  for (const std::size_t from : {kNever, std::size_t{1}, std::size_t{4'096}}) {
    for (const Body& body : kBodies)
      EXPECT_EQ(num_wrong(Ranks(2).straight_from(from), body), 0) << "from " << from << " bytes on";
  }
}

constexpr std::byte kMark{0x5a};

void mark_slots(const GroupMemory& memory, std::size_t bytes) {
  for (const int rank : {0, 1}) {
    for (const unsigned parity : {0U, 1U})
      std::memset(memory.slot(rank, parity), static_cast<int>(kMark), bytes);
  }
}

bool have_slots_marks(const GroupMemory& memory, std::size_t bytes) {
  for (const int rank : {0, 1}) {
    for (const unsigned parity : {0U, 1U}) {
      const std::byte* const slot = memory.slot(rank, parity);
      if (std::any_of(slot, slot + bytes, [](std::byte byte) { return byte != kMark; }))
        return false;
    }
  }
  return true;
}

// Of a broadcast of rank 1, which is another process: of `data`, or of numbers that arrive as they are.
bool went_through_slots(const std::function<void()>& prepare_child,
                        const std::byte* data = nullptr) {
  const Ranks ranks = Ranks(2).straight_from(1);
  const GroupShape shape = ranks.options(0).shape;
  const GroupMemory memory = or_throw(GroupMemory::map(ranks.memory().get(), shape));
  mark_slots(memory, shape.slot_bytes);
  const std::size_t bytes = data == nullptr ? 10'000 * sizeof(float) : 64;
  const ChildRank child(ranks, 1, [&](ShmGroup& group) {
    prepare_child();
    std::vector<float> values = input_of(1, 10'000);
    std::byte* const sent = data == nullptr ? bytes_of(values) : const_cast<std::byte*>(data);
    (void)group.broadcast(sent, bytes, 1);
  });
  const auto group = ranks.join(0);
  std::vector<float> values(10'000);
  or_throw(group->broadcast(bytes_of(values), bytes, 1));
  EXPECT_TRUE(data != nullptr || values == input_of(1, 10'000));
  return !have_slots_marks(memory, shape.slot_bytes);
}

TEST(ShmStraight, NothingGoesThroughTheSlots) {
  EXPECT_FALSE(went_through_slots([] {}));
}

// As a container's filter may, or Yama: this process is not let in any more.
void refuse_call(long number) {
  const sock_filter code[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, static_cast<std::uint32_t>(number), 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)};
  const sock_fprog program = {.len = std::size(code), .filter = const_cast<sock_filter*>(code)};
  const bool is_set = ::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
                      ::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
  if (!is_set) ::_exit(1);
}

TEST(ShmStraight, OneThatMayNotReadOrWriteTheOthersMemoryMakesBothGoThroughTheSlots) {
  for (const long number : {SYS_process_vm_readv, SYS_process_vm_writev})
    EXPECT_TRUE(went_through_slots([&] { refuse_call(number); })) << number;
}

// A process with the same addresses has the pid that rank 1 is known by, as may be where each has pids of its own.
TEST(ShmStraight, AnotherProcessWithThePidOfARankIsNotTakenForIt) {
  const Ranks ranks = Ranks(2).straight_from(1);
  const GroupMemory memory =
      or_throw(GroupMemory::map(ranks.memory().get(), ranks.options(0).shape));
  std::unique_ptr<ShmGroup> groups[2];
  {
    std::jthread joining([&] { groups[1] = ranks.join(1); });
    groups[0] = ranks.join(0);
  }
  const pid_t other = ::fork();
  if (other == 0) {
    for (;;) ::pause();
  }
  memory.line(1).pid.store(other);
  std::vector<float> values = input_of(0, 10'000);
  std::jthread sending([&] {
    std::vector<float> sent = input_of(1, 10'000);
    or_throw(groups[1]->broadcast(bytes_of(sent), sent.size() * sizeof(float), 1));
  });
  or_throw(groups[0]->broadcast(bytes_of(values), values.size() * sizeof(float), 1));
  sending.join();
  ::kill(other, SIGKILL);
  ::waitpid(other, nullptr, 0);

  EXPECT_EQ(values, input_of(1, 10'000));
}

// Of the kernel's page of clocks: it can be read, and not be reached by others; as what is mapped from a device.
const std::byte* unreachable_page() {
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    if (line.find("[vvar]") == std::string::npos) continue;
    return reinterpret_cast<const std::byte*>(std::stoull(line, nullptr, 16));
  }
  return nullptr;
}

TEST(ShmStraight, ATensorThatCannotBeReachedGoesThroughTheSlots) {
  const std::byte* const page = unreachable_page();
  if (page == nullptr) GTEST_SKIP() << "this kernel maps no page of clocks";
  EXPECT_TRUE(went_through_slots([] {}, page));
}

TEST(ShmStraight, MoreThanTwoRanksGoThroughTheSlots) {
  Ranks(3).straight_from(1).run([](ShmGroup& group) {
    std::vector<float> values = input_of(group.rank(), 10'000);
    or_throw(group.broadcast(bytes_of(values), values.size() * sizeof(float), 2));
    EXPECT_EQ(values, input_of(2, 10'000));
  });
}

// ---- after an error ----

class ShmStraightErrors : public ::testing::Test {
 protected:
  ShmStraightErrors()
      : memory_(or_throw(GroupMemory::map(ranks_.memory().get(), ranks_.options(0).shape))) {}

  // The group of a rank that has found out that it can reach the other.
  std::unique_ptr<ShmGroup> join(int rank) const {
    auto group = ranks_.join(rank);
    EXPECT_TRUE(broadcast(*group));
    return group;
  }
  static Result<void> broadcast(ShmGroup& group) {
    std::vector<float> values(100);
    return group.broadcast(bytes_of(values), 400, 0);
  }

  const Ranks ranks_ = Ranks(2).straight_from(1);
  const GroupMemory memory_;
};

TEST_F(ShmStraightErrors, ARankDoesNotReturnWhileTheOtherCopies) {
  std::jthread other([&] { (void)join(1); });
  const auto group = join(0);
  other.join();
  memory_.line(1).is_copying.store(1);
  std::atomic<bool> has_ended_copy = false;
  std::jthread copy([&] {
    while (memory_.line(0).state.load() != RankState::kBroken) std::this_thread::yield();
    has_ended_copy = true;
    memory_.line(1).is_copying.store(0);
  });

  EXPECT_FALSE(broadcast(*group)) << "the other one has left";

  EXPECT_TRUE(has_ended_copy);
}

TEST_F(ShmStraightErrors, ARankDoesNotBeginToCopyWhenTheOtherHasMetAnError) {
  std::vector<float> theirs(100, 1.0F);
  std::jthread early([&] {
    const auto group = join(1);
    const std::uint32_t ended = memory_.line(1).phase.load();
    std::jthread ending([&] {
      while (memory_.line(1).phase.load() == ended) std::this_thread::yield();
      group->abort();
    });
    EXPECT_FALSE(group->broadcast(bytes_of(theirs), 400, 1)) << "it was ended";
  });
  const auto group = join(0);
  while (memory_.line(1).state.load() != RankState::kBroken) std::this_thread::yield();
  std::vector<float> own(100);

  const auto done = group->broadcast(bytes_of(own), 400, 1);

  ASSERT_FALSE(done);
  EXPECT_EQ(done.error().code(), ErrorCode::kPeerLost);
  EXPECT_THAT(done.error().message(), HasSubstr("rank 1"));
  EXPECT_EQ(own, std::vector<float>(100)) << "nothing was read";
}

}  // namespace
}  // namespace accel::shm::shm_straight_test
