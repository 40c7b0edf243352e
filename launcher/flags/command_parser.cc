#include "launcher/flags/command_parser.h"

#include <algorithm>
#include <cstdio>

#include "launcher/text/choice_list.h"

namespace accel::launcher {
namespace {

std::string command_line_name(std::string_view command) {
  return "accel " + std::string(command);
}

thread_local CommandRecorder* recorder = nullptr;

// "{no,fp16}" of CLI11's check is the only place where it keeps the choices.
std::vector<std::string> choices_of(const CLI::Option& option) {
  const std::string type = option.get_type_name();
  const std::size_t first = type.find('{');
  const std::size_t last = type.find('}');
  std::vector<std::string> choices;
  if (first == std::string::npos || last == std::string::npos) return choices;
  const std::string words = type.substr(first + 1, last - first - 1);
  for (const std::string_view word : split_choices(words)) choices.emplace_back(word);
  return choices;
}

CommandOption described(const CLI::Option& option) {
  const bool is_positional = option.nonpositional() ? false : option.get_positional();
  CommandOption described;
  described.name = option.get_name();
  described.help = option.get_description();
  described.choices = choices_of(option);
  described.is_required = option.get_required();
  if (!option.get_snames().empty()) described.short_name = "-" + option.get_snames().front();
  if (is_positional) {
    described.name = value_name(described.name);
  } else if (option.get_items_expected_max() > 0) {
    described.value = value_name(described.name);
  }
  return described;
}

}  // namespace

std::string with_underscores(std::string word) {
  if (!word.starts_with("--")) return word;
  const auto end =
      word.begin() + static_cast<std::ptrdiff_t>(std::min(word.find('='), word.size()));
  std::replace(word.begin() + 2, end, '-', '_');
  return word;
}

CommandRecorder::CommandRecorder() {
  recorder = this;
}

CommandRecorder::~CommandRecorder() {
  recorder = nullptr;
}

CommandDescription description_of(std::string_view command, const CLI::App& app) {
  CommandDescription description = {std::string(command), app.get_description(), {}};
  for (const CLI::Option* option : app.get_options()) {
    if (!option->get_group().empty()) description.options.push_back(described(*option));
  }
  std::stable_partition(description.options.begin(),
                        description.options.end(),
                        [](const CommandOption& option) { return option.is_flag(); });
  return description;
}

CommandParser::CommandParser(std::string_view command, std::string_view summary)
    : command_(command), app_(std::string(summary), command_line_name(command)) {
  app_.set_help_flag("-h,--help", "Show this text.");
}

std::optional<int> CommandParser::parse(const std::vector<std::string>& arguments) {
  if (recorder != nullptr) {
    recorder->description_ = description_of(command_, app_);
    return 0;
  }
  std::vector<std::string> words;  // from the last to the first, as CLI11 wants them
  bool is_flags = true;
  for (const std::string& argument : arguments) {
    if (argument == "--") is_flags = false;
    words.insert(words.begin(), is_flags ? with_underscores(argument) : argument);
  }
  try {
    app_.parse(std::move(words));
  } catch (const CLI::CallForHelp&) {
    std::fputs(help_text(description_of(command_, app_)).c_str(), stdout);
    return 0;
  } catch (const CLI::ParseError& error) {
    const std::string hint = "see `" + command_line_name(command_) + " --help`";
    return print_error(command_, Error(ErrorCode::kUsage, error.what(), hint));
  }
  return std::nullopt;
}

int print_error(std::string_view command, const Error& error) {
  std::fprintf(stderr, "%s\n", error.render(command_line_name(command)).c_str());
  return error_info(error.code()).exit_status;
}

void print_notice(std::string_view command, std::string_view text) {
  std::fprintf(stderr,
               "%s: %.*s\n",
               command_line_name(command).c_str(),
               static_cast<int>(text.size()),
               text.data());
}

}  // namespace accel::launcher
