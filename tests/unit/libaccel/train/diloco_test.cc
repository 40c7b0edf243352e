// DiLoCo: when fragments are exchanged, that exchanges go on beside the steps, and checkpoints. Against the algorithm written out in
// PyTorch: tests/peer/diloco.py.

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/full.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adamw.h>

#include <accel/diloco.h>
#include <accel/error.h>
#include <accel/fsdp.h>
#include <accel/fsdp_checkpoint.h>
#include <accel/operations.h>
#include <accel/random.h>

#include "libaccel/engine/optim/model_fragments.h"
#include "libaccel/engine/process/background_mean.h"
#include "libaccel/engine/process/process_group.h"
#include "tests/support/error_of.h"
#include "tests/support/fake_nodes.h"
#include "tests/support/rank_group.h"
#include "tests/support/scratch_folder.h"

namespace accel::diloco_test {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

struct NetImpl : torch::nn::Module {
  NetImpl() {
    set_seed(5);
    input = register_module("input", torch::nn::Linear(6, 12));
    norm = register_module("norm", torch::nn::BatchNorm1d(12));
    blocks = register_module("blocks", torch::nn::ModuleList());
    for (int i = 0; i < 3; ++i) blocks->push_back(torch::nn::Linear(12, 12));
    bias = register_parameter("bias", at::full({12}, 0.1));
    register_buffer("nothing", at::Tensor());  // as the averages of a norm that keeps none
  }
  at::Tensor forward(const at::Tensor& batch) {
    at::Tensor values = norm(input(batch));
    for (const auto& block : *blocks)
      values = block->as<torch::nn::Linear>()->forward(values).tanh();
    return values + bias;
  }
  torch::nn::Linear input{nullptr};
  torch::nn::BatchNorm1d norm{nullptr};
  torch::nn::ModuleList blocks{nullptr};
  at::Tensor bias;
};
TORCH_MODULE(Net);

at::Tensor batch_of(int rank, std::int64_t step) {
  return at::arange(24, at::kFloat).view({4, 6}).add(7.0 * rank + 3.0 * step).sin();
}

at::Tensor weights(const torch::nn::Module& net) {
  std::vector<at::Tensor> parts;
  for (const at::Tensor& parameter : net.parameters())
    parts.push_back(parameter.detach().flatten());
  for (const at::Tensor& buffer : net.buffers())
    if (buffer.defined()) parts.push_back(buffer.flatten().to(at::kFloat));
  return at::cat(parts);
}

// ---- which, and when

std::vector<std::vector<std::string>> names_of(const torch::nn::Module& module, int num_fragments) {
  std::vector<std::vector<std::string>> names;
  for (const auto& fragment : strided_fragments(module, num_fragments)) {
    names.emplace_back();
    for (const NamedParameter& parameter : fragment) names.back().push_back(parameter.name);
  }
  return names;
}

TEST(ModelFragments, HaveEverySecondLayerAndWhatTheModuleHasItself) {
  Net net;
  EXPECT_THAT(
      names_of(*net, 2),
      ElementsAre(
          ElementsAre("input.weight",
                      "input.bias",
                      "blocks.0.weight",
                      "blocks.0.bias",
                      "blocks.2.weight",
                      "blocks.2.bias"),
          ElementsAre("norm.weight", "norm.bias", "blocks.1.weight", "blocks.1.bias", "bias")));
}

TEST(ModelFragments, LookIntoAModuleThatWrapsOneAndLeaveFrozenLayersOut) {
  struct Wrapper : torch::nn::Module {
    Wrapper() { register_module("net", net); }
    Net net;
  } wrapper;
  for (at::Tensor& parameter : wrapper.net->input->parameters()) parameter.set_requires_grad(false);
  EXPECT_THAT(names_of(wrapper, 5)[0], ElementsAre("net.norm.weight", "net.norm.bias"));
  EXPECT_THAT(names_of(wrapper, 5)[4], ElementsAre("net.bias"));
  const Error error = test::error_of([&] { (void)strided_fragments(wrapper, 6); });
  EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
  EXPECT_THAT(error.message(), HasSubstr("num_fragments is 6, and the model has 5 layers"));
}

TEST(FragmentSchedule, FragmentsTakeTurnsAtEvenDistances) {
  const FragmentSchedule schedule{.sync_every = 6, .num_fragments = 2, .delay = 1};
  std::string begun, merged;
  for (std::int64_t step = 1; step <= 12; ++step) {
    const auto name = [](std::optional<std::size_t> fragment) {
      return fragment ? std::to_string(*fragment) : ".";
    };
    begun += name(schedule.begins_after(step));
    merged += name(schedule.merged_after(step));
  }
  EXPECT_EQ(begun, ".0..1..0..1.");
  EXPECT_EQ(merged, "..0..1..0..1");
}

// ---- exchanges beside the steps

// What ACCEL_TEST_BACKEND says; "nodes": each rank is on a node of its own.
InitProcessGroupKwargs group_options() {
  InitProcessGroupKwargs group;
  const char* const wanted = std::getenv("ACCEL_TEST_BACKEND");
  if (wanted == nullptr) return group;
  if (std::string(wanted) == "nodes") {
    test::be_on_node(test::rank_of_this_process() / 2, 2, test::rank_of_this_process() % 2, 2);
  } else {
    group.backend = wanted;
  }
  return group;
}

class EveryBackend : public ::testing::TestWithParam<const char*> {
 protected:
  static test::RankGroupOptions options() { return {.env = {{"ACCEL_TEST_BACKEND", GetParam()}}}; }
};

TEST_P(EveryBackend, AMeanIsMadeWhileNobodyWaitsForItAndTheGroupGoesOn) {
  test::run_ranks(
      4,
      [] {
        const PartialState state({.init_process_group = group_options()});
        const auto group = PartialState::process_group();
        BackgroundMean mean(group->twin());
        for (int round = 0; round < 3; ++round) {
          mean.begin(at::full({100'000}, 1.0 * state.process_index() + round));
          at::Tensor sum = at::full({1000}, 1.0);
          group->all_reduce_(sum, Reduction::kSum, "adding");
          EXPECT_EQ(sum[7].item<float>(), 4);
          while (!mean.is_done()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
          EXPECT_EQ(mean.wait()[99'999].item<float>(), 1.5 + round);
          EXPECT_EQ(mean.take()[0].item<float>(), 1.5 + round);
          EXPECT_FALSE(mean.has_begun());
        }
      },
      options());
}

INSTANTIATE_TEST_SUITE_P(DiLoCo,
                         EveryBackend,
                         ::testing::Values("shm", "gloo", "nodes"),
                         [](const auto& each) { return std::string(each.param); });

TEST(BackgroundMean, ARankThatLeavesEndsTheMeanOfTheOthers) {
  test::run_ranks(2, [] {
    const PartialState state;
    std::optional<BackgroundMean> mean(std::in_place, PartialState::process_group()->twin());
    if (state.process_index() == 1) {
      mean.reset();
      PartialState::process_group()->barrier("waiting");
      return;
    }
    mean->begin(at::full({8}, 1.0));
    EXPECT_THROW(mean->wait(), Error);
    PartialState::process_group()->barrier("waiting");
  });
}

struct LocalRun {
  explicit LocalRun(DiLoCoOptions given, InitProcessGroupKwargs group = {})
      : accelerator({.init_process_group = std::move(group)}),
        adamw(net->parameters(), torch::optim::AdamWOptions(0.01)),
        prepared(accelerator.prepare(net, adamw)),
        options(std::move(given)) {
    diloco.emplace(accelerator, std::get<0>(prepared), std::get<1>(prepared), options);
  }

  // The next step of this rank.
  void step() {
    auto& [model, optimizer] = prepared;
    const at::Tensor batch = batch_of(accelerator.process_index(), diloco->num_steps());
    accelerator.backward((model(batch) - 0.5).square().mean());
    optimizer.step();
    optimizer.zero_grad();
    diloco->step();
  }
  [[nodiscard]] bool all_are_equal() const {
    std::vector<at::Tensor> parameters;
    for (const at::Tensor& parameter : net->parameters())
      parameters.push_back(parameter.detach().flatten());
    const at::Tensor all = accelerator.gather(at::cat(parameters).unsqueeze(0));
    for (std::int64_t rank = 1; rank < all.size(0); ++rank)
      if (!all[rank].equal(all[0])) return false;
    return true;
  }

  Accelerator accelerator;
  Net net;
  torch::optim::AdamW adamw;
  std::tuple<Prepared<Net>, AcceleratedOptimizer> prepared;
  DiLoCoOptions options;
  std::optional<DiLoCo> diloco;
};

DiLoCoOptions streaming() {
  return {
      .sync_every = 6, .num_fragments = 2, .fragment_sync_delay = 1, .fragment_update_alpha = 0.5};
}

// Rank 1 begins its exchange when it sees that rank 0 has gone on without it.
TEST(DiLoCo, AStepThatBeginsAnExchangeDoesNotWaitForTheOtherRanks) {
  const test::ScratchFolder folder;
  test::run_ranks(2, [&] {
    LocalRun run(streaming());
    run.step();
    const bool is_first = run.accelerator.process_index() == 0;
    while (!is_first && !std::filesystem::exists(folder.file("ahead")))
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    run.step();  // begins
    if (is_first) std::ofstream(folder.file("ahead")) << "yes";
    run.step();
    EXPECT_EQ(run.diloco->num_steps(), 3);
    run.diloco.reset();
    EXPECT_TRUE(run.all_are_equal());
  });
}

TEST_P(EveryBackend, RanksTrainApartAndEndWithTheSameWeights) {
  test::run_ranks(
      4,
      [] {
        LocalRun run(streaming(), group_options());
        for (int i = 0; i < 8; ++i) run.step();
        EXPECT_FALSE(run.all_are_equal());
        run.diloco.reset();
        EXPECT_TRUE(run.all_are_equal());
        // Gradients are exchanged again.
        auto& model = std::get<0>(run.prepared);
        run.accelerator.backward(model(batch_of(run.accelerator.process_index(), 1)).mean());
        const at::Tensor all = run.accelerator.gather(run.net->bias.grad().unsqueeze(0));
        EXPECT_TRUE(all[0].equal(all[3]));
      },
      options());
}

TEST(DiLoCo, AFragmentThatKeepsNothingIsTheGlobalOneOnAllRanks) {
  test::run_ranks(3, [] {
    LocalRun run({.sync_every = 2});
    run.step();
    EXPECT_FALSE(run.all_are_equal());
    run.step();
    EXPECT_TRUE(run.all_are_equal());
    const at::Tensor merged = weights(*run.net).clone();
    run.diloco.reset();
    EXPECT_TRUE(weights(*run.net).equal(merged));
  });
}

TEST(DiLoCo, BatchesWithinAnAccumulationAreNoSteps) {
  Accelerator accelerator({.gradient_accumulation_steps = 2});
  Net net;
  torch::optim::AdamW adamw(net->parameters(), torch::optim::AdamWOptions(0.01));
  auto [model, optimizer] = accelerator.prepare(net, adamw);
  DiLoCo diloco(accelerator, model, optimizer, {.sync_every = 2});
  for (int batch = 0; batch < 6; ++batch) {
    const auto scope = accelerator.accumulate(model);
    accelerator.backward(model(batch_of(0, batch)).square().mean());
    optimizer.step();
    optimizer.zero_grad();
    diloco.step();
  }
  EXPECT_EQ(diloco.num_steps(), 3);
}

// ---- checkpoints

void write_weights(const std::filesystem::path& path, const torch::nn::Module& net) {
  const at::Tensor values = weights(net).contiguous();
  std::ofstream(path, std::ios::binary)
      .write(static_cast<const char*>(values.const_data_ptr()),
             static_cast<std::streamsize>(values.nbytes()));
}

std::string bytes_of(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

// What a rank has at the end, saved after each of these steps: one is in the middle of an exchange, one just behind a merge.
constexpr int kSavedAfter[] = {2, 3, 4};

void train_to_the_end(LocalRun& run, const test::ScratchFolder& folder, const std::string& name) {
  while (run.diloco->num_steps() < 10) run.step();
  write_weights(folder.path() / (name + "_of_" + std::to_string(run.accelerator.process_index())),
                *run.net);
}

TEST(DiLoCo, ARunThatGoesOnFromACheckpointIsTheUninterruptedOneToTheBit) {
  const test::ScratchFolder folder;
  test::run_ranks(2, [&] {
    const PartialState state;  // one group for all
    LocalRun alone(streaming());
    train_to_the_end(alone, folder, "alone");
    for (const int steps : kSavedAfter) {
      LocalRun run(streaming());
      for (int i = 0; i < steps; ++i) run.step();
      run.accelerator.save_state(folder.path() / std::to_string(steps));
    }
  });
  test::run_ranks(2, [&] {
    const PartialState state;
    for (const int steps : kSavedAfter) {
      LocalRun run(streaming());
      run.step();
      run.step();  // begins an exchange, which is forgotten
      run.accelerator.load_state(folder.path() / std::to_string(steps));
      EXPECT_EQ(run.diloco->num_steps(), steps);
      train_to_the_end(run, folder, std::to_string(steps));
    }
  });
  for (const std::string rank : {"_of_0", "_of_1"}) {
    const std::string alone = bytes_of(folder.path() / ("alone" + rank));
    EXPECT_GT(alone.size(), 100U);
    for (const int steps : kSavedAfter)
      EXPECT_TRUE(bytes_of(folder.path() / (std::to_string(steps) + rank)) == alone)
          << rank << ", saved after " << steps;
  }
  EXPECT_FALSE(bytes_of(folder.file("alone_of_0")) == bytes_of(folder.file("alone_of_1")));
}

TEST(DiLoCo, AnotherNumberOfRanksGoesOnFromTheGlobalParameters) {
  const test::ScratchFolder folder;
  test::run_ranks(2, [&] {
    LocalRun run(streaming());
    for (int i = 0; i < 5; ++i) run.step();
    run.accelerator.save_state(folder.path() / "saved");
  });
  test::run_ranks(3, [&] {
    LocalRun run(streaming());
    run.accelerator.load_state(folder.path() / "saved");
    EXPECT_EQ(run.diloco->num_steps(), 5);
    EXPECT_TRUE(run.all_are_equal());
    run.step();  // merges what two ranks have begun
    EXPECT_FALSE(run.all_are_equal());
    run.diloco.reset();
    EXPECT_TRUE(run.all_are_equal());
  });
}

TEST(DiLoCo, ACheckpointWithoutItOrOfAnotherScheduleIsRefused) {
  const test::ScratchFolder folder;
  test::run_ranks(1, [&] {
    LocalRun run(streaming());
    run.accelerator.save_state(folder.path() / "with");
    run.diloco.reset();
    run.accelerator.save_state(folder.path() / "without");
    const auto load = [&](const char* name) {
      return test::error_of([&] { run.accelerator.load_state(folder.path() / name); });
    };
    EXPECT_THAT(load("with").message(), HasSubstr("registered objects"));
    run.options.sync_every = 8;
    run.diloco.emplace(
        run.accelerator, std::get<0>(run.prepared), std::get<1>(run.prepared), run.options);
    EXPECT_THAT(load("without").message(), HasSubstr("registered objects"));
    EXPECT_THAT(load("with").message(), HasSubstr("made with sync_every 6, and it is 8 now"));
  });
}

// ---- refusals

TEST(DiLoCoRefusals, OptionsThatCannotBe) {
  const auto refused = [](DiLoCoOptions options) {
    const Error error = test::error_of([&] { const LocalRun run(options); });
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
    return error.message();
  };
  EXPECT_THAT(refused({}), HasSubstr("sync_every is 0, expected at least 1"));
  EXPECT_THAT(refused({.sync_every = 4, .num_fragments = 0}), HasSubstr("num_fragments is 0"));
  EXPECT_THAT(refused({.sync_every = 5, .num_fragments = 2}),
              HasSubstr("sync_every is 5, expected a multiple of num_fragments, 2"));
  EXPECT_THAT(refused({.sync_every = 4, .num_fragments = 2, .fragment_sync_delay = 2}),
              HasSubstr("less than sync_every / num_fragments, 2"));
  EXPECT_THAT(refused({.sync_every = 4, .fragment_update_alpha = 1.5}), HasSubstr("0 to 1"));
  EXPECT_THAT(refused({.sync_every = 4, .outer_optimizer = nullptr}),
              HasSubstr("makes no optimizer"));
  PartialState::reset();
}

TEST(DiLoCoRefusals, RanksWithOtherOptions) {
  test::run_ranks(2, [] {
    const bool is_second = test::rank_of_this_process() == 1;
    const auto message = [](DiLoCoOptions options) {
      return test::error_of([&] { const LocalRun run(options); }).message();
    };
    EXPECT_THAT(message({.sync_every = is_second ? 0 : 4}),
                HasSubstr("rank 1 has sync_every 0 where rank 0 has sync_every 4"));
    EXPECT_THAT(message({.sync_every = 4, .outer_optimizer = outer_sgd(is_second ? 0.5 : 0.7)}),
                AllOf(HasSubstr("DiLoCoOptions of rank 1 has"), HasSubstr("\"lr\": 0.5")));
  });
}

TEST(DiLoCoRefusals, ModelsThatAreDividedAndASecondOne) {
  test::run_ranks(2, [] {
    AcceleratorOptions options;
    options.fsdp_plugin.emplace();
    Accelerator accelerator(options);
    Net net;
    torch::optim::AdamW adamw(net->parameters(), torch::optim::AdamWOptions(0.01));
    auto [model, optimizer] = accelerator.prepare(net, adamw);
    const Error error = test::error_of([&, &model = model, &optimizer = optimizer] {
      const DiLoCo diloco(accelerator, model, optimizer, {.sync_every = 2});
    });
    EXPECT_EQ(error.code(), ErrorCode::kUnsupported);
    EXPECT_THAT(error.message(), HasSubstr("DiLoCo is for models that every rank has as a whole"));
  });
  LocalRun run({.sync_every = 2});
  const Error error = test::error_of([&] {
    const DiLoCo second(
        run.accelerator, std::get<0>(run.prepared), std::get<1>(run.prepared), run.options);
  });
  EXPECT_THAT(error.message(), HasSubstr("trained by another DiLoCo"));
  PartialState::reset();
}

TEST(DiLoCoRefusals, JoinedRanksAndWeightsOfAFileWhileItLives) {
  const test::ScratchFolder folder;
  test::run_ranks(2, [&] {
    LocalRun run({.sync_every = 2});
    const auto& [model, optimizer] = run.prepared;
    save_fsdp_model(run.accelerator, model, folder.path());
    save_fsdp_optimizer(run.accelerator, optimizer, folder.path());
    run.step();
    const at::Tensor trained = weights(*run.net);
    const auto refused = [&, &model = model](bool joins) {
      return test::error_of([&] {
               if (joins)
                 (void)run.accelerator.join_uneven_inputs(model, {.even_batches = false});
               else
                 load_fsdp_model(run.accelerator, model, folder.path());
             })
          .message();
    };
    EXPECT_THAT(refused(true), HasSubstr("join_uneven_inputs() while DiLoCo lives"));
    EXPECT_THAT(refused(false), HasSubstr("load_fsdp_model() while DiLoCo lives"));
    load_fsdp_optimizer(run.accelerator, optimizer, folder.path());
    EXPECT_TRUE(weights(*run.net).equal(trained));
  });
}

}  // namespace
}  // namespace accel::diloco_test
