// Both sides of the worker channel in one process.

#include "runtime/supervisor/watch/channel_server.h"

#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/unit/supervisor/channel_fixture.h"

namespace accel::supervisor::channel_server_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST_F(ChannelServerTest, SeesHeartbeatsErrorsAndNotices) {
  WorkerChannel worker = connect(3);
  EXPECT_FALSE(server().heartbeat(3));

  worker.heartbeat({.step = 7, .samples = 224, .phase = WorkerPhase::kTraining});
  worker.set_error("loss is nan");
  worker.notice("slow batch");

  ASSERT_TRUE(server().heartbeat(3));
  EXPECT_EQ(server().heartbeat(3)->beat.step, 7u);
  EXPECT_GT(server().heartbeat(3)->monotonic_ns, 0u);
  EXPECT_EQ((*server().last_error(3))->text, "loss is nan");
  EXPECT_THAT(server().take_notices(3), ElementsAre("slow batch"));
  EXPECT_TRUE(server().take_notices(3).empty());
}

TEST_F(ChannelServerTest, AWorkerWithoutEndIsHeardAHundredTimes) {
  WorkerChannel worker = connect(3);
  std::vector<std::string> heard;
  for (int i = 0; i < 150; ++i) {
    worker.notice("slow batch " + std::to_string(i));
    for (std::string& text : server().take_notices(3)) heard.push_back(std::move(text));
  }

  ASSERT_EQ(heard.size(), 100u);
  EXPECT_EQ(heard[98], "slow batch 98");
  EXPECT_THAT(heard[99], HasSubstr("has said too much"));
}

TEST_F(ChannelServerTest, TheErrorOutlivesTheWorker) {
  { connect().set_error("last words"); }
  run();

  EXPECT_EQ((*server().last_error(0))->text, "last words");
}

TEST_F(ChannelServerTest, RequestsReachTheWorkerAndOneTimeOnesEnd) {
  WorkerChannel worker = connect();
  EXPECT_FALSE(worker.requests().any());

  server().request(0, WorkerRequest::kPreempt);
  server().request_all(WorkerRequest::kDumpStacks);

  EXPECT_TRUE(worker.requests().has(WorkerRequest::kPreempt));
  EXPECT_TRUE(worker.requests().has(WorkerRequest::kDumpStacks));
  worker.done_with(WorkerRequest::kDumpStacks);
  worker.done_with(WorkerRequest::kPreempt);
  EXPECT_FALSE(worker.requests().has(WorkerRequest::kDumpStacks));
  EXPECT_TRUE(worker.requests().has(WorkerRequest::kPreempt));
}

TEST_F(ChannelServerTest, ARequestWakesAWorkerThatWaitsForOne) {
  WorkerChannel worker = connect();
  WorkerRequests seen;
  std::jthread waiting(
      [&] { seen = worker.wait_for_requests(WorkerRequests(), std::chrono::seconds(60)); });

  server().request(0, WorkerRequest::kCheckpointNow);
  waiting.join();

  EXPECT_TRUE(seen.has(WorkerRequest::kCheckpointNow));
}

TEST_F(ChannelServerTest, WaitingForRequestsEndsWithItsTime) {
  WorkerChannel worker = connect();

  EXPECT_FALSE(worker.wait_for_requests(WorkerRequests(), std::chrono::milliseconds(1)).any());
}

TEST_F(ChannelServerTest, KnowsWhatAWorkerDeclared) {
  WorkerChannel worker = connect();
  EXPECT_FALSE(server().declares(0, WorkerAbility::kHandlesPreemption));

  worker.declare(WorkerAbility::kHandlesPreemption);

  EXPECT_TRUE(server().declares(0, WorkerAbility::kHandlesPreemption));
}

TEST_F(ChannelServerTest, TheSupervisorSeesThatAWorkerHasSaved) {
  WorkerChannel worker = connect();
  EXPECT_FALSE(server().saved_step(0));

  worker.mark_saved(41);

  EXPECT_EQ(server().saved_step(0), 41u);
  EXPECT_FALSE(server().saved_step(1));
}

TEST_F(ChannelServerTest, WorkersShareMemoryByName) {
  WorkerChannel a = connect(0);
  WorkerChannel b = connect(1);

  const SharedMemory in_a = std::move(ask([&] { return a.get_shared("grads", 5000); })).value();
  const SharedMemory in_b = std::move(ask([&] { return b.get_shared("grads", 5000); })).value();
  in_a.data()[4999] = std::byte{42};

  EXPECT_EQ(in_b.data()[4999], std::byte{42});
  EXPECT_EQ(server().shared_bytes(), 5000u);
}

