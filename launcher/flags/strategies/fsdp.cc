// The options of FSDP. What they mean to programs of libaccel is told in docs/guides/sharding.md.

#include "launcher/flags/strategies/option.h"

namespace accel::launcher {
namespace {

constexpr std::string_view kFsdpGroup = "FSDP (with --use_fsdp)";
constexpr OptionMaker kMakeFsdp = {kFsdpGroup, TruthForm::kLower};

constexpr Option kFsdpOptions[] = {
    kMakeFsdp.choice("fsdp_version", "1,2", "FSDP_VERSION", "1", "Version of FSDP. Default: 1."),
    kMakeFsdp.choice("fsdp_sharding_strategy",
                     "FULL_SHARD,SHARD_GRAD_OP,NO_SHARD,HYBRID_SHARD,HYBRID_SHARD_ZERO2,1,2,3,4,5",
                     "FSDP_SHARDING_STRATEGY",
                     "FULL_SHARD",
                     "Version 1: what is divided over the ranks. Default: FULL_SHARD."),
    kMakeFsdp
        .choice("fsdp_reshard_after_forward",
                "true,false,FULL_SHARD,SHARD_GRAD_OP,NO_SHARD,HYBRID_SHARD,HYBRID_SHARD_ZERO2",
                "FSDP_RESHARD_AFTER_FORWARD",
                "true",
                "Version 2: divide parameters again after the forward pass. With version 1 it may "
                "name a strategy. Default: true.")
        .lowered(),
    kMakeFsdp.choice("fsdp_auto_wrap_policy",
                     "TRANSFORMER_BASED_WRAP,SIZE_BASED_WRAP,NO_WRAP",
                     "FSDP_AUTO_WRAP_POLICY",
                     "",
                     "What forms a unit that is gathered and reduced together."),
    kMakeFsdp.text("fsdp_transformer_layer_cls_to_wrap",
                   "CLASSES",
                   "FSDP_TRANSFORMER_CLS_TO_WRAP",
                   "TRANSFORMER_BASED_WRAP: class names of the layers, separated by commas."),
    kMakeFsdp.integer("fsdp_min_num_params",
                      "FSDP_MIN_NUM_PARAMS",
                      "100000000",
                      "SIZE_BASED_WRAP: the fewest parameters of a unit. Default: 100000000."),
    kMakeFsdp
        .choice("fsdp_backward_prefetch",
                "BACKWARD_PRE,BACKWARD_POST,NO_PREFETCH",
                "FSDP_BACKWARD_PREFETCH",
                "",
                "When the parameters of the next unit are fetched in the backward pass.")
        .once_called("fsdp_backward_prefetch_policy"),
    kMakeFsdp.boolean("fsdp_forward_prefetch",
                      "FSDP_FORWARD_PREFETCH",
                      "false",
                      "Fetch the next unit during the forward pass. Default: false."),
    kMakeFsdp.choice("fsdp_state_dict_type",
                     "FULL_STATE_DICT,LOCAL_STATE_DICT,SHARDED_STATE_DICT",
                     "FSDP_STATE_DICT_TYPE",
                     "",
                     "Which ranks write checkpoints: rank 0 whole tensors, or each rank its part."),
    kMakeFsdp.boolean(
        "fsdp_offload_params",
        "FSDP_OFFLOAD_PARAMS",
        "false",
        "Keep parameters and gradients in the memory of the CPU. Programs of libaccel have them "
        "there always. Default: false."),
    kMakeFsdp.boolean("fsdp_use_orig_params",
                      "FSDP_USE_ORIG_PARAMS",
                      "true",
                      "Version 1: modules keep parameters of their own. Default: true."),
    kMakeFsdp.boolean(
        "fsdp_cpu_ram_efficient_loading",
        "FSDP_CPU_RAM_EFFICIENT_LOADING",
        "true",
        "Only rank 0 loads the model. Needs --fsdp_sync_module_states true. Default: true."),
    kMakeFsdp.boolean("fsdp_sync_module_states",
                      "FSDP_SYNC_MODULE_STATES",
                      "true",
                      "All ranks begin with the values of rank 0. Default: true."),
    kMakeFsdp.boolean("fsdp_activation_checkpointing",
                      "FSDP_ACTIVATION_CHECKPOINTING",
                      "false",
                      "Compute activations of each wrapped unit again in the backward pass. Needs "
                      "--fsdp_auto_wrap_policy. Default: false."),
    kMakeFsdp.choice("fsdp_recompute_granularity",
                     "full,selective",
                     "ACCEL_FSDP_RECOMPUTE_GRANULARITY",
                     "",
                     "What of a unit --fsdp_activation_checkpointing computes again; selective "
                     "keeps results of matrix products, convolutions and attention. Default: "
                     "full."),
    kMakeFsdp.boolean(
        "fsdp_activation_checkpointing_offload",
        "FSDP_ACTIVATION_CHECKPOINTING_OFFLOAD",
        "false",
        "Keep checkpointed activations in the memory of the CPU; programs of libaccel "
        "have them there always. Default: false."),
    kMakeFsdp.text("fsdp_ignored_modules",
                   "REGEX",
                   "FSDP_IGNORED_MODULES",
                   "A regular expression of names: those modules are not divided."),
    kMakeFsdp.text(
        "fsdp_max_live_bytes",
        "BYTES",
        "ACCEL_FSDP_MAX_LIVE_BYTES",
        "FULL_SHARD over several machines: bytes of parameters that a worker keeps at once, "
        "as 512M or 2G. Default: three units."),
};

constexpr Strategy kFsdp = {
    .name = "FSDP",
    .chooser = {"use_fsdp",
                0,
                FlagKind::kSwitch,
                "",
                "",
                kFsdpGroup,
                "Divide model, gradients and optimizer over the workers."},
    .variable = "ACCELERATE_USE_FSDP",
    .section = "fsdp_config",
    .prefix = "fsdp_",
    .options = kFsdpOptions,
};

}  // namespace

const Strategy& fsdp_strategy() {
  return kFsdp;
}

}  // namespace accel::launcher
