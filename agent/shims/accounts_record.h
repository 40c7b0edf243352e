// AccountsRecord: a job's accounts as an agent leaves them to the next one.
//
// Threads:  pure functions.
#pragma once

#include "accel/v1/record.pb.h"
#include "runtime/supervisor/metrics/job_accounts.h"

namespace accel::agent {

[[nodiscard]] v1::Accounts to_record(const supervisor::JobAccounts& accounts);

// Of another boot the clock began anew: the time in between is on no account.
[[nodiscard]] supervisor::JobAccounts accounts_of(const v1::Accounts& record,
                                                  bool is_same_boot,
                                                  TimePoint now);

}  // namespace accel::agent