TEST_F(ChannelServerTest, SharedMemoryOfAnotherSizeIsRefused) {
  WorkerChannel worker = connect();
  ASSERT_TRUE(ask([&] { return worker.get_shared("grads", 5000); }));

  const auto other = ask([&] { return worker.get_shared("grads", 6000); });

  ASSERT_FALSE(other);
  EXPECT_EQ(other.error().code(), ErrorCode::kInvalidArgument);
  EXPECT_THAT(other.error().message(), HasSubstr("5000"));
}

TEST_F(ChannelServerTest, SharedMemoryHasAQuota) {
  options_.shared_quota_bytes = 8192;
  options_.max_shared = 2;
  WorkerChannel worker = connect();
  ASSERT_TRUE(ask([&] { return worker.get_shared("a", 4096); }));

  const auto too_large = ask([&] { return worker.get_shared("b", 4097); });
  ASSERT_TRUE(ask([&] { return worker.get_shared("b", 1); }));
  const auto too_many = ask([&] { return worker.get_shared("c", 1); });
  const auto absurd = ask([&] { return worker.get_shared("d", ~std::size_t{0}); });

  for (const auto* refused : {&too_large, &too_many, &absurd}) {
    ASSERT_FALSE(*refused);
    EXPECT_EQ(refused->error().code(), ErrorCode::kStoreLimit);
  }
}

TEST_F(ChannelServerTest, SharedMemoryEndsWithTheGenerationUnlessKept) {
  {
    WorkerChannel worker = connect(0, 0);
    ASSERT_TRUE(ask([&] { return worker.get_shared("scratch", 100); }));
    const auto kept = ask([&] { return worker.get_shared("snapshot", 100, Keep::kJob); });
    ASSERT_TRUE(kept);
    kept->data()[0] = std::byte{7};
  }

  server().end_generation();
  WorkerChannel next = connect(0, 1);
  const auto found = ask([&] { return next.get_shared("snapshot", 100); });

  EXPECT_EQ(server().shared_bytes(), 100u);
  ASSERT_TRUE(found);
  EXPECT_EQ(found->data()[0], std::byte{7});
}

TEST_F(ChannelServerTest, DroppedMemoryCountsNoMoreAndStaysWithWhoHasIt) {
  options_.shared_quota_bytes = 100;
  WorkerChannel worker = connect();
  const auto old = ask([&] { return worker.get_shared("snapshot", 100, Keep::kJob); });
  ASSERT_TRUE(old);
  old->data()[0] = std::byte{7};

  EXPECT_TRUE(ask([&] { return worker.drop_shared("snapshot"); }));
  const auto next = ask([&] { return worker.get_shared("other", 100, Keep::kJob); });

  ASSERT_TRUE(next);
  EXPECT_EQ(server().shared_bytes(), 100u);
  EXPECT_EQ(old->data()[0], std::byte{7});
}

TEST_F(ChannelServerTest, DroppingANameThatNobodyHasChangesNothing) {
  WorkerChannel worker = connect();
  ASSERT_TRUE(ask([&] { return worker.get_shared("a", 100); }));

  EXPECT_TRUE(ask([&] { return worker.drop_shared("b"); }));
  EXPECT_TRUE(ask([&] { return worker.drop_shared("a"); }));
  EXPECT_TRUE(ask([&] { return worker.drop_shared("a"); }));
  EXPECT_TRUE(ask([&] { return worker.drop_shared(""); }));

  EXPECT_EQ(server().shared_bytes(), 0u);
  EXPECT_THAT(violations_, testing::IsEmpty());
}

TEST_F(ChannelServerTest, ACommitGetsATokenAndIsRemembered) {
  WorkerChannel worker = connect(2, 5);

  const auto first = ask([&] { return worker.commit(100, "/ckpt/100", "xxh3:1"); });
  const auto second = ask([&] { return worker.commit(200, "/ckpt/200", "xxh3:2"); });

  ASSERT_TRUE(first);
  ASSERT_TRUE(second);
  EXPECT_EQ(*first, "job/5/1");
  EXPECT_NE(*first, *second);
  ASSERT_TRUE(server().last_commit());
  EXPECT_EQ(server().last_commit()->step, 200u);
  EXPECT_EQ(server().last_commit()->global_rank, 2);
  EXPECT_EQ(server().last_commit()->path, "/ckpt/200");
}

