// How a job is stopped from outside (faults 7, 9, 69 and 70 of docs/reference/faults.md).

#include <algorithm>
#include <csignal>
#include <filesystem>

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include "runtime/supervisor/kernel/process_table.h"
#include "runtime/system.h"
#include "tests/support/fault_job.h"
#include "tests/support/scratch_folder.h"

namespace accel::test::stopping_test {
namespace {

using supervisor::Stop;
using supervisor::StopMode;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

class Stopping : public ::testing::Test {
 protected:
  const std::string token_ = unique_token();

  std::vector<std::string> launch_arguments(const std::string& mode,
                                            const std::string& grace = "20") const {
    return launch_arguments_of(2, grace, worker_command(mode, token_));
  }

  // One rank that is a shell.
  std::vector<std::string> shell_arguments(const std::string& script,
                                           const std::string& grace = "20") const {
    return launch_arguments_of(1, grace, {"/bin/sh", "-c", script, token_});
  }

 private:
  static std::vector<std::string> launch_arguments_of(int num_ranks,
                                                      const std::string& grace,
                                                      const std::vector<std::string>& command) {
    std::vector<std::string> arguments = {
        "--num_processes", std::to_string(num_ranks), "--stop_grace", grace, "--no_python"};
    arguments.insert(arguments.end(), command.begin(), command.end());
    return arguments;
  }
};

TEST_F(Stopping, Fault70CtrlCReachesTheWorkersAsSigint) {
  LaunchProcess launch(launch_arguments("stops 2"), token_);
  ASSERT_THAT(launch.wait_for_lines("ready ", 2), SizeIs(2));

  launch.signal(SIGINT);

  EXPECT_EQ(launch.wait(), 128 + SIGINT);
  EXPECT_THAT(launch.wait_for_lines("got ", 2), ElementsAre("2", "2"));
  EXPECT_THAT(processes_with(token_), IsEmpty());
}

TEST_F(Stopping, Fault70SecondCtrlCKillsNow) {
  LaunchProcess launch(launch_arguments("stubborn", "3600"), token_);
  ASSERT_THAT(launch.wait_for_lines("ready ", 2), SizeIs(2));

  launch.signal(SIGINT);
  // The first one is taken before the second is sent: a signal that is pending cannot pend twice.
  EXPECT_TRUE(eventually([&] {
    const auto status =
        real_system().read_file("/proc/" + std::to_string(launch.pid()) + "/status");
    return status && status->find("ShdPnd:\t0000000000000000") != std::string::npos;
  }));
  launch.signal(SIGINT);

  EXPECT_EQ(launch.wait(), 128 + SIGINT);
  EXPECT_THAT(processes_with(token_), IsEmpty());
}

TEST_F(Stopping, Fault69SigtermGivesTheStopSignalAndExits143) {
  LaunchProcess launch(launch_arguments("stops 15"), token_);
  ASSERT_THAT(launch.wait_for_lines("ready ", 2), SizeIs(2));

  launch.signal(SIGTERM);

  EXPECT_EQ(launch.wait(), 128 + SIGTERM);
  EXPECT_THAT(launch.wait_for_lines("got ", 2), ElementsAre("15", "15"));
}

// A worker that signals each process of its session, or `scancel --signal`, also reaches the shim.
TEST_F(Stopping, SignalsThatAreNotMeantForTheShimDoNotEndIt) {
  LaunchProcess launch(launch_arguments("stops 15"), token_);
  ASSERT_THAT(launch.wait_for_lines("ready ", 2), SizeIs(2));
  const pid_t shim = launch.shim();
  ASSERT_GT(shim, 0);

  for (int signal = 1; signal <= SIGRTMAX; ++signal) {
    const bool cannot_be_caught = signal == SIGKILL || signal == SIGSTOP;
    const bool is_of_libc = signal > SIGSYS && signal < SIGRTMIN;
    if (cannot_be_caught || is_of_libc || signal == SIGQUIT) continue;  // SIGQUIT asks for stacks
    ASSERT_EQ(::kill(shim, signal), 0);
  }

  launch.signal(SIGTERM);
  EXPECT_EQ(launch.wait(), 128 + SIGTERM) << launch.output();
  EXPECT_THAT(launch.wait_for_lines("got ", 2), ElementsAre("15", "15"));
  EXPECT_THAT(processes_with(token_), IsEmpty());
}

TEST_F(Stopping, Fault69PreemptedRanksThatAllSavedEndWithTheRequeueCode) {
  LaunchProcess launch(launch_arguments("saves all"), token_);
  ASSERT_THAT(launch.wait_for_lines("ready ", 2), SizeIs(2));

  launch.signal(SIGUSR1);

  EXPECT_EQ(launch.wait(), 85);
  EXPECT_THAT(launch.wait_for_lines("saved", 2), SizeIs(2));
  EXPECT_THAT(launch.output(), HasSubstr("every rank has saved"));
}

TEST_F(Stopping, Fault69PreemptedRanksThatDidNotSaveEndWith143) {
  LaunchProcess launch(launch_arguments("saves not"), token_);
  ASSERT_THAT(launch.wait_for_lines("ready ", 2), SizeIs(2));

  launch.signal(SIGTERM);

  EXPECT_EQ(launch.wait(), 128 + SIGTERM);
}

// As SLURM does it: launcher, shim and workers get it, in any order.
TEST_F(Stopping, Fault69ASignalToEveryProcessOfTheJobIsOneNotice) {
  for (const int signal : {SIGTERM, SIGUSR1}) {
    LaunchProcess launch(launch_arguments("saves all"), token_);
    const auto workers = launch.wait_for_lines("ready ", 2);
    ASSERT_THAT(workers, SizeIs(2));

    ::kill(launch.shim(), signal);
    for (const std::string& pid : workers) ::kill(std::stoi(pid), signal);
    launch.signal(signal);

    EXPECT_EQ(launch.wait(), 85) << signal;
    EXPECT_THAT(launch.output(), HasSubstr("every rank has saved"));
  }
}

TEST_F(Stopping, SighupStopsLikeSigterm) {
  LaunchProcess launch(launch_arguments("stops 15"), token_);
  ASSERT_THAT(launch.wait_for_lines("ready ", 2), SizeIs(2));

  launch.signal(SIGHUP);

  EXPECT_EQ(launch.wait(), 128 + SIGHUP);
  EXPECT_THAT(launch.wait_for_lines("got ", 2), ElementsAre("15", "15"));
}

// The owner was still to hear of the restart when Ctrl-C came: the worker of before had it, the one that runs now did not.
TEST_F(Stopping, Fault70CtrlCThatTheGenerationBeforeHadIsSentToTheOneThatRuns) {
  auto spec = make_job("fail-first pause", token_);
  spec.console.foreground = true;
  spec.restart.max_restarts = 1;
  spec.stop.grace = std::chrono::hours(1);
  const JobRun run = run_job(spec, [](auto& host, const auto& event) {
    const auto* started = std::get_if<supervisor::GenerationStarted>(&event);
    if (started != nullptr && started->generation == 1)
      host.request(Stop{.mode = StopMode::kInterrupt, .signal = SIGINT, .delivered_to = 0});
  });

  ASSERT_TRUE(run.outcome.has_value());
  EXPECT_EQ(run.outcome->exit_code, 128 + SIGINT);
  ASSERT_THAT(run.all<supervisor::WorkerExit>(), SizeIs(2));
  EXPECT_EQ(run.all<supervisor::WorkerExit>()[1].signal, SIGINT);
}

TEST_F(Stopping, Fault70CtrlCThatTheRunningGenerationHadIsNotSentAgain) {
  auto spec = make_job("fail-first pause", token_);
  spec.console.foreground = true;
  spec.restart.max_restarts = 1;
  spec.stop.grace = std::chrono::milliseconds(100);
  const JobRun run = run_job(spec, [](auto& host, const auto& event) {
    const auto* started = std::get_if<supervisor::GenerationStarted>(&event);
    if (started != nullptr && started->generation == 1)
      host.request(Stop{.mode = StopMode::kInterrupt, .signal = SIGINT, .delivered_to = 1});
  });

  ASSERT_TRUE(run.outcome.has_value());
  ASSERT_THAT(run.all<supervisor::WorkerExit>(), SizeIs(2));
  EXPECT_EQ(run.all<supervisor::WorkerExit>()[1].signal,
            SIGKILL);  // after the grace: nobody sent it here
}

// Every wait of the shim for its console is an hour here: only the second Ctrl-C can end the job.
TEST_F(Stopping, Fault70CtrlCEndsAJobWhoseConsoleNobodyReads) {
  int console[2];
  ASSERT_EQ(::pipe2(console, O_CLOEXEC), 0);
  const UniqueFd read_end(console[0]);
  const UniqueFd write_end(console[1]);
  auto spec = make_job("fill 400000", token_);  // more than a pipe holds, less than all buffers do
  spec.console.stdin_to_rank0 = false;
  spec.stop.drain = std::chrono::hours(1);
  const UniqueFd own_out(::fcntl(STDOUT_FILENO, F_DUPFD_CLOEXEC, 3));
  ::dup2(write_end.get(), STDOUT_FILENO);  // the shim writes to the stdout that it is started with
  const JobRun run = run_job(spec, [&](auto& host, const auto& event) {
    if (std::holds_alternative<supervisor::Hello>(event)) {
      ::dup2(own_out.get(), STDOUT_FILENO);
    } else if (std::holds_alternative<supervisor::WorkerExit>(event)) {
      host.request(Stop{.mode = StopMode::kInterrupt, .signal = SIGINT});
      host.request(Stop{.mode = StopMode::kKill, .signal = SIGINT});
    }
  });
  ::dup2(own_out.get(), STDOUT_FILENO);

  ASSERT_TRUE(run.outcome.has_value());
  EXPECT_THAT(run.outcome->notices,
              Contains(HasSubstr("were not written before the job was left")));
  EXPECT_THAT(processes_with(token_), IsEmpty());
}

// Stops the job in this mode once every worker has made its file "ready<rank>".
JobRun stop_when_ready(const supervisor::JobSpec& spec,
                       const ScratchFolder& folder,
                       StopMode mode) {
  return run_job(spec, [&](supervisor::WorkerHost& host, const supervisor::HostEvent& event) {
    if (!std::holds_alternative<supervisor::GenerationStarted>(event)) return;
    EXPECT_TRUE(eventually([&] {
      return std::all_of(spec.workers.begin(), spec.workers.end(), [&](const auto& worker) {
        return std::filesystem::exists(folder.file("ready" + std::to_string(worker.global_rank)));
      });
    }));
    host.request(Stop{.mode = mode, .signal = SIGTERM});
  });
}

TEST_F(Stopping, Fault9WorkerThatIgnoresSigtermIsKilledAfterTheGrace) {
  const ScratchFolder folder;
  auto spec = make_job("", token_, 2);
  spec.cwd = folder.path().string();
  spec.stop.grace = std::chrono::milliseconds(100);
  for (auto& worker : spec.workers)
    worker.argv = {"/bin/sh", "-c", "trap '' TERM; : > ready$RANK; while :; do sleep 0.05; done"};

  const JobRun run = stop_when_ready(spec, folder, StopMode::kTerminate);

  ASSERT_TRUE(run.outcome) << (run.error ? run.error->what() : "no outcome in time");
  EXPECT_EQ(run.outcome->exit_code, 128 + SIGTERM);
  EXPECT_EQ(run.outcome->reason, "stopped by SIGTERM");
  ASSERT_THAT(run.outcome->exits, SizeIs(2));
  for (const auto& exit : run.outcome->exits) EXPECT_EQ(exit.signal, SIGKILL);
  EXPECT_THAT(processes_with(token_), IsEmpty());
}

TEST_F(Stopping, Fault9FailureOfOneRankKillsAnotherThatIgnoresSigterm) {
  auto spec = make_job("rank0 exit 5", token_, 2);
  spec.workers[1].argv = worker_command("stubborn", token_);
  spec.stop.grace = std::chrono::milliseconds(100);
  const JobRun run = run_job(spec);

  ASSERT_TRUE(run.outcome.has_value());
  EXPECT_EQ(run.outcome->exit_code, 5);
  EXPECT_THAT(processes_with(token_), IsEmpty());
}

TEST_F(Stopping, StoppedWorkersAreStoppedAgainstTheirWill) {
  LaunchProcess launch(launch_arguments("pause"), token_);
  const auto workers = launch.wait_for_lines("ready ", 2);
  ASSERT_THAT(workers, SizeIs(2));
  const auto all_are_in = [&](char state) {
    for (const std::string& worker : workers) {
      const auto entry = supervisor::read_process(real_system(), std::stoi(worker));
      if (!entry || entry->state != state) return false;
    }
    const auto self = supervisor::read_process(real_system(), launch.pid());
    return self && self->state == state;
  };

  launch.signal(SIGTSTP);
  EXPECT_TRUE(eventually([&] { return all_are_in('T'); }));
  launch.signal(SIGCONT);
  EXPECT_TRUE(eventually([&] { return all_are_in('S'); }));

  launch.signal(SIGTERM);
  EXPECT_EQ(launch.wait(), 128 + SIGTERM);
}

TEST_F(Stopping, Fault7WorkerThatIsStoppedFollowsTheStopSignal) {
  LaunchProcess launch(launch_arguments("pause"), token_);
  const auto workers = launch.wait_for_lines("ready ", 2);
  ASSERT_THAT(workers, SizeIs(2));
  for (const std::string& worker : workers) ::kill(std::stoi(worker), SIGSTOP);

  launch.signal(SIGTERM);

  EXPECT_EQ(launch.wait(), 128 + SIGTERM);
  EXPECT_THAT(processes_with(token_), IsEmpty());
}

TEST_F(Stopping, SigquitSaysWhereEveryRankIs) {
  LaunchProcess launch(launch_arguments("pause"), token_);
  ASSERT_THAT(launch.wait_for_lines("ready ", 2), SizeIs(2));

  launch.signal(SIGQUIT);

  EXPECT_THAT(launch.wait_for_lines("accel-launch: rank ", 2), SizeIs(2));
  launch.signal(SIGTERM);
  EXPECT_EQ(launch.wait(), 128 + SIGTERM);
}

// What train.sh does that runs `python train.py` without exec: the shell ends at once, and Python says that it saves, then saves.
TEST_F(Stopping, DescendantsOfAStoppedRankHaveTheSameGraceAndAreHeard) {
  const ScratchFolder folder;
  const std::string saved = folder.file("saved");
  LaunchProcess launch(
      shell_arguments("( trap 'sleep 0.7; echo saving; : > " + saved +
                      "; exit 0' TERM; echo ready 1; while :; do sleep 0.01; done ) & wait"),
      token_);
  ASSERT_THAT(launch.wait_for_lines("ready ", 1), SizeIs(1));

  launch.signal(SIGTERM);

  EXPECT_THAT(launch.wait_for_lines("saving", 1), SizeIs(1));
  EXPECT_EQ(launch.wait(), 128 + SIGTERM);
  EXPECT_TRUE(std::filesystem::exists(saved));
  EXPECT_THAT(processes_with(token_), IsEmpty());
}

// A helper that Python starts with start_new_session=True: no Ctrl-C and no signal to the rank's group reaches it.
TEST_F(Stopping, AHelperInASessionOfItsOwnIsAskedToEnd) {
  LaunchProcess launch(
      shell_arguments("setsid sh -c 'trap \"echo asked; exit 0\" TERM; echo ready 1; "
                      "while :; do sleep 0.01; done' & trap 'exit 0' INT; wait"),
      token_);
  ASSERT_THAT(launch.wait_for_lines("ready ", 1), SizeIs(1));

  launch.signal(SIGINT);

  EXPECT_THAT(launch.wait_for_lines("asked", 1), SizeIs(1));
  EXPECT_EQ(launch.wait(), 128 + SIGINT);
  EXPECT_THAT(launch.wait_for_lines("accel-launch: warning", 1),
              IsEmpty());  // it obeyed: no leftover
}

TEST_F(Stopping, AHelperThatIgnoresItIsNamedAndTheSecondCtrlCKillsIt) {
  LaunchProcess launch(
      shell_arguments("setsid sh -c 'trap \"\" TERM; echo ready 1; while :; do sleep 0.01; done' "
                      "& trap 'exit 0' INT; wait",
                      "3600"),
      token_);
  ASSERT_THAT(launch.wait_for_lines("ready ", 1), SizeIs(1));

  launch.signal(SIGINT);
  EXPECT_THAT(launch.wait_for_lines("accel-launch: waiting until ", 1),
              ElementsAre(HasSubstr("that ended ranks had started: ")));
  launch.signal(SIGINT);

  EXPECT_EQ(launch.wait(), 128 + SIGINT);
  EXPECT_THAT(launch.wait_for_lines("accel-launch: warning: ", 1),
              ElementsAre(HasSubstr("outlived the rank and had to be ended")));
  EXPECT_THAT(processes_with(token_), IsEmpty());
}

TEST_F(Stopping, RanksThatTakeTheirTimeAreNamed) {
  LaunchProcess launch(launch_arguments("stubborn", "3600"), token_);
  ASSERT_THAT(launch.wait_for_lines("ready ", 2), SizeIs(2));

  launch.signal(SIGINT);
  EXPECT_THAT(launch.wait_for_lines("accel-launch: waiting until ", 1),
              ElementsAre(HasSubstr(
                  "for ranks 0, 1; then they are killed. Another Ctrl-C kills them now")));
  launch.signal(SIGINT);

  EXPECT_EQ(launch.wait(), 128 + SIGINT);
}

TEST_F(Stopping, WhatARankLeavesBehindIsHeardWhileItMayLinger) {
  LaunchProcess launch(shell_arguments("(sleep 0.7; echo uploaded) & exit 0"), token_);

  EXPECT_THAT(launch.wait_for_lines("uploaded", 1), SizeIs(1));
  EXPECT_EQ(launch.wait(), 0);
}

TEST_F(Stopping, StacksOfAllRanksAreWrittenBeforeTheKillWhereTheJobAsksForThem) {
  const ScratchFolder folder;
  auto spec = make_job("", token_, 2);
  spec.cwd = folder.path().string();
  spec.log.dir = folder.file("logs");
  spec.stop.grace = std::chrono::milliseconds(200);
  spec.stop.dump_stacks = true;
  for (auto& worker : spec.workers)
    worker.argv = {"/bin/sh", "-c", "trap '' TERM; : > ready$RANK; while :; do sleep 0.05; done"};

  const JobRun run = stop_when_ready(spec, folder, StopMode::kTerminate);

  ASSERT_TRUE(run.outcome) << (run.error ? run.error->what() : "no outcome in time");
  for (const char* rank : {"0", "1"}) {
    const auto stacks = real_system().read_file(
        folder.file("logs/" + token_ + "/attempt_0/" + rank + "/stacks.log"));
    ASSERT_TRUE(stacks) << stacks.error().what();
    EXPECT_THAT(*stacks, HasSubstr("sh"));
  }
  EXPECT_THAT(run.outcome->notices, Contains(HasSubstr("stacks of what still runs")));
}

TEST_F(Stopping, WorkersWithoutAChannelGetTheSignalOfPreemptionAsTheirNotice) {
  const ScratchFolder folder;
  auto spec = make_job("", token_);
  spec.cwd = folder.path().string();
  spec.stop.preempt_signal = SIGUSR2;
  spec.workers[0].argv = {"/bin/sh",
                          "-c",
                          "trap 'echo notice >> got; exit 0' USR2; trap 'echo term >> got' TERM; "
                          ": > ready0; while :; do sleep 0.05; done"};

  const JobRun run = stop_when_ready(spec, folder, StopMode::kTerminate);

  ASSERT_TRUE(run.outcome) << (run.error ? run.error->what() : "no outcome in time");
  EXPECT_EQ(*real_system().read_file(folder.file("got")), "notice\n");
}

TEST_F(Stopping, TheStopSignalFollowsTheSignalOfPreemption) {
  const ScratchFolder folder;
  auto spec = make_job("", token_);
  spec.cwd = folder.path().string();
  spec.stop.preempt_signal = SIGUSR2;
  spec.stop.grace = std::chrono::milliseconds(5'100);  // 100 ms more than what is kept for it
  spec.workers[0].argv = {"/bin/sh",
                          "-c",
                          "trap 'echo notice >> got' USR2; trap 'echo term >> got; exit 0' TERM; "
                          ": > ready0; while :; do sleep 0.05; done"};

  const JobRun run = stop_when_ready(spec, folder, StopMode::kTerminate);

  ASSERT_TRUE(run.outcome) << (run.error ? run.error->what() : "no outcome in time");
  EXPECT_EQ(*real_system().read_file(folder.file("got")), "notice\nterm\n");
}

}  // namespace
}  // namespace accel::test::stopping_test
