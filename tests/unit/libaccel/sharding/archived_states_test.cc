// Optimizers of classes of the user's own: their states are saved by the ranks that own the tensors, and loaded by those that do
// then.

#include <cmath>
#include <filesystem>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <tuple>
#include <vector>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/optimizer.h>
#include <torch/optim/serialize.h>

#include <accel/accelerator.h>
#include <accel/checkpoint.h>
#include <accel/error.h>
#include <accel/random.h>
#include <accel/safetensors_file.h>
#include <accel/state_view.h>

#include "tests/support/rank_group.h"
#include "tests/support/scratch_folder.h"
#include "tests/support/tied_net.h"

namespace accel::archived_states_test {
namespace {

using ::testing::HasSubstr;

struct NetImpl : torch::nn::Module {
  torch::nn::Linear first{nullptr};
  torch::nn::Linear second{nullptr};
  NetImpl() {
    first = register_module("first", torch::nn::Linear(5, 37));
    second = register_module("second", torch::nn::Linear(37, 3));
  }
  at::Tensor forward(const at::Tensor& input) { return second(first(input).tanh()); }
};
TORCH_MODULE(Net);

// As those of LibTorch are written.
struct RowNormOptions : torch::optim::OptimizerCloneableOptions<RowNormOptions> {
  explicit RowNormOptions(double rate = 0.1) : lr_(rate) {}
  TORCH_ARG(double, lr);
  using Betas = std::tuple<double, double>;
  TORCH_ARG(Betas, betas) = std::make_tuple(0.9, 0.99);
  TORCH_ARG(std::string, kind) = "rows";

 public:
  void serialize(torch::serialize::OutputArchive& archive) const override {
    _TORCH_OPTIM_SERIALIZE_TORCH_ARG(lr);
    _TORCH_OPTIM_SERIALIZE_TORCH_ARG(betas);
    _TORCH_OPTIM_SERIALIZE_TORCH_ARG(kind);
  }
  void serialize(torch::serialize::InputArchive& archive) override {
    _TORCH_OPTIM_DESERIALIZE_TORCH_ARG(double, lr);
    _TORCH_OPTIM_DESERIALIZE_TORCH_ARG(Betas, betas);
    _TORCH_OPTIM_DESERIALIZE_TORCH_ARG(std::string, kind);
  }
  [[nodiscard]] double get_lr() const override { return lr(); }
  void set_lr(const double rate) override { lr(rate); }
};

struct RowNormState : torch::optim::OptimizerCloneableParamState<RowNormState> {
  TORCH_ARG(int64_t, step) = 0;
  TORCH_ARG(double, largest) = -std::numeric_limits<double>::infinity();
  TORCH_ARG(bool, is_warm) = false;
  TORCH_ARG(std::vector<int64_t>, steps_of_growth);
  TORCH_ARG(at::Tensor, momentum);
  TORCH_ARG(at::Tensor, rows);    // one number for each row: not of the parameter's shape
  TORCH_ARG(at::Tensor, unused);  // never defined

 public:
  void serialize(torch::serialize::OutputArchive& archive) const override {
    _TORCH_OPTIM_SERIALIZE_TORCH_ARG(step);
    _TORCH_OPTIM_SERIALIZE_TORCH_ARG(largest);
    _TORCH_OPTIM_SERIALIZE_TORCH_ARG(is_warm);
    _TORCH_OPTIM_SERIALIZE_TORCH_ARG(steps_of_growth);
    archive.write("momentum", momentum(), /*is_buffer=*/true);  // the other way that there is
    _TORCH_OPTIM_SERIALIZE_TORCH_ARG(rows);
    _TORCH_OPTIM_SERIALIZE_TORCH_ARG(unused);
  }
  void serialize(torch::serialize::InputArchive& archive) override {
    _TORCH_OPTIM_DESERIALIZE_TORCH_ARG(int64_t, step);
    _TORCH_OPTIM_DESERIALIZE_TORCH_ARG(double, largest);
    _TORCH_OPTIM_DESERIALIZE_TORCH_ARG(bool, is_warm);
    _TORCH_OPTIM_DESERIALIZE_TORCH_ARG(std::vector<int64_t>, steps_of_growth);
    archive.read("momentum", momentum(), /*is_buffer=*/true);
    _TORCH_OPTIM_DESERIALIZE_TORCH_ARG(at::Tensor, rows);
    _TORCH_OPTIM_DESERIALIZE_TORCH_ARG(at::Tensor, unused);
  }
};

// Steps by the norms of rows, which every field of the state has a part in.
class RowNorm : public torch::optim::Optimizer {
 public:
  explicit RowNorm(std::vector<torch::optim::OptimizerParamGroup> groups)
      : Optimizer(std::move(groups), std::make_unique<RowNormOptions>()) {}

