// Owners that go and come back (faults 27, 30, 31, 55, 61 of docs/reference/faults.md).

#include <csignal>
#include <fstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "runtime/supervisor/owner/shim_state.h"
#include "tests/support/driven_job.h"
#include "tests/support/scratch_folder.h"

namespace accel::test::hold_test {
namespace {

using supervisor::adopt_shim;
using supervisor::end_job;
using supervisor::Finish;
using supervisor::GenerationEnded;
using supervisor::GenerationStarted;
using supervisor::JobOutcome;
using supervisor::PrepareGeneration;
using supervisor::Snapshot;
using supervisor::StartGeneration;
using supervisor::Stop;
using supervisor::StopGeneration;
using supervisor::StopMode;
using supervisor::WorkerExit;
using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr const char* kToken = "a token of 16 bytes and more";

class Hold : public ::testing::Test {
 protected:
  Hold() { ::chmod(folder_.path().c_str(), 0700); }
  ~Hold() override {
    (void)end_job(token_, "");
    while (::waitpid(-1, nullptr, WNOHANG) > 0) {
    }
  }

  [[nodiscard]] supervisor::JobSpec job(const std::string& mode, int num_workers = 2) const {
    auto spec = make_job(mode, token_, num_workers);
    spec.control = supervisor::GenerationControl::kOwner;
    spec.owner.on_loss = supervisor::OwnerLoss::kHold;
    spec.owner.runtime_dir = folder_.path();
    spec.owner.token = kToken;
    spec.stop.grace = std::chrono::milliseconds(200);
    return spec;
  }

  [[nodiscard]] std::string state_file() const {
    return folder_.file(supervisor::state_file_name(token_));
  }

  // A shim accepts once it has seen that its owner is gone.
  [[nodiscard]] std::unique_ptr<supervisor::WorkerHost> adopt(const std::string& secret = kToken) {
    std::unique_ptr<supervisor::WorkerHost> host;
    (void)eventually([&] {
      auto adopted = adopt_shim(state_file(), secret);
      if (adopted) host = *std::move(adopted);
      return host != nullptr;
    });
    return host;
  }

  static std::vector<std::int64_t> start_generation(DrivenJob& driven) {
    driven.ask(PrepareGeneration{.generation = 0, .world_size = 2});
    driven.ask(StartGeneration{.generation = 0});
    return driven.wait_for<GenerationStarted>().pids;
  }

