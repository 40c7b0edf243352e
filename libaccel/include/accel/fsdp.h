// FullyShardedDataParallelPlugin: how the parameters, gradients and optimizer states of a model are
// divided over the ranks, with the names of HF Accelerate.
//
//   accel::Accelerator accelerator(
//       {.fsdp_plugin = accel::FullyShardedDataParallelPlugin{
//            .auto_wrap_policy = accel::AutoWrapPolicy::kTransformerBasedWrap,
//            .transformer_cls_names_to_wrap = {{"Block"}}}});
//
// The model is not wrapped or changed: prepare() puts its parameters into units, each divided into one shard per rank. Options that
// are not set come from the FSDP_* environment that accel-launch sets, then from the defaults below. docs/guides/sharding.md has
// the memory of each strategy, and the options of Accelerate without a counterpart.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include <c10/core/ScalarType.h>

#include <accel/export.h>
#include <accel/state_dict_type.h>
#include <accel/types.h>

namespace accel {

// The dtypes of parameters, gradients and buffers. Unset: those of the model. Only floating point values are converted.
struct MixedPrecisionPolicy {
  // Of the parameters that forward and backward see. This rank's shard of them is kept in fp32 beside (fp64 for fp64), also
  // where the model came in 16 bits: that is what the optimizer and checkpoints work on.
  std::optional<c10::ScalarType> param_dtype;
  // Of gradients while they are summed over the ranks; by default param_dtype. The optimizer sees them as fp32.
  std::optional<c10::ScalarType> reduce_dtype;
  std::optional<c10::ScalarType> buffer_dtype;  // of buffers, from prepare() on
  std::optional<c10::ScalarType> output_dtype;  // of what the prepared model's forward returns
  // Converts tensors that are arguments of the prepared model's forward, and those in ExportedInputs, to param_dtype. Not those
  // inside of other containers.
  bool cast_forward_inputs = true;
};

// What of a region is computed again in the backward; recompute_granularity of Megatron-LM.
enum class RecomputeGranularity { kFull, kSelective };

struct FullyShardedDataParallelPlugin {
  std::optional<int> fsdp_version;  // FSDP_VERSION, else 1

  // Version 1. FSDP_SHARDING_STRATEGY (a name, or 1 to 5), else FULL_SHARD.
  std::optional<ShardingStrategy> sharding_strategy;
  // Version 2: true is FULL_SHARD, false SHARD_GRAD_OP. FSDP_RESHARD_AFTER_FORWARD, else true.
  std::optional<bool> reshard_after_forward;

  // Which parameters form a unit. FSDP_AUTO_WRAP_POLICY, else NO_WRAP: units are cut by bytes.
  std::optional<AutoWrapPolicy> auto_wrap_policy;
  // TRANSFORMER_BASED_WRAP: names of module classes, without namespace and "Impl".
  // FSDP_TRANSFORMER_CLS_TO_WRAP, separated by commas.
  std::optional<std::vector<std::string>> transformer_cls_names_to_wrap;
  // SIZE_BASED_WRAP: fewest parameters of a unit. FSDP_MIN_NUM_PARAMS, else 0, which is NO_WRAP.
  std::optional<std::int64_t> min_num_params;

  // Modules that stay whole on every rank: a regular expression that the whole name of a module must
  // match ("encoder\\.layers\\.0"), or a list of names. Their gradients are averaged all the same.
  // FSDP_IGNORED_MODULES, an expression.
  std::optional<std::variant<std::string, std::vector<std::string>>> ignored_modules;

  // Whether rank 0's parameters and buffers are sent to all ranks by prepare().
  // FSDP_SYNC_MODULE_STATES, else true. False: each rank keeps its own values of its own shard.
  std::optional<bool> sync_module_states;
  // Rank 0 alone builds and reads the model: the others build it under init_empty_unless_main() (accel/big_model.h), and get
  // their shards from rank 0 in prepare(). Needs sync_module_states. FSDP_CPU_RAM_EFFICIENT_LOADING, else false.
  std::optional<bool> cpu_ram_efficient_loading;

  // "bf16", "fp16" or "fp32" is short for that dtype everywhere: parameters, reduction, and buffers (version 1) or outputs
  // (version 2). Unset: parameters stay as they are; mixed_precision of the Accelerator is autocast, with or without this.
  std::optional<std::variant<MixedPrecisionPolicy, std::string>> mixed_precision_policy;

