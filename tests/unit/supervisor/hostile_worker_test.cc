// Workers that break every rule of the worker channel.

#include <cstring>
#include <filesystem>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include <fcntl.h>
#include <gmock/gmock.h>
#include <poll.h>
#include <sys/socket.h>

#include "runtime/channel_frames.h"
#include "tests/unit/supervisor/channel_fixture.h"

namespace accel::supervisor::hostile_worker_test {
namespace {

using ::testing::HasSubstr;

std::size_t count_open_descriptors() {
  const std::filesystem::directory_iterator files("/proc/self/fd");
  return static_cast<std::size_t>(std::distance(begin(files), end(files)));
}

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
}  // namespace accel::supervisor::hostile_worker_test
