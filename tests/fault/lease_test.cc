// Hard fencing when the owner cannot keep its promise (fault 38 of docs/reference/faults.md): the shim kills at
// the end of the lease, whether the owner is stopped, dead, or alive and silent.

#include "runtime/supervisor/protocol/lease.h"

#include <csignal>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "runtime/supervisor/owner/shim_state.h"
#include "tests/support/driven_job.h"
#include "tests/support/scratch_folder.h"

namespace accel::test::lease_test {
namespace {

using namespace std::chrono_literals;
using supervisor::adopt_shim;
using supervisor::boot_time;
using supervisor::end_job;
using supervisor::Finish;
using supervisor::GenerationEnded;
using supervisor::GenerationStarted;
using supervisor::JobOutcome;
using supervisor::Notice;
using supervisor::Prepared;
using supervisor::PrepareGeneration;
using supervisor::RenewLease;
using supervisor::Snapshot;
using supervisor::StartGeneration;
using supervisor::StopGeneration;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr const char* kToken = "a token of 16 bytes and more";

class Lease : public ::testing::Test {
 protected:
  Lease() { ::chmod(folder_.path().c_str(), 0700); }
  ~Lease() override {
    (void)end_job(token_, "");
    while (::waitpid(-1, nullptr, WNOHANG) > 0) {
    }
  }

  [[nodiscard]] supervisor::JobSpec job(const std::string& mode) const {
    auto spec = make_job(mode, token_, 2);
    spec.control = supervisor::GenerationControl::kOwner;
    return spec;
  }

  [[nodiscard]] supervisor::JobSpec held_job(const std::string& mode) const {
    auto spec = job(mode);
    spec.owner.on_loss = supervisor::OwnerLoss::kHold;
    spec.owner.runtime_dir = folder_.path();
    spec.owner.token = kToken;
    return spec;
  }

  static PrepareGeneration leased(int generation, supervisor::BootTime lease) {
    return {.generation = generation, .world_size = 2, .lease_until = boot_time() + lease};
  }

  [[noreturn]] static void own_for_ever(const supervisor::JobSpec& spec,
                                        std::chrono::seconds lease,
                                        int ready) {
    try {
      DrivenJob driven(spec);
      driven.ask(leased(0, lease));
      driven.ask(StartGeneration{.generation = 0});
      (void)driven.wait_for<GenerationStarted>();
      (void)!::write(ready, "x", 1);
      while (true) ::pause();
    } catch (const std::exception&) {
      ::_exit(1);  // the reader of the pipe sees its end
    }
  }

  // A process that owns the job and is then stopped or killed; returns once its workers are ready.
  [[nodiscard]] pid_t start_owner(const supervisor::JobSpec& spec, std::chrono::seconds lease) {
    int ready[2] = {-1, -1};
    if (::pipe(ready) != 0) return -1;
    const pid_t owner = ::fork();
    if (owner == 0) own_for_ever(spec, lease, ready[1]);
    ::close(ready[1]);
    char byte = 0;
    EXPECT_EQ(::read(ready[0], &byte, 1), 1);
    ::close(ready[0]);
    EXPECT_TRUE(eventually([&] { return has_workers(); }));  // started, and perhaps not yet exec'd
    return owner;
  }

  // The workers of the job and what they started: without the shim and its owner.
  [[nodiscard]] bool has_workers() const {
    for (const std::string& process : processes_with(token_)) {
      if (process.find("fault_worker") != std::string::npos) return true;
    }
    return false;
  }

