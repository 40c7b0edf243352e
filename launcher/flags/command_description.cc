#include "launcher/flags/command_description.h"

#include <algorithm>

#include "launcher/text/wrapped_text.h"
#include "runtime/text/letter_case.h"

namespace accel::launcher {
namespace {

constexpr std::size_t kIndent = 6;

std::string option_text(const CommandOption& option) {
  std::string text = "  " + (option.short_name.empty() ? "" : option.short_name + ", ") +
                     option.name + (option.value.empty() ? "" : " " + option.value) + "\n";
  std::string help = option.help;
  std::replace(help.begin(), help.end(), '\n', ' ');
  return text + wrapped(help, kIndent);
}

}  // namespace

std::string usage(const CommandDescription& command) {
  std::string text = "accel " + command.name;
  bool has_flags = false;
  for (const CommandOption& option : command.options) has_flags |= option.is_flag();
  if (has_flags) text += " [flags]";
  for (const CommandOption& option : command.options) {
    if (option.is_flag() && option.is_required) text += " " + option.name + " " + option.value;
    if (!option.is_flag())
      text += option.is_required ? " " + option.name : " [" + option.name + "]";
  }
  return text;
}

std::string help_text(const CommandDescription& command) {
  std::string text = "Usage: " + usage(command) + "\n\n" + wrapped(command.summary, 0) + "\n";
  for (const CommandOption& option : command.options) text += option_text(option);
  return text;
}

std::string value_name(std::string_view flag) {
  const bool is_flag = flag.starts_with('-');
  return uppercase(is_flag ? flag.substr(flag.find_last_of("_-") + 1) : flag);
}

}  // namespace accel::launcher
