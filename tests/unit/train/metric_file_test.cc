// Rows of metrics as lines of JSON and as a table.

#include "train/metric_file.h"

#include <cmath>
#include <fstream>
#include <iterator>

#include <gtest/gtest.h>

#include <accel/error.h>

#include "tests/support/scratch_folder.h"

namespace accel::train::metric_file_test {
namespace {

std::string content_of(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

TEST(MetricFile, WritesALineOfJsonForEachRow) {
  const test::ScratchFolder folder;
  MetricFile file(folder.file("new/metrics.jsonl"), {}, /*appends=*/false);
  file.write({{"step", 10}, {"loss", 0.5}});
  file.write({{"step", 20}, {"loss", std::nan("")}});

  EXPECT_EQ(content_of(folder.file("new/metrics.jsonl")),
            "{\"step\":10,\"loss\":0.5}\n{\"step\":20,\"loss\":null}\n");
}

TEST(MetricFile, KeepsWhatAnEarlierRunWrote) {
  const test::ScratchFolder folder;
  const std::string path = folder.file("metrics.csv");
  MetricFile(path, {"step", "loss"}, false).write({{"step", 1}, {"loss", 2.0}});
  MetricFile(path, {"step", "loss"}, true).write({{"step", 2}, {"loss", 1.0}});
  EXPECT_EQ(content_of(path), "step,loss\n1,2\n2,1\n");

  MetricFile(path, {"step"}, false).write({{"step", 1}});
  EXPECT_EQ(content_of(path), "step\n1\n");
}

TEST(MetricFile, OfATableHasAColumnForEachName) {
  const test::ScratchFolder folder;
  MetricFile file(folder.file("metrics.csv"), {"step", "loss", "eval_loss"}, false);
  file.write({{"step", 1}, {"loss", 2.0}});
  file.write({{"step", 1}, {"eval_loss", 0.25}});

  EXPECT_EQ(content_of(folder.file("metrics.csv")), "step,loss,eval_loss\n1,2,\n1,,0.25\n");
}

TEST(MetricFile, ThatCannotBeWrittenIsAnErrorWithTheReason) {
  EXPECT_THROW(MetricFile("/proc/none/metrics.jsonl", {}, false), Error);
  MetricFile full("/dev/full", {}, false);
  try {
    full.write({{"step", 1}});
    FAIL() << "it was written";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kDiskFull);
  }
}

}  // namespace
}  // namespace accel::train::metric_file_test
