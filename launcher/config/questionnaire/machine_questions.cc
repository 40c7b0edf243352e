// Where the workers run: the kind of machine, how many of them, and what they have.

#include "launcher/config/questionnaire/question.h"

namespace accel::launcher {
namespace {

bool has_several_processes(const Answers& answers) {
  return answers.text("?machine").starts_with("MULTI_");
}

bool has_several_machines(const Answers& answers) {
  return answers.number("num_machines", 1) > 1;
}

std::string_view rank_objection(const ConfigValue& value, const Answers& answers) {
  const bool is_below = std::get<std::int64_t>(value.data) < answers.number("num_machines", 1);
  return is_below ? "" : "ranks begin with 0: expected less than the number of machines";
}

std::string_view processes_objection(const ConfigValue& value, const Answers& answers) {
  const auto processes = std::get<std::int64_t>(value.data);
  const auto machines = answers.number("num_machines", 1);
  if (processes % machines != 0)
    return "expected the number over all machines, the same on each of them";
  if (answers.distributed_type() == "MULTI_GPU" && processes < 2)
    return "one GPU needs no distributed training: expected 2 or more";
  return "";
}

constexpr Question kEnvironmentQuestions[] = {
    {.key = "compute_environment",
     .text = "In which compute environment do you run?",
     .kind = AnswerKind::kChoice,
     .fallback = "This machine",
     .choices = "This machine,AWS (Amazon SageMaker)",
     .values = "LOCAL_MACHINE,AMAZON_SAGEMAKER"},
};

constexpr Question kMachineQuestions[] = {
    {.key = "?machine",
     .text = "Which type of machine do you use?",
     .kind = AnswerKind::kChoice,
     .fallback = "No distributed training",
     .choices = "No distributed training,multi-CPU,multi-XPU,multi-HPU,multi-GPU,multi-NPU,"
                "multi-MLU,multi-SDAA,multi-MUSA,multi-NEURON,TPU",
     .values = "NO,MULTI_CPU,MULTI_XPU,MULTI_HPU,MULTI_GPU,MULTI_NPU,MULTI_MLU,MULTI_SDAA,"
               "MULTI_MUSA,MULTI_NEURON,XLA"},
    {.key = "num_machines",
     .text = "How many machines will you use?",
     .kind = AnswerKind::kInteger,
     .fallback = "1",
     .applies = has_several_processes,
     .least = 1},
    {.key = "machine_rank",
     .text = "What is the rank of this machine, from 0?",
     .kind = AnswerKind::kInteger,
     .fallback = "0",
     .applies = has_several_machines,
     .objects = rank_objection},
    {.key = "main_process_ip",
     .text = "What is the address of the machine of rank 0?",
     .applies = has_several_machines},
    {.key = "main_process_port",
     .text = "On which of its ports shall the machines meet?",
     .kind = AnswerKind::kInteger,
     .applies = has_several_machines,
     .least = 1,
     .most = 65535},
    {.key = "same_network",
     .text = "Are all machines in the same local network? Say no when they are in a cloud or in "
             "different networks.",
     .kind = AnswerKind::kYesNo,
     .fallback = "yes",
     .applies = has_several_machines},
    {.key = "rdzv_backend",
     .text = "Which rendezvous backend shall be used (static, c10d, ...)?",
     .fallback = "static",
     .applies =
         [](const Answers& answers) {
           return has_several_machines(answers) && !answers.is_on("same_network");
         }},
    {.key = "debug",
     .text = "Shall distributed operations be checked while they run? It prevents waiting for "
             "ever, and is slower.",
     .kind = AnswerKind::kYesNo,
     .fallback = "no",
     .applies = has_several_processes},
    {.key = "use_cpu",
     .text = "Do you want to train on the CPU only, even if there is a GPU?",
     .kind = AnswerKind::kYesNo,
     .fallback = "no",
     .applies = [](const Answers& answers) { return answers.text("?machine") == "NO"; }},
    {.key = "?use_mpirun",
     .text = "Shall mpirun start the processes?",
     .kind = AnswerKind::kYesNo,
     .fallback = "no",
     .applies = [](const Answers& answers) { return answers.text("?machine") == "MULTI_CPU"; }},
    {.key = "mpirun_config.mpirun_hostfile",
     .text = "Which hostfile shall mpirun use?",
     .fallback = "~/hostfile",
     .applies = [](const Answers& answers) { return answers.is_on("?use_mpirun"); }},
};

constexpr Question kProcessQuestions[] = {
    {.key = "num_processes",
     .text = "How many {devices} shall be used for training, over all machines?",
     .kind = AnswerKind::kInteger,
     .fallback = "{machines}",
     .applies = [](const Answers& answers) { return answers.distributed_type() != "NO"; },
     .objects = processes_objection,
     .least = 1},
    {.key = "gpu_ids",
     .text = "Which {devices} of this machine shall be used: ids between commas, or all?",
     .fallback = "all",
     .applies =
         [](const Answers& answers) {
           const std::string type = answers.distributed_type();
           return (is_one_of(type, kAcceleratorMachines) || type == "NO") &&
                  !answers.is_on("use_cpu");
         }},
    {.key = "enable_cpu_affinity",
     .text = "Shall each process be bound to the cores that are close to its GPU?",
     .kind = AnswerKind::kYesNo,
     .fallback = "no",
     .applies =
         [](const Answers& answers) {
           return is_one_of(answers.distributed_type(), "NO,MULTI_GPU") &&
                  !answers.is_on("use_cpu");
         }},
};

bool is_local(const Answers& answers) {
  return !answers.is_sagemaker();
}

}  // namespace

QuestionGroup environment_questions() {
  return {nullptr, kEnvironmentQuestions};
}

QuestionGroup machine_questions() {
  return {is_local, kMachineQuestions};
}

QuestionGroup process_questions() {
  return {is_local, kProcessQuestions};
}

}  // namespace accel::launcher
