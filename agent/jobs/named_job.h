// NamedJob: which job a caller means by a name or a uuid.
//
// Threads:  pure functions.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include <sys/types.h>

#include <accel/result.h>

#include "accel/v1/control.pb.h"

namespace accel::agent {

// A uuid stands before all names, so that nobody can shield a job by another one of its name. Names are a user's own: one of `own`,
// if there is one, else that of the only user who has it. A job that one may not see answers as one that does not exist.
// Errors  kJobUnknown; what ambiguous_job() says.
[[nodiscard]] Result<const v1::Job*> find_named(
    const std::vector<const v1::Job*>& jobs,
    const std::string& named,
    std::optional<uid_t> own,  // std::nullopt: the caller is no user of this node
    const std::function<bool(const v1::Job&)>& may_see);

}  // namespace accel::agent
