// Mixed precision of shards: parameters in 16 bits, masters in fp32, and what each of them is used for.

#include <cstdlib>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/equal.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>

#include <accel/accelerator.h>
#include <accel/error.h>
#include <accel/random.h>
#include <accel/seen_parameters.h>

#include "libaccel/collectives/shm/node_identity.h"
#include "libaccel/sharding/fsdp_settings.h"
#include "tests/support/peak_memory.h"
#include "tests/support/rank_group.h"
#include "tests/support/scratch_folder.h"

namespace accel {
namespace {

using torch::optim::Optimizer;

constexpr std::int64_t kWidth = 7;

torch::nn::Sequential seeded_net() {
  set_seed(5);
  return torch::nn::Sequential(torch::nn::Linear(kWidth, 2 * kWidth),
                               torch::nn::LayerNorm(torch::nn::LayerNormOptions({2 * kWidth})),
                               torch::nn::Linear(2 * kWidth, kWidth));
}

enum class Rule { kSgd, kAdamW };

std::shared_ptr<Optimizer> make_optimizer(const std::vector<at::Tensor>& parameters, Rule rule) {
  if (rule == Rule::kAdamW) {
    return std::make_shared<torch::optim::AdamW>(parameters, torch::optim::AdamWOptions(0.01));
  }
  return std::make_shared<torch::optim::SGD>(parameters,
                                             torch::optim::SGDOptions(0.1).momentum(0.9));
}

// [4, kWidth] of a rank.
at::Tensor batch(int step, int rank) {
  return (at::arange(4 * kWidth).view({4, kWidth}) + 3 * step + rank).sin();
}

at::Tensor loss_of(const at::Tensor& output) {
  return (output.to(at::kFloat) - 0.5).square().mean();
}

at::Tensor flat(const std::vector<at::Tensor>& tensors) {
  std::vector<at::Tensor> parts;
  for (const at::Tensor& tensor : tensors) parts.push_back(tensor.detach().flatten());
  return at::cat(parts);
}

using Policy = std::optional<std::variant<MixedPrecisionPolicy, std::string>>;

const MixedPrecisionPolicy kBf16{.param_dtype = at::kBFloat16, .reduce_dtype = at::kFloat};

enum class Cut { kByDefault, kUnitForEachModule };

class Trainer {
 public:
  explicit Trainer(Policy policy,
                   Rule rule = Rule::kAdamW,
                   torch::nn::Sequential net = seeded_net(),
                   Cut cut = Cut::kByDefault)
      : accelerator_(options(std::move(policy), cut)), net_(std::move(net)) {
    auto [model, optimizer] = accelerator_.prepare(net_, make_optimizer(net_->parameters(), rule));
    model_.emplace(model);
    optimizer_.emplace(optimizer);
  }

  at::Tensor forward(int step) { return (*model_)(batch(step, accelerator_.process_index())); }
  void train(int from, int to) {
    for (int step = from; step < to; ++step) {
      accelerator_.backward(loss_of(forward(step)));
      optimizer_->step();
      optimizer_->zero_grad();
    }
  }
  // Requires: every rank calls it; over nodes others read this rank's shards meanwhile.
  at::Tensor values() {
    at::Tensor values = flat(net_->parameters());
    accelerator_.wait_for_everyone();
    return values;
  }
  Accelerator& accelerator() { return accelerator_; }
  torch::nn::Sequential& net() { return net_; }
  Optimizer& optimizer() { return optimizer_->optimizer(); }
  void save_model(const std::string& folder) { accelerator_.save_model(*model_, folder); }