  const std::string token_ = unique_token();
  ScratchFolder folder_;
};

TEST_F(Hold, Fault27WorkersOutliveTheirOwnerAndTheNextOneGoesOn) {
  DrivenJob first(job("stubborn"));
  const auto pids = start_generation(first);
  first.abandon();

  DrivenJob second(adopt());
  const auto snapshot = second.wait_for<Snapshot>();

  EXPECT_EQ(snapshot.state, "running");
  EXPECT_EQ(snapshot.job_id, token_);
  ASSERT_THAT(snapshot.workers, SizeIs(2));
  for (std::size_t i = 0; i < 2; ++i) {
    EXPECT_EQ(snapshot.workers[i].pid, pids[i]);
    EXPECT_TRUE(snapshot.workers[i].is_alive);
  }
  second.ask(StopGeneration{.generation = 0});
  EXPECT_TRUE(second.wait_for<GenerationEnded>().is_clean);
}

TEST_F(Hold, Fault27AnOwnerKilledBySigkillIsReplaced) {
  int ready[2] = {-1, -1};
  ASSERT_EQ(::pipe(ready), 0);
  const pid_t owner = ::fork();
  if (owner == 0) {
    DrivenJob driven(job("pause"));
    start_generation(driven);
    (void)!::write(ready[1], "x", 1);
    while (true) ::pause();
  }
  char byte = 0;
  ASSERT_EQ(::read(ready[0], &byte, 1), 1);
  ::kill(owner, SIGKILL);
  ::waitpid(owner, nullptr, 0);

  DrivenJob second(adopt());
  for (const auto& worker : second.wait_for<Snapshot>().workers) EXPECT_TRUE(worker.is_alive);
  second.ask(Stop{.mode = StopMode::kKill});
  (void)second.wait_for<JobOutcome>();
  EXPECT_TRUE(eventually([&] { return processes_with(token_).empty(); }));
  EXPECT_NE(::access(state_file().c_str(), F_OK), 0);
}

TEST_F(Hold, WhatHappenedMeanwhileIsTold) {
  DrivenJob first(job("stops 10"));
  const auto pids = start_generation(first);
  ASSERT_TRUE(eventually([&] { return processes_with(token_).size() >= 3; }));
  first.abandon();
  for (const auto pid : pids) {
    EXPECT_TRUE(eventually([&] {
      ::kill(static_cast<pid_t>(pid), SIGUSR1);
      return ::kill(static_cast<pid_t>(pid), 0) !=
             0;  // ended and reaped: nobody waits for an owner
    }));
  }

  DrivenJob second(adopt());

  EXPECT_EQ(second.wait_for<Snapshot>().state, "parked");
  const auto ended = second.wait_for<GenerationEnded>();
  EXPECT_THAT(ended.outcome.exits, SizeIs(2));
  EXPECT_THAT(second.all<WorkerExit>(), SizeIs(2));
  second.ask(Finish{});
  (void)second.wait_for<JobOutcome>();
}

TEST_F(Hold, Fault27AnOwnerThatIsGoneAtOnceLeavesNothingOrAJobToTakeOver) {
  auto killed = make_job("pause", token_ + "-k", 2);
  for (int i = 0; i < 20; ++i) {
    auto host = supervisor::start_shim(killed, {.shim_path = build_path("bin/accel-shim")});
    ASSERT_TRUE(host);
    host->reset();  // waits for the shim
    EXPECT_THAT(processes_with(token_ + "-k"), IsEmpty());
  }
  DrivenJob(job("pause")).abandon();
  EXPECT_EQ(DrivenJob(adopt()).wait_for<Snapshot>().state, "parked");
}

TEST_F(Hold, AnOutcomeWaitsForTheNextOwner) {
  auto spec = job("fail-first");
  spec.control = supervisor::GenerationControl::kShim;
  spec.restart.max_restarts = 1;
  DrivenJob first(spec);
  first.abandon();

  DrivenJob second(adopt());

  EXPECT_TRUE(second.wait_for<JobOutcome>().success);
}

TEST_F(Hold, Fault27EverythingIsKilledWhenNoOwnerComesInTime) {
  auto spec = job("family");
  spec.owner.hold = std::chrono::milliseconds(100);
  DrivenJob first(spec);
  start_generation(first);

  first.abandon();

  EXPECT_TRUE(eventually([&] { return processes_with(token_).empty(); }));
  EXPECT_TRUE(eventually([&] { return ::access(state_file().c_str(), F_OK) != 0; }));
}

TEST_F(Hold, LogsGoOnIntoTheirFilesWithoutAnOwner) {
  auto spec = job("beats 0", 1);
  spec.workers[0].argv = {"/bin/sh", "-c", "while :; do echo line; sleep 0.01; done; : " + token_};
  spec.workers[0].redirect = supervisor::Streams::kAll;
  spec.log.dir = folder_.file("logs");
  DrivenJob first(spec);
  first.ask(PrepareGeneration{.generation = 0, .world_size = 1});
  first.ask(StartGeneration{.generation = 0});
  (void)first.wait_for<GenerationStarted>();
  first.abandon();
  const std::string file = folder_.file("logs/" + token_ + "/attempt_0/0/stdout.log");
  struct stat before {};
  ASSERT_TRUE(eventually([&] { return ::stat(file.c_str(), &before) == 0; }));

  EXPECT_TRUE(eventually([&] {
    struct stat now {};
    return ::stat(file.c_str(), &now) == 0 && now.st_size > before.st_size + 50;
  }));
}

TEST_F(Hold, Fault61AnotherTokenIsRefusedAndTheWorkersGoOn) {
  DrivenJob first(job("pause"));
  start_generation(first);
  first.abandon();

  const auto refused = adopt_shim(state_file(), "not the token of this job");

  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code(), ErrorCode::kShimRefused);
  DrivenJob second(adopt());
  for (const auto& worker : second.wait_for<Snapshot>().workers) EXPECT_TRUE(worker.is_alive);
}

TEST_F(Hold, AJobWithAnOwnerTakesNoOther) {
  DrivenJob first(job("pause"));
  start_generation(first);

  const auto refused = adopt_shim(state_file(), kToken);

  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code(), ErrorCode::kShimRefused);
  EXPECT_THAT(refused.error().message(), HasSubstr("has an owner"));
}

TEST_F(Hold, Fault27AShimThatIsKilledAfterItWasTakenOverLeavesNothing) {
  DrivenJob first(job("pause"));
  start_generation(first);
  first.abandon();
  DrivenJob second(adopt());
  const auto shim = supervisor::read_shim_state(state_file());
  ASSERT_TRUE(shim);

  ::kill(static_cast<pid_t>(shim->pid), SIGKILL);

  ::waitpid(static_cast<pid_t>(shim->pid), nullptr, 0);  // the test is its parent
  EXPECT_THROW((void)second.wait_for<JobOutcome>(), std::runtime_error);
  EXPECT_THAT(processes_with(token_), IsEmpty());
  const auto again = adopt_shim(state_file(), kToken);
  ASSERT_FALSE(again);
  EXPECT_EQ(again.error().code(), ErrorCode::kShimLost);
}

TEST_F(Hold, AFolderThatIsOpenToOthersIsRefused) {
  ::chmod(folder_.path().c_str(), 0755);
  DrivenJob driven(job("pause"));

  try {
    (void)driven.wait_for<Snapshot>();
    FAIL() << "the shim started";
  } catch (const std::runtime_error& error) {
    EXPECT_THAT(error.what(), HasSubstr("open to others (mode 0755)"));
  }
}

