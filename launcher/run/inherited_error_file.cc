#include "launcher/run/inherited_error_file.h"

#include <cerrno>
#include <chrono>
#include <fstream>

#include <nlohmann/json.hpp>

#include "runtime/supervisor/spawn/exit_error.h"

namespace accel::launcher {
namespace {

// As torch: the negative number of a signal.
int error_code_of(const supervisor::WorkerExit& exit) {
  return exit.signal != 0 ? -exit.signal : exit.exit_code;
}

}  // namespace

std::string error_file_of(const supervisor::JobOutcome& outcome,
                          int num_workers,
                          std::int64_t seconds) {
  if (outcome.success || !outcome.first_failure) return {};
  const supervisor::WorkerExit& first = *outcome.first_failure;
  auto json = nlohmann::json::parse(first.error_file, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object() || !json.contains("message")) {
    const Error error = supervisor::error_of(first, supervisor::rank_name(first, num_workers));
    json = {{"message",
             {{"message", error.message()},
              {"extraInfo", {{"py_callstack", ""}, {"timestamp", std::to_string(seconds)}}}}}};
  }
  if (json["message"].is_object()) json["message"]["errorCode"] = error_code_of(first);
  return json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

Result<void> keep_error_file(const supervisor::JobOutcome& outcome,
                             int num_workers,
                             const EnvMap& environment) {
  const auto path = environment.find("TORCHELASTIC_ERROR_FILE");
  if (path == environment.end() || path->second.empty()) return {};
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  const std::string text = error_file_of(
      outcome, num_workers, std::chrono::duration_cast<std::chrono::seconds>(now).count());
  if (text.empty()) return {};
  std::ofstream file(path->second, std::ios::trunc);
  file << text << std::flush;
  if (file) return {};
  return Error(ErrorCode::kFileIo,
               "the error file " + path->second + " cannot be written: " + errno_text(errno),
               "let TORCHELASTIC_ERROR_FILE name a file that can be written");
}

}  // namespace accel::launcher