TEST_F(ChannelServerTest, ACommitOfAnOlderGenerationIsRefused) {
  WorkerChannel old = connect(0, 1);
  WorkerChannel worker = connect(1, 2);
  ASSERT_TRUE(ask([&] { return worker.commit(100, "/ckpt/100", "xxh3:1"); }));

  const auto refused = ask([&] { return old.commit(200, "/ckpt/200", "xxh3:2"); });

  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code(), ErrorCode::kCheckpointMismatch);
  EXPECT_THAT(
      refused.error().message(),
      HasSubstr("the checkpoint at step 200 is of generation 1, and generation 2 has begun"));
  EXPECT_THAT(refused.error().remedy(), HasSubstr("newer generation"));
  EXPECT_EQ(server().last_commit()->step, 100u);
}

TEST_F(ChannelServerTest, ReportsAndByeComeInOrderAndPrintable) {
  WorkerChannel worker = connect();

  ASSERT_TRUE(worker.report("epoch 1"));
  ASSERT_TRUE(worker.report("\x1B]0;title\x07"));
  ASSERT_TRUE(worker.bye());
  run();

  EXPECT_THAT(reports_, ElementsAre("epoch 1", "?]0;title?"));
  EXPECT_TRUE(server().has_said_bye(0));
}

TEST_F(ChannelServerTest, AWorkerWhoseSupervisorIsGoneGetsAnError) {
  WorkerChannel worker = connect();
  server_.reset();

  const auto token = worker.commit(1, "path", "digest");

  ASSERT_FALSE(token);
  EXPECT_EQ(token.error().code(), ErrorCode::kPeerLost);
}

// ---- opening ----

class ChannelOpening : public ChannelServerTest {
 protected:
  Result<std::optional<WorkerChannel>> open(const std::string& value) {
    return WorkerChannel::open([&](std::string_view) { return value; });
  }
};

TEST_F(ChannelOpening, WithoutTheVariableThereIsNone) {
  const auto channel = WorkerChannel::open([](std::string_view) { return std::nullopt; });

  ASSERT_TRUE(channel);
  EXPECT_FALSE(channel->has_value());
}

TEST_F(ChannelOpening, AnotherVersionIsAnErrorThatNamesBoth) {
  const auto channel = open("2:whatever:comes");

  ASSERT_FALSE(channel);
  EXPECT_EQ(channel.error().code(), ErrorCode::kChannelVersion);
  EXPECT_THAT(channel.error().message(), HasSubstr("version 2"));
  EXPECT_THAT(channel.error().message(), HasSubstr("version 1"));
}

TEST_F(ChannelOpening, AnotherVersionInThePageIsTheSameError) {
  ChannelEnds ends = std::move(server().open(0, 0)).value();
  const std::uint32_t version = 9;
  ASSERT_EQ(::pwrite(ends.memory.release(), &version, sizeof(version), 8), 4);
  (void)ends.socket.release();

  const auto channel = open(ends.env_value);

  ASSERT_FALSE(channel);
  EXPECT_EQ(channel.error().code(), ErrorCode::kChannelVersion);
}

TEST_F(ChannelOpening, AWrongMagicIsCorrupt) {
  ChannelEnds ends = std::move(server().open(0, 0)).value();
  ASSERT_EQ(::pwrite(ends.memory.release(), "nonsense", 8, 0), 8);
  (void)ends.socket.release();

  const auto channel = open(ends.env_value);

  ASSERT_FALSE(channel);
  EXPECT_EQ(channel.error().code(), ErrorCode::kChannelCorrupt);
}

TEST_F(ChannelOpening, MalformedValuesAndForeignDescriptorsAreCorrupt) {
  for (const char* value : {"",
                            "1",
                            "1:",
                            "1:3",
                            "1:3:",
                            "1:3:4:5",
                            "1:-3:4",
                            "x:3:4",
                            "1:3:4 ",
                            "1:99999999999:4",
                            "1:0:1",
                            "1:900:901"}) {
    const auto channel = open(value);

    ASSERT_FALSE(channel) << value;
    EXPECT_EQ(channel.error().code(), ErrorCode::kChannelCorrupt) << value;
  }
}

TEST_F(ChannelOpening, TheDescriptorsAreNotInheritedFurther) {
  ChannelEnds ends = std::move(server().open(0, 0)).value();
  const int socket = ends.socket.release();
  (void)ends.memory.release();
  ::fcntl(socket, F_SETFD, 0);  // as a spawner hands it on

  const auto channel = open(ends.env_value);

  ASSERT_TRUE(channel);
  EXPECT_EQ(::fcntl(socket, F_GETFD) & FD_CLOEXEC, FD_CLOEXEC);
}

}  // namespace
}  // namespace accel::supervisor::channel_server_test
