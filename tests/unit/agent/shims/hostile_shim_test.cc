// Shims that their users have replaced, as an owner of many jobs meets them: the owner waits for none of them.
//
// A shim here is a shell script that says frames and does not end by itself.

#include <csignal>
#include <filesystem>
#include <fstream>
#include <string>

#include <gmock/gmock.h>
#include <poll.h>

#include "runtime/supervisor/owner/worker_host.h"
#include "tests/support/scratch_folder.h"

namespace accel::agent::hostile_shim_test {
namespace {

using namespace std::chrono_literals;
using supervisor::HostEvent;
using ::testing::HasSubstr;

constexpr int kPatienceMs = 60'000;  // of the test, for what must come

class HostileShim : public testing::Test {
 protected:
  // `body` is the script's; its first argument is the socket. It has said hello before.
  void start(const std::string& body,
             supervisor::OwnerKind owner = supervisor::OwnerKind::kManyJobs) {
    const auto path = folder_.path() / "shim";
    std::ofstream script(path);
    script << "#!/bin/bash\nsay() { printf '%s' \"$1\" >&$socket; }\nsocket=$1\n"
           << R"(say '{"type":"hello","protocol":3,"oldest_protocol":1,"build":"x","pid":'$$'}')"
           << "\n"
           << body << "\nexec sleep 10000\n";
    script.close();
    std::filesystem::permissions(path, std::filesystem::perms::owner_all);
    supervisor::JobSpec spec;
    spec.job_id = "hostile";
    auto started =
        supervisor::start_shim(spec, {.shim_path = path.string(), .owner = owner, .patience = 0ms});
    ASSERT_TRUE(started) << started.error().message();
    host_ = *std::move(started);
    pid_ = std::get<supervisor::Hello>(*wait_for_event()).pid;
  }

  // The next event, or the error that comes in its place.
  Result<HostEvent> wait_for_event() {
    while (true) {
      auto event = host_->next_event();
      if (!event) return std::move(event).error();
      if (*event) return **std::move(event);
      pollfd readable = {host_->event_fd(), POLLIN, 0};
      if (::poll(&readable, 1, kPatienceMs) <= 0)
        return Error(ErrorCode::kInternal, "the host says nothing");
    }
  }

  [[nodiscard]] bool is_there() const { return ::kill(static_cast<pid_t>(pid_), 0) == 0; }

  test::ScratchFolder folder_;
  std::unique_ptr<supervisor::WorkerHost> host_;
  std::int64_t pid_ = 0;
};

std::string last_word() {
  return "say '" + encode(HostEvent(supervisor::JobOutcome{.success = true})) + "'";
}

// Issue 19: the agent waited for its end, and served nobody meanwhile.
TEST_F(HostileShim, Fault67OneThatStaysAfterItsLastWordIsKilled) {
  start(last_word());
  const auto event = wait_for_event();

  ASSERT_TRUE(event) << event.error().message();
  EXPECT_TRUE(std::get<supervisor::JobOutcome>(*event).success);
  EXPECT_FALSE(is_there());
}

TEST_F(HostileShim, Fault67OneThatStopsItselfAfterItsLastWordIsKilled) {
  start(last_word() + "\nkill -STOP $$");
  const auto event = wait_for_event();

  ASSERT_TRUE(event) << event.error().message();
  EXPECT_FALSE(is_there());
}

// Issue 19: a launcher waited for its own shim without limit, though the job had ended.
TEST_F(HostileShim, Fault67OnesOwnThatStaysAfterItsLastWordIsKilledToo) {
  start(last_word() + "\nkill -STOP $$", supervisor::OwnerKind::kProgram);
  const auto event = wait_for_event();

  ASSERT_TRUE(event) << event.error().message();
  EXPECT_TRUE(std::get<supervisor::JobOutcome>(*event).success);
  EXPECT_FALSE(is_there());
}

TEST_F(HostileShim, Fault67OneThatClosesItsSocketAndStaysIsLost) {
  start("eval \"exec $socket>&-\"");
  const auto event = wait_for_event();

  ASSERT_FALSE(event);
  EXPECT_EQ(event.error().code(), ErrorCode::kShimLost);
  EXPECT_EQ(host_->num_unkillable(), 0);
  EXPECT_FALSE(is_there());
}

// What ended before any sweep saw it alive was a zombie of the agent for as long as that lived.
TEST_F(HostileShim, Fault67WhatALostShimLeftDeadIsReaped) {
  const std::string left = (folder_.path() / "left").string();
  start("(setsid /bin/bash -c 'echo $$ >" + left + "; kill -KILL $$' &)\n" +
        "until grep -qs ') Z' /proc/$(cat " + left + ")/stat; do :; done; kill -KILL $$");
  const auto event = wait_for_event();

  ASSERT_FALSE(event);
  std::ifstream file(left);
  pid_t orphan = 0;
  file >> orphan;
  ASSERT_GT(orphan, 0);
  EXPECT_NE(::kill(orphan, 0), 0);
}

// Issue 19: its job counted as ended, and its workers ran on until the end of the hold.
TEST_F(HostileShim, Fault67OneThatSaysWhatIsNoFrameIsKilled) {
  start("say nonsense");
  const auto event = wait_for_event();

  ASSERT_FALSE(event);
  EXPECT_EQ(event.error().code(), ErrorCode::kProtocol);
  EXPECT_FALSE(is_there());
}

TEST_F(HostileShim, Fault67OneThatIsStoppedCanBeKilledAndTheReasonIsTold) {
  start("kill -STOP $$");
  host_->kill_shim("did not stop");
  const auto event = wait_for_event();

  ASSERT_FALSE(event);
  EXPECT_THAT(event.error().message(), HasSubstr("accel-shim did not stop"));
  EXPECT_FALSE(is_there());
}

}  // namespace
}  // namespace accel::agent::hostile_shim_test
