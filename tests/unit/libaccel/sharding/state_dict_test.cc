// The forms in which the state of divided models and optimizers is handed over and saved. What they must be is taken from
// the files that save_state() writes by parts.

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>

#include <ATen/ops/arange.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adamw.h>

#include <accel/accelerator.h>
#include <accel/error.h>
#include <accel/random.h>
#include <accel/safetensors_file.h>

#include "libaccel/engine/shm/memory/node_identity.h"
#include "tests/support/fake_nodes.h"
#include "tests/support/rank_group.h"
#include "tests/support/scratch_folder.h"

namespace accel::state_dict_test {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

struct NetImpl : torch::nn::Module {
  NetImpl()
      : first(register_module("first", torch::nn::Linear(5, 37))),
        norm(register_module("norm", torch::nn::BatchNorm1d(37))),
        second(register_module("second", torch::nn::Linear(37, 3))),
        scale(register_parameter("scale", at::ones({3}) / 3, /*requires_grad=*/false)) {
    // In column-major order: no part of it is a range of a file.
    first->weight.set_data(first->weight.t().contiguous().t());
  }
  at::Tensor forward(const at::Tensor& input) { return second(norm(first(input)).tanh()) * scale; }

  torch::nn::Linear first;
  torch::nn::BatchNorm1d norm;
  torch::nn::Linear second;
  at::Tensor scale;
};
TORCH_MODULE(Net);

AcceleratorOptions options_with(const std::optional<FullyShardedDataParallelPlugin>& plugin) {
  AcceleratorOptions options;
  options.fsdp_plugin = plugin;
  return options;
}

// No plugin: copies on all ranks.
struct Training {
  explicit Training(const std::optional<FullyShardedDataParallelPlugin>& plugin)
      : Training(options_with(plugin)) {}
  explicit Training(const AcceleratorOptions& options) : accelerator(options) {
    set_seed(7);
    net = Net();
    auto [prepared, stepped] =
        accelerator.prepare(net, std::make_shared<torch::optim::AdamW>(net->parameters(), 0.01));
    model.emplace(prepared);
    optimizer.emplace(stepped);
  }

  void train(int steps) {
    for (int step = 0; step < steps; ++step) {
      const at::Tensor input = at::arange(20, at::kFloat).view({4, 5}).sin() + step;
      accelerator.backward((*model)(input).to(at::kFloat).square().mean());
      optimizer->step();
      optimizer->zero_grad();
    }
  }

