#include "runtime/supervisor/protocol/short_frame.h"

#include <algorithm>
#include <type_traits>

namespace accel::supervisor {
namespace {

constexpr std::size_t kLongestText = 16 * 1024;

constexpr std::size_t kShareOfOthers = 16;  // a sixteenth of the first failure's texts, each

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
  for (WorkerExit& exit : outcome.exits) shorten(exit, most / kShareOfOthers);
}

void add_notice(HostEvent& event, const std::string& why) {
  const std::string notice = "what the workers wrote last is told in part only: " + why;
  if (auto* outcome = std::get_if<JobOutcome>(&event)) outcome->notices.push_back(notice);
  if (auto* ended = std::get_if<GenerationEnded>(&event)) ended->outcome.notices.push_back(notice);
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

std::size_t text_bytes(const HostEvent& event) {
  const JobOutcome* outcome = std::get_if<JobOutcome>(&event);
  if (const auto* ended = std::get_if<GenerationEnded>(&event)) outcome = &ended->outcome;
  if (outcome == nullptr) return 0;
  std::size_t bytes = 0;
  for (const WorkerExit& exit : outcome->exits)
    bytes += exit.tail.size() + exit.error_file.size() + exit.last_error.size();
  return bytes;
}

std::optional<std::string> short_frame(const HostEvent& event,
                                       std::size_t most_bytes,
                                       const std::string& why) {
  for (std::size_t most = kLongestText;; most /= 4) {
    HostEvent shorter = event;
    shorten(shorter, most);
    add_notice(shorter, why);
    std::string frame = encode(shorter);
    if (frame.size() <= most_bytes) return frame;
    if (most == 0) return std::nullopt;
  }
}

}  // namespace accel::supervisor