 private:
  static AcceleratorOptions options(Policy policy, Cut cut) {
    AcceleratorOptions options;
    options.fsdp_plugin.emplace();
    if (cut == Cut::kUnitForEachModule) {
      options.fsdp_plugin->auto_wrap_policy = AutoWrapPolicy::kSizeBasedWrap;
      options.fsdp_plugin->min_num_params = 1;
    }
    options.fsdp_plugin->mixed_precision_policy = std::move(policy);
    return options;
  }
  Accelerator accelerator_;
  torch::nn::Sequential net_;
  std::optional<Prepared<torch::nn::Sequential>> model_;
  std::optional<AcceleratedOptimizer> optimizer_;
};

// The same by hand: a copy in bf16 that computes, masters in fp32 that are stepped, whole on every rank. Gradients are
// averaged in fp32.
at::Tensor trained_by_hand(Accelerator& accelerator, Rule rule, int steps) {
  torch::nn::Sequential net = seeded_net();
  std::vector<at::Tensor> masters;
  for (const at::Tensor& parameter : net->parameters())
    masters.push_back(parameter.detach().clone().requires_grad_(true));
  for (at::Tensor& parameter : net->parameters())
    parameter.set_data(parameter.detach().to(at::kBFloat16));
  const auto optimizer = make_optimizer(masters, rule);
  for (int step = 0; step < steps; ++step) {
    loss_of(net->forward(batch(step, accelerator.process_index()).to(at::kBFloat16))).backward();
    const at::NoGradGuard no_grad;
    const std::vector<at::Tensor> parameters = net->parameters();
    for (std::size_t p = 0; p < masters.size(); ++p) {
      at::Tensor gradient = parameters[p].grad().to(at::kFloat);
      gradient.mul_(1.0 / accelerator.num_processes());
      masters[p].mutable_grad() = accelerator.reduce(gradient);
      parameters[p].mutable_grad().reset();
    }
    optimizer->step();
    for (std::size_t p = 0; p < masters.size(); ++p) parameters[p].copy_(masters[p]);
  }
  return flat(net->parameters());
}

struct Layout {
  int ranks = 2;
  int of_a_node = 2;  // fewer than there are: parameters are paged
};

class ShardedPrecision : public ::testing::TestWithParam<Layout> {
 protected:
  template <typename F>
  static void run_ranks(F body) {
    test::run_ranks(GetParam().ranks, [&] {
      const int node = test::rank_of_this_process() / GetParam().of_a_node;
      ::setenv(shm::kTestNodeVariable, ("node-" + std::to_string(node)).c_str(), 1);
      body();
    });
  }
};

TEST_P(ShardedPrecision, EqualsMastersAndRoundingsByHandToTheBit) {
  run_ranks([] {
    for (const Rule rule : {Rule::kSgd, Rule::kAdamW}) {
      Trainer trainer(kBf16, rule);
      trainer.train(0, 4);

      const at::Tensor expected = trained_by_hand(trainer.accelerator(), rule, 4);

      EXPECT_EQ(trainer.values().scalar_type(), at::kBFloat16);
      const bool is_paged = trainer.net()->parameters()[0].key_set().has(c10::DispatchKey::Fake);
      EXPECT_EQ(is_paged, GetParam().ranks > GetParam().of_a_node);
      EXPECT_TRUE(at::equal(trainer.values(), expected)) << (rule == Rule::kSgd ? "SGD" : "AdamW");
    }
  });
}

TEST_P(ShardedPrecision, GoesOnToTheBitAfterACheckpoint) {
  const test::ScratchFolder folder;
  run_ranks([&] {
    Trainer whole(kBf16);
    whole.train(0, 2);
    whole.accelerator().save_state(folder.file("state"));
    EXPECT_EQ(whole.values().scalar_type(), at::kBFloat16);
    whole.train(2, 4);

    Trainer resumed(kBf16);
    resumed.accelerator().load_state(folder.file("state"));
    resumed.train(2, 4);

    EXPECT_TRUE(at::equal(resumed.values(), whole.values()));
  });
}

TEST_P(ShardedPrecision, SavesMastersThatGoOnWithoutThePolicyAndBack) {
  const test::ScratchFolder folder;
  run_ranks([&] {
    Trainer rounded(kBf16);
    rounded.train(0, 2);
    rounded.accelerator().save_state(folder.file("rounded"));

    Trainer plain(std::nullopt);
    plain.accelerator().load_state(folder.file("rounded"));

    EXPECT_EQ(plain.values().scalar_type(), at::kFloat);
    EXPECT_TRUE(at::equal(plain.values().to(at::kBFloat16), rounded.values()));
    EXPECT_FALSE(at::equal(plain.values(), rounded.values().to(at::kFloat)))
        << "rounded on the way";

    plain.accelerator().save_state(folder.file("plain"));
    Trainer back(kBf16);
    back.accelerator().load_state(folder.file("plain"));
    back.train(2, 4);
    rounded.train(2, 4);

    EXPECT_TRUE(at::equal(back.values(), rounded.values()));
  });
}

TEST_P(ShardedPrecision, GivesAModelOf16BitsMastersOf32) {
  run_ranks([] {
    torch::nn::Sequential net = seeded_net();
    net->to(at::kBFloat16);
    const at::Tensor before = flat(net->parameters()).clone();
    Trainer trainer(kBf16, Rule::kAdamW, net);

    EXPECT_TRUE(at::equal(trainer.values(), before));
    for (const at::Tensor& piece : trainer.optimizer().param_groups()[0].params())
      EXPECT_EQ(piece.scalar_type(), at::kFloat);
  });
}

TEST_P(ShardedPrecision, ConvertsFrozenParametersAndSavesThemWhole) {
  const test::ScratchFolder folder;
  run_ranks([&] {
    const auto freeze = [](torch::nn::Sequential net) {
      for (at::Tensor& parameter : net[2]->as<torch::nn::Linear>()->parameters())
        parameter.set_requires_grad(false);
      return net;
    };
    const at::Tensor original = flat(seeded_net()[2]->parameters());
    Trainer rounded(kBf16, Rule::kAdamW, freeze(seeded_net()));
    EXPECT_EQ(flat(rounded.net()[2]->parameters()).scalar_type(), at::kBFloat16);
    rounded.train(0, 1);
    rounded.accelerator().save_state(folder.file("state"));

    Trainer plain(std::nullopt, Rule::kAdamW, freeze(seeded_net()));
    plain.accelerator().load_state(folder.file("state"));

    EXPECT_TRUE(at::equal(flat(plain.net()[2]->parameters()), original));
  });
}

TEST_P(ShardedPrecision, GoesOnAfterASaveOfTheModelInsideASaveOfTheState) {
  const test::ScratchFolder folder;
  run_ranks([&] {
    Trainer trainer(kBf16, Rule::kAdamW, seeded_net());
    trainer.accelerator().register_save_state_pre_hook(
        [&](const auto&, const auto&) { trainer.save_model(folder.file("model")); });
    trainer.accelerator().save_state(folder.file("state"));
    EXPECT_EQ(flat(trainer.net()[0]->parameters()).scalar_type(), at::kBFloat16);
    trainer.train(0, 1);
  });
}

// Each rank writes its masters where they belong in the file, and reads them from there.
TEST_P(ShardedPrecision, SavesAndLoadsWithoutAllMastersOnAnyRank) {
  const test::ScratchFolder folder;
  run_ranks([&] {
    constexpr std::int64_t kWide = 1024;
    constexpr std::int64_t kAllBytes = 4 * kWide * kWide * 4;
    torch::nn::Sequential net;
    for (int layer = 0; layer < 4; ++layer)
      net->push_back(torch::nn::Linear(torch::nn::LinearOptions(kWide, kWide).bias(false)));
    Trainer trainer(kBf16, Rule::kSgd, net);
    Accelerator& accelerator = trainer.accelerator();
    accelerator.save_state(folder.file("first"));

    const test::PeakMemory saving;
    accelerator.save_state(folder.file("second"));
    constexpr std::int64_t kRoom = kAllBytes / 2;  // 4 MiB are collected before they are written
    EXPECT_LT(saving.growth_bytes(), kRoom) << test::PeakMemory::report();

    const test::PeakMemory loading;
    accelerator.load_state(folder.file("second"));
    const std::int64_t own_bytes = kAllBytes / GetParam().ranks;  // read before they are taken
    EXPECT_LT(loading.growth_bytes(), own_bytes + kRoom) << test::PeakMemory::report();
  });
}

struct ModelRecord : Stateful {
  explicit ModelRecord(const at::Tensor& seen) : parameter(seen) {}
  [[nodiscard]] StateDict state_dict() const override {
    return {.tensors = {{"parameter", parameter.detach().clone()}}};
  }
  void load_state_dict(const StateDict& state) override {
    saved = state.tensors.at("parameter");
    at_load = parameter.scalar_type();
  }

