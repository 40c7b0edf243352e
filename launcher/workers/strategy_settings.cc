#include "launcher/workers/strategy_settings.h"

#include <array>
#include <optional>
#include <utility>

#include "launcher/flags/strategies/option_value.h"
#include "launcher/workers/strategy_rules.h"
#include "runtime/text/letter_case.h"

namespace accel::launcher {
namespace {

// What was typed for an option, as its variable has it; a fault when it cannot be used.
std::optional<std::string> typed_value(const Option& option,
                                       const CommandLine& line,
                                       Faults& faults) {
  const std::string name(option.flag.name);
  const auto text = line.text(name);
  if (!text) return std::nullopt;
  if (auto value = value_of_flag(option, *text)) return value;
  faults.add(Error(ErrorCode::kInvalidArgument,
                   "--" + name + " is '" + *text + "', expected " + expected_value(option),
                   "give --" + name + " " + expected_value(option)));
  return std::nullopt;
}

// What flag, file or default say of one option; std::nullopt when nobody does.
std::optional<std::string> said_value(const Option& option,
                                      const StrategyRequest& request,
                                      Faults& faults) {
  const std::string name(option.flag.name);
  if (request.line.has(name)) return typed_value(option, request.line, faults);
  if (request.file != nullptr) {
    const auto said = request.file->options.find(name);
    if (said != request.file->options.end()) return said->second;
  }
  if (option.fallback.empty()) return std::nullopt;
  return std::string(option.fallback);
}

void add_variables(const Strategy& strategy,
                   const StrategyRequest& request,
                   EnvMap& variables,
                   Faults& faults) {
  if (!strategy.variable.empty()) variables[std::string(strategy.variable)] = "true";
  for (const Option& option : strategy.options) {
    auto value = said_value(option, request, faults);
    if (value && !option.variable.empty())
      variables[std::string(option.variable)] = *std::move(value);
  }
}

// The fields that a file fixed: the workers refuse those that a JSON file of DeepSpeed fixes too.
std::string deepspeed_fields(const StrategyRequest& request) {
  std::string fields;
  if (request.file == nullptr) return fields;
  for (const std::string& key : request.file->deepspeed_keys)
    fields += (fields.empty() ? "" : ",") + key;
  if (request.file->mixed_precision && !request.line.has("mixed_precision"))
    fields += std::string(fields.empty() ? "" : ",") + "mixed_precision";
  return fields;
}

// Flags of a strategy that is not chosen have no effect, but a number or a choice that is none is a slip all the same. Truths
// are any text to the peer, and some scripts give all flags with words like None.
void check_typed(const Strategy& strategy, const CommandLine& line, Faults& faults) {
  for (const Option& option : strategy.options) {
    const FlagKind kind = option.flag.kind;
    if (kind == FlagKind::kChoice || kind == FlagKind::kInteger || kind == FlagKind::kNumber)
      (void)typed_value(option, line, faults);
  }
}

// By flag, else by the file's distributed_type.
void choose(StrategySettings& settings, const StrategyRequest& request) {
  const CommandLine& line = request.line;
  settings.fsdp = line.is_on("use_fsdp");
  settings.deepspeed = line.is_on("use_deepspeed");
  settings.megatron = line.is_on("use_megatron_lm");
  settings.parallelism = line.is_on("use_parallelism_config");
  if (request.file == nullptr) return;
  const std::string& type = request.file->distributed_type;
  if (!settings.is_any() && !line.is_on("multi_gpu")) {
    settings.fsdp = type == "FSDP";
    settings.deepspeed = type == "DEEPSPEED" && !line.is_on("cpu");
    settings.megatron = type == "MEGATRON_LM" && !line.is_on("cpu");
  }
  const bool may_lay_out = request.multi_gpu || settings.fsdp || settings.deepspeed;
  if (request.file->has_parallelism && may_lay_out) settings.parallelism = true;
}

// "false,false,true", also in brackets, as files write it.
std::optional<std::array<bool, 3>> three_truths(std::string_view text) {
  std::array<bool, 3> truths = {};
  std::string bare;
  for (const char c : text) {
    if (std::string_view("()[] ").find(c) == std::string_view::npos) bare += c;
  }
  std::string_view rest = bare;
  for (size_t i = 0; i < truths.size(); ++i) {
    const bool is_last = i + 1 == truths.size();
    const size_t end = is_last ? rest.size() : rest.find(',');
    if (end == std::string_view::npos) return std::nullopt;
    const Result<bool> truth = parse_env_bool("fp8_override_linear_precision", rest.substr(0, end));
    if (!truth) return std::nullopt;
    truths[i] = *truth;
    rest.remove_prefix(is_last ? end : end + 1);
  }
  return truths;
}

// One option is three variables. The peer writes digits for a flag, words for a file.
void add_linear_precision(const StrategyRequest& request, EnvMap& variables, Faults& faults) {
  constexpr const char* kName = "fp8_override_linear_precision";
  const bool is_flag = request.line.has(kName);
  std::string text = "false,false,false";
  if (is_flag) {
    text = *request.line.text(kName);
  } else if (request.is_said(kName)) {
    text = request.file->options.find(kName)->second;
  }
  const auto truths = three_truths(text);
  if (!truths) {
    faults.add(Error(ErrorCode::kInvalidArgument,
                     (is_flag ? "--" : request.file->path + ": ") + std::string(kName) + " is '" +
                         text + "', expected three of true and false, as in false,false,true"));
    return;
  }
  const std::array<const char*, 3> names = {"ACCELERATE_FP8_OVERRIDE_FPROP",
                                            "ACCELERATE_FP8_OVERRIDE_DGRAD",
                                            "ACCELERATE_FP8_OVERRIDE_WGRAD"};
  for (size_t i = 0; i < names.size(); ++i) {
    const bool truth = (*truths)[i];
    variables[names[i]] = is_flag ? (truth ? "1" : "0") : (truth ? "True" : "False");
  }
}

}  // namespace

bool StrategyRequest::is_said(std::string_view option) const {
  return line.has(option) || (file != nullptr && file->options.find(option) != file->options.end());
}

StrategySettings choose_strategies(const StrategyRequest& request,
                                   std::vector<std::string>& notices,
                                   Faults& faults) {
  StrategySettings settings;
  choose(settings, request);
  EnvMap& variables = settings.variables;
  if (settings.fsdp) {
    add_variables(fsdp_strategy(), request, variables, faults);
    check_fsdp(request, variables, notices, faults);
  } else {
    check_typed(fsdp_strategy(), request.line, faults);
  }
  if (settings.deepspeed) {
    add_variables(deepspeed_strategy(), request, variables, faults);
    variables["ACCELERATE_CONFIG_DS_FIELDS"] = deepspeed_fields(request);
    check_deepspeed(variables, faults);
  } else {
    check_typed(deepspeed_strategy(), request.line, faults);
  }
  if (settings.megatron) {
    add_variables(megatron_strategy(), request, variables, faults);
  } else {
    check_typed(megatron_strategy(), request.line, faults);
  }
  if (settings.parallelism) {
    add_variables(parallelism_strategy(), request, variables, faults);
    check_parallelism(request, variables, faults);
  } else {
    check_typed(parallelism_strategy(), request.line, faults);
  }
  return settings;
}

EnvMap fp8_variables(const StrategyRequest& request, Faults& faults) {
  EnvMap variables;
  add_variables(fp8_strategy(), request, variables, faults);
  add_linear_precision(request, variables, faults);
  // Templates of the peer spell it so; its reader in the workers knows only the other spelling.
  if (const auto backend = variables.find("ACCELERATE_FP8_BACKEND");
      backend != variables.end() && uppercase(backend->second) == "MS-AMP") {
    backend->second = "MSAMP";
  }
  if (request.file == nullptr) return variables;
  for (const auto& [name, value] : request.file->options) {
    if (name.starts_with(fp8_strategy().prefix) && find_option(fp8_strategy(), name) == nullptr)
      variables["ACCELERATE_" + uppercase(name)] = value;
  }
  return variables;
}

}  // namespace accel::launcher