TEST_F(Hold, Fault31AJobWithoutAUsableStateFileIsFoundByItsTagsAndEnded) {
  auto spec = job("stubborn");
  spec.node_id = token_ + "-n";
  DrivenJob first(spec);
  start_generation(first);
  first.abandon();
  std::ofstream(state_file()) << "accel-shim-state 1 0000000000000000\n{}\n";

  const auto adopted = adopt_shim(state_file(), kToken);
  ASSERT_FALSE(adopted);
  EXPECT_EQ(adopted.error().code(), ErrorCode::kShimState);
  EXPECT_THAT(supervisor::find_jobs_of_node(real_system(), spec.node_id), Contains(token_));
  const auto ended = end_job(token_, spec.node_id);

  EXPECT_TRUE(ended.is_clean);
  EXPECT_THAT(processes_with(token_), IsEmpty());
}

// What stands behind a state file of this process and speaks as a shim of another build would.
class OtherShim {
 public:
  OtherShim(const ScratchFolder& folder, const std::string& job_id, std::vector<std::string> frames)
      : listener_(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0)) {
    const std::string path = folder.file("x.sock");
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    path.copy(address.sun_path, sizeof address.sun_path - 1);
    EXPECT_EQ(::bind(listener_.get(), reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
    EXPECT_EQ(::listen(listener_.get(), 1), 0);
    pid_ = ::fork();
    if (pid_ == 0) speak(folder, job_id, frames);
    EXPECT_TRUE(eventually([&] { return ::access(folder.file("written").c_str(), F_OK) == 0; }));
  }
  ~OtherShim() {
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }

 private:
  [[noreturn]] void speak(const ScratchFolder& folder,
                          const std::string& job_id,
                          const std::vector<std::string>& frames) {
    (void)::listen(listener_.get(), 1);  // SO_PEERCRED names the process that listens
    auto state = supervisor::own_state(real_system());
    state.job_id = job_id;
    state.socket = "x.sock";
    auto place = supervisor::open_runtime_folder(folder.path());
    if (!place || !supervisor::write_shim_state(place->get(), state)) ::_exit(1);
    std::ofstream(folder.file("written")) << "x";
    const UniqueFd owner(::accept(listener_.get(), nullptr, nullptr));
    for (const std::string& frame : frames) (void)!::write(owner.get(), frame.data(), frame.size());
    while (true) ::pause();
  }

  UniqueFd listener_;
  pid_t pid_ = -1;
};

TEST_F(Hold, Fault30AShimOfTheProtocolBeforeIsTakenOver) {
  const OtherShim shim(
      folder_,
      token_,
      {R"({"type":"hello","protocol":1,"build":"0.0.9","pid":4})",
       R"({"type":"snapshot","job_id":"j","state":"running","generation":3,"store_port":0,)"
       R"("stale_requests":0,"workers":[]})"});

  auto host = adopt_shim(state_file(), kToken);

  ASSERT_TRUE(host) << host.error().render();
  EXPECT_EQ(DrivenJob(*std::move(host)).wait_for<Snapshot>().generation, 3);
}

TEST_F(Hold, Fault30AShimOfAnUnknownProtocolIsRefusedNamingBoth) {
  const OtherShim shim(
      folder_,
      token_,
      {R"({"type":"hello","protocol":99,"oldest_protocol":98,"build":"9.9","pid":4})"});

  const auto host = adopt_shim(state_file(), kToken);

  ASSERT_FALSE(host);
  EXPECT_EQ(host.error().code(), ErrorCode::kProtocol);
  EXPECT_THAT(host.error().message(), HasSubstr("98 to 99 (build 9.9)"));
  EXPECT_THAT(
      host.error().message(),
      HasSubstr("this program " + supervisor::describe_protocols(supervisor::kOldestProtocol,
                                                                 supervisor::kProtocolVersion)));
}

TEST_F(Hold, Fault30AnOwnerOfAnUnknownProtocolIsRefusedAndTheWorkersGoOn) {
  DrivenJob first(job("pause"));
  start_generation(first);
  first.abandon();
  UniqueFd fd(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  const std::string path = folder_.file(supervisor::socket_name(token_));
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  path.copy(address.sun_path, sizeof address.sun_path - 1);
  ASSERT_EQ(::connect(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
  supervisor::FrameSocket socket(std::move(fd));
  (void)socket.send(encode(supervisor::HostRequest(
      supervisor::Adopt{.protocol = 99, .oldest_protocol = 98, .build = "9.9", .token = kToken})));
  std::string refusal;
  EXPECT_TRUE(eventually([&] {
    auto received = socket.receive();
    if (received && received->frame.find("refused") != std::string::npos) {
      refusal = received->frame;
    }
    return !refusal.empty();
  }));

  EXPECT_THAT(refusal, HasSubstr("98 to 99"));
  EXPECT_THAT(refusal,
              HasSubstr(supervisor::describe_protocols(supervisor::kOldestProtocol,
                                                       supervisor::kProtocolVersion)));
  DrivenJob second(adopt());
  for (const auto& worker : second.wait_for<Snapshot>().workers) EXPECT_TRUE(worker.is_alive);
}

}  // namespace
}  // namespace accel::test::hold_test
