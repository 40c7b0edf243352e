// The trackers of an Accelerator, on one process and on several. What they write: tests/unit/tracking, tests/peer/trackers.py.

#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include <ATen/ops/arange.h>
#include <ATen/ops/full.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <accel/accelerator.h>
#include <accel/error.h>
#include <accel/tracking.h>

#include "tests/support/error_of.h"
#include "tests/support/rank_group.h"
#include "tests/support/scratch_folder.h"

namespace accel::accelerator_trackers_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// Writes down what it is called with.
class NotingTracker final : public GeneralTracker {
 public:
  explicit NotingTracker(std::string name) : name_(std::move(name)) {}
  [[nodiscard]] std::string name() const override { return name_; }
  [[nodiscard]] bool requires_logging_directory() const override { return false; }
  void start() override { calls.push_back("start"); }
  void store_init_configuration(const TrackerDict& values) override {
    calls.push_back("config " + std::to_string(values.size()));
  }
  void log(const TrackerDict& values,
           std::optional<std::int64_t> step,
           const TrackerDict& kwargs) override {
    calls.push_back("log " + std::to_string(values.begin()->second.number()) + " at " +
                    std::to_string(step.value_or(-1)) + " with " + std::to_string(kwargs.size()));
  }
  void finish() override {
    calls.push_back("finish");
    if (fails) throw std::runtime_error("it cannot finish");
  }

  std::vector<std::string> calls;
  bool fails = false;

 private:
  std::string name_;
};

class AcceleratorTrackers : public ::testing::Test {
 protected:
  void TearDown() override { PartialState::reset(); }

  std::shared_ptr<NotingTracker> tracker_ = std::make_shared<NotingTracker>("noting");
};

TEST_F(AcceleratorTrackers, GetWhatTheProgramLogsUntilTheTrainingEnds) {
  Accelerator accelerator({.log_with = tracker_});

  accelerator.init_trackers("project", {{"lr", 0.1}});
  accelerator.log(
      {{"loss", 0.5}}, 3, {{"noting", TrackerDict{{"a", 1}}}, {"other", TrackerDict{}}});
  accelerator.log({{"loss", 0.25}});
  accelerator.end_training();
  accelerator.log({{"loss", 0.125}});

  EXPECT_THAT(
      tracker_->calls,
      ElementsAre(
          "start", "config 1", "log 0.500000 at 3 with 1", "log 0.250000 at -1 with 0", "finish"));
}

TEST_F(AcceleratorTrackers, AreFinishedAllWhenOneOfThemThrows) {
  const auto other = std::make_shared<NotingTracker>("other");
  tracker_->fails = true;
  Accelerator accelerator({.log_with = {tracker_, other}});
  accelerator.init_trackers("project");

  EXPECT_THROW(accelerator.end_training(), std::runtime_error);

  EXPECT_THAT(other->calls, ElementsAre("start", "finish"));
}

TEST_F(AcceleratorTrackers, AreBlankBeforeTheirStart) {
  Accelerator accelerator({.log_with = tracker_});

  accelerator.log({{"loss", 0.5}}, 1);
  accelerator.get_tracker("anything").log({{"loss", 0.5}}, 1);

  EXPECT_EQ(accelerator.get_tracker<NotingTracker>("noting"), nullptr);
  EXPECT_THAT(tracker_->calls, IsEmpty());
}

TEST_F(AcceleratorTrackers, AreFoundByNameAndAsTheirClass) {
  Accelerator accelerator({.log_with = tracker_});
  accelerator.init_trackers("project");

  EXPECT_EQ(&accelerator.get_tracker("noting"), tracker_.get());
  EXPECT_EQ(accelerator.get_tracker<NotingTracker>("noting"), tracker_.get());
  EXPECT_EQ(accelerator.get_tracker<TensorBoardTracker>("noting"), nullptr);
  const Error error = test::error_of([&] { (void)accelerator.get_tracker("wandb"); });
  EXPECT_EQ(error.message(), "wandb is not an available tracker stored inside the `Accelerator`.");
}

TEST_F(AcceleratorTrackers, NeedALoggingDirectoryWhereTheTrackerDoes) {
  const Error error = test::error_of([] { Accelerator accelerator({.log_with = "jsonl"}); });

  EXPECT_THAT(error.message(),
              HasSubstr("Logging with `jsonl` requires a `logging_dir` to be passed in."));
}

TEST_F(AcceleratorTrackers, TakeOptionsAsDictionariesAlone) {
  const test::ScratchFolder folder;
  Accelerator accelerator({.log_with = "jsonl", .project_dir = folder.path().string()});

  const Error error = test::error_of([&] {
    accelerator.init_trackers("project", {}, {{"jsonl", 3}});
  });

  EXPECT_THAT(error.message(), HasSubstr("the options of the tracker jsonl are no dictionary"));
}

TEST_F(AcceleratorTrackers, LiveOnTheMainProcessOfSeveral) {
  test::run_ranks(2, [this] {
    Accelerator accelerator({.log_with = tracker_});
    accelerator.init_trackers("project");
    accelerator.log({{"loss", 0.5}}, 1);

    EXPECT_EQ(accelerator.get_tracker<NotingTracker>("noting") != nullptr,
              accelerator.is_main_process());
    accelerator.end_training();

    EXPECT_EQ(tracker_->calls.size(), accelerator.is_main_process() ? 3U : 0U);
  });
}

TEST(Listify, GivesNumbersAndNestedLists) {
  EXPECT_EQ(listify(at::full({}, 3, at::kLong)).number(), 3);
  EXPECT_TRUE(std::holds_alternative<std::int64_t>(listify(at::full({}, 3, at::kLong)).data()));
  EXPECT_EQ(listify(at::full({}, 0.5, at::kBFloat16)).number(), 0.5);
  const TrackerValue rows = at::arange(4).reshape({2, 2});
  const auto& list = std::get<TrackerList>(rows.data());
  EXPECT_EQ(std::get<TrackerList>(list[1].data())[0].number(), 2);
}

TEST(ImageBatch, CutsFloatsOffAndPutsChannelsLast) {
  const at::Tensor images = at::full({1, 3, 1, 2}, 0.999, at::kFloat);
  images[0][1].fill_(2);

  const ImageBatch batch = image_batch(images);

  EXPECT_EQ(batch.width, 2);
  EXPECT_EQ(batch.channels, 3);
  EXPECT_THAT(batch.pixels, ElementsAre(254, 255, 254, 254, 255, 254));
  EXPECT_EQ(test::error_of([] {
              (void)image_batch(at::full({2, 2}, 1));
            }).code(),
            ErrorCode::kInvalidArgument);
}

}  // namespace
}  // namespace accel::accelerator_trackers_test