  at::Tensor parameter;
  at::Tensor saved;
  at::ScalarType at_load = at::kBFloat16;
};

// Such as an average of the parameters.
TEST_P(ShardedPrecision, LetsRegisteredObjectsSaveTheMasters) {
  const test::ScratchFolder folder;
  run_ranks([&] {
    Trainer trainer(kBf16);
    Accelerator& accelerator = trainer.accelerator();
    const at::Tensor original = seeded_net()->parameters()[0].detach();
    ModelRecord record(trainer.net()->parameters()[0]);
    accelerator.register_for_checkpointing(record);

    accelerator.save_state(folder.file("state"));
    accelerator.load_state(folder.file("state"));

    EXPECT_TRUE(at::equal(record.saved, original)) << record.saved.scalar_type();
  });
}

// An object of the user's own, that says which parameters it looks at.
struct SeeingRecord final : ModelRecord, SeesParameters {
  SeeingRecord(const at::Tensor& seen, at::Tensor unseen)
      : ModelRecord(seen), other(std::move(unseen)) {}
  [[nodiscard]] StateDict state_dict() const override {
    other_at_save = other.scalar_type();
    return ModelRecord::state_dict();
  }
  void load_state_dict(const StateDict& state) override {
    other_at_load = other.scalar_type();
    ModelRecord::load_state_dict(state);
  }
  [[nodiscard]] std::vector<at::Tensor> parameters_seen() const override { return {parameter}; }

