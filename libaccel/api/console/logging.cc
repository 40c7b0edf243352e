// Who logs and when: the loggers by name, the rank in front of the text, and the order of the
// ranks.

#include <cstdlib>
#include <functional>
#include <map>
#include <mutex>
#include <set>
#include <utility>

#include <accel/error.h>
#include <accel/logging.h>
#include <accel/state.h>

#include "libaccel/api/console/log_backend.h"

namespace accel {
namespace {

LogLevel default_level() {
  const char* text = std::getenv("ACCELERATE_LOG_LEVEL");
  if (text == nullptr || *text == '\0') return LogLevel::kInfo;
  try {
    return parse<LogLevel>(text);
  } catch (const Error& cause) {
    throw Error(ErrorCode::kEnvInvalid, "ACCELERATE_LOG_LEVEL: " + cause.message());
  }
}

// The loggers by name, and what they have warned of once. Never destroyed: destructors may still
// log.
struct Registry {
  std::mutex mutex;
  std::map<std::string, std::shared_ptr<LogBackend>, std::less<>> loggers;
  std::set<std::pair<std::string, std::string>> warned;
};

Registry& registry() {
  static auto* const loggers = new Registry;
  return *loggers;
}

}  // namespace

Logger get_logger(std::string_view name, std::optional<LogLevel> level) {
  const std::lock_guard lock(registry().mutex);
  auto found = registry().loggers.find(name);
  if (found == registry().loggers.end()) {
    const std::string key(name);
    found =
        registry().loggers.emplace(key, std::make_shared<LogBackend>(key, default_level())).first;
  }
  if (level) found->second->set_level(*level);
  return Logger(found->second);
}

void Logger::log(LogLevel level, const LogMessage& message, const LogOptions& options) const {
  if (!PartialState::initialized()) {
    throw Error(ErrorCode::kNotInitialized,
                "logging needs to know the ranks, and there is no state yet");
  }
  if (!is_enabled(level)) return;
  const PartialState state;
  const auto write = [&] {
    const std::string text =
        "[RANK " + std::to_string(state.process_index()) + "] " + std::string(message.text());
    backend_->write(level, message.file(), message.line(), text);
  };
  if (!options.in_order) {
    if (!options.main_process_only || state.is_main_process()) write();
    return;
  }
  for (int turn = 0; turn < state.num_processes(); ++turn) {
    if (turn == state.process_index()) write();
    state.wait_for_everyone();
  }
}

void Logger::debug(const LogMessage& message, const LogOptions& options) const {
  log(LogLevel::kDebug, message, options);
}
void Logger::info(const LogMessage& message, const LogOptions& options) const {
  log(LogLevel::kInfo, message, options);
}
void Logger::warning(const LogMessage& message, const LogOptions& options) const {
  log(LogLevel::kWarning, message, options);
}
void Logger::error(const LogMessage& message, const LogOptions& options) const {
  log(LogLevel::kError, message, options);
}
void Logger::critical(const LogMessage& message, const LogOptions& options) const {
  log(LogLevel::kCritical, message, options);
}

void Logger::warning_once(const LogMessage& message, const LogOptions& options) const {
  {
    const std::lock_guard lock(registry().mutex);
    if (!registry().warned.emplace(name(), message.text()).second) return;
  }
  warning(message, options);
}

bool Logger::is_enabled(LogLevel level) const {
  return backend_->is_enabled(level);
}

const std::string& Logger::name() const {
  return backend_->name();
}

}  // namespace accel