  // A rank's shards are made of whole parameters instead of equal ranges of elements. For optimizers whose steps need whole
  // tensors (Muon, Shampoo, LAMB: classes of your own): their pieces have the shapes of the parameters. Costs balance: a rank
  // holds the largest parameter at least, and each unit takes as many times its fullest rank as there are ranks.
  bool shard_by_tensor = false;

  // Which ranks write the files of save_state(). FSDP_STATE_DICT_TYPE, by default SHARDED_STATE_DICT: every rank its own parts.
  // FULL: rank 0 all of them. The files are the same.
  std::optional<StateDictType> state_dict_type;
  std::optional<StateDictConfig> state_dict_config;        // of models
  std::optional<StateDictConfig> optim_state_dict_config;  // of optimizers

  // When units are fetched, with FULL_SHARD over several nodes. NO_PREFETCH fetches nothing ahead, unless forward_prefetch is true.
  // Otherwise the unit that was next in the last step is fetched ahead, in forward and in backward. FSDP_BACKWARD_PREFETCH,
  // FSDP_FORWARD_PREFETCH.
  std::optional<BackwardPrefetch> backward_prefetch;
  std::optional<bool> forward_prefetch;
  // True, the default: a rank keeps three units, of which one is fetched ahead. False: six, and four ahead.
  std::optional<bool> limit_all_gathers;
  // Over several nodes, on disk, or on GPUs: the bytes of units that a rank keeps at once, in place of limit_all_gathers' three or six. The
  // largest unit has to fit: less is refused on all ranks with kOutOfMemory, and the error says how much would do. An operator that
  // needs more at once gets it. Lower it where memory is short, raise it where units are fetched too often.
  // ACCEL_FSDP_MAX_LIVE_BYTES ("512M"), else unset. Ranks may differ.
  std::optional<std::uint64_t> max_live_bytes;
  // The model keeps its own parameters always: false changes nothing. FSDP_USE_ORIG_PARAMS.
  std::optional<bool> use_orig_params;

  // Keeps shards, gradients and optimizer states in host memory while the model computes on a GPU. FSDP_OFFLOAD_PARAMS. On a
  // CPU they are there always: true changes nothing, and accel says so once.
  std::optional<bool> cpu_offload;

  // A folder on a disk: the states of optimizers lie in files without a name there, and so do the parameters in full precision
  // that a mixed_precision_policy keeps beside the model. They come into memory for the step, part by part; the bits are the same.
  // Each rank may name another one. Needs room for this rank's states. docs/guides/offload.md. ZeRO: see accel/deepspeed.h.
  std::optional<std::string> offload_optimizer_nvme_path;
  // A folder on a disk: with FULL_SHARD or HYBRID_SHARD the parameters that are trained lie in a file without a name there, one for the
  // ranks of a node, and units of them are in memory while they are used; the bits are the same. With offload_optimizer_nvme_path
  // gradients lie there, too, from when they are complete until the step. For one process as well. What limit_all_gathers and
  // max_live_bytes say of several nodes holds. Rank 0's folder counts. docs/guides/offload.md. ZeRO: see accel/deepspeed.h.
  std::optional<std::string> offload_param_nvme_path;
  // With offload_optimizer_nvme_path: as DeepSpeedPlugin::step_in_backward.
  bool step_in_backward = false;

  // Activations of each unit are not kept for the backward: the unit is computed again there, with the same bits. Needs an
  // auto_wrap_policy, which says what a unit is. docs/guides/activations.md has what counts as a unit's computation, and limits.
  // FSDP_ACTIVATION_CHECKPOINTING, else false.
  std::optional<bool> activation_checkpointing;
  // With activation_checkpointing: what of a unit is computed again. kSelective keeps the results of matrix products, convolutions
  // and attention (KeptOperators::compute_intensive() of accel/activation_checkpoint.h): more memory than kFull and hardly
  // more time than without. ACCEL_FSDP_RECOMPUTE_GRANULARITY ("full", "selective"), else kFull.
  std::optional<RecomputeGranularity> recompute_granularity;
};

}  // namespace accel
