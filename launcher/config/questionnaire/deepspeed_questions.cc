// DeepSpeed: a file of its own, or the stages of ZeRO and what goes with them.

#include "launcher/config/questionnaire/question.h"

namespace accel::launcher {
namespace {

bool is_chosen(const Answers& answers) {
  return answers.is_on("?use_deepspeed");
}

bool has_no_file(const Answers& answers) {
  return is_chosen(answers) && !answers.is_on("?deepspeed_file");
}

bool can_offload(const Answers& answers) {
  return answers.number("deepspeed_config.zero_stage", 0) >= 2;
}

bool spans_machines(const Answers& answers) {
  return is_chosen(answers) && answers.number("num_machines", 1) > 1;
}

// The launcher `standard` starts processes itself; the others read a hostfile.
bool has_hostfile(const Answers& answers) {
  const std::string launcher = answers.text("deepspeed_config.deepspeed_multinode_launcher");
  return !launcher.empty() && launcher != "standard";
}

std::string_view deepspeed_objection(const ConfigValue& value, const Answers& answers) {
  const bool is_neuron = answers.text("?machine") == "MULTI_NEURON";
  return is_neuron && std::get<bool>(value.data) ? "DeepSpeed does not run on Neuron devices" : "";
}

constexpr Question kDeepspeedQuestions[] = {
    {.key = "?use_deepspeed",
     .text = "Do you want to use DeepSpeed?",
     .kind = AnswerKind::kYesNo,
     .fallback = "no",
     .objects = deepspeed_objection},
    {.key = "?deepspeed_file",
     .text = "Is there a JSON file with the configuration of DeepSpeed?",
     .kind = AnswerKind::kYesNo,
     .fallback = "no",
     .applies = is_chosen},
    {.key = "deepspeed_config.deepspeed_config_file",
     .text = "Where is the JSON file?",
     .fallback = "none",
     .applies = [](const Answers& answers) { return answers.is_on("?deepspeed_file"); }},
    {.key = "deepspeed_config.zero_stage",
     .text = "Which stage of ZeRO?",
     .kind = AnswerKind::kChoice,
     .fallback = "2",
     .applies = has_no_file,
     .choices = "0,1,2,3"},
    {.key = "deepspeed_config.offload_optimizer_device",
     .text = "Where shall the optimizer's state be kept?",
     .kind = AnswerKind::kChoice,
     .fallback = "none",
     .applies = can_offload,
     .choices = "none,cpu,nvme"},
    {.key = "deepspeed_config.offload_param_device",
     .text = "Where shall parameters be kept?",
     .kind = AnswerKind::kChoice,
     .fallback = "none",
     .applies = can_offload,
     .choices = "none,cpu,nvme"},
    {.key = "deepspeed_config.offload_param_nvme_path",
     .text = "In which folder of an NVMe disk shall parameters be kept?",
     .fallback = "/nvme",
     .applies =
         [](const Answers& answers) {
           return answers.text("deepspeed_config.offload_param_device") == "nvme";
         }},
    {.key = "deepspeed_config.offload_optimizer_nvme_path",
     .text = "In which folder of an NVMe disk shall the optimizer's state be kept?",
     .fallback = "/nvme",
     .applies =
         [](const Answers& answers) {
           return answers.text("deepspeed_config.offload_optimizer_device") == "nvme";
         }},
    {.key = "deepspeed_config.gradient_accumulation_steps",
     .text = "Over how many steps does your script accumulate gradients?",
     .kind = AnswerKind::kInteger,
     .fallback = "1",
     .applies = has_no_file,
     .least = 1},
    {.key = "?clip_gradients",
     .text = "Shall gradients be clipped?",
     .kind = AnswerKind::kYesNo,
     .fallback = "no",
     .applies = has_no_file},
    {.key = "deepspeed_config.gradient_clipping",
     .text = "To which norm shall gradients be clipped?",
     .kind = AnswerKind::kNumber,
     .fallback = "1.0",
     .applies = [](const Answers& answers) { return answers.is_on("?clip_gradients"); }},
    {.key = "deepspeed_config.zero3_save_16bit_model",
     .text = "Shall stage 3 save the weights of the model in 16 bits?",
     .kind = AnswerKind::kYesNo,
     .fallback = "no",
     .applies =
         [](const Answers& answers) {
           return answers.number("deepspeed_config.zero_stage", 0) == 3;
         }},
    {.key = "deepspeed_config.zero3_init_flag",
     .text = "Shall `deepspeed.zero.Init` build the model, for models that no single memory holds "
             "(stage 3)?",
     .kind = AnswerKind::kYesNo,
     .fallback = "no",
     .applies = is_chosen},
    {.key = "?use_moe",
     .text = "Does the model have mixtures of experts (MoE)?",
     .kind = AnswerKind::kYesNo,
     .fallback = "no",
     .applies = is_chosen},
    {.key = "deepspeed_config.deepspeed_moe_layer_cls_names",
     .text = "What are the classes of its MoE layers: names between commas, as "
             "MixtralSparseMoeBlock?",
     .applies = [](const Answers& answers) { return answers.is_on("?use_moe"); }},
    {.key = "deepspeed_config.deepspeed_multinode_launcher",
     .text = "What shall start the processes on other machines?",
     .kind = AnswerKind::kChoice,
     .fallback = "pdsh",
     .applies = spans_machines,
     .choices = "pdsh,standard,openmpi,mvapich,mpich,nossh,slurm"},
    {.key = "deepspeed_config.deepspeed_hostfile",
     .text = "Where is the hostfile (lines as `gpu-01 slots=8`)?",
     .applies = has_hostfile},
    {.key = "?exclude",
     .text = "Shall hosts or GPUs of it be left out?",
     .kind = AnswerKind::kYesNo,
     .fallback = "no",
     .applies = has_hostfile},
    {.key = "deepspeed_config.deepspeed_exclusion_filter",
     .text = "Which (as gpu-01:0,1@gpu-02)?",
     .applies = [](const Answers& answers) { return answers.is_on("?exclude"); }},
    {.key = "?include",
     .text = "Shall only some hosts or GPUs of it be used?",
     .kind = AnswerKind::kYesNo,
     .fallback = "no",
     .applies = has_hostfile},
    {.key = "deepspeed_config.deepspeed_inclusion_filter",
     .text = "Which (as gpu-01:0,1@gpu-02)?",
     .applies = [](const Answers& answers) { return answers.is_on("?include"); }},
};

}  // namespace

QuestionGroup deepspeed_questions() {
  return {[](const Answers& answers) {
            const std::string machine = answers.text("?machine");
            return !answers.is_sagemaker() &&
                   (machine == "NO" || is_one_of(machine, kAcceleratorMachines));
          },
          kDeepspeedQuestions};
}

}  // namespace accel::launcher
