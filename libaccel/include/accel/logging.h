// Logging: a logger that knows the ranks, and the source line of its caller.
//
//   const accel::Logger logger = accel::get_logger("train");
//   logger.info("epoch 3 begins");                             // on the main process
//   logger.warning("odd batch", {.main_process_only = false}); // on every rank
//   logger.info("my shard: 17", {.in_order = true});           // rank after rank; a collective
//
//   2026-01-31 12:00:00.000 info train train.cc:42 [RANK 0] epoch 3 begins
//
// Lines go to stderr, in colour on a terminal. The level comes from get_logger(), else from
// ACCELERATE_LOG_LEVEL (debug, info, warning, error, critical), else it is info. A PartialState must
// exist.
//
// Threads:  any thread may call all functions, except with in_order.
#pragma once

#include <concepts>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include <accel/export.h>
#include <accel/types.h>

namespace accel {

class LogBackend;

// A text and its place in the source. It is constructed from the text at the place of the call.
class LogMessage {
 public:
  template <typename Text>
  requires std::convertible_to<const Text&, std::string_view> LogMessage(
      const Text& text,  // NOLINT: implicit, so that the defaults see the caller
      const char* file = __builtin_FILE(),
      int line = __builtin_LINE())
      : text_(text), file_(file), line_(line) {}

  [[nodiscard]] std::string_view text() const { return text_; }
  [[nodiscard]] const char* file() const { return file_; }
  [[nodiscard]] int line() const { return line_; }

 private:
  std::string_view text_;
  const char* file_;
  int line_;
};

struct LogOptions {
  bool main_process_only = true;
  bool in_order = false;  // every rank logs, one after the other; each must call, at the same level
};

class ACCEL_EXPORT Logger {
 public:
  // Errors of all: kNotInitialized before a PartialState exists; with in_order kPeerLost,
  // kProcessGroup.
  void log(LogLevel level, const LogMessage& message, const LogOptions& options = {}) const;
  void debug(const LogMessage& message, const LogOptions& options = {}) const;
  void info(const LogMessage& message, const LogOptions& options = {}) const;
  void warning(const LogMessage& message, const LogOptions& options = {}) const;
  void error(const LogMessage& message, const LogOptions& options = {}) const;
  void critical(const LogMessage& message, const LogOptions& options = {}) const;
  // Like warning(), but each text is shown only once for the name of this logger.
  void warning_once(const LogMessage& message, const LogOptions& options = {}) const;

  // Whether messages of that level are shown.
  [[nodiscard]] bool is_enabled(LogLevel level) const;
  [[nodiscard]] const std::string& name() const;

 private:
  friend Logger get_logger(std::string_view name, std::optional<LogLevel> level);
  explicit Logger(std::shared_ptr<LogBackend> backend) : backend_(std::move(backend)) {}

  std::shared_ptr<LogBackend> backend_;
};

// The logger of that name; the level applies to all handles of the name.
// Errors  kEnvInvalid if ACCELERATE_LOG_LEVEL is not a level.
ACCEL_EXPORT Logger get_logger(std::string_view name, std::optional<LogLevel> level = std::nullopt);

}  // namespace accel
