#include "launcher/start/ssh/stdin_variables.h"

#include <algorithm>
#include <cerrno>
#include <cstdlib>

#include <unistd.h>

#include "runtime/text/letter_case.h"
#include "runtime/text/number_text.h"

namespace accel::launcher {
namespace {

Error bad_input(const std::string& what) {
  return Error(ErrorCode::kProtocol,
               "standard input should begin with the variables that " +
                   std::string(kStdinVariables) + " announces: " + what,
               "unset " + std::string(kStdinVariables) +
                   ", which accel-launch sets for the launchers that it starts through ssh");
}

Result<std::string> read_exactly(int fd, std::size_t num_bytes) {
  std::string text(num_bytes, '\0');
  std::size_t num_read = 0;
  while (num_read < num_bytes) {
    const ssize_t got = ::read(fd, text.data() + num_read, num_bytes - num_read);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return bad_input(errno_text(errno));
    if (got == 0) {
      return bad_input("it ends after " + std::to_string(num_read) + " of " +
                       std::to_string(num_bytes) + " bytes");
    }
    num_read += static_cast<std::size_t>(got);
  }
  return text;
}

}  // namespace

bool is_secret(std::string_view name) {
  constexpr std::string_view kSigns[] = {
      "token", "password", "passwd", "secret", "api_key", "access_key", "credential"};
  const std::string small = lowercase(name);
  return std::ranges::any_of(
      kSigns, [&](std::string_view sign) { return small.find(sign) != std::string::npos; });
}

std::string to_stdin_text(const Variables& variables) {
  std::string text;
  for (const auto& [name, value] : variables) text += name + '=' + value + '\0';
  return text;
}

Result<void> take_stdin_variables(int fd) {
  const char* const announced = std::getenv(kStdinVariables);
  if (announced == nullptr) return {};
  const auto num_bytes = number_of<std::size_t>(announced);
  if (!num_bytes || *num_bytes > kMostStdinBytes)
    return bad_input("'" + std::string(announced) + "' is no number of bytes");
  ::unsetenv(kStdinVariables);
  const auto text = read_exactly(fd, *num_bytes);
  if (!text) return text.error();
  std::string_view rest = *text;
  while (!rest.empty()) {
    const std::size_t end = rest.find('\0');
    const std::size_t equals = rest.substr(0, end).find('=');
    if (end == std::string_view::npos || equals == std::string_view::npos || equals == 0)
      return bad_input("what came is no NAME=VALUE");
    const std::string name(rest.substr(0, equals));
    const std::string value(rest.substr(equals + 1, end - equals - 1));
    ::setenv(name.c_str(), value.c_str(), 1);
    rest.remove_prefix(end + 1);
  }
  return {};
}

}  // namespace accel::launcher
