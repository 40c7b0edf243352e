// How the workers compute: torch.compile, mixed precision and the backends of fp8.

#include "launcher/config/questionnaire/question.h"

namespace accel::launcher {
namespace {

bool customizes_dynamo(const Answers& answers) {
  return answers.is_on("?customize_dynamo");
}

constexpr Question kDynamoQuestions[] = {
    {.key = "?use_dynamo",
     .text = "Shall your script be optimized by torch.compile?",
     .kind = AnswerKind::kYesNo,
     .fallback = "no"},
    {.key = "dynamo_config.dynamo_backend",
     .text = "With which backend?",
     .kind = AnswerKind::kChoice,
     .fallback = "inductor",
     .applies = [](const Answers& answers) { return answers.is_on("?use_dynamo"); },
     .choices = "eager,aot_eager,inductor,aot_ts_nvfuser,nvprims_nvfuser,cudagraphs,ofi,fx2trt,"
                "onnxrt,tensorrt,aot_torchxla_trace_once,tvm",
     .values = "EAGER,AOT_EAGER,INDUCTOR,AOT_TS_NVFUSER,NVPRIMS_NVFUSER,CUDAGRAPHS,OFI,FX2TRT,"
               "ONNXRT,TENSORRT,AOT_TORCHXLA_TRACE_ONCE,TVM"},
    {.key = "?customize_dynamo",
     .text = "Do you want to change the defaults of torch.compile?",
     .kind = AnswerKind::kYesNo,
     .fallback = "no",
     .applies = [](const Answers& answers) { return answers.is_on("?use_dynamo"); }},
    {.key = "dynamo_config.dynamo_mode",
     .text = "Which mode?",
     .kind = AnswerKind::kChoice,
     .fallback = "default",
     .applies = customizes_dynamo,
     .choices = "default,reduce-overhead,max-autotune"},
    {.key = "dynamo_config.dynamo_use_fullgraph",
     .text = "Shall whole graphs be compiled only, never parts of them?",
     .kind = AnswerKind::kYesNo,
     .fallback = "no",
     .applies = customizes_dynamo},
    {.key = "dynamo_config.dynamo_use_dynamic",
     .text = "Shall shapes be traced as dynamic?",
     .kind = AnswerKind::kYesNo,
     .fallback = "no",
     .applies = customizes_dynamo},
    {.key = "dynamo_config.dynamo_use_regional_compilation",
     .text = "Shall repeated blocks be compiled once (regional compilation)?",
     .kind = AnswerKind::kYesNo,
     .fallback = "no",
     .applies = customizes_dynamo},
};

constexpr Question kPrecisionQuestions[] = {
    {.key = "mixed_precision",
     .text = "Which mixed precision shall be used?",
     .kind = AnswerKind::kChoice,
     .fallback = "no",
     .choices = "no,fp16,bf16,fp8"},
};

bool is_backend(const Answers& answers, std::string_view backend) {
  return answers.text("fp8_config.backend") == backend;
}
bool is_te(const Answers& answers) {
  return is_backend(answers, "TE");
}
bool is_ao(const Answers& answers) {
  return is_backend(answers, "AO");
}
bool overrides_precision(const Answers& answers) {
  return answers.is_on("?override_precision");
}

// The keys are those that `accelerate launch` reads; those of the peer's own questionnaire are lost on it
// (amax_history_length, amax_compute_algorithm, optimization_level).
constexpr Question kFp8Questions[] = {
    {.key = "fp8_config.backend",
     .text = "Which library shall compute in fp8?",
     .kind = AnswerKind::kChoice,
     .fallback = "ao",
     .choices = "ao,te,msamp",
     .values = "AO,TE,MSAMP"},
    {.key = "fp8_config.use_autocast_during_eval",
     .text = "Shall evaluation compute in fp8 too? Metrics are usually better without.",
     .kind = AnswerKind::kYesNo,
     .fallback = "no",
     .applies = is_te},
    {.key = "fp8_config.margin",
     .text = "What margin shall the scaling of gradients have?",
     .kind = AnswerKind::kInteger,
     .fallback = "0",
     .applies = is_te},
    {.key = "fp8_config.interval",
     .text = "After how many steps shall the scaling factor be computed again?",
     .kind = AnswerKind::kInteger,
     .fallback = "1",
     .applies = is_te,
     .least = 1},
    {.key = "fp8_config.fp8_format",
     .text = "Which format shall weights have?",
     .kind = AnswerKind::kChoice,
     .fallback = "HYBRID",
     .applies = is_te,
     .choices = "HYBRID,E4M3,E5M2"},
    {.key = "fp8_config.amax_history_len",
     .text = "How many steps shall the scaling factor look back?",
     .kind = AnswerKind::kInteger,
     .fallback = "1024",
     .applies = is_te,
     .least = 1},
    {.key = "fp8_config.amax_compute_algo",
     .text = "How shall the scaling factor be found in them?",
     .kind = AnswerKind::kChoice,
     .fallback = "max",
     .applies = is_te,
     .choices = "max,most_recent"},
    {.key = "?override_precision",
     .text = "Shall some of fprop, dgrad and wgrad compute in higher precision?",
     .kind = AnswerKind::kYesNo,
     .fallback = "no",
     .applies = is_te},
    {.key = "?override_fprop",
     .text = "Shall fprop?",
     .kind = AnswerKind::kYesNo,
     .fallback = "no",
     .applies = overrides_precision},
    {.key = "?override_dgrad",
     .text = "Shall dgrad?",
     .kind = AnswerKind::kYesNo,
     .fallback = "no",
     .applies = overrides_precision},
    {.key = "?override_wgrad",
     .text = "Shall wgrad?",
     .kind = AnswerKind::kYesNo,
     .fallback = "no",
     .applies = overrides_precision},
    {.key = "fp8_config.opt_level",
     .text = "Which optimization level shall be used?",
     .kind = AnswerKind::kChoice,
     .fallback = "O2",
     .applies = [](const Answers& answers) { return is_backend(answers, "MSAMP"); },
     .choices = "O1,O2"},
    {.key = "fp8_config.enable_fsdp_float8_all_gather",
     .text = "Shall FSDP 2 gather in fp8? It is faster.",
     .kind = AnswerKind::kYesNo,
     .fallback = "yes",
     .applies = is_ao},
    {.key = "fp8_config.pad_inner_dim",
     .text = "Shall the inner dim of matrices be padded? Some kernels need it; it takes memory.",
     .kind = AnswerKind::kYesNo,
     .fallback = "yes",
     .applies = is_ao},
};

}  // namespace

QuestionGroup dynamo_questions() {
  return {nullptr, kDynamoQuestions};
}

QuestionGroup precision_questions() {
  return {[](const Answers& answers) {
            return answers.text("?machine") != "XLA" && !answers.is_on("?deepspeed_file");
          },
          kPrecisionQuestions};
}

QuestionGroup fp8_questions() {
  return {[](const Answers& answers) {
            return !answers.is_sagemaker() && answers.text("mixed_precision") == "fp8";
          },
          kFp8Questions};
}

}  // namespace accel::launcher
