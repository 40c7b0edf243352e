// The logger and the progress bar on real processes.

#include <cstdlib>
#include <functional>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <accel/error.h>
#include <accel/logging.h>
#include <accel/progress.h>
#include <accel/state.h>

#include "tests/support/rank_group.h"

namespace accel::console_test {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

class ConsoleAlone : public ::testing::Test {
 protected:
  void SetUp() override { PartialState::reset(); }
  void TearDown() override { PartialState::reset(); }

  static std::string stderr_of(const std::function<void()>& fn) {
    ::testing::internal::CaptureStderr();
    fn();
    return ::testing::internal::GetCapturedStderr();
  }
};

TEST_F(ConsoleAlone, ALineNamesLevelLoggerPlaceAndRank) {
  const PartialState state;
  const Logger logger = get_logger("train");

  const int place = __LINE__ + 1;
  const std::string line = stderr_of([&] { logger.warning("odd batch"); });

  EXPECT_THAT(line,
              AllOf(HasSubstr(" warning train console_test.cc:" + std::to_string(place) + " "),
                    HasSubstr(" [RANK 0] odd batch\n")));
}

TEST_F(ConsoleAlone, LinesBelowTheLevelAreLeftOut) {
  const PartialState state;
  const Logger logger = get_logger("levels", LogLevel::kError);

  EXPECT_THAT(stderr_of([&] { logger.warning("quiet"); }), IsEmpty());
  EXPECT_THAT(stderr_of([&] { logger.critical("loud"); }), HasSubstr("loud"));
  get_logger("levels", LogLevel::kDebug);
  EXPECT_THAT(stderr_of([&] { logger.debug("now"); }), HasSubstr("now"))
      << "handles of a name share the level";
}

TEST_F(ConsoleAlone, TheLevelComesFromTheEnvironment) {
  const PartialState state;
  setenv("ACCELERATE_LOG_LEVEL", "error", 1);
  EXPECT_FALSE(get_logger("from the environment").is_enabled(LogLevel::kWarning));

  setenv("ACCELERATE_LOG_LEVEL", "chatty", 1);
  try {
    get_logger("another name");
    FAIL() << "took a level that does not exist";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kEnvInvalid);
    EXPECT_THAT(error.message(), HasSubstr("chatty"));
  }
  unsetenv("ACCELERATE_LOG_LEVEL");
}

TEST_F(ConsoleAlone, WarnsOnceForEachText) {
  const PartialState state;
  const Logger logger = get_logger("once");

  EXPECT_THAT(stderr_of([&] { logger.warning_once("slow disk"); }), HasSubstr("slow disk"));
  EXPECT_THAT(stderr_of([&] { logger.warning_once("slow disk"); }), IsEmpty());
  EXPECT_THAT(stderr_of([&] { logger.warning_once("slow net"); }), HasSubstr("slow net"));
}

TEST_F(ConsoleAlone, LoggingWithoutAStateIsRefused) {
  try {
    get_logger("early").error("too early");
    FAIL() << "logged without knowing the ranks";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kNotInitialized);
  }
}

TEST_F(ConsoleAlone, ProgressCountsTheElementsOfALoop) {
  const std::vector<int> batches = {1, 2, 3};
  int sum = 0;

  const std::string shown = stderr_of([&] {
    for (const int& batch : progress(batches, {.desc = "epoch 0"})) sum += batch;
  });

  EXPECT_EQ(sum, 6);
  EXPECT_THAT(shown, HasSubstr("epoch 0: 100%|##########| 3/3 "));
}

TEST_F(ConsoleAlone, ALoopThatIsLeftEarlyClosesItsBar) {
  const std::string shown = stderr_of([] {
    for (const int batch : progress(std::vector<int>{1, 2, 3, 4})) {
      if (batch == 3) break;
    }
  });

  EXPECT_THAT(shown, HasSubstr(" 2/4 "));
}

TEST(ConsoleOfTwoRanks, OnlyTheMainProcessSpeaksUnlessAsked) {
  const auto exits = test::run_ranks(2, [] {
    const PartialState state;
    const Logger logger = get_logger("ranks");
    logger.info("for one");
    logger.info("for all", {.main_process_only = false});
    state.print("printed", state.process_index(), 1.5);
    for (const int i : progress(std::vector<int>{1, 2})) (void)i;
  });
  if (test::rank_of_this_process() >= 0) return;

  EXPECT_THAT(exits[0].output,
              AllOf(HasSubstr("[RANK 0] for one"),
                    HasSubstr("[RANK 0] for all"),
                    HasSubstr("printed 0 1.5\n"),
                    HasSubstr("2/2")));
  EXPECT_THAT(exits[1].output,
              AllOf(Not(HasSubstr("for one")),
                    HasSubstr("[RANK 1] for all"),
                    Not(HasSubstr("printed")),
                    Not(HasSubstr("2/2"))));
}

TEST(ConsoleOfTwoRanks, InOrderEveryRankLogsInItsTurn) {
  const auto exits = test::run_ranks(2, [] {
    const PartialState state;
    const Logger logger = get_logger("order");
    for (int i = 0; i < 5; ++i) logger.info("turn", {.in_order = true});
  });

  for (const auto& exit : exits) {
    std::size_t lines = 0;
    for (std::size_t at = exit.output.find("] turn"); at != std::string::npos;
         at = exit.output.find("] turn", at + 1)) {
      ++lines;
    }
    EXPECT_EQ(lines, 5u);
  }
}

}  // namespace
}  // namespace accel::console_test