  torch::Tensor step(LossClosure) override {
    const at::NoGradGuard no_grad;
    for (auto& group : param_groups()) {
      auto& options = static_cast<RowNormOptions&>(group.options());
      for (at::Tensor& parameter : group.params())
        if (parameter.grad().defined()) step_one(parameter, options);
    }
    return {};
  }
  void save(torch::serialize::OutputArchive& archive) const override {
    torch::optim::serialize<RowNormState, RowNormOptions>(archive, *this);
  }
  void load(torch::serialize::InputArchive& archive) override {
    torch::optim::serialize<RowNormState, RowNormOptions>(archive, *this);
  }

 private:
  void step_one(at::Tensor& parameter, const RowNormOptions& options) {
    auto& kept = state_[parameter.unsafeGetTensorImpl()];
    if (kept == nullptr) {
      auto made = std::make_unique<RowNormState>();
      made->momentum(at::zeros_like(parameter));
      made->rows(at::zeros({parameter.size(0)}));
      kept = std::move(made);
    }
    auto& state = static_cast<RowNormState&>(*kept);
    state.step(state.step() + 1);
    const auto [first, second] = options.betas();
    const at::Tensor gradient = parameter.grad();
    const at::Tensor norms = gradient.flatten(1 < gradient.dim() ? 1 : 0);
    state.momentum().mul_(first).add_(gradient);
    state.rows().mul_(second).add_(gradient.dim() == 2 ? norms.norm(2, 1) : gradient.abs());
    if (const double now = gradient.norm().item<double>(); now > state.largest()) {
      state.largest(now);
      state.steps_of_growth().push_back(state.step());
    }
    const at::Tensor scale =
        state.rows() + 0.01 * static_cast<double>(state.steps_of_growth().size());
    const at::Tensor by_row = gradient.dim() == 2 ? scale.unsqueeze(1) : scale;
    parameter.sub_(state.momentum() / (by_row + state.largest()),
                   options.lr() / (state.is_warm() ? 1.0 : 2.0));
    state.is_warm(true);
  }
};

enum class How { kCopies, kByTensor, kByTensorWhole };

AcceleratorOptions options_of(How how) {
  AcceleratorOptions options;
  if (how == How::kCopies) return options;
  options.fsdp_plugin = FullyShardedDataParallelPlugin{.shard_by_tensor = true};
  options.fsdp_plugin->optim_state_dict_config = StateDictConfig{.rank0_only = false};
  if (how == How::kByTensorWhole) options.fsdp_plugin->state_dict_type = StateDictType::kFull;
  return options;
}

// Every rank sees the same batch, so that the mean of 1, 2 or 4 equal gradients has no rounding.
struct TrainingRun {
  explicit TrainingRun(How how) : accelerator(options_of(how)) {
    set_seed(7);
    net = Net();
    std::vector<torch::optim::OptimizerParamGroup> groups;
    groups.emplace_back(std::vector<at::Tensor>{net->first->weight, net->second->weight});
    auto slower = std::make_unique<RowNormOptions>(0.02);
    slower->betas({0.5, 0.75});
    groups.emplace_back(std::vector<at::Tensor>{net->first->bias, net->second->bias},
                        std::move(slower));
    rows = std::make_shared<RowNorm>(std::move(groups));
    auto [prepared, stepped] = accelerator.prepare(net, rows);
    model.emplace(prepared);
    optimizer.emplace(stepped);
  }

  void train(int steps) {
    for (int step = 0; step < steps; ++step, ++done) {
      const at::Tensor input = (at::arange(20, at::kFloat).view({4, 5}) + done) / 20.0;
      accelerator.backward((*model)(input).square().mean());
      optimizer->step();
      optimizer->zero_grad();
      if (done == 1) rows->param_groups()[0].options().set_lr(0.05);
    }
  }

  [[nodiscard]] at::Tensor parameters() const {
    std::vector<at::Tensor> parts;
    for (const at::Tensor& parameter : net->parameters())
      parts.push_back(parameter.detach().flatten());
    return at::cat(parts);
  }

