// The supervisor in this process, and a disk that does not answer while it reads what its worker left.

#include <csignal>
#include <future>
#include <thread>

#include <boost/asio/io_context.hpp>
#include <boost/asio/signal_set.hpp>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "runtime/supervisor/shim/supervisor.h"
#include "tests/support/scratch_folder.h"

namespace accel::supervisor::supervisor_error_files_test {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;

class ErrorFilesOfAJob : public ::testing::Test {
 protected:
  JobOutcome run(ErrorFileReader reader) {
    JobSpec spec;
    spec.job_id = "job-1";
    spec.instance = std::string(JobSpec::kInstanceLength, 'a');
    spec.log.error_dir = scratch_.file("errors");
    spec.identity.world_size = 1;
    spec.workers = {{.local_rank = 0, .global_rank = 0, .argv = {"/bin/false"}}};
    JobOutcome outcome;
    Supervisor supervisor(
        loop_,
        {.spec = spec, .owner = ::getpid(), .error_files = std::move(reader)},
        [&](const HostEvent& event) {
          if (const auto* last = std::get_if<JobOutcome>(&event)) outcome = *last;
        },
        [this] { loop_.stop(); });
    boost::asio::signal_set ends(loop_, SIGCHLD);
    await_end(ends, supervisor);
    supervisor.start();
    loop_.run();
    return outcome;
  }

 private:
  static void await_end(boost::asio::signal_set& ends, Supervisor& supervisor) {
    ends.async_wait([&](const boost::system::error_code& cancelled, int) {
      if (cancelled) return;
      supervisor.children_changed();
      await_end(ends, supervisor);
    });
  }

  test::ScratchFolder scratch_;
  boost::asio::io_context loop_{1};
};

TEST_F(ErrorFilesOfAJob, StandInItsOutcome) {
  const JobOutcome outcome = run({.read = [](const std::string&) { return "what it said"; },
                                  .limit = std::chrono::minutes(1)});

  ASSERT_EQ(outcome.exits.size(), 1U);
  EXPECT_EQ(outcome.exits[0].error_file, "what it said");
  ASSERT_TRUE(outcome.first_failure);
  EXPECT_EQ(outcome.first_failure->error_file, "what it said");
}

TEST_F(ErrorFilesOfAJob, AreReadBesideTheLoop) {
  std::thread::id reader;
  (void)run({.read =
                 [&](const std::string&) {
                   reader = std::this_thread::get_id();
                   return "";
                 },
             .limit = std::chrono::minutes(1)});

  EXPECT_NE(reader, std::this_thread::get_id());
  EXPECT_NE(reader, std::thread::id());
}

TEST_F(ErrorFilesOfAJob, HoldNoJobWhoseDiskDoesNotAnswer) {
  std::promise<void> answers;
  auto of_the_thread = std::make_shared<std::shared_future<void>>(answers.get_future());
  const std::weak_ptr<void> thread = of_the_thread;

  const JobOutcome outcome = run({.read =
                                      [answer = std::move(of_the_thread)](const std::string&) {
                                        answer->wait();
                                        return "too late";
                                      },
                                  .limit = std::chrono::milliseconds(1)});

  ASSERT_EQ(outcome.exits.size(), 1U);
  EXPECT_EQ(outcome.exits[0].exit_code, 1);
  EXPECT_EQ(outcome.exits[0].error_file, "");
  EXPECT_THAT(outcome.notices,
              Contains(HasSubstr("error files of the workers were not read within 1 ms")));
  answers.set_value();
  while (!thread.expired()) std::this_thread::yield();
}

}  // namespace
}  // namespace accel::supervisor::supervisor_error_files_test
