// Error: one value with the failure, its context and a remedy.
//
// Every failure that a user can meet has an ErrorCode. The table in runtime/error.cc gives each
// code its id ("config.unknown_key"), the exit status of a program that stops because of it, and a
// default remedy; docs/reference/errors.md is generated from that table. An Error has the message with
// its values and units, the context that callers added, and a remedy: a command to run or
// a key to change.
//
//   accel: error [store.port_in_use]: cannot listen on 127.0.0.1:29500: address already in use
//     while     starting the store of generation 0
//     try       give another port with --main_process_port, or 0 for any free one
//     more      docs/reference/errors.md#store-port-in-use
//
// Threads:  a value type; safe to copy between threads.
#pragma once

#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include <accel/export.h>

namespace accel {

// Keep in step with the table in runtime/error.cc (a static_assert counts them).
enum class ErrorCode {
  kInternal,
  kInvalidArgument,
  kUsage,
  kUnknownFlag,
  kConfigUnreadable,
  kConfigSyntax,
  kConfigUnknownKey,
  kConfigInvalidValue,
  kEnvInvalid,
  kScriptMissing,
  kScriptNotExecutable,
  kExecFailed,
  kLibraryMissing,
  kSpawnFailed,
  kShimMissing,
  kShimLost,
  kProtocol,
  kWorkerFailed,
  kWorkerSignaled,
  kWorkerOutOfMemory,
  kWorkerUnkillable,
  kRestartsExhausted,
  kPortInUse,
  kStoreUnreachable,
  kStoreTimeout,
  kStoreLimit,
  kChannelCorrupt,
  kChannelVersion,
  kLogUnwritable,
  kTopology,
  kPeerLost,
  kProcessGroup,
  kNotInitialized,
  kShapeMismatch,
  kDataSharding,
  kSafetensorsHeader,
  kSafetensorsMismatch,
  kCheckpointIncomplete,
  kCheckpointMismatch,
  kCheckpointVersion,
  kCheckpointExists,
  kFileIo,
  kDiskFull,
  kOutOfMemory,
  kAgentUnreachable,
  kAgentRefused,
  kAgentRunning,
  kJobUnknown,
  kAuthentication,
  kTls,
  kRendezvousTimeout,
  kCoordinatorLost,
  kClusterMissing,
  kUnsupported,
  kShimState,
  kShimRefused,
  kWorkerHung,
  kEtcdUnreachable,
  kLeadershipLost,
  kNodeLost,
  kPreflightFailed,
  kNotFinite,
  kCount_,  // not a code: the number of codes
};

struct ErrorInfo {
  ErrorCode code;
  std::string_view id;  // "area.what"; its doc anchor is the id with '.' and '_' turned into '-'
  int exit_status;      // of a program that ends because of it
  std::string_view summary;  // one sentence for docs/reference/errors.md
  std::string_view remedy;   // used if the failing code gives no better one
};

// The entry of `code`. Never fails.
ACCEL_EXPORT const ErrorInfo& error_info(ErrorCode code) noexcept;

class ACCEL_EXPORT Error : public std::runtime_error {
 public:
  // An empty remedy: the default of the code.
  Error(ErrorCode code, std::string message, std::string remedy = {});

  [[nodiscard]] ErrorCode code() const noexcept { return code_; }
  [[nodiscard]] const std::string& message() const noexcept { return message_; }
  [[nodiscard]] const std::string& remedy() const noexcept { return remedy_; }
  // Innermost first: "reading the header of model.safetensors", "loading checkpoint_3".
  [[nodiscard]] const std::vector<std::string>& context() const noexcept { return context_; }
  // Extra lines of the report, each "label  text" ("missing", "log", ...), in the order given.
  [[nodiscard]] const std::vector<std::pair<std::string, std::string>>& details() const noexcept {
    return details_;
  }

  // Adds context; returns itself for chaining.
  Error& while_doing(std::string what) &;
  Error&& while_doing(std::string what) &&;
  Error& with_detail(std::string label, std::string text) &;
  Error&& with_detail(std::string label, std::string text) &&;

  // The whole block shown above, without a newline at the end. `program` is the word before ":
  // error".
  [[nodiscard]] std::string render(std::string_view program = "accel") const;

  // The id and the message on one line; what an uncaught exception prints.
  [[nodiscard]] const char* what() const noexcept override { return what_.c_str(); }

 private:
  void refresh_what();

  ErrorCode code_;
  std::string message_;
  std::string remedy_;
  std::vector<std::string> context_;
  std::vector<std::pair<std::string, std::string>> details_;
  std::string what_;
};

// "No such file or directory (errno 2)".
ACCEL_EXPORT std::string errno_text(int error_number);

}  // namespace accel
