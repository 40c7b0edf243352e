#include <iterator>
#include <limits>
#include <span>
#include <string_view>
#include <utility>

#include <nlohmann/json.hpp>

#include <accel/error.h>
#include <accel/parallelism_config.h>

#include "libaccel/engine/settings/variable_values.h"

namespace accel {
namespace {

using Size = std::optional<int> ParallelismConfig::*;

struct ParallelAxis {
  std::string_view name;  // in the mesh
  const char* option;
  const char* variable;
  Size size;
};

// Outermost first, as in the mesh.
constexpr ParallelAxis kParallelAxes[] = {
    {"dp_replicate",
     "dp_replicate_size",
     "PARALLELISM_CONFIG_DP_REPLICATE_SIZE",
     &ParallelismConfig::dp_replicate_size},
    {"dp_shard",
     "dp_shard_size",
     "PARALLELISM_CONFIG_DP_SHARD_SIZE",
     &ParallelismConfig::dp_shard_size},
    {"cp", "cp_size", "PARALLELISM_CONFIG_CP_SIZE", &ParallelismConfig::cp_size},
    {"sp", "sp_size", "PARALLELISM_CONFIG_SP_SIZE", &ParallelismConfig::sp_size},
    {"tp", "tp_size", "PARALLELISM_CONFIG_TP_SIZE", &ParallelismConfig::tp_size},
};
constexpr std::size_t kFirstOfModel = 2;  // those before divide data
constexpr const char* kAtLeastOne = "a whole number of at least 1";

int length_of(const ParallelismConfig& config, const ParallelAxis& axis) {
  return (config.*axis.size).value_or(1);
}

std::int64_t product_of(const ParallelismConfig& config, std::span<const ParallelAxis> axes) {
  std::int64_t product = 1;
  for (const ParallelAxis& axis : axes) {
    if (__builtin_mul_overflow(product, std::int64_t{length_of(config, axis)}, &product))
      return std::numeric_limits<std::int64_t>::max();
  }
  return product;
}

// Those above 1, in the order of the names.
std::vector<std::string> enabled_of(const ParallelismConfig& config,
                                    std::initializer_list<std::string_view> names) {
  std::vector<std::string> enabled;
  for (const std::string_view name : names) {
    for (const ParallelAxis& axis : kParallelAxes) {
      if (axis.name == name && length_of(config, axis) > 1) enabled.emplace_back(name);
    }
  }
  return enabled;
}

void set_size(ParallelismConfig& config, const ParallelAxis& axis, const EnvLookup& env) {
  std::optional<int>& size = config.*axis.size;
  if (!size) {
    size = sharding::number_of<int>(env, axis.variable, kAtLeastOne).value_or(1);
    if (*size < 1)
      throw sharding::invalid_variable(axis.variable, std::to_string(*size), kAtLeastOne);
  }
  if (*size >= 1) return;
  throw Error(ErrorCode::kInvalidArgument,
              std::string(axis.option) + " must be at least 1, but got " + std::to_string(*size),
              "leave it out where the axis is not used");
}

void set_backend(std::optional<std::string>& backend,
                 const char* option,
                 const char* variable,
                 const char* only,
                 const EnvLookup& env) {
  const bool is_given = backend.has_value();
  if (!is_given) backend = sharding::text_of(env, variable).value_or(only);
  if (*backend == only) return;
  if (!is_given)
    throw sharding::invalid_variable(variable, *backend, "'" + std::string(only) + "'");
  throw Error(ErrorCode::kInvalidArgument,
              std::string(option) + " must be one of ['" + only + "'], but got " + *backend,
              "leave it out");
}

void refuse_exclusive_sizes(const ParallelismConfig& config) {
  if (config.cp_enabled() && config.sp_enabled()) {
    throw Error(ErrorCode::kInvalidArgument,
                "context parallelism and sequence parallelism are mutually exclusive: cp_size is " +
                    std::to_string(*config.cp_size) + " and sp_size is " +
                    std::to_string(*config.sp_size),
                "set cp_size or sp_size to 1");
  }
  const bool divides_model = config.tp_enabled() || config.cp_enabled();
  if (!divides_model || !config.dp_replicate_enabled() || config.dp_shard_enabled()) return;
  throw Error(ErrorCode::kInvalidArgument,
              "tensor and context parallelism cannot be used with pure data parallelism: "
              "dp_replicate_size is " +
                  std::to_string(*config.dp_replicate_size) + " and dp_shard_size is 1",
              "set dp_shard_size above 1, or dp_replicate_size to 1");
}

}  // namespace

ParallelismConfig ParallelismConfig::resolved(const EnvLookup& env) const {
  ParallelismConfig config = *this;
  for (const ParallelAxis& axis : kParallelAxes) set_size(config, axis, env);
  set_backend(config.cp_backend, "cp_backend", "PARALLELISM_CONFIG_CP_BACKEND", "torch", env);
  set_backend(config.sp_backend, "sp_backend", "PARALLELISM_CONFIG_SP_BACKEND", "deepspeed", env);
  refuse_exclusive_sizes(config);
  return config;
}

std::int64_t ParallelismConfig::total_size() const noexcept {
  return product_of(*this, kParallelAxes);
}

std::int64_t ParallelismConfig::data_parallel_size() const noexcept {
  return product_of(*this, std::span(kParallelAxes).first(kFirstOfModel));
}

std::int64_t ParallelismConfig::non_data_parallel_size() const noexcept {
  return product_of(*this, std::span(kParallelAxes).subspan(kFirstOfModel));
}

std::vector<std::string> ParallelismConfig::dp_dim_names() const {
  return enabled_of(*this, {"dp_replicate", "dp_shard"});
}

std::vector<std::string> ParallelismConfig::non_dp_dim_names() const {
  return enabled_of(*this, {"tp", "cp", "sp"});
}

std::vector<std::string> ParallelismConfig::dp_shard_cp_dim_names() const {
  return enabled_of(*this, {"dp_shard", "cp"});
}

std::vector<std::string> ParallelismConfig::dp_cp_dim_names() const {
  return enabled_of(*this, {"dp_replicate", "dp_shard", "cp"});
}

std::vector<std::string> ParallelismConfig::fsdp_dim_names() const {
  std::vector<std::string> names = enabled_of(*this, {"dp_replicate"});
  names.emplace_back("dp_shard_cp");
  return names;
}

std::vector<std::string> ParallelismConfig::active_mesh_dims() const {
  return enabled_of(*this, {"dp_replicate", "dp_shard", "tp", "cp", "sp"});
}

std::optional<DeviceMesh> ParallelismConfig::build_device_mesh(int process_index) const {
  if (total_size() == 1) return std::nullopt;
  if (process_index < 0 || process_index >= total_size()) {
    throw Error(ErrorCode::kInvalidArgument,
                "process " + std::to_string(process_index) + " is not in a mesh of " +
                    std::to_string(total_size()) + " processes (" + to_string() + ")",
                "give sizes whose product is the number of processes");
  }
  DeviceMesh mesh;
  int rest = process_index;
  for (auto axis = std::rbegin(kParallelAxes); axis != std::rend(kParallelAxes); ++axis) {
    const int length = length_of(*this, *axis);
    if (length == 1) continue;
    mesh.mesh_dim_names.emplace(mesh.mesh_dim_names.begin(), axis->name);
    mesh.shape.insert(mesh.shape.begin(), length);
    mesh.coordinate.insert(mesh.coordinate.begin(), rest % length);
    rest /= length;
  }
  return mesh;
}

std::string ParallelismConfig::to_json() const {
  const auto text = [](const auto& field) {
    return field ? nlohmann::ordered_json(*field) : nlohmann::ordered_json();
  };
  return nlohmann::ordered_json{{"dp_replicate_size", text(dp_replicate_size)},
                                {"dp_shard_size", text(dp_shard_size)},
                                {"tp_size", text(tp_size)},
                                {"cp_size", text(cp_size)},
                                {"cp_backend", text(cp_backend)},
                                {"sp_size", text(sp_size)},
                                {"sp_backend", text(sp_backend)}}
      .dump();
}

std::string ParallelismConfig::to_string() const {
  std::string text;
  for (const ParallelAxis& axis : kParallelAxes) {
    const int length = length_of(*this, axis);
    if (length == 1) continue;
    text += (text.empty() ? "" : " x ") + std::string(axis.option) + " " + std::to_string(length);
  }
  return text.empty() ? "1" : text;
}

}  // namespace accel
