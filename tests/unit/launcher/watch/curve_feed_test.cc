#include "launcher/watch/curve_feed.h"

#include <string>

#include <boost/asio/executor_work_guard.hpp>
#include <gmock/gmock.h>

#include "tests/support/scratch_folder.h"

namespace accel::launcher::curve_feed_test {
namespace {

using ::testing::HasSubstr;

std::string line_of(int step, double loss) {
  return "{\"step\":" + std::to_string(step) + ",\"loss\":" + std::to_string(loss) + "}\n";
}

TEST(CurveFeed, ShowsWhatATrackerHasWrittenUntilNow) {
  const test::ScratchFolder folder;
  boost::asio::io_context loop;
  CurveFeed feed(loop, folder.file(""));
  const auto look = [&] {
    std::string seen;
    bool is_there = false;
    feed.read([&](const std::string& json) {
      seen = json;
      is_there = true;
    });
    const auto work = boost::asio::make_work_guard(loop);
    loop.restart();
    while (!is_there) loop.run_one();
    return seen;
  };

  EXPECT_THAT(look(), HasSubstr("no numbers of a run"));
  folder.write("log.jsonl", line_of(1, 0.5) + line_of(2, 0.25));
  EXPECT_THAT(look(), HasSubstr(R"("points":[[1.0,0.5],[2.0,0.25]])"));
}

TEST(CurveFeed, WhoeverAsksMeanwhileGetsTheSameLook) {
  const test::ScratchFolder folder;
  folder.write("log.jsonl", line_of(1, 0.5));
  boost::asio::io_context loop;
  CurveFeed feed(loop, folder.file(""));
  int num_told = 0;
  for (int i = 0; i < 3; ++i) feed.read([&](const std::string&) { ++num_told; });
  const auto work = boost::asio::make_work_guard(loop);
  EXPECT_EQ(loop.run_one(), 1u);
  EXPECT_EQ(num_told, 3);
}

}  // namespace
}  // namespace accel::launcher::curve_feed_test
