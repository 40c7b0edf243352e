// NamedJob: which job a caller means by a name or a uuid.
//
// Threads:  pure functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <sys/types.h>

#include <accel/result.h>

#include "accel/v1/control.pb.h"

namespace accel::agent {

// What the choice needs to know of a job; views of the job's own texts.
struct NamedJob {
  std::string_view uuid;
  std::string_view name;
  std::string_view user;  // empty: not known, and then a user of its own
  bool is_own = false;    // the caller's
  bool has_ended = false;
  std::int64_t order = 0;  // of its submission: later jobs have greater numbers
};

// The index of the job that is meant, out of the `jobs` that the caller may see:
//   1. the job with this uuid, so that nobody can shield a job by another one of its name;
//   2. of the caller's own jobs of this name the newest that has not ended, else the newest;
//   3. of the jobs of the only other user who has this name, the same.
// Jobs that the caller may not see answer as jobs that do not exist.
// Errors  kJobUnknown; what ambiguous_job() says when several other users have the name.
[[nodiscard]] Result<std::size_t> choose_named(const std::vector<NamedJob>& jobs,
                                               const std::string& named);

// choose_named() among the jobs of a node, the oldest of a user's first.
[[nodiscard]] Result<const v1::Job*> find_named(
    const std::vector<const v1::Job*>& jobs,
    const std::string& named,
    std::optional<uid_t> own,  // std::nullopt: the caller is no user of this node
    const std::function<bool(const v1::Job&)>& may_see);

}  // namespace accel::agent
