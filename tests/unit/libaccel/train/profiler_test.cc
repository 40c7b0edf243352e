// Accelerator::profile(): what is recorded, when, and what is made of it. Its numbers against those of Python:
// tests/peer/profiler.py.

#include <algorithm>
#include <fstream>
#include <stdexcept>
#include <string>
#include <vector>

#include <ATen/ops/conv2d.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/ones.h>
#include <ATen/record_function.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <torch/csrc/jit/api/module.h>

#include <accel/accelerator.h>
#include <accel/error.h>
#include <accel/profiler.h>

#include "tests/support/error_of.h"
#include "tests/support/rank_group.h"
#include "tests/support/scratch_folder.h"

namespace accel::profiler_test {
namespace {

using nlohmann::json;
using test::error_of;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

const KeyAverage* find(const KeyAverages& averages, const std::string& key) {
  const auto found = std::ranges::find(averages.events(), key, &KeyAverage::key);
  return found == averages.end() ? nullptr : &*found;
}

std::int64_t count_of(const KeyAverages& averages, const std::string& key) {
  const KeyAverage* const average = find(averages, key);
  return average == nullptr ? 0 : average->count;
}

void multiply(int times) {
  for (int i = 0; i < times; ++i) (void)at::mm(at::ones({4, 3}), at::ones({3, 2}));
}

json trace_of(const std::filesystem::path& path) {
  std::ifstream file(path);
  return json::parse(file);
}

std::size_t num_events(const json& trace, const std::string& name) {
  return static_cast<std::size_t>(std::ranges::count_if(
      trace.at("traceEvents"), [&](const json& event) { return event.value("name", "") == name; }));
}

class ProfilerTest : public ::testing::Test {
 protected:
  void TearDown() override { PartialState::reset(); }

