// The sizes of N-dimensional parallelism, for Python programs on FSDP version 2, or on DeepSpeed for
// sequences.

#include "launcher/flags/strategies/option.h"

namespace accel::launcher {
namespace {

constexpr std::string_view kParallelismGroup = "Parallelism (with --use_parallelism_config)";
constexpr OptionMaker kMakeParallelism = {kParallelismGroup, TruthForm::kPython};

constexpr Option kParallelismOptions[] = {
    kMakeParallelism
        .integer("parallelism_config_dp_replicate_size",
                 "PARALLELISM_CONFIG_DP_REPLICATE_SIZE",
                 "1",
                 "Copies of the model. Default: 1.")
        .at_least(1),
    kMakeParallelism
        .integer("parallelism_config_dp_shard_size",
                 "PARALLELISM_CONFIG_DP_SHARD_SIZE",
                 "1",
                 "Processes that divide a copy. Default: 1.")
        .at_least(1),
    kMakeParallelism
        .integer("parallelism_config_tp_size",
                 "PARALLELISM_CONFIG_TP_SIZE",
                 "1",
                 "Processes that divide each layer. Default: 1.")
        .at_least(1),
    kMakeParallelism
        .integer("parallelism_config_cp_size",
                 "PARALLELISM_CONFIG_CP_SIZE",
                 "1",
                 "Processes that divide each sequence, by context. Default: 1.")
        .at_least(1),
    kMakeParallelism.choice("parallelism_config_cp_backend",
                            "torch",
                            "PARALLELISM_CONFIG_CP_BACKEND",
                            "torch",
                            "Backend of context parallelism. Default: torch."),
    kMakeParallelism.choice("parallelism_config_cp_comm_strategy",
                            "allgather,alltoall",
                            "PARALLELISM_CONFIG_CP_COMM_STRATEGY",
                            "allgather",
                            "How parts of a sequence are exchanged. Default: allgather."),
    kMakeParallelism
        .integer("parallelism_config_sp_size",
                 "PARALLELISM_CONFIG_SP_SIZE",
                 "1",
                 "Processes that divide each sequence, by heads. Default: 1.")
        .at_least(1),
    kMakeParallelism.choice("parallelism_config_sp_backend",
                            "deepspeed",
                            "PARALLELISM_CONFIG_SP_BACKEND",
                            "deepspeed",
                            "Backend of sequence parallelism. Default: deepspeed."),
    kMakeParallelism
        .integer("parallelism_config_sp_seq_length",
                 "PARALLELISM_CONFIG_SP_SEQ_LENGTH",
                 "None",
                 "Length of the sequences, when they all have one.")
        .at_least(1),
    kMakeParallelism.boolean("parallelism_config_sp_seq_length_is_variable",
                             "PARALLELISM_CONFIG_SP_SEQ_LENGTH_IS_VARIABLE",
                             "True",
                             "Whether lengths of sequences differ. Default: true."),
    kMakeParallelism.choice("parallelism_config_sp_attn_implementation",
                            "sdpa,eager,flash_attention_2,flash_attention_3",
                            "PARALLELISM_CONFIG_SP_ATTN_IMPLEMENTATION",
                            "sdpa",
                            "Kernels of attention. Default: sdpa."),
};

constexpr Strategy kParallelism = {
    .name = "parallelism configuration",
    .chooser = {"use_parallelism_config",
                0,
                FlagKind::kSwitch,
                "",
                "",
                kParallelismGroup,
                "Lay the workers out along several axes; needs --use_fsdp --fsdp_version 2. "
                "Programs of libaccel refuse axes that divide layers or sequences."},
    .variable = "ACCELERATE_USE_PARALLELISM_CONFIG",
    .section = "parallelism_config",
    .prefix = "parallelism_config_",
    .options = kParallelismOptions,
};

}  // namespace

const Strategy& parallelism_strategy() {
  return kParallelism;
}

}  // namespace accel::launcher
