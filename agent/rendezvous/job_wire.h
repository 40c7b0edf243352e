// JobWire: the description of a job as the JobSpec of proto/accel/v1, and back.
//
// What comes in is a stranger's: numbers are brought into their ranges here, what is not given has its default.
//
// Threads:  pure functions.
// Source:   tests/unit/agent/jobs/job_request_test.cc, rendezvous_test.cc.
#pragma once

#include "accel/v1/rendezvous.pb.h"
#include "agent/coordinator/messages/job_description.h"

namespace accel::agent {

// The description's payload is the serialized JobSpec without its token key.
[[nodiscard]] JobDescription describe_job(const v1::JobSpec& spec);
[[nodiscard]] v1::JobSpec to_job_spec(const JobDescription& job);

}  // namespace accel::agent