  Accelerator accelerator;
  Net net{nullptr};
  std::optional<Prepared<Net>> model;
  std::optional<AcceleratedOptimizer> optimizer;
};

std::string contents(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

// The elements of a tensor in the order of the memory that `part` counts in.
at::Tensor in_memory_order(const at::Tensor& tensor, const StateTensor& part) {
  const at::Tensor laid_out = at::empty_strided(part.shape, part.strides, tensor.options());
  laid_out.copy_(tensor);
  return laid_out.as_strided({tensor.numel()}, {1});
}

// Whether the parts of all ranks are `expected`, each element as often as there are replicas.
void expect_parts_of(const safetensors::TensorMap& expected,
                     const StateView& own,
                     const Accelerator& accelerator,
                     int replicas) {
  for (const auto& [name, part] : own.tensors) {
    const at::Tensor& whole = expected.at(name);
    ASSERT_EQ(whole.sizes(), at::IntArrayRef(part.shape)) << name;
    if (part.is_whole) {
      EXPECT_TRUE(part.values.equal(whole)) << name;
    } else {
      EXPECT_TRUE(part.values.equal(
          in_memory_order(whole, part).narrow(0, part.begin, part.values.numel())))
          << name << " from element " << part.begin << " on";
    }
  }
  for (const auto& [name, whole] : expected) {
    const auto found = own.tensors.find(name);
    if (found != own.tensors.end() && found->second.is_whole) continue;
    const std::int64_t mine = found == own.tensors.end() ? 0 : found->second.values.numel();
    const at::Tensor all = accelerator.reduce(at::full({1}, mine, at::kLong), Reduction::kSum);
    EXPECT_EQ(all.item<std::int64_t>(), replicas * whole.numel()) << name;
  }
}

enum class Kind { kEven, kMasters, kHybrid, kZeroOne, kByTensor };

struct Form {
  const char* name;
  int ranks;
  Kind kind;
  int ranks_per_node = 0;  // 0: all on one node
};

class StateDictForms : public ::testing::TestWithParam<Form> {
 protected:
  static FullyShardedDataParallelPlugin plugin() {
    FullyShardedDataParallelPlugin plugin;
    if (GetParam().kind == Kind::kMasters) {
      plugin.mixed_precision_policy =
          MixedPrecisionPolicy{.param_dtype = at::kBFloat16, .buffer_dtype = at::kBFloat16};
    }
    if (GetParam().kind == Kind::kHybrid) plugin.sharding_strategy = ShardingStrategy::kHybridShard;
    plugin.shard_by_tensor = GetParam().kind == Kind::kByTensor;
    return plugin;
  }
  static AcceleratorOptions options(const FullyShardedDataParallelPlugin& plugin) {
    AcceleratorOptions options = options_with(plugin);
    if (GetParam().kind == Kind::kZeroOne) {
      options.fsdp_plugin.reset();
      options.deepspeed_plugin = DeepSpeedPlugin{.zero_stage = 1};
    }
    return options;
  }
  static AcceleratorOptions options() { return options(plugin()); }

  static int replicas() {
    return GetParam().kind == Kind::kHybrid ? GetParam().ranks / GetParam().ranks_per_node : 1;
  }
  // Every rank, on its simulated node.
  static void on_ranks(const std::function<void()>& body) {
    test::run_ranks(GetParam().ranks, [&] {
      if (const int each = GetParam().ranks_per_node; each > 0) {
        const int rank = test::rank_of_this_process();
        test::be_on_node(rank / each, GetParam().ranks / each, rank % each, each);
        ::setenv(shm::kTestNodeVariable, ("node" + std::to_string(rank / each)).c_str(), 1);
      }
      body();
    });
  }
  const test::ScratchFolder scratch_;
  const fs::path& folder_ = scratch_.path();
};

TEST_P(StateDictForms, FullIsWholeOnRank0AndEmptyElsewhere) {
  on_ranks([&] {
    Training run(options());
    run.train(2);
    run.accelerator.save_state(folder_ / "state");

    const StateView model = run.accelerator.get_state_dict(*run.model);
    const StateView optimizer = run.accelerator.get_optimizer_state_dict(*run.optimizer);

    run.train(1);  // changes none of it
    if (!run.accelerator.is_main_process()) {
      EXPECT_THAT(model.tensors, IsEmpty());
      EXPECT_THAT(optimizer.tensors, IsEmpty());
      EXPECT_THAT(optimizer.json, IsEmpty());
      return;
    }
    const std::pair<const StateView*, const char*> views[] = {
        {&model, "model.safetensors"}, {&optimizer, "optimizer.safetensors"}};
    for (const auto& [view, file] : views) {
      const auto expected = safetensors::load_file(folder_ / "state" / file);
      EXPECT_EQ(view->tensors.size(), expected.size());
      for (const auto& [name, tensor] : expected) {
        ASSERT_TRUE(view->tensors.contains(name)) << name;
        const StateTensor& own = view->tensors.at(name);
        EXPECT_TRUE(own.is_whole);
        EXPECT_TRUE(own.values.equal(tensor)) << name;
      }
    }
    EXPECT_EQ(optimizer.json, contents(folder_ / "state" / "optimizer.json"));
  });
}

TEST_P(StateDictForms, ShardedIsAPartOfEachTensorOnEachRank) {
  on_ranks([&] {
    Training run(options());
    run.train(2);
    run.accelerator.save_state(folder_ / "state");

    const StateView model = run.accelerator.get_state_dict(*run.model, StateDictType::kSharded);
    const StateView optimizer =
        run.accelerator.get_optimizer_state_dict(*run.optimizer, StateDictType::kSharded);

    expect_parts_of(safetensors::load_file(folder_ / "state" / "model.safetensors"),
                    model,
                    run.accelerator,
                    replicas());
    expect_parts_of(safetensors::load_file(folder_ / "state" / "optimizer.safetensors"),
                    optimizer,
                    run.accelerator,
                    replicas());
    EXPECT_EQ(optimizer.json, contents(folder_ / "state" / "optimizer.json"));
    EXPECT_FALSE(model.tensors.contains("second.weight") &&
                 model.tensors.at("second.weight").is_whole);
  });
}

// Whatever the layout: where a part lies in the shard is not looked up but searched for.
TEST_P(StateDictForms, LocalHasEachPartInAShard) {
  on_ranks([&] {
    Training run(options());
    run.train(2);

    for (const bool is_model : {true, false}) {
      const auto view = [&](StateDictType type) {
        return is_model ? run.accelerator.get_state_dict(*run.model, type)
                        : run.accelerator.get_optimizer_state_dict(*run.optimizer, type);
      };
      const StateView parts = view(StateDictType::kSharded);
      const StateView local = view(StateDictType::kLocal);
      for (const auto& [name, part] : parts.tensors) {
        if (part.is_whole) {
          EXPECT_TRUE(local.tensors.at(name).values.equal(part.values)) << name;
          continue;
        }
        const std::string field = is_model ? "" : name.substr(name.rfind('.'));
        constexpr std::int64_t kAlignedElements = 16;  // 64 bytes of fp32
        bool is_there = false;
        for (const auto& [unit, shard] : local.tensors) {
          if (!unit.starts_with("unit_") || !unit.ends_with(field)) continue;
          const std::int64_t room = shard.values.numel() - part.values.numel();
          for (std::int64_t begin = 0; begin <= room && !is_there; begin += kAlignedElements)
            is_there = shard.values.narrow(0, begin, part.values.numel()).equal(part.values);
        }
        EXPECT_TRUE(is_there) << name;
      }
    }
  });
}

TEST_P(StateDictForms, LocalIsTheShardsAsTheyLieInMemory) {
  const Kind kind = GetParam().kind;
  if (kind == Kind::kByTensor || kind == Kind::kHybrid) return;  // other layouts, see above
  on_ranks([&] {
    Training run(options());
    run.train(2);
    run.accelerator.save_state(folder_ / "state");

    const StateView model = run.accelerator.get_state_dict(*run.model, StateDictType::kLocal);
    const StateView optimizer =
        run.accelerator.get_optimizer_state_dict(*run.optimizer, StateDictType::kLocal);

    const std::tuple<const StateView*, const char*, std::string> views[] = {
        {&model, "model.safetensors", ""}, {&optimizer, "optimizer.safetensors", ".exp_avg_sq"}};
    for (const auto& [view, file, field] : views) {
      const auto expected = safetensors::load_file(folder_ / "state" / file);
      ASSERT_TRUE(view->tensors.contains("unit_0" + field));
      const StateTensor& shard = view->tensors.at("unit_0" + field);
      EXPECT_EQ(shard.begin, run.accelerator.process_index() * shard.values.numel());
      const at::Tensor unit = run.accelerator.gather(shard.values);
      EXPECT_EQ(unit.numel(), shard.shape.at(0));
      constexpr std::int64_t kAlignedElements = 16;  // 64 bytes of fp32
      std::int64_t begin = 0;
      for (const auto& item : run.net->named_parameters()) {
        if (!item.value().requires_grad()) continue;
        const at::Tensor& whole = expected.at(item.key() + field);
        const at::Tensor own = unit.narrow(0, begin, whole.numel())
                                   .as_strided(whole.sizes(), item.value().strides(), begin);
        EXPECT_TRUE(own.equal(whole)) << item.key() << field;
        begin += (whole.numel() + kAlignedElements - 1) / kAlignedElements * kAlignedElements;
      }
    }
    EXPECT_TRUE(model.tensors.at("scale").values.equal(
        safetensors::load_file(folder_ / "state" / "model.safetensors").at("scale")));
  });
}

TEST_P(StateDictForms, FullIsOnAllRanksWhenNotRank0Only) {
  if (GetParam().kind == Kind::kZeroOne) return;  // it has no such option
  on_ranks([&] {
    FullyShardedDataParallelPlugin everywhere = plugin();
    everywhere.state_dict_config = StateDictConfig{.rank0_only = false};
    everywhere.optim_state_dict_config = StateDictConfig{.rank0_only = false};
    Training run(options(everywhere));
    run.train(1);

    const StateView model = run.accelerator.get_state_dict(*run.model);
    const StateView optimizer = run.accelerator.get_optimizer_state_dict(*run.optimizer);

    for (const StateView* view : {&model, &optimizer}) {
      ASSERT_FALSE(view->tensors.empty());
      for (const auto& [name, tensor] : view->tensors) {
        if (name.starts_with("norm.running")) continue;  // each rank's own
        const at::Tensor mine = tensor.values.contiguous().unsqueeze(0);
        const at::Tensor all = run.accelerator.gather(mine);
        for (std::int64_t rank = 0; rank < all.size(0); ++rank)
          EXPECT_TRUE(all[rank].equal(mine[0])) << name;
      }
    }
  });
}

TEST_P(StateDictForms, FilesOfRank0AreThoseOfAllRanks) {
  on_ranks([&] {
    Training run(options());
    run.train(2);
    EXPECT_EQ(run.accelerator.state_dict_type(), StateDictType::kSharded);
    run.accelerator.save_state(folder_ / "sharded");

    run.accelerator.set_state_dict_type("full_state_dict");
    run.accelerator.save_state(folder_ / "full");

    run.train(1);  // goes on with its own precision
  });
  if (test::rank_of_this_process() >= 0) return;
  EXPECT_EQ(read_checkpoint_info(folder_ / "sharded").version, 2);
  EXPECT_EQ(read_checkpoint_info(folder_ / "full").version, 1) << "not by one rank";
  for (const char* name : {"model.safetensors", "optimizer.safetensors", "optimizer.json"}) {
    ASSERT_GT(contents(folder_ / "full" / name).size(), 100u);
    EXPECT_TRUE(contents(folder_ / "full" / name) == contents(folder_ / "sharded" / name)) << name;
  }
}

INSTANTIATE_TEST_SUITE_P(Forms,
                         StateDictForms,
                         ::testing::Values(Form{"TwoRanks", 2, Kind::kEven},
                                           Form{"ThreeRanks", 3, Kind::kEven},
                                           Form{"ThreeRanksWithMasters", 3, Kind::kMasters},
                                           Form{"TwoNodes", 4, Kind::kEven, 2},
                                           Form{"TwoNodesWithMasters", 4, Kind::kMasters, 2},
                                           Form{"Hybrid", 4, Kind::kHybrid, 2},
                                           Form{"ZeroOne", 3, Kind::kZeroOne},
                                           Form{"ZeroOneOnTwoNodes", 4, Kind::kZeroOne, 2},
                                           Form{"ByTensor", 3, Kind::kByTensor},
                                           Form{"ByTensorOnTwoNodes", 4, Kind::kByTensor, 2}),
                         [](const auto& form) { return std::string(form.param.name); });

struct Way {
  int ranks;
  bool is_sharded;
  StateDictType type = StateDictType::kFull;
};

class GoesOnAs : public ::testing::TestWithParam<std::tuple<Way, Way>> {};

// The files tell, byte by byte, whether everything has arrived.
TEST_P(GoesOnAs, AnyOtherForm) {
  const auto [before, after] = GetParam();
  const test::ScratchFolder scratch;
  const fs::path& folder = scratch.path();
  const auto plugin_of = [](const Way& way) {
    std::optional<FullyShardedDataParallelPlugin> plugin;
    if (way.is_sharded) plugin.emplace().state_dict_type = way.type;
    return plugin;
  };
  test::run_ranks(before.ranks, [&, before = before] {
    Training run(plugin_of(before));
    run.train(2);
    run.accelerator.save_state(folder / "before");
  });
  test::run_ranks(after.ranks, [&, after = after] {
    Training run(plugin_of(after));
    run.train(1);
    run.accelerator.load_state(folder / "before");
    run.accelerator.save_state(folder / "after");
  });
  if (test::rank_of_this_process() >= 0) return;
  for (const char* name : {"model.safetensors", "optimizer.safetensors", "optimizer.json"}) {
    ASSERT_GT(contents(folder / "before" / name).size(), 100u);
    EXPECT_TRUE(contents(folder / "before" / name) == contents(folder / "after" / name)) << name;
  }
}

INSTANTIATE_TEST_SUITE_P(
    Ways,
    GoesOnAs,
    ::testing::Values(std::tuple(Way{3, true}, Way{2, true, StateDictType::kSharded}),
                      std::tuple(Way{2, true, StateDictType::kSharded}, Way{3, true}),
                      std::tuple(Way{3, true}, Way{1, false}),
                      std::tuple(Way{1, false}, Way{2, true, StateDictType::kLocal}),
                      std::tuple(Way{2, false}, Way{3, true})));

TEST(StateDict, OfCopiesIsWholeOnEveryRank) {
  test::run_ranks(2, [] {
    Training run(std::nullopt);
    run.train(1);
    for (const StateDictType type :
         {StateDictType::kFull, StateDictType::kLocal, StateDictType::kSharded}) {
      const StateView model = run.accelerator.get_state_dict(*run.model, type);
      EXPECT_TRUE(model.tensors.at("second.weight").values.is_alias_of(run.net->second->weight));
      const StateView optimizer = run.accelerator.get_optimizer_state_dict(*run.optimizer, type);
      EXPECT_TRUE(optimizer.tensors.contains("second.weight.exp_avg"));
      EXPECT_THAT(optimizer.json, HasSubstr("AdamW"));
    }
    EXPECT_EQ(run.accelerator.state_dict_type(), StateDictType::kFull);
    EXPECT_THROW(run.accelerator.set_state_dict_type(StateDictType::kSharded), Error);
  });
}

AcceleratorOptions no_shard() {
  return options_with(
      FullyShardedDataParallelPlugin{.sharding_strategy = ShardingStrategy::kNoShard});
}

AcceleratorOptions zero_stage_0() {
  AcceleratorOptions options;
  options.deepspeed_plugin = DeepSpeedPlugin{.zero_stage = 0};
  return options;
}

TEST(StateDict, OfAPluginThatDividesNothingIsACopyOnRank0AndEmptyElsewhere) {
  test::run_ranks(2, [] {
    for (const AcceleratorOptions& options : {no_shard(), zero_stage_0()}) {
      Training run(options);
      run.train(1);
      const at::Tensor weight = run.net->second->weight.detach().clone();

      const StateView model = run.accelerator.get_state_dict(*run.model);
      const StateView optimizer = run.accelerator.get_optimizer_state_dict(*run.optimizer);
      const StateView own =
          run.accelerator.get_optimizer_state_dict(*run.optimizer, StateDictType::kSharded);

      EXPECT_TRUE(own.tensors.contains("second.weight.exp_avg")) << "only FULL is rank 0's alone";
      if (!run.accelerator.is_main_process()) {
        EXPECT_THAT(model.tensors, IsEmpty());
        EXPECT_THAT(optimizer.tensors, IsEmpty());
        EXPECT_THAT(optimizer.json, IsEmpty());
        run.train(1);
        continue;
      }
      const at::Tensor mean = optimizer.tensors.at("second.weight.exp_avg").values.clone();
      run.train(1);  // changes none of it
      EXPECT_TRUE(model.tensors.at("second.weight").values.equal(weight));
      EXPECT_FALSE(run.net->second->weight.equal(weight));
      EXPECT_TRUE(optimizer.tensors.at("second.weight.exp_avg").values.equal(mean));
      EXPECT_THAT(optimizer.json, HasSubstr("AdamW"));
    }

    AcceleratorOptions everywhere = no_shard();
    everywhere.fsdp_plugin->state_dict_config = StateDictConfig{.rank0_only = false};
    Training run(everywhere);
    EXPECT_TRUE(run.accelerator.get_state_dict(*run.model).tensors.contains("second.weight"));
  });
}

// FULL_SHARD in one process divides nothing either.
TEST(StateDict, OfAPluginInOneProcessIsACopy) {
  Training run(FullyShardedDataParallelPlugin{});
  run.train(1);
  const at::Tensor weight = run.net->second->weight.detach().clone();
  const StateView model = run.accelerator.get_state_dict(*run.model);
  run.train(1);
  EXPECT_TRUE(model.tensors.at("second.weight").values.equal(weight));
  EXPECT_FALSE(run.net->second->weight.equal(weight));
}

TEST(StateDict, NamesTheTypesThatThereAre) {
  Training run(FullyShardedDataParallelPlugin{});
  try {
    run.accelerator.set_state_dict_type("WHOLE");
    FAIL() << "WHOLE was taken";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
    EXPECT_THAT(error.message(),
                HasSubstr("'WHOLE' is no state dict type; expected one of FULL_STATE_DICT, "
                          "LOCAL_STATE_DICT, SHARDED_STATE_DICT"));
  }
}

}  // namespace
}  // namespace accel::state_dict_test
