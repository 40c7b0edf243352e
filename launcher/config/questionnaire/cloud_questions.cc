// Machines of others: TPU pods and Amazon SageMaker.

#include "launcher/config/questionnaire/question.h"

namespace accel::launcher {
namespace {

bool is_cluster(const Answers& answers) {
  return answers.is_on("tpu_use_cluster");
}

bool types_commands(const Answers& answers) {
  return answers.is_on("?tpu_commands") && !answers.is_on("?tpu_command_file");
}

constexpr Question kTpuQuestions[] = {
    {.key = "main_training_function",
     .text = "Which function of your script shall run on each core?",
     .fallback = "main"},
    {.key = "tpu_use_cluster",
     .text = "Do you use a TPU cluster?",
     .kind = AnswerKind::kYesNo,
     .fallback = "no"},
    {.key = "tpu_name", .text = "What is its name?", .applies = is_cluster},
    {.key = "tpu_zone", .text = "What is its zone?", .applies = is_cluster},
    {.key = "tpu_use_sudo",
     .text = "Shall scripts run with sudo there?",
     .kind = AnswerKind::kYesNo,
     .fallback = "no",
     .applies = is_cluster},
    {.key = "?tpu_commands",
     .text = "Shall commands run on each pod at its start?",
     .kind = AnswerKind::kYesNo,
     .fallback = "no",
     .applies = is_cluster},
    {.key = "?tpu_command_file",
     .text = "Are they in a script of the shell?",
     .kind = AnswerKind::kYesNo,
     .fallback = "no",
     .applies = [](const Answers& answers) { return answers.is_on("?tpu_commands"); }},
    {.key = "command_file",
     .text = "Where is the script?",
     .applies = [](const Answers& answers) { return answers.is_on("?tpu_command_file"); }},
    {.key = "commands",
     .text = "A command:",
     .kind = AnswerKind::kListItem,
     .applies = types_commands},
    {.key = "?another_command",
     .text = "Another command?",
     .kind = AnswerKind::kYesNo,
     .fallback = "no",
     .applies = types_commands,
     .again = "commands"},
    {.key = "tpu_vm",
     .text = "Without an instance group: which Compute VM instances, names between commas?",
     .kind = AnswerKind::kList,
     .applies = is_cluster},
    {.key = "tpu_env",
     .text = "Which variables shall the environment of each pod have, between commas?",
     .kind = AnswerKind::kList,
     .applies = is_cluster},
};

constexpr Question kAccountQuestions[] = {
    {.key = "?credentials",
     .text = "How do you authorize at AWS?",
     .kind = AnswerKind::kChoice,
     .fallback = "AWS profile",
     .choices = "AWS profile,Keys (--aws_access_key_id and --aws_secret_access_key at the launch)",
     .values = "profile,keys"},
    {.key = "profile",
     .text = "What is the name of the AWS profile?",
     .fallback = "default",
     .applies = [](const Answers& answers) { return answers.text("?credentials") == "profile"; }},
    {.key = "region", .text = "Which AWS region?", .fallback = "us-east-1"},
    {.key = "?role",
     .text = "Which IAM role shall execute training jobs?",
     .kind = AnswerKind::kChoice,
     .fallback = "One that exists",
     .choices = "One that exists,A new one (the commands that create it are shown)",
     .values = "existing,new"},
    {.key = "iam_role_name",
     .text = "What is the name of the IAM role?",
     .applies = [](const Answers& answers) { return answers.text("?role") == "existing"; }},
    {.key = "?own_image",
     .text = "Do you have a Docker image of your own?",
     .kind = AnswerKind::kYesNo,
     .fallback = "no"},
    {.key = "image_uri",
     .text = "What is its name?",
     .applies = [](const Answers& answers) { return answers.is_on("?own_image"); }},
    {.key = "?inputs",
     .text = "Shall SageMaker hand data to the job by input channels?",
     .kind = AnswerKind::kYesNo,
     .fallback = "no"},
    {.key = "sagemaker_inputs_file",
     .text = "Where is the TSV file of channels (columns channel_name, data_location)?",
     .applies = [](const Answers& answers) { return answers.is_on("?inputs"); }},
    {.key = "?metrics",
     .text = "Shall SageMaker find metrics in the output?",
     .kind = AnswerKind::kYesNo,
     .fallback = "no"},
    {.key = "sagemaker_metrics_file",
     .text = "Where is the TSV file of metrics (columns metric_name, metric_regex)?",
     .applies = [](const Answers& answers) { return answers.is_on("?metrics"); }},
    {.key = "distributed_type",
     .text = "How do the processes work together?",
     .kind = AnswerKind::kChoice,
     .fallback = "No distributed training",
     .choices = "No distributed training,Data parallelism",
     .values = "NO,DATA_PARALLEL"},
};

bool is_distributed(const Answers& answers) {
  return answers.text("distributed_type") != "NO";
}

constexpr Question kJobQuestions[] = {
    {.key = "ec2_instance_type",
     .text = "Which EC2 instance type?",
     .kind = AnswerKind::kChoice,
     .fallback = "ml.p3.16xlarge",
     .applies = is_distributed,
     .choices = "ml.p3.16xlarge,ml.p3dn.24xlarge,ml.p4dn.24xlarge"},
    {.key = "ec2_instance_type",
     .text = "Which EC2 instance type?",
     .fallback = "ml.p3.2xlarge",
     .applies = [](const Answers& answers) { return !is_distributed(answers); }},
    {.key = "debug",
     .text = "Shall distributed operations be checked while they run? It prevents waiting for "
             "ever, and is slower.",
     .kind = AnswerKind::kYesNo,
     .fallback = "no",
     .applies = is_distributed},
    {.key = "num_machines",
     .text = "How many machines?",
     .kind = AnswerKind::kInteger,
     .fallback = "1",
     .applies = is_distributed,
     .least = 1},
};

bool runs_on_sagemaker(const Answers& answers) {
  return answers.is_sagemaker();
}

}  // namespace

QuestionGroup tpu_questions() {
  return {[](const Answers& answers) { return answers.text("?machine") == "XLA"; }, kTpuQuestions};
}

QuestionGroup account_questions() {
  return {runs_on_sagemaker, kAccountQuestions};
}

QuestionGroup sagemaker_job_questions() {
  return {runs_on_sagemaker, kJobQuestions};
}

}  // namespace accel::launcher
