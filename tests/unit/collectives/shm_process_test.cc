// Ranks as processes, one of which is killed in the middle of a call: the other learns its name, and nothing of the group
// remains.

#include <csignal>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include "libaccel/engine/shm/group/shm_group.h"
#include "libaccel/engine/shm/memory/process_stat.h"
#include "tests/support/shm_ranks.h"

namespace accel::shm::shm_process_test {
namespace {

using test::bytes_of;
using test::letter_from;
using test::letter_to;
using test::sources_of;
using test::targets_of;
using ::testing::HasSubstr;
using Ranks = test::ShmRanks;

struct DeadlyCall {
  const char* name;
  std::function<Result<void>(ShmGroup&, std::vector<float>&)> call;
};

std::ptrdiff_t num_open_descriptors() {
  namespace fs = std::filesystem;
  return std::distance(fs::directory_iterator("/proc/self/fd"), fs::directory_iterator());
}

// Of memory that processes share.
int num_mapped_memories() {
  std::ifstream maps("/proc/self/maps");
  int found = 0;
  for (std::string line; std::getline(maps, line);)
    if (line.find("/memfd:") != std::string::npos) ++found;
  return found;
}

class ShmProcessTest : public ::testing::TestWithParam<int> {
 protected:
  static std::vector<DeadlyCall> calls() {
    const auto two = [](std::vector<float>& values) {
      const std::size_t half = values.size() / 2;
      return std::vector<std::byte*>{bytes_of(values), bytes_of(values) + half * sizeof(float)};
    };
    constexpr auto kType = DataType::kFloat32;
    constexpr auto kOp = ReduceOp::kSum;
    return {
        {"barrier", [](ShmGroup& group, std::vector<float>&) { return group.barrier(); }},
        {"all_reduce",
         [](ShmGroup& group, std::vector<float>& values) {
           return group.all_reduce(bytes_of(values), bytes_of(values), values.size(), kType, kOp);
         }},
        {"reduce",
         [](ShmGroup& group, std::vector<float>& values) {
           return group.reduce(bytes_of(values), bytes_of(values), values.size(), kType, kOp, 0);
         }},
        {"reduce_scatter",
         [two](ShmGroup& group, std::vector<float>& values) {
           const auto parts = two(values);
           const std::vector<const std::byte*> in(parts.begin(), parts.end());
           std::vector<float> out(values.size() / 2);
           return group.reduce_scatter(in, bytes_of(out), out.size(), kType, kOp);
         }},
        {"broadcast",
         [](ShmGroup& group, std::vector<float>& values) {
           return group.broadcast(bytes_of(values), values.size() * sizeof(float), 1);
         }},
        {"all_gather",
         [two](ShmGroup& group, std::vector<float>& values) {
           const std::vector<float> in(values.size() / 2);
           return group.all_gather(bytes_of(in), two(values), in.size() * sizeof(float));
         }},
        {"gather",
         [two](ShmGroup& group, std::vector<float>& values) {
           const std::vector<float> in(values.size() / 2);
           return group.gather(bytes_of(in), two(values), in.size() * sizeof(float), 0);
         }},
        {"scatter",
         [two](ShmGroup& group, std::vector<float>& values) {
           const auto parts = two(values);
           const std::vector<const std::byte*> in(parts.begin(), parts.end());
           std::vector<float> out(values.size() / 2);
           return group.scatter(in, bytes_of(out), out.size() * sizeof(float), 1);
         }},
        {"all_to_all",
         [](ShmGroup& group, std::vector<float>& values) {
           const std::vector<std::vector<float>> in(2, values);
           std::vector<std::vector<float>> out = in;
           return group.all_to_all(sources_of(in), targets_of(out));
         }},
        {"send and receive",
         [](ShmGroup& group, std::vector<float>& values) -> Result<void> {
           std::vector<float> received(values.size());
           const auto sent = letter_to(1 - group.rank(), values);
           const auto awaited = letter_from(1 - group.rank(), received);
           for (const auto& transfer : {sent, awaited})
             if (auto posted = group.post(transfer); !posted) return posted;
           if (auto done = group.wait(awaited); !done) return done;
           return group.wait(sent);
         }},
        {"broadcast, straight",
         [](ShmGroup& group, std::vector<float>& values) {
           values.resize(40'000);
           return group.broadcast(bytes_of(values), values.size() * sizeof(float), 1);
         }},
        {"all_reduce, straight",
         [](ShmGroup& group, std::vector<float>& values) {
           values.resize(40'000);
           return group.all_reduce(bytes_of(values), bytes_of(values), values.size(), kType, kOp);
         }},
        // In memory of allocate(): every rank reads the others' memory and writes into it (DDP's buckets).
        {"all_reduce in location",
         [room = std::shared_ptr<std::byte>()](ShmGroup& group,
                                               std::vector<float>& values) mutable -> Result<void> {
           if (!room) room = or_throw(group.allocate(values.size() * sizeof(float)));
           return group.all_reduce(room.get(), room.get(), values.size(), kType, kOp);
         }},
    };
  }
};

TEST_P(ShmProcessTest, ARankThatIsKilledInTheMiddleIsNamedByTheOtherAndNothingOfTheGroupRemains) {
  const std::ptrdiff_t num_descriptors = num_open_descriptors();
  {
    const DeadlyCall deadly = calls().at(static_cast<std::size_t>(GetParam()));
    SCOPED_TRACE(deadly.name);
    const Ranks ranks(2);
    int ready[2];
    ASSERT_EQ(::pipe(ready), 0);
    const pid_t child = ::fork();
    if (child == 0) {
      const auto group = ranks.join(1);
      std::vector<float> values(20'000);
      for (int i = 0;; ++i) {  // until it is killed, wherever that is
        if (i == 3) (void)!::write(ready[1], "r", 1);
        if (!deadly.call(*group, values)) ::_exit(1);
      }
    }
    const auto group = ranks.join(0);
    std::vector<float> values(20'000);
    std::jthread killer([&] {
      char byte = 0;
      (void)!::read(ready[0], &byte, 1);
      ::kill(child, SIGKILL);
    });
    Result<void> done;
    while (done) done = deadly.call(*group, values);

    EXPECT_EQ(done.error().code(), ErrorCode::kPeerLost);
    EXPECT_THAT(done.error().message(),
                HasSubstr("rank 1 (process " + std::to_string(child) + ") has died"));
    EXPECT_GT(num_mapped_memories(), 0) << "the group lives";
    killer.join();
    ::waitpid(child, nullptr, 0);
    ::close(ready[0]);
    ::close(ready[1]);
  }
  EXPECT_EQ(num_open_descriptors(), num_descriptors);
  EXPECT_EQ(num_mapped_memories(), 0);
}

INSTANTIATE_TEST_SUITE_P(InEachCollective, ShmProcessTest, ::testing::Range(0, 13));

TEST(PeerWatchTest, ADeadProcessAndAPidOfAnotherOneAreNotAlive) {
  const pid_t child = ::fork();
  if (child == 0) {
    ::pause();
    ::_exit(0);
  }
  const std::uint64_t start = start_time_of(child);
  ProcessWatch watch({{::getpid(), start_time_of(::getpid())}, {child, start}, {child, start + 1}});
  EXPECT_TRUE(watch.is_alive(0));
  EXPECT_TRUE(watch.is_alive(1));
  EXPECT_FALSE(watch.is_alive(2));
  ::kill(child, SIGKILL);
  siginfo_t info = {};
  ::waitid(P_PID, static_cast<id_t>(child), &info, WEXITED | WNOWAIT);
  EXPECT_FALSE(watch.is_alive(1)) << "a zombie";
  ::waitpid(child, nullptr, 0);
  EXPECT_FALSE(watch.is_alive(1));
}

// The file was opened, and then there was nothing to read: an error of the system, which a stream's buffer throws.
TEST(ProcessStatTest, AProcessThatGoesBeforeItsFileIsReadHasNoStartTime) {
  const pid_t child = ::fork();
  if (child == 0) {
    ::pause();
    ::_exit(0);
  }
  std::ifstream stat("/proc/" + std::to_string(child) + "/stat");
  ASSERT_TRUE(stat);
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);

  EXPECT_EQ(start_time_in(stat), 0U);
}

}  // namespace
}  // namespace accel::shm::shm_process_test