  Accelerator accelerator_{{.cpu = true}};
  test::ScratchFolder folder_;
};

TEST_F(ProfilerTest, CountsCallsFlopsAndScopes) {
  Profiler profiler = accelerator_.profile({.with_flops = true});
  {
    RECORD_USER_SCOPE("three products");
    multiply(3);
  }
  profiler.stop();
  multiply(2);  // after the end
  const KeyAverages averages = profiler.key_averages();

  EXPECT_EQ(count_of(averages, "aten::mm"), 3);
  EXPECT_EQ(find(averages, "aten::mm")->flops, 3 * 2 * 4 * 3 * 2);
  EXPECT_EQ(count_of(averages, "three products"), 1);
  EXPECT_GE(find(averages, "three products")->cpu_time_total,
            find(averages, "aten::mm")->cpu_time_total);
  EXPECT_THAT(averages.table(),
              AllOf(HasSubstr("Self CPU %"),
                    HasSubstr("# of Calls"),
                    HasSubstr("Total FLOPs"),
                    HasSubstr("Self CPU time total: "),
                    Not(HasSubstr("CPU Mem"))));
}

TEST_F(ProfilerTest, MemoryIsThatOfTheOperators) {
  at::Tensor kept;
  Profiler profiler = accelerator_.profile({.profile_memory = true});
  kept = at::ones({1024});
  profiler.stop();
  const KeyAverages averages = profiler.key_averages();

  EXPECT_EQ(find(averages, "aten::ones")->cpu_memory_usage, 4096);
  EXPECT_EQ(find(averages, "aten::ones")->self_cpu_memory_usage, 0);  // aten::empty takes it
  EXPECT_THAT(averages.table({.sort_by = "self_cpu_memory_usage"}),
              AllOf(HasSubstr("Self CPU Mem"), HasSubstr("4.00 KB")));
}

TEST_F(ProfilerTest, ShapesTellCallsApart) {
  Profiler profiler = accelerator_.profile({.record_shapes = true});
  (void)at::mm(at::ones({4, 3}), at::ones({3, 2}));
  (void)at::mm(at::ones({5, 3}), at::ones({3, 2}));
  profiler.stop();

  EXPECT_EQ(count_of(profiler.key_averages(), "aten::mm"), 2);
  const KeyAverages apart = profiler.key_averages({.group_by_input_shape = true});
  EXPECT_EQ(count_of(apart, "aten::mm"), 1);
  EXPECT_THAT(apart.table(), AllOf(HasSubstr("Input Shapes"), HasSubstr("[[5, 3], [3, 2]]")));
}

TEST_F(ProfilerTest, TheTableIsSortedAndLimited) {
  Profiler profiler = accelerator_.profile();
  multiply(3);
  profiler.stop();
  const KeyAverages averages = profiler.key_averages();

  const std::string table = averages.table({.sort_by = "count", .row_limit = 1});
  EXPECT_EQ(std::ranges::count(table, '\n'), 6);  // three of the header, a row, a line, the total
  EXPECT_THAT(averages.table({.row_limit = 0}), Not(HasSubstr("aten::mm")));
  const Error error = error_of([&] { (void)averages.table({.sort_by = "name"}); });
  EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
  EXPECT_THAT(error.message(), AllOf(HasSubstr("'name'"), HasSubstr("self_cpu_time_total")));
}

TEST_F(ProfilerTest, AScheduleRecordsTheActiveStepsOfEachCycle) {
  std::vector<std::int64_t> products;
  std::vector<std::int64_t> steps;
  const auto on_ready = [&](Profiler& profiler) {
    const KeyAverages averages = profiler.key_averages();
    products.push_back(count_of(averages, "aten::mm"));
    steps.push_back(count_of(averages, "ProfilerStep*"));
  };
  Profiler profiler = accelerator_.profile(
      {.schedule_option =
           ProfileSchedule{.wait = 1, .warmup = 1, .active = 2, .repeat = 2, .skip_first = 1},
       .on_trace_ready = on_ready});

  for (int step = 0; step < 12; ++step) {
    multiply(step + 1);
    profiler.step();
  }
  profiler.stop();

  EXPECT_EQ(profiler.step_num(), 12);
  // skipped 0, waits in 1, warms up in 2, records 3 and 4; again 7 and 8; then no more.
  EXPECT_THAT(products, ElementsAre(4 + 5, 8 + 9));
  EXPECT_THAT(steps, ElementsAre(2, 2));
}

TEST_F(ProfilerTest, AnEndWithinACycleIsACycleToo) {
  int num_ready = 0;
  const ProfileKwargs kwargs = {
      .schedule_option = ProfileSchedule{.wait = 0, .warmup = 1, .active = 3},
      .on_trace_ready = [&](Profiler&) { ++num_ready; }};
  {
    Profiler profiler = accelerator_.profile(kwargs);
    profiler.step();
    multiply(1);
  }
  EXPECT_EQ(num_ready, 1);
  {
    Profiler profiler = accelerator_.profile(kwargs);  // ends while it warms up
    multiply(1);
    profiler.stop();
    EXPECT_EQ(error_of([&] { (void)profiler.key_averages(); }).code(), ErrorCode::kInvalidArgument);
  }
  EXPECT_EQ(num_ready, 1);
}

TEST_F(ProfilerTest, TheTraceCanBeRead) {
  Profiler profiler = accelerator_.profile();
  multiply(3);
  EXPECT_EQ(error_of([&] { profiler.export_chrome_trace(folder_.file("early.json")); }).code(),
            ErrorCode::kInvalidArgument);
  profiler.stop();
  profiler.export_chrome_trace(folder_.file("one.json"));
  profiler.export_chrome_trace(folder_.file("two.json"));

  EXPECT_EQ(num_events(trace_of(folder_.file("one.json")), "aten::mm"), 3u);
  EXPECT_EQ(num_events(trace_of(folder_.file("two.json")), "aten::mm"), 3u);
  const Error error = error_of([&] {
    profiler.export_chrome_trace(std::filesystem::path(folder_.path()) / "missing" / "trace.json");
  });
  EXPECT_EQ(error.code(), ErrorCode::kFileIo);
}

TEST_F(ProfilerTest, AnExceptionLeavesNoFile) {
  const std::filesystem::path folder = folder_.file("traces");
  try {
    const Profiler profiler = accelerator_.profile({.output_trace_dir = folder.string()});
    throw std::runtime_error("training failed");
  } catch (const std::runtime_error&) {
    EXPECT_FALSE(std::filesystem::exists(folder));
  }
  const Profiler next = accelerator_.profile();  // the place is free
}

TEST_F(ProfilerTest, TwoAtATimeAreRefused) {
  Profiler first = accelerator_.profile();
  const Error error = error_of([&] { (void)accelerator_.profile(); });
  EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
  EXPECT_THAT(error.remedy(), HasSubstr("one profiler at a time"));
  multiply(1);
  first.stop();

  Profiler second = accelerator_.profile();
  multiply(2);
  second.stop();
  EXPECT_EQ(count_of(first.key_averages(), "aten::mm"), 1);
  EXPECT_EQ(count_of(second.key_averages(), "aten::mm"), 2);
}

TEST_F(ProfilerTest, OptionsThatCannotBeAreRefused) {
  const Error activity = error_of([&] {
    (void)accelerator_.profile({.activities = {{"cpu", "tpu"}}});
  });
  EXPECT_EQ(activity.message(), "Invalid profiler activity: tpu. Must be one of ['cpu', 'cuda'].");
  const Error schedule = error_of(
      [&] { (void)accelerator_.profile({.schedule_option = ProfileSchedule{.active = 0}}); });
  EXPECT_THAT(schedule.message(), HasSubstr("active=0 (need > 0)"));
  const Error none =
      error_of([&] { (void)accelerator_.profile({.activities = std::vector<std::string>{}}); });
  EXPECT_THAT(none.message(), HasSubstr("No activities specified"));
  const Profiler next = accelerator_.profile();  // none of them is left behind
}

TEST_F(ProfilerTest, TheOptionsOfTheAcceleratorAreTheDefault) {
  PartialState::reset();
  const Accelerator accelerator({.cpu = true, .profile = {.with_flops = true}});
  Profiler profiler = accelerator.profile();
  multiply(1);
  profiler.stop();

  EXPECT_GT(find(profiler.key_averages(), "aten::mm")->flops, 0);
}

TEST_F(ProfilerTest, ScriptsHaveModulesAndLines) {
  torch::jit::Module script("Net");
  script.define("def forward(self, x):\n  return x + x\n");
  Profiler profiler = accelerator_.profile({.with_stack = true, .with_modules = true});
  for (int i = 0; i < 3; ++i) (void)script.forward({at::ones({2})});
  profiler.stop();
  profiler.export_chrome_trace(folder_.file("script.json"));

  const std::string text = trace_of(folder_.file("script.json")).dump();
  EXPECT_THAT(text, HasSubstr("Call stack"));
  EXPECT_THAT(text, HasSubstr("Module Hierarchy"));
}

TEST(ProfilerRanks, EachWritesItsTrace) {
  const test::ScratchFolder scratch;
  test::run_ranks(2, [&] {
    const Accelerator accelerator({.cpu = true});
    const std::filesystem::path folder = scratch.path() / "traces";
    Profiler profiler = accelerator.profile({.output_trace_dir = folder.string()});
    multiply(1 + accelerator.process_index());
    profiler.stop();

    for (int rank = 0; rank < 2; ++rank) {
      const json trace = trace_of(folder / ("profile_" + std::to_string(rank) + ".json"));
      EXPECT_EQ(num_events(trace, "aten::mm"), 1u + static_cast<std::size_t>(rank));
      EXPECT_EQ(trace.at("distributedInfo").at("rank"), rank);
      EXPECT_EQ(trace.at("distributedInfo").at("world_size"), 2);
    }
  });
}

}  // namespace
}  // namespace accel::profiler_test
