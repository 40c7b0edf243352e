#include "runtime/supervisor/short_frame.h"

#include <algorithm>
#include <type_traits>

namespace accel::supervisor {
namespace {

constexpr std::size_t kLongestText = 16 * 1024;

constexpr const char* kWhatIsMissing =
    "what the workers wrote last is told in part only: a message of its length could not be stored "
    "(see `ulimit -f`, `ulimit -n` and the limit of memory)";

void keep_end(std::string& text, std::size_t most) {
  if (text.size() > most) text.erase(0, text.size() - most);
}

void shorten(WorkerExit& exit, std::size_t most) {
  keep_end(exit.tail, most);
  exit.last_error.resize(std::min(exit.last_error.size(), most));
  if (exit.error_file.size() > most) exit.error_file.clear();
}

// The first failure is what a report is about: the others go first.
void shorten(JobOutcome& outcome, std::size_t most) {
  if (outcome.first_failure) shorten(*outcome.first_failure, most);
  for (WorkerExit& exit : outcome.exits) shorten(exit, 0);
  outcome.notices.emplace_back(kWhatIsMissing);
}

void shorten(HostEvent& event, std::size_t most) {
  std::visit(
      [&](auto& value) {
        using T = std::decay_t<decltype(value)>;
        if constexpr (std::is_same_v<T, WorkerExit> || std::is_same_v<T, JobOutcome>) {
          shorten(value, most);
        } else if constexpr (std::is_same_v<T, Restarting>) {
          shorten(value.because, most);
        } else if constexpr (std::is_same_v<T, GenerationEnded>) {
          shorten(value.outcome, most);
        } else if constexpr (std::is_same_v<T, Notice>) {
          value.text.resize(std::min(value.text.size(), most));
        }
      },
      event);
}

}  // namespace

std::optional<std::string> short_frame(const HostEvent& event, std::size_t most_bytes) {
  for (std::size_t most = kLongestText;; most /= 4) {
    HostEvent shorter = event;
    shorten(shorter, most);
    std::string frame = encode(shorter);
    if (frame.size() <= most_bytes) return frame;
    if (most == 0) return std::nullopt;
  }
}

}  // namespace accel::supervisor
