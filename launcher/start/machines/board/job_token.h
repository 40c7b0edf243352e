// JobToken: the secret by which the machines of a job without a daemon know one another.
//
// Threads:  a plain value.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include <accel/env_contract.h>
#include <accel/result.h>

#include "launcher/cluster_entry/token_functions.h"
#include "launcher/workers/launcher_variables.h"

namespace accel::launcher {

class JobToken {
 public:
  JobToken(std::string token, const TokenFunctions& functions)
      : token_(std::move(token)), functions_(&functions) {}

  // See BoardSeal.
  [[nodiscard]] std::string prove(std::string_view session,
                                  std::string_view key,
                                  std::string_view text) const {
    return functions_->prove(token_, session, key, text);
  }

 private:
  std::string token_;
  const TokenFunctions* functions_;
};

// What ACCEL_JOB_TOKEN says, else the file that ACCEL_JOB_TOKEN_FILE names; std::nullopt when neither is
// set, or both are empty.
// Errors  kAuthentication: shorter than 16 characters, a file that is missing or that others may read;
//         kClusterMissing.
[[nodiscard]] Result<std::optional<JobToken>> find_job_token(const EnvMap& environment);

}  // namespace accel::launcher
