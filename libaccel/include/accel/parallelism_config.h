// ParallelismConfig: the copies and shards of a training by axis, with the names of HF Accelerate.
//
//   accel::Accelerator accelerator(
//       {.parallelism_config = accel::ParallelismConfig{.dp_replicate_size = 2, .dp_shard_size = 4}});
//
//   dp_shard_size alone      the model is divided over all processes: an fsdp_plugin of version 2
//   dp_replicate_size alone  each process has a copy, as without a plugin
//   both                     dp_replicate_size copies, each divided over dp_shard_size processes: HYBRID_SHARD
//
// The product of the sizes is the number of processes. libaccel divides neither operators nor sequences: an Accelerator refuses
// tp_size, cp_size and sp_size above 1. These fields exist to read files and environments, and for the loaders of programs
// that divide operators or sequences themselves (accel/device_mesh.h).
//
// Threads:  a value; pure functions.
// Source:   docs/guides/sharding.md, "Several axes".
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <accel/device_mesh.h>
#include <accel/env_contract.h>
#include <accel/export.h>

namespace accel {

struct ACCEL_EXPORT ParallelismConfig {
  // Each: the number of processes along the axis, 1 or more. Not set: PARALLELISM_CONFIG_DP_REPLICATE_SIZE etc., else 1.
  std::optional<int> dp_replicate_size;   // copies of the model
  std::optional<int> dp_shard_size;       // that divide a copy
  std::optional<int> tp_size;             // that divide each operator
  std::optional<int> cp_size;             // that divide each sequence, in attention too
  std::optional<std::string> cp_backend;  // "torch", which is the default
  std::optional<int> sp_size;             // that divide each sequence, outside of attention
  std::optional<std::string> sp_backend;  // "deepspeed", which is the default

  // The same with everything set; fields that were not set come from the variables. Throws kInvalidArgument, naming the field: a
  // size below 1, another backend, sizes that exclude each other; kEnvInvalid, naming the variable: it is not such a number.
  [[nodiscard]] ParallelismConfig resolved(const EnvLookup& env = process_env()) const;

  // The functions below count a size that is not set as 1.

  [[nodiscard]] bool dp_replicate_enabled() const noexcept { return dp_replicate_size > 1; }
  [[nodiscard]] bool dp_shard_enabled() const noexcept { return dp_shard_size > 1; }
  [[nodiscard]] bool tp_enabled() const noexcept { return tp_size > 1; }
  [[nodiscard]] bool cp_enabled() const noexcept { return cp_size > 1; }
  [[nodiscard]] bool sp_enabled() const noexcept { return sp_size > 1; }

  // The product of the sizes; the largest number of the type if the product is larger.
  [[nodiscard]] std::int64_t total_size() const noexcept;
  [[nodiscard]] std::int64_t data_parallel_size() const noexcept;
  [[nodiscard]] std::int64_t non_data_parallel_size() const noexcept;

  // Names of the axes above 1: along which batches differ, ...
  [[nodiscard]] std::vector<std::string> dp_dim_names() const;
  // ... along which they are the same, ...
  [[nodiscard]] std::vector<std::string> non_dp_dim_names() const;
  // ... along which parameters are divided, ...
  [[nodiscard]] std::vector<std::string> dp_shard_cp_dim_names() const;
  // ... over which a loss is averaged, ...
  [[nodiscard]] std::vector<std::string> dp_cp_dim_names() const;
  // ... the axes for FSDP: copies, and "dp_shard_cp" in any case, as in Accelerate ...
  [[nodiscard]] std::vector<std::string> fsdp_dim_names() const;
  // ... and all of them.
  [[nodiscard]] std::vector<std::string> active_mesh_dims() const;

  // The grid of the axes above 1, with the place of one process; not set if there are no such axes. Throws kInvalidArgument for a
  // process outside the grid.
  [[nodiscard]] std::optional<DeviceMesh> build_device_mesh(int process_index) const;

  // The fields above as a JSON object.
  [[nodiscard]] std::string to_json() const;
  // The factors of total_size(): "dp_replicate_size 2 x dp_shard_size 4", without sizes of 1; "1" if all sizes are 1.
  [[nodiscard]] std::string to_string() const;

  friend bool operator==(const ParallelismConfig&, const ParallelismConfig&) = default;
};

}  // namespace accel
