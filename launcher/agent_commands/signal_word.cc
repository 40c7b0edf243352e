#include "launcher/agent_commands/signal_word.h"

#include <csignal>
#include <cstring>
#include <string>

#include <strings.h>

#include "runtime/text/number_text.h"

namespace accel::launcher {

std::optional<int> signal_of(std::string_view word) {
  constexpr std::string_view kPrefix = "SIG";
  const bool has_prefix = word.size() > kPrefix.size() &&
                          ::strncasecmp(word.data(), kPrefix.data(), kPrefix.size()) == 0;
  const std::string name(has_prefix ? word.substr(kPrefix.size()) : word);
  for (int signal = 1; signal < NSIG; ++signal) {
    const char* const known = ::sigabbrev_np(signal);
    if (known != nullptr && ::strcasecmp(known, name.c_str()) == 0) return signal;
  }
  const auto number = number_of<int>(word);
  return number && *number > 0 && *number < NSIG ? number : std::nullopt;
}

}  // namespace accel::launcher
