// Words of the last failure, and the numbers of errors in C, which never change: they are those of ErrorCode, to which codes are
// only added at the end, and one more.

#include "libaccel/c_interface/guarded_call.h"

#include <new>
#include <string>

#include <accel/version.h>

namespace accel::c_interface {
namespace {

static_assert(ACCEL_ERROR_INTERNAL == code_of(ErrorCode::kInternal));
static_assert(ACCEL_ERROR_INVALID_ARGUMENT == code_of(ErrorCode::kInvalidArgument));
static_assert(ACCEL_ERROR_USAGE == code_of(ErrorCode::kUsage));
static_assert(ACCEL_ERROR_UNKNOWN_FLAG == code_of(ErrorCode::kUnknownFlag));
static_assert(ACCEL_ERROR_CONFIG_UNREADABLE == code_of(ErrorCode::kConfigUnreadable));
static_assert(ACCEL_ERROR_CONFIG_SYNTAX == code_of(ErrorCode::kConfigSyntax));
static_assert(ACCEL_ERROR_CONFIG_UNKNOWN_KEY == code_of(ErrorCode::kConfigUnknownKey));
static_assert(ACCEL_ERROR_CONFIG_INVALID_VALUE == code_of(ErrorCode::kConfigInvalidValue));
static_assert(ACCEL_ERROR_ENV_INVALID == code_of(ErrorCode::kEnvInvalid));
static_assert(ACCEL_ERROR_SCRIPT_MISSING == code_of(ErrorCode::kScriptMissing));
static_assert(ACCEL_ERROR_SCRIPT_NOT_EXECUTABLE == code_of(ErrorCode::kScriptNotExecutable));
static_assert(ACCEL_ERROR_EXEC_FAILED == code_of(ErrorCode::kExecFailed));
static_assert(ACCEL_ERROR_LIBRARY_MISSING == code_of(ErrorCode::kLibraryMissing));
static_assert(ACCEL_ERROR_SPAWN_FAILED == code_of(ErrorCode::kSpawnFailed));
static_assert(ACCEL_ERROR_SHIM_MISSING == code_of(ErrorCode::kShimMissing));
static_assert(ACCEL_ERROR_SHIM_LOST == code_of(ErrorCode::kShimLost));
static_assert(ACCEL_ERROR_PROTOCOL == code_of(ErrorCode::kProtocol));
static_assert(ACCEL_ERROR_WORKER_FAILED == code_of(ErrorCode::kWorkerFailed));
static_assert(ACCEL_ERROR_WORKER_SIGNALED == code_of(ErrorCode::kWorkerSignaled));
static_assert(ACCEL_ERROR_WORKER_OUT_OF_MEMORY == code_of(ErrorCode::kWorkerOutOfMemory));
static_assert(ACCEL_ERROR_WORKER_UNKILLABLE == code_of(ErrorCode::kWorkerUnkillable));
static_assert(ACCEL_ERROR_RESTARTS_EXHAUSTED == code_of(ErrorCode::kRestartsExhausted));
static_assert(ACCEL_ERROR_PORT_IN_USE == code_of(ErrorCode::kPortInUse));
static_assert(ACCEL_ERROR_STORE_UNREACHABLE == code_of(ErrorCode::kStoreUnreachable));
static_assert(ACCEL_ERROR_STORE_TIMEOUT == code_of(ErrorCode::kStoreTimeout));
static_assert(ACCEL_ERROR_STORE_LIMIT == code_of(ErrorCode::kStoreLimit));
static_assert(ACCEL_ERROR_CHANNEL_CORRUPT == code_of(ErrorCode::kChannelCorrupt));
static_assert(ACCEL_ERROR_CHANNEL_VERSION == code_of(ErrorCode::kChannelVersion));
static_assert(ACCEL_ERROR_LOG_UNWRITABLE == code_of(ErrorCode::kLogUnwritable));
static_assert(ACCEL_ERROR_TOPOLOGY == code_of(ErrorCode::kTopology));
static_assert(ACCEL_ERROR_PEER_LOST == code_of(ErrorCode::kPeerLost));
static_assert(ACCEL_ERROR_PROCESS_GROUP == code_of(ErrorCode::kProcessGroup));
static_assert(ACCEL_ERROR_NOT_INITIALIZED == code_of(ErrorCode::kNotInitialized));
static_assert(ACCEL_ERROR_SHAPE_MISMATCH == code_of(ErrorCode::kShapeMismatch));
static_assert(ACCEL_ERROR_DATA_SHARDING == code_of(ErrorCode::kDataSharding));
static_assert(ACCEL_ERROR_SAFETENSORS_HEADER == code_of(ErrorCode::kSafetensorsHeader));
static_assert(ACCEL_ERROR_SAFETENSORS_MISMATCH == code_of(ErrorCode::kSafetensorsMismatch));
static_assert(ACCEL_ERROR_CHECKPOINT_INCOMPLETE == code_of(ErrorCode::kCheckpointIncomplete));
static_assert(ACCEL_ERROR_CHECKPOINT_MISMATCH == code_of(ErrorCode::kCheckpointMismatch));
static_assert(ACCEL_ERROR_CHECKPOINT_VERSION == code_of(ErrorCode::kCheckpointVersion));
static_assert(ACCEL_ERROR_CHECKPOINT_EXISTS == code_of(ErrorCode::kCheckpointExists));
static_assert(ACCEL_ERROR_FILE_IO == code_of(ErrorCode::kFileIo));
static_assert(ACCEL_ERROR_DISK_FULL == code_of(ErrorCode::kDiskFull));
static_assert(ACCEL_ERROR_OUT_OF_MEMORY == code_of(ErrorCode::kOutOfMemory));
static_assert(ACCEL_ERROR_AGENT_UNREACHABLE == code_of(ErrorCode::kAgentUnreachable));
static_assert(ACCEL_ERROR_AGENT_REFUSED == code_of(ErrorCode::kAgentRefused));
static_assert(ACCEL_ERROR_AGENT_RUNNING == code_of(ErrorCode::kAgentRunning));
static_assert(ACCEL_ERROR_JOB_UNKNOWN == code_of(ErrorCode::kJobUnknown));
static_assert(ACCEL_ERROR_AUTHENTICATION == code_of(ErrorCode::kAuthentication));
static_assert(ACCEL_ERROR_TLS == code_of(ErrorCode::kTls));
static_assert(ACCEL_ERROR_RENDEZVOUS_TIMEOUT == code_of(ErrorCode::kRendezvousTimeout));
static_assert(ACCEL_ERROR_COORDINATOR_LOST == code_of(ErrorCode::kCoordinatorLost));
static_assert(ACCEL_ERROR_CLUSTER_MISSING == code_of(ErrorCode::kClusterMissing));
static_assert(ACCEL_ERROR_UNSUPPORTED == code_of(ErrorCode::kUnsupported));
static_assert(ACCEL_ERROR_SHIM_STATE == code_of(ErrorCode::kShimState));
static_assert(ACCEL_ERROR_SHIM_REFUSED == code_of(ErrorCode::kShimRefused));
static_assert(ACCEL_ERROR_WORKER_HUNG == code_of(ErrorCode::kWorkerHung));
static_assert(ACCEL_ERROR_ETCD_UNREACHABLE == code_of(ErrorCode::kEtcdUnreachable));
static_assert(ACCEL_ERROR_LEADERSHIP_LOST == code_of(ErrorCode::kLeadershipLost));
static_assert(ACCEL_ERROR_NODE_LOST == code_of(ErrorCode::kNodeLost));
static_assert(ACCEL_ERROR_PREFLIGHT_FAILED == code_of(ErrorCode::kPreflightFailed));
static_assert(ACCEL_ERROR_NOT_FINITE == code_of(ErrorCode::kNotFinite));
// A new code has to be in C, too.
static_assert(code_of(ErrorCode::kCount_) == ACCEL_ERROR_NOT_FINITE + 1);

std::string& last_words() {
  thread_local std::string words;
  return words;
}

// The exception that is being handled.
Error current_error() {
  try {
    throw;
  } catch (const Error& error) {
    return error;
  } catch (const std::bad_alloc&) {
    return Error(ErrorCode::kOutOfMemory, "no more memory could be had");
  } catch (const std::exception& error) {
    const std::string text = error.what();
    return Error(ErrorCode::kInternal,
                 text.substr(0, text.find("\nException raised from")),
                 "the message is that of LibTorch or of the C++ library: mend what it names");
  } catch (...) {
    return Error(ErrorCode::kInternal, "something was thrown that is no std::exception");
  }
}

}  // namespace

int note_failure(const char* function) noexcept {
  try {
    Error error = current_error();
    error.while_doing(std::string("calling ") + function + "()");
    last_words() = error.render();
    return code_of(error.code());
  } catch (...) {
    return ACCEL_ERROR_OUT_OF_MEMORY;  // there is not even room for the words
  }
}

}  // namespace accel::c_interface

const char* accel_last_error(void) {
  return accel::c_interface::last_words().c_str();
}

const char* accel_error_id(int code) {
  using accel::ErrorCode;
  if (code == ACCEL_OK) return "ok";
  if (code < 0 || code > static_cast<int>(ErrorCode::kCount_)) return nullptr;
  // Of a literal: it ends with 0.
  return accel::error_info(static_cast<ErrorCode>(code - 1)).id.data();
}

const char* accel_version(void) {
  return accel::version().data();
}
