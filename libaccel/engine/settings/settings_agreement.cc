#include "libaccel/engine/settings/settings_agreement.h"

#include <algorithm>
#include <cstddef>
#include <iomanip>
#include <limits>
#include <sstream>
#include <string_view>
#include <utility>
#include <vector>

#include <accel/error.h>

#include "libaccel/engine/process/agreement.h"
#include "runtime/text/joined.h"

namespace accel::sharding {
namespace {

std::string option_text(const std::optional<c10::ScalarType>& dtype) {
  return dtype ? c10::toString(*dtype) : "unset";
}

std::string option_text(bool value) {
  return value ? "true" : "false";
}

std::string option_text(const StateDictConfig& config) {
  return "{offload_to_cpu: " + option_text(config.offload_to_cpu) +
         ", rank0_only: " + option_text(config.rank0_only) + "}";
}

}  // namespace

std::string describe(const std::optional<FsdpSettings>& settings, const PrecisionRecipe& recipe) {
  if (!settings) return "fsdp_plugin unset\n";
  const FsdpSettings& own = *settings;
  std::ostringstream text;
  text << "fsdp_version " << own.version << '\n'
       << "sharding_strategy "
       << (own.keeps_whole_gradients ? std::string_view("ZeRO-1") : to_string(own.strategy)) << '\n'
       << "dp_replicate_size " << own.layout.value_or(MeshShape{}).replicate << '\n'
       << "dp_shard_size " << own.layout.value_or(MeshShape{}).shard << '\n'
       << "auto_wrap_policy " << to_string(own.wrap) << '\n'
       << "transformer_cls_names_to_wrap '" << joined(own.transformer_classes, ",") << "'\n"
       << "gradient_clipping " << own.gradient_clipping.value_or(0) << '\n'
       << "min_num_params " << own.min_num_params << '\n'
       << "ignored_modules '" << own.ignored_modules << joined(own.ignored_names, ",") << "'\n"
       << "shard_by_tensor " << option_text(own.shard_by_tensor) << '\n'
       << "activation_checkpointing " << option_text(own.recomputes_activations) << '\n'
       << "recompute_granularity " << to_string(own.recompute_granularity) << '\n'
       << "offload_param " << (own.parameter_folder.empty() ? "in memory" : "on disk") << '\n'
       << "offload_optimizer " << (own.optimizer_folder.empty() ? "in memory" : "on disk") << '\n'
       << "cpu_ram_efficient_loading " << option_text(own.cpu_ram_efficient_loading) << '\n'
       << "sync_module_states " << option_text(own.sync_module_states) << '\n'
       << "param_dtype " << option_text(recipe.parameter) << '\n'
       << "reduce_dtype " << option_text(recipe.reduce) << '\n'
       << "buffer_dtype " << option_text(recipe.buffer) << '\n'
       << "output_dtype " << option_text(recipe.output) << '\n'
       << "cast_forward_inputs " << option_text(recipe.input.has_value()) << '\n'
       << "state_dict_type " << to_string(own.state_dict_type) << '\n'
       << "state_dict_config " << option_text(own.state_dict) << '\n'
       << "optim_state_dict_config " << option_text(own.optim_state_dict) << '\n';
  return text.str();
}

std::optional<std::string> first_differing_option(const std::string& reference,
                                                  const std::string& other) {
  if (reference == other) return std::nullopt;
  const std::vector<std::string> expected = lines_of(reference);
  const std::vector<std::string> found = lines_of(other);
  for (std::size_t i = 0; i < std::min(expected.size(), found.size()); ++i) {
    if (expected[i] != found[i]) return "has " + found[i] + " where rank 0 has " + expected[i];
  }
  // One begins as the other does: a name with a line break in it may do that.
  return "describes " + std::to_string(found.size()) + " lines of options where rank 0 has " +
         std::to_string(expected.size());
}

void verify_same_settings(const std::optional<FsdpSettings>& settings,
                          const PrecisionRecipe& recipe,
                          ProcessGroup& group) {
  const auto other = first_deviation(describe(settings, recipe),
                                     first_differing_option,
                                     group,
                                     "comparing the sharding options of the ranks");
  if (!other) return;
  throw Error(ErrorCode::kInvalidArgument,
              "the plugin of rank " + std::to_string(other->rank) + " " + other->difference,
              "give every rank the same fsdp_plugin and the same FSDP_* variables")
      .while_doing("preparing the model");
}

std::string describe(const DistributedDataParallelKwargs& options) {
  const auto* const type = std::get_if<DDPCommunicationHookType>(&options.comm_hook);
  const PowerSGDOptions& power = options.comm_state_option;
  std::ostringstream text;
  text << std::setprecision(std::numeric_limits<double>::max_digits10)  // so that none is lost
       << "broadcast_buffers " << option_text(options.broadcast_buffers) << '\n'
       << "bucket_cap_mb " << options.bucket_cap_mb << '\n'
       << "find_unused_parameters " << option_text(options.find_unused_parameters) << '\n'
       << "gradient_as_bucket_view " << option_text(options.gradient_as_bucket_view) << '\n'
       << "static_graph " << option_text(options.static_graph) << '\n'
       << "comm_hook " << (type == nullptr ? "of its own" : to_string(*type)) << '\n'
       << "comm_wrapper " << to_string(options.comm_wrapper) << '\n'
       << "matrix_approximation_rank " << power.matrix_approximation_rank << '\n'
       << "start_powerSGD_iter " << power.start_powerSGD_iter << '\n'
       << "use_error_feedback " << option_text(power.use_error_feedback) << '\n'
       << "warm_start " << option_text(power.warm_start) << '\n'
       << "min_compression_rate " << power.min_compression_rate << '\n'
       << "orthogonalization_epsilon " << power.orthogonalization_epsilon << '\n'
       << "random_seed " << power.random_seed << '\n';
  return text.str();
}

void verify_same_exchange(const DistributedDataParallelKwargs& options, ProcessGroup& group) {
  const auto other = first_deviation(
      describe(options), first_differing_option, group, "comparing the ddp options of the ranks");
  if (!other) return;
  throw Error(ErrorCode::kInvalidArgument,
              "ddp of rank " + std::to_string(other->rank) + " " + other->difference,
              "give every rank the same AcceleratorOptions.ddp")
      .while_doing("preparing the model");
}

}  // namespace accel::sharding
