// Stacks that do not come. What a file system does that does not answer, a future does here.

#include "agent/main/dashboard_actions.h"

#include <future>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <gmock/gmock.h>
#include <unistd.h>

#include "agent/jobs/diagnosis.h"

namespace accel::agent::dashboard_actions_test {
namespace {

using namespace std::chrono_literals;
using supervisor::DashboardOutcome;
using ::testing::HasSubstr;

std::shared_ptr<Diagnosis> diagnosis_of_itself(FileReaders& files,
                                               const ControlService::DiagnosisTaker& taker) {
  v1::Worker worker;
  worker.set_rank(0);
  worker.set_pid(::getpid());
  return std::make_shared<Diagnosis>(
      files,
      ::getuid(),
      std::vector{worker},
      Diagnosis::Handlers{.on_chunk = taker.take,
                          .on_end = [finish = taker.finish] { finish({}); }});
}

TEST(DashboardActions, TheStacksOfTheRankAreTold) {
  boost::asio::io_context loop;
  const auto stays = boost::asio::make_work_guard(loop);
  FileReaders files(loop);
  std::optional<DashboardOutcome> told;
  const auto taker = taker_of_stacks(0, loop, 1h, [&](auto outcome) { told = outcome; });
  taker.begin(diagnosis_of_itself(files, taker));

  while (!told) loop.run_one();

  EXPECT_TRUE(told->is_done);
  EXPECT_THAT(told->text, HasSubstr("== rank 0, pid " + std::to_string(::getpid())));
}

TEST(DashboardActions, StacksThatDoNotComeAreGivenUp) {
  boost::asio::io_context loop;
  const auto stays = boost::asio::make_work_guard(loop);
  FileReaders files(loop);
  std::promise<void> end;
  files.add(
      ::getuid(), [hang = end.get_future().share()] { hang.wait(); }, [] {});
  std::optional<DashboardOutcome> told;
  const auto taker = taker_of_stacks(0, loop, 1ms, [&](auto outcome) { told = outcome; });
  taker.begin(diagnosis_of_itself(files, taker));

  while (!told) loop.run_one();

  EXPECT_FALSE(told->is_done);
  EXPECT_THAT(told->text, HasSubstr("did not come within 1 ms"));
  end.set_value();
}

// A diagnosis and what took it kept each other, and with them the reply, beyond the loop whose socket it is.
TEST(DashboardActions, NobodyKeepsAReplyBeyondTheReadersAndTheLoop) {
  auto loop = std::make_unique<boost::asio::io_context>();
  auto files = std::make_unique<FileReaders>(*loop);
  std::promise<void> end;
  files->add(
      ::getuid(), [hang = end.get_future().share()] { hang.wait(); }, [] {});
  auto reply = std::make_shared<int>();
  const std::weak_ptr<int> kept = reply;
  {
    const auto taker = taker_of_stacks(0, *loop, 1h, [reply](const auto&) {});
    taker.begin(diagnosis_of_itself(*files, taker));
  }
  reply.reset();
  EXPECT_FALSE(kept.expired());

  files.reset();
  loop.reset();

  EXPECT_TRUE(kept.expired());
  end.set_value();
}

}  // namespace
}  // namespace accel::agent::dashboard_actions_test