  at::Tensor other;
  mutable at::ScalarType other_at_save = at::kBFloat16;
  at::ScalarType other_at_load = at::kBFloat16;
};

TEST_P(ShardedPrecision, ShowsRegisteredObjectsTheMastersThatTheySee) {
  const test::ScratchFolder folder;
  run_ranks([&] {
    Trainer trainer(kBf16, Rule::kAdamW, seeded_net(), Cut::kUnitForEachModule);
    Accelerator& accelerator = trainer.accelerator();
    const at::Tensor original = seeded_net()->parameters()[0].detach();
    const std::vector<at::Tensor> parameters = trainer.net()->parameters();
    SeeingRecord record(parameters.front(), parameters.back());
    accelerator.register_for_checkpointing(record);

    accelerator.save_state(folder.file("state"));
    accelerator.load_state(folder.file("state"));

    EXPECT_TRUE(at::equal(record.saved, original)) << record.saved.scalar_type();
    EXPECT_EQ(record.at_load, at::kFloat);
    EXPECT_EQ(record.other_at_save, at::kBFloat16);
    EXPECT_EQ(record.other_at_load, at::kBFloat16);
  });
}

struct ThrowingRecord final : ModelRecord, SeesParameters {
  using ModelRecord::ModelRecord;
  [[nodiscard]] std::vector<at::Tensor> parameters_seen() const override {
    if (throws) throw Error(ErrorCode::kInvalidArgument, "sees nothing today");
    return {parameter};
  }
  bool throws = false;
};

// Of a save the writing rank alone asks it; the others must not wait for that one.
TEST_P(ShardedPrecision, EndsOnAllRanksWhereARegisteredObjectOfOneThrows) {
  const test::ScratchFolder folder;
  run_ranks([&] {
    Trainer trainer(kBf16);
    Accelerator& accelerator = trainer.accelerator();
    ThrowingRecord record(trainer.net()->parameters()[0]);
    accelerator.register_for_checkpointing(record);
    accelerator.save_state(folder.file("state"));
    record.throws = accelerator.is_main_process();

    const auto expect_throw = [](const auto& call) {
      try {
        call();
        ADD_FAILURE() << "did not throw";
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
        EXPECT_THAT(error.message(), ::testing::HasSubstr("sees nothing today"));
      }
    };
    expect_throw([&] { accelerator.save_state(folder.file("other")); });
    expect_throw([&] { accelerator.load_state(folder.file("state")); });

    record.throws = false;
    accelerator.load_state(folder.file("state"));
    trainer.train(0, 1);
    accelerator.wait_for_everyone();
  });
}

struct BlindRecord final : ModelRecord, SeesParameters {
  using ModelRecord::ModelRecord;
  [[nodiscard]] std::vector<at::Tensor> parameters_seen() const override { return seen; }
  std::vector<at::Tensor> seen;
};

// A view or a copy keeps the few bits that it was made of.
TEST_P(ShardedPrecision, RefusesSeenTensorsThatAreNoParametersOnAllRanks) {
  const test::ScratchFolder folder;
  run_ranks([&] {
    Trainer trainer(kBf16);
    Accelerator& accelerator = trainer.accelerator();
    const at::Tensor parameter = trainer.net()->parameters()[0];
    BlindRecord record(parameter);
    accelerator.register_for_checkpointing(record);

    for (const at::Tensor& unknown :
         {parameter.detach(), parameter.view({-1}), parameter.clone(), at::Tensor()}) {
      record.seen = {parameter, unknown};
      try {
        accelerator.save_state(folder.file("state"));
        ADD_FAILURE() << "did not throw";
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
        EXPECT_THAT(error.message(), ::testing::HasSubstr("parameters_seen()"));
        EXPECT_THAT(error.message(),
                    ::testing::HasSubstr(unknown.defined() ? "tensor 1, of shape ["
                                                           : "tensor 1, which is undefined"));
        EXPECT_THAT(error.remedy(), ::testing::HasSubstr("model->parameters()"));
      }
    }
    record.seen = trainer.net()->parameters();
    accelerator.save_state(folder.file("state"));
    accelerator.wait_for_everyone();
  });
}

TEST_P(ShardedPrecision, LetsHooksOfOneRankAndRegisteredObjectsSeeTheMasters) {
  const test::ScratchFolder folder;
  run_ranks([&] {
    Trainer trainer(kBf16);
    Accelerator& accelerator = trainer.accelerator();
    const at::Tensor parameter = trainer.net()->parameters()[0];
    at::ScalarType at_save = at::kFloat;
    if (accelerator.is_last_process()) {
      accelerator.register_save_state_pre_hook(
          [&](const auto&, const auto&) { at_save = parameter.scalar_type(); });
      at_save = at::kBFloat16;
    }
    ModelRecord record(parameter);
    accelerator.register_for_checkpointing(record);

    accelerator.save_state(folder.file("state"));
    accelerator.load_state(folder.file("state"));

    EXPECT_EQ(at_save, at::kFloat);
    EXPECT_EQ(record.at_load, at::kFloat);
    EXPECT_EQ(parameter.scalar_type(), at::kBFloat16);
  });
}

TEST_P(ShardedPrecision, ConvertsBuffersAndOutputsWhereToldTo) {
  run_ranks([] {
    torch::nn::BatchNorm1d norm(kWidth);
    Trainer everything("bf16", Rule::kAdamW, torch::nn::Sequential(norm));
    EXPECT_EQ(norm->running_mean.scalar_type(), at::kBFloat16);
    EXPECT_EQ(norm->num_batches_tracked.scalar_type(), at::kLong);
    EXPECT_EQ(everything.forward(0).scalar_type(), at::kBFloat16);

    Trainer outputs(MixedPrecisionPolicy{.param_dtype = at::kBFloat16, .output_dtype = at::kFloat});
    EXPECT_EQ(outputs.forward(0).scalar_type(), at::kFloat);
    outputs.train(0, 1);
  });
}

// A module under two names lists its buffers twice.
TEST_P(ShardedPrecision, RoundsABufferOfTwoNamesOnce) {
  const test::ScratchFolder folder;
  run_ranks([&] {
    const auto two_names = [](const torch::nn::BatchNorm1d& norm) {
      return torch::nn::Sequential(norm, norm);
    };
    torch::nn::BatchNorm1d norm(kWidth);
    Trainer rounded("bf16", Rule::kAdamW, two_names(norm));
    rounded.train(0, 2);
    const at::Tensor mean = norm->running_mean.clone();
    rounded.accelerator().save_state(folder.file("state"));
    rounded.train(2, 4);
    rounded.accelerator().load_state(folder.file("state"));
    EXPECT_EQ(norm->running_mean.scalar_type(), at::kBFloat16);
    if (rounded.accelerator().is_main_process()) {
      EXPECT_TRUE(norm->running_mean.equal(mean));
    }
    torch::nn::BatchNorm1d same(kWidth);
    Trainer plain(std::nullopt, Rule::kAdamW, two_names(same));
    plain.accelerator().load_state(folder.file("state"));
    EXPECT_EQ(same->running_mean.scalar_type(), at::kFloat);
  });
}

// Averages of BatchNorm are bf16 while the model trains, and fp32 in files.
TEST_P(ShardedPrecision, SavesBuffersInTheDtypeThatTheModelCameWith) {
  const test::ScratchFolder folder;
  run_ranks([&] {
    torch::nn::BatchNorm1d norm(kWidth);
    Trainer rounded("bf16", Rule::kAdamW, torch::nn::Sequential(norm));
    rounded.train(0, 2);
    const at::Tensor mean = norm->running_mean.clone();
    rounded.accelerator().save_state(folder.file("state"));
    EXPECT_EQ(norm->running_mean.scalar_type(), at::kBFloat16);

    torch::nn::BatchNorm1d same(kWidth);
    Trainer plain(std::nullopt, Rule::kAdamW, torch::nn::Sequential(same));
    plain.accelerator().load_state(folder.file("state"));
    EXPECT_EQ(same->running_mean.scalar_type(), at::kFloat);
    // Rank 0's are what is saved.
    if (rounded.accelerator().is_main_process()) {
      EXPECT_TRUE(same->running_mean.equal(mean.to(at::kFloat)));
    }

    plain.accelerator().save_state(folder.file("plain"));
    rounded.train(2, 3);
    rounded.accelerator().load_state(folder.file("plain"));
    EXPECT_EQ(norm->running_mean.scalar_type(), at::kBFloat16);
    if (rounded.accelerator().is_main_process()) {
      EXPECT_TRUE(norm->running_mean.equal(mean));
    }
    rounded.accelerator().wait_for_everyone();
  });
}

INSTANTIATE_TEST_SUITE_P(
    Ranks,
    ShardedPrecision,
    ::testing::Values(Layout{2, 2}, Layout{3, 3}, Layout{4, 4}, Layout{2, 1}, Layout{4, 2}),
    [](const auto& info) {
      return std::to_string(info.param.ranks) + "WithNodesOf" +
             std::to_string(info.param.of_a_node);
    });

std::optional<std::string> no_variable(std::string_view) {
  return std::nullopt;
}

// Without a policy: what the peer's FSDP does with a model of 16 bits under mixed_precision.
TEST(MixedPrecisionWithoutAPolicy, TrainsAModelOf16BitsAsOneThatWasConverted) {
  enum class Converts { kNo, kByHand };
  const auto train = [](std::optional<MixedPrecision> precision, Converts converts) {
    AcceleratorOptions options;
    options.mixed_precision = precision;
    options.fsdp_plugin.emplace();
    Accelerator accelerator(options);
    torch::nn::Sequential net = seeded_net();
    net->to(at::kBFloat16);
    if (converts == Converts::kByHand) net->to(at::kFloat);
    auto [model, optimizer] =
        accelerator.prepare(net, make_optimizer(net->parameters(), Rule::kAdamW));
    for (int step = 0; precision && step < 3; ++step) {
      accelerator.backward(loss_of(model(batch(step, accelerator.process_index()))));
      optimizer.step();
      optimizer.zero_grad();
    }
    const at::Tensor piece = optimizer.optimizer().param_groups()[0].params()[0];
    EXPECT_EQ(piece.scalar_type(), net->parameters()[0].scalar_type());
    return flat(net->parameters()).clone();
  };
  test::run_ranks(2, [&] {
    const at::Tensor widened = train(PrecisionType::kBf16, Converts::kNo);
    EXPECT_EQ(widened.scalar_type(), at::kFloat);
    EXPECT_TRUE(at::equal(widened, train(PrecisionType::kBf16, Converts::kByHand)));
  });
  test::run_ranks(
      2, [&] { EXPECT_EQ(train(std::nullopt, Converts::kNo).scalar_type(), at::kBFloat16); });
}

// So that a checkpoint of one process is one of several, and the other way round.
TEST(MixedPrecisionWithoutAPolicy, ResumesAModelOf16BitsOnAnotherNumberOfRanks) {
  const test::ScratchFolder folder;
  enum class Loads { kNo, kYes };
  const auto run = [&](const char* file, Loads loads) {
    AcceleratorOptions options;
    options.mixed_precision = PrecisionType::kBf16;
    options.fsdp_plugin.emplace();
    Accelerator accelerator(options);
    torch::nn::Sequential net = seeded_net();
    net->to(at::kBFloat16);
    auto [model, optimizer] =
        accelerator.prepare(net, make_optimizer(net->parameters(), Rule::kAdamW));
    EXPECT_EQ(net->parameters()[0].scalar_type(), at::kFloat);
    if (loads == Loads::kYes) accelerator.load_state(folder.file(file));
    accelerator.backward(loss_of(model(batch(0, accelerator.process_index()))));
    optimizer.step();
    optimizer.zero_grad();
    if (loads == Loads::kNo) accelerator.save_state(folder.file(file));
    accelerator.wait_for_everyone();
  };
  test::run_ranks(1, [&] { run("of one", Loads::kNo); });
  test::run_ranks(2, [&] {
    run("of one", Loads::kYes);
    run("of two", Loads::kNo);
  });
  test::run_ranks(1, [&] { run("of two", Loads::kYes); });
}

TEST(MixedPrecisionPolicy, FollowsTheVersionWhereATextNamesADtype) {
  const auto first = sharding::resolve({.mixed_precision_policy = "bf16"}, no_variable).precision;
  EXPECT_EQ(first.param_dtype, at::kBFloat16);
  EXPECT_EQ(first.reduce_dtype, at::kBFloat16);
  EXPECT_EQ(first.buffer_dtype, at::kBFloat16);
  EXPECT_FALSE(first.output_dtype.has_value());

  const auto second =
      sharding::resolve({.fsdp_version = 2, .mixed_precision_policy = "fp16"}, no_variable)
          .precision;
  EXPECT_EQ(second.param_dtype, at::kHalf);
  EXPECT_FALSE(second.buffer_dtype.has_value());
  EXPECT_EQ(second.output_dtype, at::kHalf);
}

TEST(MixedPrecisionPolicy, ReducesInTheDtypeOfParametersUnlessTold) {
  const auto policy = sharding::resolve(
      {.mixed_precision_policy = MixedPrecisionPolicy{.param_dtype = at::kBFloat16}}, no_variable);
  EXPECT_EQ(policy.precision.reduce_dtype, at::kBFloat16);
}

TEST(MixedPrecisionPolicy, RefusesWhatIsNoDtypeOfParameters) {
  const auto refused = [](FullyShardedDataParallelPlugin plugin) -> std::string {
    try {
      std::ignore = sharding::resolve(plugin, no_variable);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
      return error.message();
    }
    return "taken";
  };
  EXPECT_THAT(refused({.mixed_precision_policy = "int8"}), ::testing::HasSubstr("int8"));
  EXPECT_THAT(refused({.mixed_precision_policy = MixedPrecisionPolicy{.param_dtype = at::kInt}}),
              ::testing::HasSubstr("param_dtype"));
}

}  // namespace
}  // namespace accel
