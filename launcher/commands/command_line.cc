#include "launcher/commands/command_line.h"

#include <algorithm>
#include <cstdio>

namespace accel::launcher {
namespace {

std::string program_of(std::string_view command) {
  return "accel " + std::string(command);
}

// "--config-file=a-b" -> "--config_file=a-b".
std::string with_underscores(std::string word) {
  if (!word.starts_with("--")) return word;
  const auto end =
      word.begin() + static_cast<std::ptrdiff_t>(std::min(word.find('='), word.size()));
  std::replace(word.begin() + 2, end, '-', '_');
  return word;
}

}  // namespace

CommandLine::CommandLine(std::string_view command, std::string_view summary)
    : command_(command), app_(std::string(summary), program_of(command)) {
  app_.get_formatter()->column_width(28);
}

std::optional<int> CommandLine::parse(const std::vector<std::string>& arguments) {
  std::vector<std::string> words;  // from the last to the first, as CLI11 wants them
  bool is_flags = true;
  for (const std::string& argument : arguments) {
    if (argument == "--") is_flags = false;
    words.insert(words.begin(), is_flags ? with_underscores(argument) : argument);
  }
  try {
    app_.parse(std::move(words));
  } catch (const CLI::CallForHelp&) {
    std::fputs(app_.help().c_str(), stdout);
    return 0;
  } catch (const CLI::ParseError& error) {
    const std::string hint = "see `" + program_of(command_) + " --help`";
    return print_error(command_, Error(ErrorCode::kUsage, error.what(), hint));
  }
  return std::nullopt;
}

int print_error(std::string_view command, const Error& error) {
  std::fprintf(stderr, "%s\n", error.render(program_of(command)).c_str());
  return error_info(error.code()).exit_status;
}

void print_notice(std::string_view command, std::string_view text) {
  std::fprintf(stderr,
               "%s: %.*s\n",
               program_of(command).c_str(),
               static_cast<int>(text.size()),
               text.data());
}

}  // namespace accel::launcher
