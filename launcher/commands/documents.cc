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
    out += "Any other key becomes the variable `ACCELERATE_` followed by the key. ";
  out +=
      "A key means the same as the flag of its name. Workers get its value in the variable, "
      "if there is one.\n\n";
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
      "accel-launch reads the files that `accelerate config` writes: YAML, or JSON when the name "
      "ends in `.json`.\n"
      "`--config_file PATH` names the file. Without it accel-launch looks for "
      "`default_config.yaml` in\n"
      "`$HF_HOME/accelerate`, in `$XDG_CACHE_HOME/huggingface/accelerate` or in\n"
      "`~/.cache/huggingface/accelerate`. With `--cpu` it does not look there. A flag on the "
      "command line wins\n"
      "over the file.\n\n"
      "- Values are read as PyYAML reads them (YAML 1.1). `yes`, `no`, `on` and `off` are "
      "booleans. `1_000` is 1000,\n"
      "  `010` is 8, `1:30` is 90. Where a key has choices, an unquoted `NO` or `no` is the word.\n"
      "- If a key is given twice, the last one holds, with a warning.\n"
      "- A key that Accelerate never had is an error.\n"
      "- With `--strict` each warning about the file is an error. `accel test` has this flag too. "
      "Other commands\n"
      "  do not: `accel config update` prints the same warnings and writes the file; the others "
      "read few keys.\n\n"
      "## Keys that accel-launch uses\n\n";
  append_keys(out, config_keys(), ConfigEffect::kUsed);
  out += "\n### Keys of `dynamo_config`\n\nThe prefix `dynamo_` may be left out.\n\n";
  append_keys(out, dynamo_keys(), ConfigEffect::kUsed);
  for (const Strategy* strategy : strategies()) append_section(out, *strategy);
  out +=
      "\n## Keys that accel-launch does not use\n\n"
      "It accepts them without a warning, so that one file serves all commands.\n\n";
  append_keys(out, config_keys(), ConfigEffect::kElsewhere);
  out +=
      "\n## Keys of older versions\n\nThey are accepted with a warning that names what replaced "
      "them.\n\n";
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
