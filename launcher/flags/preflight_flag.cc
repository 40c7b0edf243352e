#include "launcher/flags/preflight_flag.h"

#include <algorithm>
#include <cctype>

namespace accel::launcher {
namespace {

bool is_name(const std::string& text) {
  constexpr std::size_t kMostLetters = 64;
  return !text.empty() && text.size() <= kMostLetters &&
         std::all_of(text.begin(), text.end(), [](unsigned char c) {
           return std::isalnum(c) != 0 || c == '_' || c == '.' || c == '-';
         });
}

}  // namespace

Result<supervisor::PreflightCheck> parse_preflight(const std::string& text,
                                                   supervisor::Milliseconds limit) {
  const std::size_t equals = text.find('=');
  const std::string name = text.substr(0, equals);
  const std::string command = equals == std::string::npos ? "" : text.substr(equals + 1);
  if (!is_name(name) || command.empty()) {
    return Error(ErrorCode::kInvalidArgument,
                 "--preflight is '" + text +
                     "', expected NAME=COMMAND, with a name of letters, "
                     "digits, '_', '.' and '-'",
                 "give --preflight disk='test -w /scratch'");
  }
  return supervisor::PreflightCheck{
      .name = name, .argv = {"/bin/sh", "-c", command}, .limit = limit};
}

}  // namespace accel::launcher
