// Outputs whose file system does not answer. What it does that does not answer, a future does here.

#include "agent/main/dashboard_logs.h"

#include <atomic>
#include <chrono>
#include <functional>
#include <future>
#include <memory>
#include <string>
#include <vector>

#include <boost/asio/executor_work_guard.hpp>
#include <gmock/gmock.h>

namespace accel::agent::dashboard_logs_test {
namespace {

using namespace std::chrono_literals;
using supervisor::LogTail;
using testing::ElementsAre;
using testing::HasSubstr;

constexpr uid_t kAnn = 7001;
constexpr uid_t kBob = 7002;

class DashboardLogsTest : public testing::Test {
 protected:
  void ask(DashboardLogs& logs, uid_t user, std::function<LogTail()> read) {
    logs.read(user, std::move(read), [this](const LogTail& tail) { tails_.push_back(tail); });
  }
  [[nodiscard]] std::function<LogTail()> hanging() const {
    return [end = end_.get_future().share()] {
      end.wait();
      return LogTail{.text = "late"};
    };
  }
  void run_until_told(std::size_t count) {
    while (tails_.size() < count) loop_.run_one();
  }

  // Something else of ann's.
  void read_another() {
    bool is_read = false;
    files_.add(
        kAnn, [] {}, [&is_read] { is_read = true; });
    while (!is_read) loop_.run_one();
  }

  boost::asio::io_context loop_;
  boost::asio::executor_work_guard<boost::asio::io_context::executor_type> stays_{
      loop_.get_executor()};
  FileReaders files_{loop_};
  mutable std::promise<void> end_;
  std::vector<LogTail> tails_;
};

TEST_F(DashboardLogsTest, AnOutputWhoseFileSystemDoesNotAnswerIsGivenUp) {
  DashboardLogs logs(loop_, files_, 1ms);
  ask(logs, kAnn, hanging());

  run_until_told(1);

  EXPECT_THAT(tails_[0].notice, HasSubstr("the file system of this output does not answer"));
  end_.set_value();
}

// Of the page one read at most stands before what else is read of the user.
TEST_F(DashboardLogsTest, BehindAReadThatHangsNoOtherOfItsUserIsBegun) {
  DashboardLogs logs(loop_, files_, 1ms);
  const auto num_begun = std::make_shared<std::atomic<int>>(0);
  ask(logs, kAnn, hanging());
  for (int i = 0; i < 3; ++i) {
    ask(logs, kAnn, [num_begun] {
      ++*num_begun;
      return LogTail{};
    });
  }
  run_until_told(4);  // all gave up

  end_.set_value();
  read_another();
  read_another();  // behind what the end of the first one may have begun

  EXPECT_EQ(*num_begun, 0);
  EXPECT_EQ(tails_.size(), 4u);  // nobody is told twice
}

TEST_F(DashboardLogsTest, ThoseOfOneUserAreReadInTurnAndThoseOfOthersMeanwhile) {
  DashboardLogs logs(loop_, files_, 1h);
  ask(logs, kAnn, hanging());
  ask(logs, kAnn, [] { return LogTail{.text = "ann"}; });
  ask(logs, kBob, [] { return LogTail{.text = "bob"}; });
  run_until_told(1);
  EXPECT_EQ(tails_[0].text, "bob");

  end_.set_value();
  run_until_told(3);

  EXPECT_THAT((std::vector{tails_[1].text, tails_[2].text}), ElementsAre("late", "ann"));
}

}  // namespace
}  // namespace accel::agent::dashboard_logs_test
