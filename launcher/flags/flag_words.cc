#include "launcher/flags/flag_words.h"

#include <algorithm>
#include <optional>

#include "launcher/flags/flag_table.h"
#include "launcher/flags/retired_flags.h"
#include "runtime/text/joined.h"

namespace accel::launcher {
namespace {

// Of torchrun's parser, PyTorch 2.11.
constexpr std::string_view kTorchrunFlags[] = {
    "duplicate_stderr_filters",
    "duplicate_stdout_filters",
    "event_log_handler",
    "help",
    "local_addr",
    "local_ranks_filter",
    "log_dir",
    "logs_specs",
    "master_addr",
    "master_port",
    "max_restarts",
    "module",
    "monitor_interval",
    "nnodes",
    "no_python",
    "node_rank",
    "nproc_per_node",
    "numa_binding",
    "rdzv_backend",
    "rdzv_conf",
    "rdzv_endpoint",
    "rdzv_id",
    "redirects",
    "role",
    "run_path",
    "signals_to_handle",
    "standalone",
    "start_method",
    "tee",
    "virtual_local_rank",
};

const RetiredFlag* find_retired(std::string_view name) {
  const auto flags = retired_flags();
  const auto found =
      std::find_if(flags.begin(), flags.end(), [&](const auto& flag) { return flag.name == name; });
  return found == flags.end() ? nullptr : &*found;
}

const FlagSpec* find_short(char letter) {
  const auto flags = flag_table();
  const auto found = std::find_if(
      flags.begin(), flags.end(), [&](const auto& flag) { return flag.short_name == letter; });
  return found == flags.end() ? nullptr : &*found;
}

enum class Takes { kNothing, kValue, kUnknown };

Takes takes_of(const std::string& word) {
  const FlagSpec* flag = nullptr;
  if (word.starts_with("--")) {
    const std::string name = bare_name(word);
    flag = find_flag(name);
    if (const RetiredFlag* const retired = find_retired(name);
        flag == nullptr && retired != nullptr)
      return retired->has_value ? Takes::kValue : Takes::kNothing;
  } else {
    flag = find_short(word[1]);
    if (flag != nullptr && word.size() > 2) return Takes::kNothing;  // "-r3"
  }
  if (flag == nullptr) return Takes::kUnknown;
  return flag->kind == FlagKind::kSwitch ? Takes::kNothing : Takes::kValue;
}

// "-1" is a value, "-" too.
bool is_flag(const std::string& word) {
  if (word.size() > 2 && word.starts_with("--")) return true;
  return word.size() == 2 && word.front() == '-' && find_short(word[1]) != nullptr;
}

Error without_value(const std::string& word, const std::string& next, Program program) {
  return Error(ErrorCode::kUsage,
               word + " needs a value, and " + next + " is a flag",
               "write " + word + " VALUE, or " + word + "=" + next +
                   " when that is the value; see `" + std::string(name_of(program)) + " --help`");
}

// The word with the whole name of the flag of torchrun that it begins.
Result<std::string> written_out(const std::string& word, Program program) {
  const std::string begun = bare_name(word);
  if (begun.empty()) return word;
  std::vector<std::string> whole;
  for (const std::string_view name : kTorchrunFlags)
    if (name.starts_with(begun)) whole.push_back(spelled(name, program));
  if (whole.empty()) return word;
  if (whole.size() == 1) {
    const auto equals = word.find('=');
    return whole.front() + (equals == std::string::npos ? "" : word.substr(equals));
  }
  return Error(ErrorCode::kUnknownFlag,
               word + " may be the beginning of " + joined(whole, ", "),
               "write the flag's whole name");
}

}  // namespace

std::string bare_name(std::string_view word) {
  word = word.substr(0, word.find('='));
  while (word.starts_with('-')) word.remove_prefix(1);
  std::string name(word);
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
}

Result<std::vector<std::string>> complete_flags(std::vector<std::string> words, Program program) {
  for (std::size_t i = 0; i < words.size(); ++i) {
    if (words[i].size() < 2 || words[i].front() != '-' || words[i] == "--") break;
    Takes takes = takes_of(words[i]);
    if (takes == Takes::kUnknown && program == Program::kTorchrun && words[i].starts_with("--")) {
      Result<std::string> whole = written_out(words[i], program);
      if (!whole) return std::move(whole).error();
      words[i] = *std::move(whole);
      takes = takes_of(words[i]);
    }
    if (takes == Takes::kUnknown) break;
    if (takes == Takes::kNothing || words[i].find('=') != std::string::npos) continue;
    if (i + 1 < words.size() && is_flag(words[i + 1]))
      return without_value(words[i], words[i + 1], program);
    ++i;
  }
  return words;
}

}  // namespace accel::launcher
