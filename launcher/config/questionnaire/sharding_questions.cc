// How a model is divided over the workers: FSDP, N-dimensional parallelism and Megatron-LM.

#include "launcher/config/questionnaire/question.h"

namespace accel::launcher {
namespace {

bool is_fsdp(const Answers& answers) {
  return answers.is_on("?use_fsdp");
}

bool is_version(const Answers& answers, int version) {
  return answers.number("fsdp_config.fsdp_version", 0) == version;
}

bool is_first_version(const Answers& answers) {
  return is_version(answers, 1);
}

bool is_second_version(const Answers& answers) {
  return is_version(answers, 2);
}

std::string_view fsdp_objection(const ConfigValue& value, const Answers& answers) {
  const bool is_neuron = answers.text("?machine") == "MULTI_NEURON";
  return is_neuron && std::get<bool>(value.data) ? "FSDP does not run on Neuron devices" : "";
}

constexpr Question kFsdpQuestions[] = {
    {.key = "?use_fsdp",
     .text = "Do you want to use FullyShardedDataParallel?",
     .kind = AnswerKind::kYesNo,
     .fallback = "no",
     .objects = fsdp_objection},
    {.key = "fsdp_config.fsdp_version",
     .text = "Which version of FSDP?",
     .kind = AnswerKind::kChoice,
     .fallback = "2",
     .applies = is_fsdp,
     .choices = "1,2"},
    {.key = "fsdp_config.fsdp_reshard_after_forward",
     .text = "What shall be divided over the workers?",
     .kind = AnswerKind::kChoice,
     .fallback = "FULL_SHARD",
     .applies = is_first_version,
     .choices = "FULL_SHARD,SHARD_GRAD_OP,NO_SHARD,HYBRID_SHARD,HYBRID_SHARD_ZERO2"},
    {.key = "fsdp_config.fsdp_reshard_after_forward",
     .text = "Shall parameters be divided again after the forward pass?",
     .kind = AnswerKind::kYesNo,
     .fallback = "yes",
     .applies = is_second_version},
    {.key = "fsdp_config.fsdp_offload_params",
     .text = "Shall parameters and gradients be kept in the memory of the CPU?",
     .kind = AnswerKind::kYesNo,
     .fallback = "no",
     .applies = is_fsdp},
    {.key = "fsdp_config.fsdp_auto_wrap_policy",
     .text = "What forms a unit that is gathered and reduced together?",
     .kind = AnswerKind::kChoice,
     .fallback = "TRANSFORMER_BASED_WRAP",
     .applies = is_fsdp,
     .choices = "TRANSFORMER_BASED_WRAP,SIZE_BASED_WRAP,NO_WRAP"},
    {.key = "?no_split_modules",
     .text = "Shall the model's own `_no_split_modules` be taken (Transformers only)?",
     .kind = AnswerKind::kYesNo,
     .fallback = "no",
     .applies =
         [](const Answers& answers) {
           return answers.text("fsdp_config.fsdp_auto_wrap_policy") == "TRANSFORMER_BASED_WRAP";
         }},
    {.key = "fsdp_config.fsdp_transformer_layer_cls_to_wrap",
     .text = "Which classes of layers form units: names between commas, as BertLayer or "
             "BertLayer,BertEmbeddings?",
     .applies =
         [](const Answers& answers) {
           return answers.has("?no_split_modules") && !answers.is_on("?no_split_modules");
         }},
    {.key = "fsdp_config.fsdp_min_num_params",
     .text = "How many parameters has a unit at least?",
     .kind = AnswerKind::kInteger,
     .fallback = "100000000",
     .applies =
         [](const Answers& answers) {
           return answers.text("fsdp_config.fsdp_auto_wrap_policy") == "SIZE_BASED_WRAP";
         },
     .most = 1'000'000'000},
    {.key = "fsdp_config.fsdp_backward_prefetch",
     .text = "When shall the parameters of the next unit be fetched in the backward pass?",
     .kind = AnswerKind::kChoice,
     .fallback = "BACKWARD_PRE",
     .applies = is_first_version,
     .choices = "BACKWARD_PRE,BACKWARD_POST,NO_PREFETCH"},
    {.key = "fsdp_config.fsdp_state_dict_type",
     .text = "Which type shall state dicts have?",
     .kind = AnswerKind::kChoice,
     .fallback = "FULL_STATE_DICT",
     .applies = is_first_version,
     .choices = "FULL_STATE_DICT,LOCAL_STATE_DICT,SHARDED_STATE_DICT"},
    {.key = "fsdp_config.fsdp_state_dict_type",
     .text = "Which type shall state dicts have?",
     .kind = AnswerKind::kChoice,
     .fallback = "SHARDED_STATE_DICT",
     .applies = is_second_version,
     .choices = "SHARDED_STATE_DICT,FULL_STATE_DICT"},
    {.key = "fsdp_config.fsdp_forward_prefetch",
     .text = "Shall the next unit be fetched during the forward pass?",
     .kind = AnswerKind::kYesNo,
     .fallback = "no",
     .applies = is_first_version},
    {.key = "fsdp_config.fsdp_use_orig_params",
     .text = "Shall modules keep parameters of their own (`use_orig_params`)?",
     .kind = AnswerKind::kYesNo,
     .fallback = "yes",
     .applies = is_first_version},
    {.key = "fsdp_config.fsdp_cpu_ram_efficient_loading",
     .text = "Shall only rank 0 load the model, to save memory of the CPU?",
     .kind = AnswerKind::kYesNo,
     .fallback = "yes",
     .applies = is_fsdp},
    {.key = "fsdp_config.fsdp_sync_module_states",
     .text = "Shall all workers begin with the parameters of rank 0?",
     .kind = AnswerKind::kYesNo,
     .fallback = "yes",
     .applies =
         [](const Answers& answers) {
           return is_first_version(answers) &&
                  !answers.is_on("fsdp_config.fsdp_cpu_ram_efficient_loading");
         }},
    {.key = "fsdp_config.fsdp_activation_checkpointing",
     .text = "Shall activations be computed again in the backward pass?",
     .kind = AnswerKind::kYesNo,
     .fallback = "no",
     .applies = is_fsdp},
};

bool is_parallel(const Answers& answers) {
  return answers.is_on("?use_parallelism");
}

constexpr Question kParallelismQuestions[] = {
    {.key = "?use_parallelism",
     .text = "Do you want to use several kinds of parallelism together?",
     .kind = AnswerKind::kYesNo,
     .fallback = "no"},
    {.key = "parallelism_config.parallelism_config_dp_replicate_size",
     .text = "How many copies of the model shall there be?",
     .kind = AnswerKind::kInteger,
     .fallback = "1",
     .applies = is_parallel,
     .least = 1},
    {.key = "parallelism_config.parallelism_config_dp_shard_size",
     .text = "Over how many processes shall FSDP divide a copy?",
     .kind = AnswerKind::kInteger,
     .fallback = "1",
     .applies = is_parallel,
     .least = 1},
    {.key = "parallelism_config.parallelism_config_tp_size",
     .text = "Over how many processes shall each layer be divided (tensor parallelism)?",
     .kind = AnswerKind::kInteger,
     .fallback = "1",
     .applies = is_parallel,
     .least = 1},
    {.key = "parallelism_config.parallelism_config_cp_size",
     .text = "Over how many processes shall each sequence be divided (context parallelism)?",
     .kind = AnswerKind::kInteger,
     .fallback = "1",
     .applies = is_parallel,
     .least = 1},
    {.key = "parallelism_config.parallelism_config_cp_comm_strategy",
     .text = "How shall parts of a sequence be exchanged?",
     .kind = AnswerKind::kChoice,
     .fallback = "allgather",
     .applies =
         [](const Answers& answers) {
           return answers.number("parallelism_config.parallelism_config_cp_size", 1) > 1;
         },
     .choices = "allgather,alltoall"},
};

bool is_megatron(const Answers& answers) {
  return answers.is_on("?use_megatron_lm");
}

constexpr Question kMegatronQuestions[] = {
    {.key = "?use_megatron_lm",
     .text = "Do you want to use Megatron-LM?",
     .kind = AnswerKind::kYesNo,
     .fallback = "no"},
    {.key = "megatron_lm_config.megatron_lm_tp_degree",
     .text = "What is the degree of tensor parallelism?",
     .kind = AnswerKind::kInteger,
     .fallback = "1",
     .applies = is_megatron,
     .least = 1},
    {.key = "megatron_lm_config.megatron_lm_sequence_parallelism",
     .text = "Shall sequences be divided too (sequence parallelism)?",
     .kind = AnswerKind::kYesNo,
     .fallback = "yes",
     .applies =
         [](const Answers& answers) {
           return answers.number("megatron_lm_config.megatron_lm_tp_degree", 1) > 1;
         }},
    {.key = "megatron_lm_config.megatron_lm_pp_degree",
     .text = "What is the degree of pipeline parallelism?",
     .kind = AnswerKind::kInteger,
     .fallback = "1",
     .applies = is_megatron,
     .least = 1},
    {.key = "megatron_lm_config.megatron_lm_num_micro_batches",
     .text = "How many micro-batches?",
     .kind = AnswerKind::kInteger,
     .fallback = "1",
     .applies =
         [](const Answers& answers) {
           return answers.number("megatron_lm_config.megatron_lm_pp_degree", 1) > 1;
         },
     .least = 1},
    {.key = "megatron_lm_config.megatron_lm_recompute_activations",
     .text = "Shall some activations be computed again in the backward pass?",
     .kind = AnswerKind::kYesNo,
     .fallback = "yes",
     .applies = is_megatron},
    {.key = "megatron_lm_config.megatron_lm_use_distributed_optimizer",
     .text = "Shall the optimizer's state be divided over data-parallel ranks?",
     .kind = AnswerKind::kYesNo,
     .fallback = "yes",
     .applies = is_megatron},
    {.key = "megatron_lm_config.megatron_lm_gradient_clipping",
     .text = "To which global norm shall gradients be clipped (0: not at all)?",
     .kind = AnswerKind::kNumber,
     .fallback = "1.0",
     .applies = is_megatron},
};

}  // namespace

QuestionGroup fsdp_questions() {
  return {[](const Answers& answers) {
            return is_one_of(answers.text("?machine"), kAcceleratorMachines) &&
                   !answers.is_on("?use_deepspeed");
          },
          kFsdpQuestions};
}

QuestionGroup parallelism_questions() {
  return {is_second_version, kParallelismQuestions};
}

QuestionGroup megatron_questions() {
  return {[](const Answers& answers) {
            return answers.text("?machine") == "MULTI_GPU" && !answers.is_on("?use_deepspeed") &&
                   !is_fsdp(answers);
          },
          kMegatronQuestions};
}

}  // namespace accel::launcher
