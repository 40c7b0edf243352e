#include "launcher/commands/documents.h"

#include <string_view>
#include <utility>

#include <accel/env_contract.h>
#include <accel/error.h>

#include "launcher/agent_commands/agent_commands.h"
#include "launcher/commands/completion/completed_command.h"
#include "launcher/commands/local_commands.h"
#include "launcher/commands/manual.h"
#include "launcher/config/config_schema.h"
#include "launcher/flags/flag_table.h"
#include "launcher/flags/strategies/option.h"
#include "launcher/text/choice_list.h"

namespace accel::launcher {
namespace {

constexpr std::string_view kOrigin =
    "This page is written by `scripts/generate_docs.sh` from a table in the code. Do not edit "
    "it.\n\n";

std::string heading(std::string_view title) {
  return "# " + std::string(title) + "\n\n" + std::string(kOrigin);
}

// A cell must not end its column.
std::string cell(std::string_view text) {
  std::string out;
  for (char c : text) {
    if (c == '|') out += '\\';
    out += c;
  }
  return out;
}

std::string table_row(std::initializer_list<std::string_view> cells) {
  std::string row = "|";
  for (std::string_view text : cells) row += " " + cell(text) + " |";
  return row + "\n";
}

std::string code(std::string_view text) {
  return text.empty() ? std::string() : "`" + std::string(text) + "`";
}

std::string errors_page() {
  std::string out = heading("Errors");
  out +=
      "Every error shows its id, what happened with the values that matter, and a remedy. The exit "
      "status\n"
      "is that of the program that stops because of it; when a worker fails, accel-launch takes "
      "over the\n"
      "worker's own status, or 128 + its signal.\n";
  for (int i = 0; i < static_cast<int>(ErrorCode::kCount_); ++i) {
    const ErrorInfo& info = error_info(static_cast<ErrorCode>(i));
    std::string anchor(info.id);
    for (char& c : anchor) {
      if (c == '.' || c == '_') c = '-';
    }
    out += "\n<a id=\"" + anchor + "\"></a>\n## " + std::string(info.id) + "\n\n";
    out += std::string(info.summary) + "\n\n";
    out += "- Try: " + std::string(info.remedy) + "\n";
    out += "- Exit status: " + std::to_string(info.exit_status) + "\n";
  }
  return out;
}

std::string environment_page() {
  std::string out = heading("Environment of a worker");
  out +=
      "What a worker is started with and what it reads. Names and formats are those of torchrun "
      "and HF\n"
      "Accelerate; `ACCEL_*` are our own. With one process on one machine the rank variables are "
      "not set.\n"
      "Numbers below 0 count as not set; a value that cannot be read is an error that names the "
      "variable.\n\n";
  out += table_row({"Variable", "Set by", "Read by", "Format", "Meaning"});
  out += table_row({"---", "---", "---", "---", "---"});
  for (const EnvVariable& variable : env_variables()) {
    out += table_row(
        {variable.name, variable.set_by, variable.read_by, variable.format, variable.meaning});
  }
  return out;
}

void append_keys(std::string& out, std::span<const ConfigKey> keys, ConfigEffect effect) {
  out += table_row({"Key", "Type", "When absent", "Meaning"});
  out += table_row({"---", "---", "---", "---"});
  for (const ConfigKey& key : keys) {
    if (key.effect != effect) continue;
    const std::string type = key.type == ConfigType::kChoice ? listed_choices(key.choices)
                                                             : std::string(to_string(key.type));
    out += table_row({code(key.name), type, key.fallback, key.meaning});
  }
}

std::string option_type(const Option& option) {
  switch (option.flag.kind) {
    case FlagKind::kSwitch:
    case FlagKind::kBool:
      return std::string(to_string(ConfigType::kBool));
    case FlagKind::kInteger:
      return std::string(to_string(ConfigType::kInteger));
    case FlagKind::kNumber:
      return "a number";
    case FlagKind::kChoice:
      return listed_choices(option.flag.choices);
    default:
      return std::string(to_string(ConfigType::kText));
  }
}

void append_section(std::string& out, const Strategy& strategy) {
  out += "\n### Keys of `" + std::string(strategy.section) + "`\n\n";
  if (!strategy.prefix.empty())
    out += "The prefix `" + std::string(strategy.prefix) + "` may be left out. ";
  if (strategy.hands_on_other_keys)
    out += "A key that is not here is handed on as a variable, `ACCELERATE_` and the key. ";
  out += "Each means what the flag of its name means, and becomes the variable.\n\n";
  out += table_row({"Key", "Type", "When absent", "Variable"});
  out += table_row({"---", "---", "---", "---"});
  for (const Option& option : strategy.options) {
    const std::string_view absent = option.fallback.empty() ? "not set" : option.fallback;
    out += table_row({code(option.flag.name), option_type(option), absent, code(option.variable)});
  }
}

std::string config_page() {
  std::string out = heading("Configuration file");
  out +=
      "Files of `accelerate config` are read as they are: YAML, or JSON when the name ends in "
      "`.json`.\n"
      "`--config_file PATH` names one; else `default_config.yaml` is read, when it exists, from\n"
      "`$HF_HOME/accelerate`, `$XDG_CACHE_HOME/huggingface/accelerate` or\n"
      "`~/.cache/huggingface/accelerate` (not with `--cpu`). A flag that is given beats the "
      "file.\n\n"
      "Scalars mean what they mean to PyYAML (YAML 1.1): `yes`, `no`, `on`, `off` are booleans, "
      "`1_000`\n"
      "is 1000, `010` is 8, `1:30` is 90. An unquoted `NO` or `no` counts as the word where it is "
      "a\n"
      "choice. Of a key that is given twice the last one holds, with a warning. A key that never "
      "existed\n"
      "is an error. With `--strict` each warning about the file is an error, too, also for\n"
      "`accel test`. Other commands have no such flag: `accel config update` prints the same\n"
      "warnings and writes the file, and the others read few keys.\n\n"
      "## Keys that accel-launch acts on\n\n";
  append_keys(out, config_keys(), ConfigEffect::kUsed);
  out += "\n### Keys of `dynamo_config`\n\nThe prefix `dynamo_` may be left out.\n\n";
  append_keys(out, dynamo_keys(), ConfigEffect::kUsed);
  for (const Strategy* strategy : strategies()) append_section(out, *strategy);
  out +=
      "\n## Keys that are accepted without effect\n\n"
      "They belong to features that are not chosen, not built yet, or have no meaning on one "
      "machine.\n\n";
  append_keys(out, config_keys(), ConfigEffect::kElsewhere);
  out += "\n## Keys of older versions\n\nAccepted with a warning.\n\n";
  append_keys(out, config_keys(), ConfigEffect::kRetired);
  return out;
}

std::string flags_page() {
  std::string out = heading("Flags of accel-launch");
  out +=
      "`accel-launch [flags] SCRIPT [arguments of the script]`. Words of a flag are joined by "
      "underscores\n"
      "or hyphens. Flags are not abbreviated.\n";
  std::string_view group;
  for (const FlagSpec& flag : flag_table()) {
    if (flag.group != group) {
      group = flag.group;
      out += "\n## " + std::string(group) + "\n\n";
      out += table_row({"Flag", "Choices", "Meaning"});
      out += table_row({"---", "---", "---"});
    }
    std::string name = flag.short_name != 0 ? "-" + std::string(1, flag.short_name) + ", " : "";
    name += "--" + std::string(flag.name);
    if (!flag.value_name.empty()) name += " " + std::string(flag.value_name);
    out += table_row({code(name), listed_choices(flag.choices), flag.help});
  }
  return out;
}

}  // namespace

std::vector<Document> generated_documents(std::string_view agent_file) {
  std::vector<Document> documents = {{"reference/errors.md", errors_page()},
                                     {"reference/env_contract.md", environment_page()},
                                     {"reference/config.md", config_page()},
                                     {"reference/flags.md", flags_page()},
                                     {"man/accel-launch.1", launch_manual()},
                                     {"man/accel-torchrun.1", torchrun_manual()},
                                     {"man/agent.yaml.5", agent_file_manual(agent_file)},
                                     {"completions/accel", bash_completion()},
                                     {"completions/_accel", zsh_completion()},
                                     {"completions/accel.fish", fish_completion()}};
  for (const LocalCommand& command : local_commands())
    documents.push_back({"man/accel-" + std::string(command.name) + ".1", command_manual(command)});
  for (const AgentCommand& command : agent_commands())
    documents.push_back({"man/accel-" + std::string(command.name) + ".1", command_manual(command)});
  return documents;
}

}  // namespace accel::launcher
