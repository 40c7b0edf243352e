// Parsing with CLI11. It is told to stop at the first word that is no flag (the script) and to
// leave everything after it alone; values stay text here, because only the plan knows their ranges.

#include "launcher/flags/flags.h"

#include <algorithm>
#include <cmath>
#include <set>
#include <utility>

#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>

#include <accel/env_contract.h>

#include "launcher/flags/flag_table.h"
#include "launcher/flags/flag_words.h"
#include "launcher/flags/retired_flags.h"
#include "launcher/text/choice_list.h"
#include "runtime/suggest.h"
#include "runtime/text/number_text.h"
#include "runtime/trimmed.h"

namespace accel::launcher {
namespace {

std::string with_hyphens(std::string_view name) {
  std::string text(name);
  std::replace(text.begin(), text.end(), '_', '-');
  return text;
}

// "-m,--no_python,--no-python", as CLI11 wants it.
std::string spellings(const FlagSpec& flag) {
  std::string text;
  if (flag.short_name != 0) text += std::string("-") + flag.short_name + ",";
  text += "--" + std::string(flag.name);
  if (flag.name.find('_') != std::string_view::npos) text += ",--" + with_hyphens(flag.name);
  return text;
}

Error bad_value(const CommandLine& line,
                std::string_view flag,
                std::string_view value,
                const std::string& expected,
                const std::string& guess = "") {
  const std::string name = line.spelled(flag);
  return Error(ErrorCode::kInvalidArgument,
               name + " is '" + std::string(value) + "', expected " + expected + guess,
               "give " + name + " " + expected);
}

std::string see_help(Program program) {
  return "see `" + std::string(name_of(program)) + " --help`";
}

// What switches say by name: "true", or what stands after a '='.
using Switches = std::map<std::string, std::string, std::less<>>;

void declare(CLI::App& app, const FlagSpec& flag, CommandLine& line, Switches& switches) {
  const std::string name(flag.name);
  if (flag.kind == FlagKind::kSwitch) {
    app.add_flag(spellings(flag), switches[name])
        ->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
    return;
  }
  app.add_option(spellings(flag),
                 [&line, name](const CLI::results_t& values) {
                   line.given[name] = values.back();
                   line.repeated[name] = values;
                   return true;
                 })
      ->expected(1)
      ->allow_extra_args(false)
      ->take_all();
}

void take_switches(const Switches& switches, CommandLine& line, Faults& faults) {
  for (const auto& [name, text] : switches) {
    if (text.empty()) continue;
    if (const Result<bool> truth = parse_env_bool(name, text)) {
      line.given[name] = *truth ? "true" : "false";
    } else {
      faults.add(bad_value(line, name, text, "true or false, or no value"));
    }
  }
}

// Flags of other versions: each costs a notice, and means its successor if it has one.
void declare_retired(CLI::App& app, const RetiredFlag& flag, CommandLine& line) {
  const auto note = [&line, flag](const std::string& value) {
    line.notices.push_back("--" + std::string(flag.name) + ' ' + std::string(flag.advice));
    if (!flag.successor.empty()) line.given.try_emplace(std::string(flag.successor), value);
  };
  const std::string names = spellings({.name = flag.name});
  if (!flag.has_value) {
    app.add_flag_callback(names, [note] { note("true"); });
    return;
  }
  app.add_option(names,
                 [note](const CLI::results_t& values) {
                   note(values.back());
                   return true;
                 })
      ->expected(1)
      ->allow_extra_args(false)
      ->take_all();
}

std::vector<std::string> known_spellings(bool use_hyphens) {
  std::vector<std::string> names;
  for (const FlagSpec& flag : flag_table()) {
    names.push_back("--" + (use_hyphens ? with_hyphens(flag.name) : std::string(flag.name)));
  }
  return names;
}

// Names that may be flags. CLI11 compares each option with all others: only what is typed is declared,
// which is 2 ms less for each launch.
std::set<std::string, std::less<>> typed_names(const std::vector<std::string>& arguments) {
  std::set<std::string, std::less<>> names;
  for (const std::string& word : arguments) {
    if (word.starts_with("--")) names.insert(bare_name(word));
  }
  return names;
}

Error unknown_flag(const std::string& word, Program program) {
  const std::string typed = word.substr(0, word.find('='));
  const bool use_hyphens = typed.find('-', 2) != std::string::npos;
  if (std::optional<std::string> guess = nearest(typed, known_spellings(use_hyphens))) {
    return Error(ErrorCode::kUnknownFlag,
                 "unknown flag " + typed + ", did you mean " + *guess + "?",
                 "use " + *guess + "; a flag of the script goes after the script");
  }
  return Error(ErrorCode::kUnknownFlag,
               "unknown flag " + typed,
               see_help(program) + "; flags of the script go after the script");
}

}  // namespace

bool CommandLine::is_on(std::string_view flag) const {
  const auto found = given.find(flag);
  return found != given.end() && found->second == "true";
}

std::optional<std::string> CommandLine::text(std::string_view flag) const {
  const auto found = given.find(flag);
  if (found == given.end()) return std::nullopt;
  return found->second;
}

Result<CommandLine> parse_command_line(const std::vector<std::string>& words, Program program) {
  const Result<std::vector<std::string>> completed = complete_flags(words, program);
  if (!completed) return completed.error();
  const std::vector<std::string>& arguments = *completed;
  CommandLine line;
  line.is_torchrun = program == Program::kTorchrun;
  Switches switches;
  CLI::App app;
  app.set_help_flag();
  app.prefix_command();
  const std::set<std::string, std::less<>> typed = typed_names(arguments);
  for (const FlagSpec& flag : flag_table()) {
    if (flag.short_name != 0 || typed.contains(flag.name)) declare(app, flag, line, switches);
  }
  for (const RetiredFlag& flag : retired_flags()) {
    if (typed.contains(flag.name)) declare_retired(app, flag, line);
  }
  std::vector<std::string> reversed(arguments.rbegin(), arguments.rend());  // as CLI11 wants it
  try {
    app.parse(reversed);
  } catch (const CLI::ArgumentMismatch&) {
    return Error(ErrorCode::kUsage, arguments.back() + " needs a value", see_help(program));
  } catch (const CLI::ParseError& failure) {
    return Error(ErrorCode::kUsage, failure.what(), see_help(program));
  }

  Faults faults;
  take_switches(switches, line, faults);
  const std::vector<std::string> rest = app.remaining();
  auto script = rest.begin();
  for (; script != rest.end() && script->size() > 1 && script->starts_with('-'); ++script) {
    if (*script == "--") {
      ++script;
      break;
    }
    faults.add(unknown_flag(*script, program));
  }
  const auto num_flag_words = arguments.size() - static_cast<size_t>(rest.end() - script);
  for (size_t i = 0; i < num_flag_words; ++i) {
    if (arguments[i].ends_with('=') && find_flag(bare_name(arguments[i])) != nullptr) {
      faults.add(Error(
          ErrorCode::kUsage, arguments[i] + " needs a value after the '='", see_help(program)));
    }
  }
  if (line.is_on("help")) return line;  // whoever asks for it need not know the flags yet
  if (!faults.empty()) return faults.merged();
  if (script == rest.end()) return line;

  line.script = *script++;
  const bool is_ours = !line.is_on("strict_compat");  // the peers hand it on
  if (is_ours && script != rest.end() && *script == "--") ++script;
  line.script_arguments.assign(script, rest.end());
  return line;
}

std::optional<int> integer_flag(
    const CommandLine& line, std::string_view flag, int least, int most, Faults& faults) {
  const std::optional<std::string> text = line.text(flag);
  if (!text) return std::nullopt;
  const auto number = typed_number<int>(*text);
  if (number && *number >= least && *number <= most) return number;
  faults.add(
      bad_value(line,
                flag,
                *text,
                "a whole number from " + std::to_string(least) + " to " + std::to_string(most)));
  return std::nullopt;
}

std::optional<std::string> choice_flag(const CommandLine& line,
                                       std::string_view flag,
                                       Faults& faults) {
  std::optional<std::string> text = line.text(flag);
  if (!text) return std::nullopt;
  const std::string_view choices = find_flag(flag)->choices;
  std::vector<std::string> names;
  for (const std::string_view choice : split_choices(choices)) {
    if (*text == choice) return text;
    names.emplace_back(choice);
  }
  const auto guess = nearest(*text, names);
  faults.add(bad_value(line,
                       flag,
                       *text,
                       "one of " + listed_choices(choices),
                       guess ? " (did you mean " + *guess + "?)" : ""));
  return std::nullopt;
}

std::optional<double> seconds_flag(const CommandLine& line, std::string_view flag, Faults& faults) {
  const std::optional<std::string> text = line.text(flag);
  if (!text) return std::nullopt;
  constexpr double kDay = 86'400;
  const std::pair<std::string_view, double> units[] = {
      {"ms", 0.001}, {"s", 1}, {"m", 60}, {"h", 3600}};
  std::string_view digits = trimmed(*text, kTypedBlanks);
  double scale = 1;
  for (const auto& [unit, seconds] : units) {
    if (digits.ends_with(unit)) {
      digits.remove_suffix(unit.size());
      scale = seconds;
      break;
    }
  }
  const std::optional<double> number = typed_number<double>(digits);
  if (number && std::isfinite(*number) && *number >= 0 && *number * scale <= kDay) {
    return *number * scale;
  }
  faults.add(bad_value(line, flag, *text, "a time of at most a day, as in 30, 0.5, 500ms or 2m"));
  return std::nullopt;
}

}  // namespace accel::launcher
