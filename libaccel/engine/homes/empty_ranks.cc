#include "libaccel/engine/homes/empty_ranks.h"

#include <atomic>
#include <string>
#include <utility>
#include <vector>

#include <torch/nn/module.h>

#include <accel/big_model.h>
#include <accel/error.h>
#include <accel/state.h>

#include "libaccel/engine/process/agreement.h"
#include "libaccel/engine/process/process_group.h"

namespace accel::sharding {
namespace {

constexpr std::int64_t kEmptyTextBytes = 256;  // of what a rank says of itself
constexpr const char* kElsewhere =
    "build the model outside of init_empty_weights(), or load its weights before prepare()";

std::atomic<bool> g_loads_on_main_only{false};

std::vector<std::string> empty_names(const torch::nn::Module& module) {
  std::vector<std::string> names;
  for (const auto& item : module.named_parameters())
    if (item.value().is_meta()) names.push_back(item.key());
  for (const auto& item : module.named_buffers())
    if (item.value().defined() && item.value().is_meta()) names.push_back(item.key());
  return names;
}

// "the parameter 'fc.weight' and 3 more have no memory"; empty when all have.
std::string empty_text(const torch::nn::Module& module) {
  constexpr std::size_t kLongestName = 160;
  const std::vector<std::string> names = empty_names(module);
  if (names.empty()) return {};
  std::string text = "'" + names.front().substr(0, kLongestName) + "'";
  if (names.size() == 1) return text + " has no memory";
  return text + " and " + std::to_string(names.size() - 1) + " more have no memory";
}

Error refusal_to_prepare(const std::string& what, const std::string& why, const char* remedy) {
  return Error(ErrorCode::kInvalidArgument, what + (why.empty() ? "" : ", and " + why), remedy)
      .while_doing("preparing the model");
}

}  // namespace

bool is_empty(const torch::nn::Module& module) {
  return !empty_names(module).empty();
}

void refuse_empty_models(const torch::nn::Module& module,
                         ProcessGroup* group,
                         const std::optional<FsdpSettings>& settings) {
  const std::string own = empty_text(module);
  if (group == nullptr || group->size() == 1) {
    if (!own.empty()) throw refusal_to_prepare(own, "", kElsewhere);
    return;
  }
  const auto said = gather_texts(own, kEmptyTextBytes, *group, "asking who has the model");
  for (std::size_t rank = 0; rank < said.size(); ++rank) {
    if (said[rank].empty()) continue;
    const std::string what = said[rank] + " on rank " + std::to_string(rank);
    if (rank == 0)
      throw refusal_to_prepare(what, "its values are those that all ranks get", kElsewhere);
    if (!settings || settings->strategy == ShardingStrategy::kNoShard)
      throw refusal_to_prepare(what,
                               "only sharding gives ranks the parameters of rank 0",
                               "set a FullyShardedDataParallelPlugin with "
                               "cpu_ram_efficient_loading, and another strategy than NO_SHARD");
    if (!settings->sync_module_states)
      throw refusal_to_prepare(what,
                               "sync_module_states is false, so rank 0 does not send its values",
                               "set sync_module_states to true");
  }
}

void set_loads_on_main_only(const std::optional<FsdpSettings>& settings) noexcept {
  g_loads_on_main_only = settings && settings->cpu_ram_efficient_loading &&
                         settings->strategy != ShardingStrategy::kNoShard;
}

bool loads_on_main_only() noexcept {
  return g_loads_on_main_only;
}

}  // namespace accel::sharding

namespace accel {

EmptyWeights init_empty_unless_main(const InitEmptyWeightsOptions& options) {
  if (!PartialState::initialized())
    throw Error(ErrorCode::kNotInitialized,
                "init_empty_unless_main() was called before there was an Accelerator",
                "make the Accelerator first");
  if (!sharding::loads_on_main_only() || PartialState().is_main_process()) return EmptyWeights();
  return EmptyWeights(options);
}

}  // namespace accel