  const std::string token_ = unique_token();
  ScratchFolder folder_;
};

TEST_F(Lease, Fault38WorkersOfAStoppedOwnerAreKilledAtTheEndOfTheLease) {
  const pid_t owner = start_owner(job("family"), 10s);
  ASSERT_TRUE(has_workers());

  ::kill(owner, SIGSTOP);

  EXPECT_TRUE(eventually([&] { return !has_workers(); }));
  // Not because its owner was gone: that one is still there.
  EXPECT_EQ(::kill(owner, 0), 0);
  ::kill(owner, SIGKILL);
  ::waitpid(owner, nullptr, 0);
}

TEST_F(Lease, Fault38WorkersOfAKilledOwnerAreKilledAtTheEndOfTheLeaseAlthoughTheShimHolds) {
  auto spec = held_job("stubborn");
  spec.owner.hold = std::chrono::hours(1);
  const pid_t owner = start_owner(spec, 10s);
  ::kill(owner, SIGKILL);
  ::waitpid(owner, nullptr, 0);
  const std::string state = folder_.file(supervisor::state_file_name(token_));

  EXPECT_TRUE(eventually([&] { return !has_workers(); }));

  // The shim itself goes on holding, and tells its next owner.
  std::unique_ptr<supervisor::WorkerHost> host;
  ASSERT_TRUE(eventually([&] {
    auto adopted = adopt_shim(state, kToken);
    if (adopted) host = *std::move(adopted);
    return host != nullptr;
  }));
  DrivenJob second(std::move(host));
  EXPECT_TRUE(second.wait_for<GenerationEnded>().is_clean);
  second.ask(supervisor::TakeSnapshot{});
  EXPECT_EQ(second.wait_for<Snapshot>().state, "parked");
  bool is_told = false;
  for (const Notice& notice : second.all<Notice>()) {
    is_told = is_told || notice.text.find("lease of generation 0 is over") != std::string::npos;
  }
  EXPECT_TRUE(is_told);
  second.ask(Finish{});
  (void)second.wait_for<JobOutcome>();
}

TEST_F(Lease, ANewOwnerLearnsUntilWhenTheLeaseRunsAndRenewsIt) {
  DrivenJob first(held_job("pause"));
  const auto wanted = leased(0, 600s);
  first.ask(wanted);
  first.ask(StartGeneration{.generation = 0});
  (void)first.wait_for<GenerationStarted>();
  first.ask(RenewLease{.generation = 0, .until = wanted.lease_until + 5s});
  first.ask(supervisor::TakeSnapshot{});
  EXPECT_EQ(first.wait_for<Snapshot>().lease_until, wanted.lease_until + 5s);
  first.abandon();

  std::unique_ptr<supervisor::WorkerHost> host;
  ASSERT_TRUE(eventually([&] {
    auto adopted = adopt_shim(folder_.file(supervisor::state_file_name(token_)), kToken);
    if (adopted) host = *std::move(adopted);
    return host != nullptr;
  }));
  DrivenJob second(std::move(host));
  EXPECT_EQ(second.wait_for<Snapshot>().lease_until, wanted.lease_until + 5s);
  second.ask(RenewLease{.generation = 0, .until = wanted.lease_until + 9s});
  second.ask(supervisor::TakeSnapshot{});
  EXPECT_EQ(second.wait_for<Snapshot>().lease_until, wanted.lease_until + 9s);
  second.ask(StopGeneration{.generation = 0, .mode = supervisor::StopMode::kKill});
  (void)second.wait_for<GenerationEnded>();
  second.ask(Finish{});
  (void)second.wait_for<JobOutcome>();
}

TEST_F(Lease, RenewedWorkersOutliveTheInstantThatWasPromisedFirst) {
  DrivenJob driven(job("pause"));
  const auto wanted = leased(0, 6s);
  driven.ask(wanted);
  driven.ask(StartGeneration{.generation = 0});
  driven.ask(RenewLease{.generation = 0, .until = wanted.lease_until + 600s});
  (void)driven.wait_for<GenerationStarted>();
  ASSERT_TRUE(eventually([&] { return boot_time() > wanted.lease_until + 1s; }));

  EXPECT_TRUE(has_workers());
  EXPECT_THAT(driven.all<GenerationEnded>(), IsEmpty());
  // A renewal of another generation moves nothing and is counted.
  driven.ask(RenewLease{.generation = 7, .until = wanted.lease_until + 900s});
  driven.ask(supervisor::TakeSnapshot{});
  const auto snapshot = driven.wait_for<Snapshot>();
  EXPECT_EQ(snapshot.stale_requests, 1u);
  EXPECT_EQ(snapshot.lease_until, wanted.lease_until + 600s);
}

TEST_F(Lease, AGraceDoesNotOutlastTheLease) {
  auto spec = job("stubborn");
  spec.stop.grace = std::chrono::hours(1);
  DrivenJob driven(spec);
  driven.ask(leased(0, 6s));
  driven.ask(StartGeneration{.generation = 0});
  (void)driven.wait_for<GenerationStarted>();

  driven.ask(StopGeneration{.generation = 0});

  EXPECT_TRUE(driven.wait_for<GenerationEnded>().is_clean);
  EXPECT_FALSE(has_workers());
}

TEST_F(Lease, NothingStartsUnderALeaseThatIsOverAndTheNextGenerationDoes) {
  DrivenJob driven(job("pause"));
  driven.ask(leased(0, -1s));
  driven.ask(StartGeneration{.generation = 0});
  EXPECT_EQ(driven.wait_for<GenerationEnded>().generation, 0);
  EXPECT_THAT(driven.all<GenerationStarted>(), IsEmpty());
  EXPECT_THAT(driven.all<Prepared>(), IsEmpty());

  // Prepared in time, started too late.
  driven.ask(leased(1, 3s));
  (void)driven.wait_for<Prepared>();
  EXPECT_EQ(driven.wait_for<GenerationEnded>().generation, 1);
  driven.ask(StartGeneration{.generation = 1});

  driven.ask(leased(2, 600s));
  driven.ask(StartGeneration{.generation = 2});
  EXPECT_EQ(driven.wait_for<GenerationStarted>().generation, 2);
  EXPECT_THAT(driven.all<GenerationStarted>(), SizeIs(1));
}

}  // namespace
}  // namespace accel::test::lease_test
