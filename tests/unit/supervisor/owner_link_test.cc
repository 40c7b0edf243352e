#include "runtime/supervisor/owner/owner_link.h"

#include <csignal>

#include <gtest/gtest.h>
#include <sys/resource.h>

namespace accel::supervisor::owner_link_test {
namespace {

// Files, memfds among them, of at most so many bytes.
class FileLimit {
 public:
  explicit FileLimit(rlim_t most) {
    ::signal(SIGXFSZ, SIG_IGN);
    ::getrlimit(RLIMIT_FSIZE, &before_);
    const rlimit limit = {.rlim_cur = most, .rlim_max = before_.rlim_max};
    ::setrlimit(RLIMIT_FSIZE, &limit);
  }
  ~FileLimit() {
    ::setrlimit(RLIMIT_FSIZE, &before_);
    ::signal(SIGXFSZ, SIG_DFL);
  }

 private:
  rlimit before_{};
};

TEST(OwnerLink, AnEventThatCannotBeStoredIsSentShorterAndNotTriedForEver) {
  auto pair = FrameSocket::make_pair();
  ASSERT_TRUE(pair);
  boost::asio::io_context context;
  OwnerLink link(context, std::move(pair->first), UniqueFd());
  WorkerExit exit = {.global_rank = 1, .exit_code = 3};
  exit.tail = std::string(2 * kMaxFrameBytes, 'x');
  bool is_flushed = false;
  {
    const FileLimit limit(kMaxFrameBytes);
    link.send(JobOutcome{.exit_code = 3, .first_failure = exit});
    link.flush([&] { is_flushed = true; });
  }
  ASSERT_TRUE(is_flushed);

  const auto received = pair->second.receive();
  ASSERT_TRUE(received);
  const auto event = decode_event(received->frame);
  ASSERT_TRUE(event);
  const auto& outcome = std::get<JobOutcome>(*event);
  EXPECT_EQ(outcome.exit_code, 3);
  EXPECT_FALSE(outcome.first_failure->tail.empty());
  EXPECT_EQ(outcome.notices.size(), 1u);
}

TEST(OwnerLink, AnEventLongerThanAFrameMayBeIsSentShorter) {
  auto pair = FrameSocket::make_pair();
  ASSERT_TRUE(pair);
  boost::asio::io_context context;
  OwnerLink link(context, std::move(pair->first), UniqueFd());
  JobOutcome outcome = {.exit_code = 3};
  for (int rank = 0; rank < 300; ++rank) {
    outcome.exits.push_back({.global_rank = rank, .exit_code = 3});
    outcome.exits.back().tail = std::string(64 * 1024, 'x');
  }
  link.send(outcome);

  const auto received = pair->second.receive();
  ASSERT_TRUE(received) << received.error().message();
  EXPECT_LE(received->frame.size(), kMaxPayloadBytes);
  EXPECT_EQ(std::get<JobOutcome>(*decode_event(received->frame)).exits.size(), 300U);
}

}  // namespace
}  // namespace accel::supervisor::owner_link_test
