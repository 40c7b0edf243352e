// The options of Megatron-LM, for Python programs.
//
// The peer takes any text behind its truth values for True, `false` too; here they are what they say.

#include "launcher/flags/strategies/option.h"

namespace accel::launcher {
namespace {

constexpr std::string_view kMegatronGroup = "Megatron-LM (with --use_megatron_lm)";
constexpr OptionMaker kMakeMegatron = {kMegatronGroup, TruthForm::kPython};
constexpr OptionMaker kMakeTypedMegatron = {kMegatronGroup, TruthForm::kTyped};

constexpr Option kMegatronOptions[] = {
    kMakeMegatron
        .integer("megatron_lm_tp_degree",
                 "MEGATRON_LM_TP_DEGREE",
                 "1",
                 "Processes that divide each layer. Default: 1.")
        .at_least(1),
    kMakeMegatron
        .integer("megatron_lm_pp_degree",
                 "MEGATRON_LM_PP_DEGREE",
                 "1",
                 "Stages that layers are divided into. Default: 1.")
        .at_least(1),
    kMakeMegatron
        .integer("megatron_lm_num_micro_batches",
                 "MEGATRON_LM_NUM_MICRO_BATCHES",
                 "",
                 "Micro batches of the pipeline.")
        .at_least(1),
    kMakeMegatron
        .integer("megatron_lm_decoder_last_pipeline_num_layers",
                 "MEGATRON_LM_DECODER_LAST_PIPELINE_NUM_LAYERS",
                 "",
                 "Layers of the last stage.")
        .at_least(1),
    kMakeTypedMegatron.boolean("megatron_lm_sequence_parallelism",
                               "MEGATRON_LM_SEQUENCE_PARALLELISM",
                               "",
                               "Divide activations along the sequence too."),
    kMakeTypedMegatron.boolean("megatron_lm_recompute_activations",
                               "MEGATRON_LM_RECOMPUTE_ACTIVATIONS",
                               "",
                               "Compute activations again in the backward pass."),
    kMakeMegatron.choice("megatron_lm_recompute_granularity",
                         "full,selective",
                         "MEGATRON_LM_RECOMPUTE_GRANULARITY",
                         "",
                         "What of a layer is computed again."),
    kMakeMegatron.choice("megatron_lm_recompute_method",
                         "uniform,block",
                         "MEGATRON_LM_RECOMPUTE_METHOD",
                         "",
                         "Which layers are computed again."),
    kMakeMegatron
        .integer("megatron_lm_recompute_num_layers",
                 "MEGATRON_LM_RECOMPUTE_NUM_LAYERS",
                 "",
                 "How many layers are computed again together.")
        .at_least(1),
    kMakeTypedMegatron.boolean("megatron_lm_use_distributed_optimizer",
                               "MEGATRON_LM_USE_DISTRIBUTED_OPTIMIZER",
                               "",
                               "Divide optimizer states over copies."),
    kMakeMegatron.number("megatron_lm_gradient_clipping",
                         "MEGATRON_LM_GRADIENT_CLIPPING",
                         "1.0",
                         "Largest norm of the gradients; 0 never clips. Default: 1.0."),
    kMakeMegatron.text("megatron_lm_attention_backend",
                       "NAME",
                       "MEGATRON_LM_ATTENTION_BACKEND",
                       "Kernels of attention."),
    kMakeMegatron
        .integer("megatron_lm_expert_model_parallel_size",
                 "MEGATRON_LM_EXPERT_MODEL_PARALLEL_SIZE",
                 "",
                 "Processes that divide experts.")
        .at_least(1),
    kMakeMegatron
        .integer("megatron_lm_context_parallel_size",
                 "MEGATRON_LM_CONTEXT_PARALLEL_SIZE",
                 "",
                 "Processes that divide sequences.")
        .at_least(1),
    kMakeMegatron
        .integer("megatron_lm_expert_tensor_parallel_size",
                 "MEGATRON_LM_EXPERT_TENSOR_PARALLEL_SIZE",
                 "",
                 "Processes that divide each expert.")
        .at_least(1),
    kMakeMegatron.number("megatron_lm_attention_dropout",
                         "MEGATRON_LM_ATTENTION_DROPOUT",
                         "",
                         "Dropout of attention."),
    kMakeMegatron.number("megatron_lm_hidden_dropout",
                         "MEGATRON_LM_HIDDEN_DROPOUT",
                         "",
                         "Dropout of hidden states."),
    kMakeTypedMegatron.boolean("megatron_lm_attention_softmax_in_fp32",
                               "MEGATRON_LM_ATTENTION_SOFTMAX_IN_FP32",
                               "",
                               "Compute the softmax of attention in fp32."),
    kMakeTypedMegatron.boolean("megatron_lm_calculate_per_token_loss",
                               "MEGATRON_LM_CALCULATE_PER_TOKEN_LOSS",
                               "",
                               "Divide the loss by tokens."),
    kMakeTypedMegatron.boolean("megatron_lm_use_rotary_position_embeddings",
                               "MEGATRON_LM_USE_ROTARY_POSITION_EMBEDDINGS",
                               "",
                               "Rotary position embeddings."),
    kMakeMegatron.boolean("megatron_lm_use_custom_fsdp",
                          "MEGATRON_LM_USE_CUSTOM_FSDP",
                          "False",
                          "Megatron's own FSDP. Default: false."),
    kMakeMegatron.boolean("megatron_lm_no_load_optim",
                          "MEGATRON_LM_NO_LOAD_OPTIM",
                          "False",
                          "Leave the optimizer out of loading. Default: false."),
    kMakeMegatron.boolean("megatron_lm_no_save_optim",
                          "MEGATRON_LM_NO_SAVE_OPTIM",
                          "False",
                          "Leave the optimizer out of saving. Default: false."),
    kMakeMegatron.boolean("megatron_lm_eod_mask_loss",
                          "MEGATRON_LM_EOD_MASK_LOSS",
                          "False",
                          "No loss for ends of documents. Default: false."),
    kMakeMegatron.boolean("megatron_lm_optimizer_cpu_offload",
                          "MEGATRON_LM_OPTIMIZER_CPU_OFFLOAD",
                          "False",
                          "Keep optimizer states in the memory of the CPU. Default: false."),
    kMakeMegatron.boolean("megatron_lm_use_precision_aware_optimizer",
                          "MEGATRON_LM_USE_PRECISION_AWARE_OPTIMIZER",
                          "False",
                          "Optimizer states in the precision they need. Default: false."),
    kMakeMegatron.boolean("megatron_lm_overlap_cpu_optimizer_d2h_h2d",
                          "MEGATRON_LM_OVERLAP_CPU_OPTIMIZER_D2H_H2D",
                          "False",
                          "Copy to and from the CPU while computing. Default: false."),
};

constexpr Strategy kMegatron = {
    .name = "Megatron-LM",
    .chooser = {"use_megatron_lm",
                0,
                FlagKind::kSwitch,
                "",
                "",
                kMegatronGroup,
                "Train with Megatron-LM. Programs of libaccel refuse it."},
    .variable = "ACCELERATE_USE_MEGATRON_LM",
    .section = "megatron_lm_config",
    .prefix = "megatron_lm_",
    .options = kMegatronOptions,
};

}  // namespace

const Strategy& megatron_strategy() {
  return kMegatron;
}

}  // namespace accel::launcher
