// The line and the colours, by spdlog.

#include "libaccel/api/console/log_backend.h"

#include <spdlog/logger.h>
#include <spdlog/sinks/stdout_color_sinks.h>

namespace accel {
namespace {

constexpr const char* kPattern = "%Y-%m-%d %H:%M:%S.%e %^%l%$ %n %s:%# %v";

spdlog::level::level_enum backend_level(LogLevel level) {
  switch (level) {
    case LogLevel::kDebug:
      return spdlog::level::debug;
    case LogLevel::kInfo:
      return spdlog::level::info;
    case LogLevel::kWarning:
      return spdlog::level::warn;
    case LogLevel::kError:
      return spdlog::level::err;
    case LogLevel::kCritical:
      return spdlog::level::critical;
  }
  return spdlog::level::info;
}

}  // namespace

struct LogBackend::Impl {
  explicit Impl(const std::string& name)
      : logger(name, std::make_shared<spdlog::sinks::stderr_color_sink_mt>()) {}
  spdlog::logger logger;
};

LogBackend::LogBackend(const std::string& name, LogLevel level)
    : name_(name), impl_(std::make_unique<Impl>(name)) {
  impl_->logger.set_pattern(kPattern);
  impl_->logger.flush_on(spdlog::level::trace);
  set_level(level);
}

LogBackend::~LogBackend() = default;

void LogBackend::set_level(LogLevel level) {
  impl_->logger.set_level(backend_level(level));
}

bool LogBackend::is_enabled(LogLevel level) const {
  return impl_->logger.should_log(backend_level(level));
}

void LogBackend::write(LogLevel level, const char* file, int line, std::string_view text) {
  impl_->logger.log(spdlog::source_loc(file, line, ""),
                    backend_level(level),
                    spdlog::string_view_t(text.data(), text.size()));
}

}  // namespace accel
