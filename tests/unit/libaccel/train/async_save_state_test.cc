// save_state() in the background: numbers, the limit, and who waits for it or learns that it failed.

#include <csignal>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <ATen/ops/ones.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adamw.h>

#include <accel/accelerator.h>
#include <accel/error.h>
#include <accel/random.h>

#include "libaccel/engine/checkpoint/series/background_save.h"
#include "tests/support/names_in.h"
#include "tests/support/rank_group.h"
#include "tests/support/scratch_folder.h"

namespace accel::async_save_state_test {
namespace {

namespace fs = std::filesystem;
using test::names_in;
using ::testing::UnorderedElementsAre;

AcceleratorOptions options_for(bool is_sharded, const fs::path& project) {
  AcceleratorOptions options;
  if (is_sharded) options.fsdp_plugin.emplace();
  if (!project.empty()) {
    options.project_config = {
        .project_dir = project.string(), .automatic_checkpoint_naming = true, .total_limit = 2};
  }
  return options;
}

struct Training {
  explicit Training(bool is_sharded, const fs::path& project = {})
      : accelerator(options_for(is_sharded, project)) {
    set_seed(7);
    net = torch::nn::Linear(9, 7);
    auto [prepared, stepped] =
        accelerator.prepare(net, std::make_shared<torch::optim::AdamW>(net->parameters(), 0.01));
    model.emplace(prepared);
    optimizer.emplace(stepped);
  }

  void train(int steps) {
    for (int step = 0; step < steps; ++step) {
      accelerator.backward((*model)(at::ones({2, 9})).square().mean());
      optimizer->step();
      optimizer->zero_grad();
    }
  }

  Accelerator accelerator;
  torch::nn::Linear net{nullptr};
  std::optional<Prepared<torch::nn::Linear>> model;
  std::optional<AcceleratedOptimizer> optimizer;
};

std::string contents(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

class AsyncSaveState : public ::testing::TestWithParam<bool> {
 protected:
  const test::ScratchFolder scratch_;
  const fs::path& folder_ = scratch_.path();
};

TEST_P(AsyncSaveState, NumbersCheckpointsAndKeepsAsManyAsItIsTold) {
  test::run_ranks(2, [&] {
    Training run(GetParam(), folder_ / "project");
    EXPECT_FALSE(run.accelerator.wait_for_save().has_value());
    for (int i = 0; i < 4; ++i) {
      run.train(1);
      run.accelerator.async_save_state();
      EXPECT_EQ(run.accelerator.save_iteration(), i + 1);
    }
    const std::optional<CheckpointInfo> last = run.accelerator.wait_for_save();
    ASSERT_TRUE(last.has_value());
    EXPECT_EQ(last->iteration, 3);
    EXPECT_EQ(last->step, 4);
    EXPECT_FALSE(run.accelerator.wait_for_save().has_value());
    run.train(1);
    EXPECT_EQ(run.accelerator.save_state().iteration, 4);

    if (run.accelerator.is_main_process()) {
      EXPECT_GT(checkpoint::background_saves().kept_bytes(), 0U);
    }
    run.accelerator.free_memory();
    EXPECT_EQ(checkpoint::background_saves().kept_bytes(), 0U);
  });
  if (test::rank_of_this_process() >= 0) return;
  EXPECT_THAT(names_in(folder_ / "project" / "checkpoints"),
              UnorderedElementsAre("checkpoint_3", "checkpoint_4"));
}

TEST_P(AsyncSaveState, HoldsTheStateOfItsMoment) {
  test::run_ranks(2, [&] {
    Training run(GetParam());
    run.train(2);
    run.accelerator.save_state(folder_ / "expected");
    run.accelerator.async_save_state(folder_ / "state");
    run.train(2);
    EXPECT_EQ(run.accelerator.wait_for_save()->folder, folder_ / "state");
  });
  if (test::rank_of_this_process() >= 0) return;
  for (const char* name : {"model.safetensors", "optimizer.safetensors"}) {
    ASSERT_GT(contents(folder_ / "state" / name).size(), 100u);
    EXPECT_TRUE(contents(folder_ / "state" / name) == contents(folder_ / "expected" / name))
        << name;
  }
}

TEST_P(AsyncSaveState, IsLoadedAndEndedByWhoComesNext) {
  test::run_ranks(2, [&] {
    Training run(GetParam(), folder_ / "project");
    run.train(1);
    run.accelerator.async_save_state();
    EXPECT_EQ(run.accelerator.load_state().step, 1);
    run.train(2);
    run.accelerator.async_save_state();
    run.accelerator.end_training();
  });
  if (test::rank_of_this_process() >= 0) return;
  EXPECT_EQ(read_checkpoint_info(folder_ / "project" / "checkpoints" / "checkpoint_1").step, 3);
}

TEST_P(AsyncSaveState, FailureOfOneRankIsThrownOnAllByTheNextCall) {
  test::run_ranks(2, [&] {
    Training run(GetParam(), folder_ / "project");
    run.train(1);
    run.accelerator.save_state();
    std::signal(SIGXFSZ, SIG_IGN);
    const auto limit_files_of_rank_0 = [&](rlim_t bytes) {
      const rlimit limit{bytes, RLIM_INFINITY};
      if (run.accelerator.process_index() == 0) {
        ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &limit), 0);
      }
    };
    const auto begin_one_that_fails = [&] {
      limit_files_of_rank_0(200);
      run.accelerator.async_save_state();
    };
    const std::function<void()> calls[] = {[&] { run.accelerator.save_state(); },
                                           [&] { run.accelerator.async_save_state(); },
                                           [&] { run.accelerator.load_state(); },
                                           [&] { run.accelerator.wait_for_save(); }};
    for (const auto& call : calls) {
      begin_one_that_fails();
      EXPECT_THROW(call(), Error);
      EXPECT_FALSE(run.accelerator.wait_for_save().has_value()) << "told twice";
    }
    limit_files_of_rank_0(RLIM_INFINITY);
    run.train(1);
    run.accelerator.async_save_state();
    EXPECT_EQ(run.accelerator.wait_for_save()->step, 2);
    begin_one_that_fails();
    EXPECT_THROW(run.accelerator.end_training(), Error);
  });
  if (test::rank_of_this_process() >= 0) return;
  EXPECT_THAT(names_in(folder_ / "project" / "checkpoints"),
              UnorderedElementsAre("checkpoint_0", "checkpoint_5"));
}

INSTANTIATE_TEST_SUITE_P(Models, AsyncSaveState, ::testing::Bool(), [](const auto& is_sharded) {
  return is_sharded.param ? std::string("Sharded") : std::string("Copies");
});

}  // namespace
}  // namespace accel::async_save_state_test
