// What plugins and programs say about paging over nodes: prefetch, the limit of units, and parameters held by hand.

#include <chrono>
#include <cstdlib>
#include <functional>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include <ATen/ops/from_blob.h>
#include <ATen/ops/ones.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>
#include <torch/serialize.h>

#include <accel/accelerator.h>
#include <accel/error.h>
#include <accel/with_params.h>

#include "libaccel/engine/pager/paged_storage.h"
#include "libaccel/engine/shm/memory/node_identity.h"
#include "tests/support/rank_group.h"

namespace accel::paging_options_test {
namespace {

using ::testing::HasSubstr;

constexpr int kLayers = 8;
constexpr std::int64_t kWidth = 64;

// Each rank is a node.
void run_nodes(int num_nodes, const std::function<void()>& body) {
  test::run_ranks(num_nodes, [&] {
    const std::string node = "node" + std::to_string(test::rank_of_this_process());
    ::setenv(shm::kTestNodeVariable, node.c_str(), 1);
    body();
  });
}

// Layers of one size, each a unit.
torch::nn::Sequential layers() {
  torch::nn::Sequential net;
  for (int i = 0; i < kLayers; ++i) net->push_back(torch::nn::Linear(kWidth, kWidth));
  return net;
}

FullyShardedDataParallelPlugin layer_units() {
  FullyShardedDataParallelPlugin plugin;
  plugin.auto_wrap_policy = AutoWrapPolicy::kTransformerBasedWrap;
  plugin.transformer_cls_names_to_wrap = {{"Linear"}};
  return plugin;
}

pager::PagerStatistics statistics(const torch::nn::Sequential& net) {
  return pager::paged_storage(net->parameters().front())->table->statistics();
}
std::size_t unit_bytes(const torch::nn::Sequential& net) {
  return pager::paged_storage(net->parameters().front())->table->bytes_of(0);
}

// A model that has trained for two steps, so that the order of units is known; then calls look(accelerator, net).
void train_and(const FullyShardedDataParallelPlugin& plugin,
               const std::function<void(const torch::nn::Sequential&)>& look) {
  Accelerator accelerator({.fsdp_plugin = plugin});
  torch::nn::Sequential net = layers();
  torch::optim::SGD sgd(net->parameters(), 0.01);
  auto [model, optimizer] = accelerator.prepare(net, sgd);
  for (int step = 0; step < 2; ++step) {
    accelerator.backward(model(at::ones({2, kWidth})).mean());
    optimizer.step();
    optimizer.zero_grad();
  }
  look(net);
  accelerator.wait_for_everyone();  // others may still read this rank's shards
}

// The thread that fetches ahead does so when it comes to it.
bool prefetches_after_first_layer(const torch::nn::Sequential& net) {
  const std::uint64_t before = statistics(net).num_prefetches;
  const torch::NoGradGuard no_grad;
  net->ptr<torch::nn::LinearImpl>(0)->forward(at::ones({2, kWidth}));
  for (int i = 0; i < 6000 && statistics(net).num_prefetches == before; ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  return statistics(net).num_prefetches > before;
}

TEST(PagingOptions, TheNextUnitIsFetchedAheadByDefaultAndByName) {
  run_nodes(2, [] {
    FullyShardedDataParallelPlugin plugin = layer_units();
    train_and(plugin, [](const auto& net) { EXPECT_TRUE(prefetches_after_first_layer(net)); });
    plugin.backward_prefetch = BackwardPrefetch::kBackwardPre;
    train_and(plugin, [](const auto& net) { EXPECT_TRUE(prefetches_after_first_layer(net)); });
  });
}

TEST(PagingOptions, WithoutPrefetchEveryUnitIsFetchedByWhoNeedsIt) {
  run_nodes(2, [] {
    FullyShardedDataParallelPlugin plugin = layer_units();
    plugin.backward_prefetch = BackwardPrefetch::kNoPrefetch;
    train_and(plugin, [](const auto& net) {
      const pager::PagerStatistics seen = statistics(net);
      EXPECT_EQ(seen.num_prefetches, 0U);
      EXPECT_GT(seen.num_fills, 0U);
      EXPECT_EQ(seen.num_fills, seen.num_misses);
    });
  });
}

// Two steps have passed over more units than either limit.
TEST(PagingOptions, TheLimitOfAllGathersBoundsTheUnitsInMemory) {
  run_nodes(2, [] {
    FullyShardedDataParallelPlugin plugin = layer_units();
    train_and(plugin,
              [](const auto& net) { EXPECT_LE(statistics(net).peak_bytes, 3 * unit_bytes(net)); });
    plugin.limit_all_gathers = false;
    train_and(plugin,
              [](const auto& net) { EXPECT_EQ(statistics(net).peak_bytes, 6 * unit_bytes(net)); });
  });
}

// ---- a budget of bytes

std::size_t bytes_of_a_unit() {
  std::size_t bytes = 0;
  train_and(layer_units(), [&](const auto& net) { bytes = unit_bytes(net); });
  return bytes;
}

void set_budget(const std::string& bytes) {
  ::setenv("ACCEL_FSDP_MAX_LIVE_BYTES", bytes.c_str(), 1);
}

FullyShardedDataParallelPlugin with_budget(std::size_t bytes) {
  FullyShardedDataParallelPlugin plugin = layer_units();
  plugin.max_live_bytes = bytes;
  return plugin;
}

Error refusal_of_training(const FullyShardedDataParallelPlugin& plugin = layer_units()) {
  try {
    train_and(plugin, [](const auto&) {});
  } catch (const Error& error) {
    return error;
  }
  return Error(ErrorCode::kInternal, "nothing was thrown");
}

// Two units and one, the least that is taken: the same weights.
TEST(PageBudget, BoundsWhatIsInMemory) {
  run_nodes(2, [] {
    const std::size_t one = bytes_of_a_unit();
    at::Tensor expected;
    for (const std::size_t units : {3U, 2U, 1U}) {
      if (units < 3) set_budget(std::to_string(units * one));
      at::manual_seed(5);
      train_and(layer_units(), [&](const auto& net) {
        EXPECT_EQ(statistics(net).peak_bytes, units * one);
        const at::Tensor last = net->parameters().back().clone();
        if (!expected.defined()) expected = last;
        EXPECT_TRUE(last.equal(expected)) << units;
      });
    }
  });
}

TEST(PageBudget, BelowTheLargestUnitOfOneRankIsRefusedByAll) {
  run_nodes(2, [] {
    const std::size_t one = bytes_of_a_unit();
    const bool is_culprit = test::rank_of_this_process() == 1;
    if (is_culprit) set_budget(std::to_string(one - 1));
    const Error error = refusal_of_training();
    EXPECT_EQ(error.code(), ErrorCode::kOutOfMemory);
    EXPECT_THAT(error.message(),
                HasSubstr("ACCEL_FSDP_MAX_LIVE_BYTES is " + std::to_string(one - 1) +
                          " bytes, and the largest unit has " + std::to_string(one)));
    EXPECT_THAT(error.remedy(), HasSubstr("at least " + std::to_string(one)));
    if (is_culprit) set_budget("many");
    EXPECT_EQ(refusal_of_training().code(), ErrorCode::kEnvInvalid);
    set_budget(std::to_string(one));
    train_and(layer_units(), [](const auto&) {});
  });
}

// Ranks of one node, and one process, read it too: a mistake is not to show on several nodes first.
TEST(PageBudget, IsReadWhereItChangesNothingAndSaysSo) {
  for (const int num_ranks : {1, 2}) {
    const auto exits = test::run_ranks(num_ranks, [&] {
      const bool is_last = test::rank_of_this_process() == num_ranks - 1;
      if (is_last) set_budget("abc");
      const Error error = refusal_of_training();
      EXPECT_EQ(error.code(), ErrorCode::kEnvInvalid);
      EXPECT_THAT(error.message(), HasSubstr("ACCEL_FSDP_MAX_LIVE_BYTES is 'abc'"));
      set_budget("1G");
      train_and(layer_units(), [](const auto&) {});
    });
    if (test::rank_of_this_process() >= 0) continue;
    EXPECT_THAT(exits.at(0).output, HasSubstr("(ACCEL_FSDP_MAX_LIVE_BYTES) changes nothing here"));
  }
}

TEST(PageBudget, OfThePluginGoesBeforeTheVariable) {
  run_nodes(2, [] {
    const std::size_t one = bytes_of_a_unit();
    set_budget(std::to_string(one - 1));
    train_and(with_budget(2 * one),
              [&](const auto& net) { EXPECT_EQ(statistics(net).peak_bytes, 2 * one); });
  });
}

// What the error of one rank says is enough is enough, to the byte.
TEST(PageBudget, OfThePluginBelowTheLargestUnitSaysTheSmallestThatWorks) {
  run_nodes(2, [] {
    const bool is_culprit = test::rank_of_this_process() == 1;
    const Error error = refusal_of_training(is_culprit ? with_budget(1) : layer_units());
    EXPECT_EQ(error.code(), ErrorCode::kOutOfMemory);
    EXPECT_THAT(error.message(), HasSubstr("max_live_bytes is 1 bytes"));
    const std::string lead = "give it at least ";
    ASSERT_THAT(error.remedy(), HasSubstr(lead));
    const std::size_t least =
        std::stoull(error.remedy().substr(error.remedy().find(lead) + lead.size()));

    EXPECT_EQ(refusal_of_training(with_budget(least - 1)).code(), ErrorCode::kOutOfMemory);
    train_and(with_budget(least),
              [&](const auto& net) { EXPECT_EQ(statistics(net).peak_bytes, least); });
  });
}

// ---- with_params()

TEST(WithParams, LetsCodeTakeAddressesOverNodes) {
  run_nodes(2, [] {
    Accelerator accelerator({.fsdp_plugin = layer_units()});
    torch::nn::Sequential net = layers();
    auto model = accelerator.prepare(net);
    const at::Tensor& weight = net->ptr<torch::nn::LinearImpl>(5)->weight;
    const at::Tensor expected = weight.detach().clone();

    const auto sees_values = [&] {
      const at::Tensor seen = at::from_blob(weight.data_ptr<float>(), {kWidth, kWidth});
      return seen.equal(expected);
    };
    EXPECT_TRUE(with_params(model, {"5.weight"}, sees_values));

    auto held = with_params(model);  // more than the limit
    net->ptr<torch::nn::LinearImpl>(0)->forward(at::ones({2, kWidth}));
    EXPECT_TRUE(sees_values());
    held.release();
    accelerator.wait_for_everyone();
  });
}

TEST(WithParams, LetsTorchSaveWriteTheModel) {
  run_nodes(2, [] {
    Accelerator accelerator({.fsdp_plugin = layer_units()});
    torch::nn::Sequential net = layers();
    auto model = accelerator.prepare(net);
    std::stringstream file;
    with_params(model, {}, [&] { torch::save(net, file); });

    torch::nn::Sequential loaded = layers();
    torch::load(loaded, file);

    for (std::size_t i = 0; i < loaded->parameters().size(); ++i)
      EXPECT_TRUE(net->parameters()[i].equal(loaded->parameters()[i])) << i;
    accelerator.wait_for_everyone();
  });
}

TEST(WithParams, OptimizersDoNotStepWhileParametersAreHeld) {
  run_nodes(2, [] {
    Accelerator accelerator({.fsdp_plugin = layer_units()});
    torch::nn::Sequential net = layers();
    torch::optim::SGD sgd(net->parameters(), 0.01);
    auto [model, optimizer] = accelerator.prepare(net, sgd);
    accelerator.backward(model(at::ones({2, kWidth})).mean());
    auto held = with_params(model, {"0.bias"});
    try {
      optimizer.step();
      ADD_FAILURE() << "nothing was thrown";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kUnsupported);
      EXPECT_THAT(error.remedy(), HasSubstr("with_params()"));
    }
    held.release();
    optimizer.step();
    accelerator.wait_for_everyone();
  });
}

TEST(WithParams, HeldByOneRankAreNamedOnAll) {
  run_nodes(2, [] {
    Accelerator accelerator({.fsdp_plugin = layer_units()});
    torch::nn::Sequential net = layers();
    torch::optim::SGD sgd(net->parameters(), 0.01);
    auto [model, optimizer] = accelerator.prepare(net, sgd);
    accelerator.backward(model(at::ones({2, kWidth})).mean());
    std::optional<ParameterHold> held;
    if (accelerator.process_index() == 1) held.emplace(with_params(model, {"0.bias"}));
    try {
      optimizer.step();
      ADD_FAILURE() << "nothing was thrown";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kUnsupported);
      EXPECT_THAT(error.message(), HasSubstr("in use by rank 1"));
    }
    held.reset();
    optimizer.step();
    accelerator.wait_for_everyone();
  });
}

TEST(WithParams, DoesNothingWhereParametersAreAlwaysInMemory) {
  test::run_ranks(2, [] {
    Accelerator accelerator({.fsdp_plugin = layer_units()});
    torch::nn::Sequential net = layers();
    auto model = accelerator.prepare(net);
    EXPECT_EQ(detail::hold_parameters(*model.runtime(), {}), nullptr);
    try {
      std::ignore = with_params(model, {"0.wieght", "1.bias"});
      ADD_FAILURE() << "nothing was thrown";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
      EXPECT_THAT(error.message(), HasSubstr("'0.wieght' (did you mean '0.weight'?), which no"));
    }
  });
}

}  // namespace
}  // namespace accel::paging_options_test
