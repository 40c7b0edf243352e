// Both sides of the worker channel in one process, and workers that break every rule of it.

#include "runtime/supervisor/channel_server.h"

#include <atomic>
#include <cstring>
#include <filesystem>
#include <optional>
#include <random>
#include <thread>

#include <boost/asio/io_context.hpp>
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/socket.h>

#include "runtime/channel_frames.h"

namespace accel::supervisor {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::size_t count_open_descriptors() {
  const std::filesystem::directory_iterator files("/proc/self/fd");
  return static_cast<std::size_t>(std::distance(begin(files), end(files)));
}

class ChannelServerTest : public ::testing::Test {
 protected:
  ChannelServerTest() {
    options_.job_id = "job";
    options_.on_report = [this](int, const std::string& text) { reports_.push_back(text); };
    options_.on_violation = [this](int rank, const Error& error) {
      violations_.push_back("rank " + std::to_string(rank) + ": " + error.message());
    };
  }

  ChannelServer& server() {
    if (!server_) server_.emplace(context_, options_);
    return *server_;
  }

  // A worker's side, as the worker opens it: the descriptors become its own.
  WorkerChannel connect(int rank = 0, int generation = 0) {
    ChannelEnds ends = std::move(server().open(rank, generation)).value();
    const std::string value = ends.env_value;
    (void)ends.memory.release();
    (void)ends.socket.release();
    return *std::move(WorkerChannel::open([&](std::string_view) { return value; })).value();
  }

  // Lets the server handle all that is there.
  void run() {
    context_.restart();
    context_.poll();
  }

  // The worker asks in a thread of its own while the server runs here.
  template <typename F>
  auto ask(F question) {
    decltype(question()) answer = Error(ErrorCode::kInternal, "no answer");
    std::atomic<bool> is_done = false;
    std::jthread worker([&] {
      answer = question();
      is_done = true;
    });
    while (!is_done) {
      run();
      std::this_thread::yield();
    }
    worker.join();
    return answer;
  }

  boost::asio::io_context context_;
  ChannelOptions options_;
  std::vector<std::string> reports_;
  std::vector<std::string> violations_;
  std::optional<ChannelServer> server_;
};

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

// ---- workers that break the rules ----

class HostileWorker : public ChannelServerTest {
 protected:
  void open_raw() { ends_ = std::move(server().open(0, 0)).value(); }
  ssize_t send(std::string_view bytes) {
    return ::send(ends_.socket.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
  }
  bool is_cut_off() {
    char byte = 0;
    return ::recv(ends_.socket.get(), &byte, 1, MSG_DONTWAIT) == 0;
  }

  ChannelEnds ends_;
};

TEST_F(HostileWorker, FramesOfEverySizeEndTheSocketOnly) {
  std::mt19937_64 random(11);
  for (std::size_t size = 1; size <= 8192; size = size < 64 ? size + 1 : size + 251) {
    open_raw();
    std::string bytes(size, '\0');
    for (char& byte : bytes) byte = static_cast<char>(random());

    ASSERT_EQ(send(bytes), static_cast<ssize_t>(size));
    run();

    EXPECT_TRUE(is_cut_off()) << size;
  }
  EXPECT_FALSE(violations_.empty());
  EXPECT_FALSE(server().heartbeat(0));
}

TEST_F(HostileWorker, DescriptorsSentToUsAreDropped) {
  int pipe_ends[2];
  ASSERT_EQ(::pipe2(pipe_ends, O_CLOEXEC), 0);
  const UniqueFd read_end(pipe_ends[0]);
  UniqueFd write_end(pipe_ends[1]);
  open_raw();
  const std::size_t before = count_open_descriptors();
  std::string bytes = std::move(encode_channel_frame({1, ByeFrame{}})).value();
  iovec span{bytes.data(), bytes.size()};
  alignas(cmsghdr) char control[CMSG_SPACE(64 * sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = &span;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof(control);
  cmsghdr* header = CMSG_FIRSTHDR(&message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(64 * sizeof(int));
  for (int i = 0; i < 64; ++i) {
    const int fd = write_end.get();
    std::memcpy(CMSG_DATA(header) + i * sizeof(int), &fd, sizeof(fd));
  }

  ASSERT_GT(::sendmsg(ends_.socket.get(), &message, MSG_NOSIGNAL), 0);
  write_end.reset();
  run();

  EXPECT_EQ(count_open_descriptors(), before - 2);  // the pipe's end and the server's socket
  pollfd hung_up{read_end.get(), POLLIN, 0};
  EXPECT_EQ(::poll(&hung_up, 1, 0), 1);  // no copy of the write end is left anywhere
  EXPECT_TRUE(is_cut_off());
}

TEST_F(HostileWorker, OneWhoNeverReadsLosesTheSocket) {
  open_raw();
  const std::string question =
      std::move(encode_channel_frame({1, CommitFrame{1, "path", "digest"}})).value();

  for (int i = 0; i < 100'000 && violations_.empty(); ++i) {
    send(question);
    run();
  }

  ASSERT_EQ(violations_.size(), 1u);
  EXPECT_THAT(violations_[0], HasSubstr("does not read"));
}

TEST_F(HostileWorker, OneWhoFloodsDoesNotKeepTheServerBusyForEver) {
  open_raw();
  const std::string frame = std::move(encode_channel_frame({1, ReportFrame{"x"}})).value();
  while (send(frame) > 0) {
  }

  context_.restart();
  context_.run_one();

  EXPECT_LE(reports_.size(), 16u);
}

TEST_F(HostileWorker, RandomBytesInThePageAreSurvived) {
  std::mt19937_64 random(13);
  open_raw();
  std::vector<std::uint64_t> words(kChannelBytes / 8);
  for (int round = 0; round < 500; ++round) {
    for (std::uint64_t& word : words) word = random() >> (random() % 64);
    ASSERT_EQ(::pwrite(ends_.memory.get(), words.data(), kChannelBytes, 0),
              static_cast<ssize_t>(kChannelBytes));

    (void)server().heartbeat(0);
    (void)server().last_error(0);
    (void)server().take_notices(0);
    (void)server().declares(0, WorkerAbility::kHandlesPreemption);
    server().request_all(WorkerRequest::kStop);
  }
}

TEST_F(HostileWorker, CannotTakeTheMemoryAway) {
  open_raw();

  EXPECT_NE(::ftruncate(ends_.memory.get(), 0), 0);
  EXPECT_NE(::ftruncate(ends_.memory.get(), 1 << 20), 0);
  EXPECT_NE(::fcntl(ends_.memory.get(), F_ADD_SEALS, F_SEAL_WRITE), 0);
}

TEST_F(HostileWorker, LeavesNoDescriptorBehind) {
  open_raw();  // asio opens its own descriptors with the first socket
  ends_ = {};
  server().end_generation();
  const std::size_t before = count_open_descriptors();

  for (int i = 0; i < 100; ++i) {
    open_raw();
    send("nonsense");
    run();
    ends_ = {};
    run();
  }
  server().end_generation();

  EXPECT_EQ(count_open_descriptors(), before);
}

}  // namespace
}  // namespace accel::supervisor