  Accelerator accelerator;
  Net net{nullptr};
  std::shared_ptr<RowNorm> rows;
  std::optional<Prepared<Net>> model;
  std::optional<AcceleratedOptimizer> optimizer;
  int done = 0;
};

using Way = std::pair<int, How>;

class OwnOptimizerResumes : public ::testing::TestWithParam<std::tuple<Way, Way>> {};

TEST_P(OwnOptimizerResumes, WhereverItsTensorsAreThenAndTrainsToTheSameBits) {
  const auto [before, after] = GetParam();
  const test::ScratchFolder scratch;
  const std::filesystem::path& folder = scratch.path();
  test::run_ranks(before.first, [&, how = before.second] {
    TrainingRun run(how);
    run.train(3);
    run.accelerator.save_state(folder / "state");
    run.train(3);
    if (run.accelerator.is_main_process())
      safetensors::save_file({{"parameters", run.parameters()}}, folder / "expected.safetensors");
  });
  test::run_ranks(after.first, [&, how = after.second] {
    TrainingRun run(how);
    run.train(1);  // another state, which loading replaces
    run.accelerator.load_state(folder / "state");
    run.done = 3;
    run.train(3);
    const auto expected = safetensors::load_file(folder / "expected.safetensors");
    EXPECT_TRUE(expected.at("parameters").equal(run.parameters()));
  });
}

INSTANTIATE_TEST_SUITE_P(
    Ways,
    OwnOptimizerResumes,
    ::testing::Values(std::tuple(Way{1, How::kCopies}, Way{1, How::kCopies}),
                      std::tuple(Way{2, How::kByTensor}, Way{2, How::kByTensor}),
                      std::tuple(Way{3, How::kByTensor}, Way{3, How::kByTensor}),
                      std::tuple(Way{2, How::kByTensor}, Way{4, How::kByTensor}),
                      std::tuple(Way{4, How::kByTensor}, Way{2, How::kByTensor}),
                      std::tuple(Way{4, How::kByTensor}, Way{1, How::kCopies}),
                      std::tuple(Way{1, How::kCopies}, Way{2, How::kByTensor}),
                      std::tuple(Way{2, How::kCopies}, Way{4, How::kByTensor}),
                      std::tuple(Way{2, How::kByTensorWhole}, Way{4, How::kByTensor}),
                      std::tuple(Way{2, How::kByTensor}, Way{2, How::kByTensorWhole})));

TEST(OwnOptimizer, HasItsTensorsInTheFileByTheNamesOfParametersAndFields) {
  const test::ScratchFolder scratch;
  test::run_ranks(2, [&] {
    TrainingRun run(How::kByTensor);
    run.train(2);
    run.accelerator.save_state(scratch.path() / "state");
    if (!run.accelerator.is_main_process()) return;
    const auto tensors = safetensors::load_file(scratch.path() / "state/optimizer.safetensors");
    EXPECT_EQ(tensors.size(), 8u);  // momentum and rows of four parameters
    EXPECT_EQ(tensors.at("first.weight.momentum").sizes(), at::IntArrayRef({37, 5}));
    EXPECT_EQ(tensors.at("first.weight.rows").sizes(), at::IntArrayRef({37}));
  });
}

TEST(OwnOptimizer, IsSeenByStateDictsOfAllTypes) {
  test::run_ranks(2, [] {
    TrainingRun run(How::kByTensor);
    run.train(2);
    const StateView whole =
        run.accelerator.get_optimizer_state_dict(*run.optimizer, StateDictType::kFull);
    const StateView sharded =
        run.accelerator.get_optimizer_state_dict(*run.optimizer, StateDictType::kSharded);
    const StateView local =
        run.accelerator.get_optimizer_state_dict(*run.optimizer, StateDictType::kLocal);

    ASSERT_EQ(whole.tensors.size(), 8u);
    std::int64_t own = 0;
    for (const auto& [name, part] : sharded.tensors) {
      const at::Tensor expected = whole.tensors.at(name).values;
      EXPECT_TRUE(part.values.flatten().equal(expected.flatten())) << name;
      EXPECT_TRUE(!name.ends_with("weight.rows") || local.tensors.contains(name)) << name;
      ++own;
    }
    const at::Tensor total = run.accelerator.reduce(at::zeros({1}, at::kLong) + own);
    EXPECT_EQ(total.item<std::int64_t>(), 8);
  });
}

// prepare() has not seen it.
TEST(OwnOptimizer, ThatListsATiedParameterTwiceGetsItsStatesBack) {
  const test::ScratchFolder scratch;
  test::TiedNet net;
  const auto made = [&net] {
    std::vector<torch::optim::OptimizerParamGroup> groups;
    groups.emplace_back(net->parameters());
    return RowNorm(std::move(groups));
  };
  RowNorm saved = made();
  net(at::ones({2, 6})).square().mean().backward();
  saved.step({});
  save_checkpoint(scratch.path() / "state", {.models = {net.get()}, .optimizers = {&saved}});
  RowNorm loaded = made();

  load_checkpoint(scratch.path() / "state", {.models = {net.get()}, .optimizers = {&loaded}});

  ASSERT_EQ(loaded.state().size(), 4u);
  for (const auto& [parameter, state] : saved.state()) {
    ASSERT_NE(loaded.state().at(parameter), nullptr);
    EXPECT_TRUE(static_cast<const RowNormState&>(*loaded.state().at(parameter))
                    .momentum()
                    .equal(static_cast<const RowNormState&>(*state).momentum()));
  }
}

// ---- what cannot be saved

class Forgetful : public RowNorm {
 public:
  using RowNorm::RowNorm;
  void load(torch::serialize::InputArchive&) override {}
};

TEST(OwnOptimizer, ThatDoesNotTakeItsStatesBackIsAnErrorAndNoSilentNewStart) {
  const test::ScratchFolder scratch;
  test::run_ranks(1, [&] {
    Accelerator accelerator;
    Net net;
    auto [model, optimizer] = accelerator.prepare(
        net,
        std::make_shared<Forgetful>(
            std::vector<torch::optim::OptimizerParamGroup>{{net->parameters()}}));
    accelerator.backward(model(at::zeros({2, 5})).square().mean());
    optimizer.step();
    accelerator.save_state(scratch.path() / "state");
    try {
      accelerator.load_state(scratch.path() / "state");
      ADD_FAILURE() << "the states were lost without a word";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kUnsupported);
      EXPECT_THAT(error.message(), HasSubstr("its load() took 0 states of 4"));
      EXPECT_THAT(error.remedy(), HasSubstr("torch::optim::serialize<State, Options>"));
    }
  });
}

// Of a class without serialize().
struct SilentState : torch::optim::OptimizerCloneableParamState<SilentState> {};

// Each parameter gets a state of that class, and no step.
template <typename State>
class Stating : public RowNorm {
 public:
  using RowNorm::RowNorm;
  torch::Tensor step(LossClosure) override {
    for (auto& group : param_groups())
      for (const at::Tensor& parameter : group.params())
        state_[parameter.unsafeGetTensorImpl()] = std::make_unique<State>();
    return {};
  }
};

// How a save ends on this rank, of a model of which one parameter is trained: most ranks have no state.
template <typename State>
Error error_of_saving(const std::filesystem::path& folder) {
  Accelerator accelerator(options_of(How::kByTensor));
  Net net;
  auto [model, optimizer] = accelerator.prepare(
      net,
      std::make_shared<Stating<State>>(
          std::vector<torch::optim::OptimizerParamGroup>{{{net->first->weight}}}));
  accelerator.backward(model(at::zeros({2, 5})).square().mean());
  optimizer.step();
  try {
    accelerator.save_state(folder);
  } catch (const Error& error) {
    accelerator.wait_for_everyone();
    return error;
  }
  return Error(ErrorCode::kInternal, "it was saved");
}

TEST(OwnOptimizer, WhoseStatesCannotBeWrittenIsRefusedOnAllRanks) {
  const test::ScratchFolder scratch;
  test::run_ranks(4, [&] {
    const Error error = error_of_saving<SilentState>(scratch.path() / "state");
    EXPECT_EQ(error.code(), ErrorCode::kUnsupported);
    EXPECT_THAT(error.message(), HasSubstr("state of first.weight cannot be saved"));
  });
}

// Its code throws what is no Error, on the rank that has the state.
struct ThrowingState : torch::optim::OptimizerCloneableParamState<ThrowingState> {
  void serialize(torch::serialize::OutputArchive&) const override {
    throw std::runtime_error("the disk of \xff is full");  // no UTF-8
  }
  void serialize(torch::serialize::InputArchive&) override {}
};

TEST(OwnOptimizer, WhoseStatesThrowOnOneRankEndsTheSaveOnAll) {
  const test::ScratchFolder scratch;
  test::run_ranks(3, [&] {
    const Error error = error_of_saving<ThrowingState>(scratch.path() / "state");
    EXPECT_THAT(error.message(), HasSubstr("the disk of"));
  });
}

}  // namespace
}  // namespace accel::archived_states_test
