// LastWord: the file in which a shim that holds leaves how its job ended.
//
// What a shim has sent to its owner may never be read: the owner is killed a moment later, or comes back when the hold
// is over and the shim is gone. So the last event of a job is written beside the state file before it is sent. The
// owner removes the file once it has written the end down itself; it also removes it before it starts a job of the
// same id.
//
// Threads:  functions without state.
// Source:   docs/internals/supervision.md "Owners that come back".
#pragma once

#include <optional>
#include <string>

#include <sys/types.h>

#include <accel/result.h>

#include "runtime/supervisor/protocol/frames.h"

namespace accel::supervisor {

// The name in the runtime folder.
[[nodiscard]] std::string last_word_name(const std::string& job_id);

// Errors  kShimState.
[[nodiscard]] Result<void> write_last_word(const std::string& folder,
                                           const std::string& job_id,
                                           const HostEvent& event);

// A JobOutcome or a Refused; std::nullopt when there is none. `owner` is the user whose folder it is, who may have put
// anything there. Errors  kShimState: the folder or the file cannot be used; kProtocol: it is no such event.
[[nodiscard]] Result<std::optional<HostEvent>> read_last_word(const std::string& folder,
                                                              const std::string& job_id,
                                                              uid_t owner);

void remove_last_word(const std::string& folder, const std::string& job_id);

}  // namespace accel::supervisor
