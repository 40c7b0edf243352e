// JobState: what the state of a job says, and when it changed.
//
// Threads:  pure functions.
#pragma once

#include <chrono>
#include <string>
#include <string_view>

#include <google/protobuf/util/time_util.h>

#include "accel/v1/control.pb.h"
#include "runtime/text/letter_case.h"

namespace accel::agent {

[[nodiscard]] inline bool has_ended(const v1::Job& job) {
  return job.state() >= v1::JOB_STATE_SUCCEEDED;
}

// "running" of JOB_STATE_RUNNING.
[[nodiscard]] inline std::string job_state_word(v1::JobState state) {
  const std::string name = v1::JobState_Name(state);
  constexpr std::string_view kPrefix = "JOB_STATE_";
  return lowercase(name.starts_with(kPrefix) ? name.substr(kPrefix.size()) : name);
}

// Into a field that is for texts only.
inline void stamp(google::protobuf::Timestamp& out,
                  std::chrono::system_clock::time_point now = std::chrono::system_clock::now()) {
  out = google::protobuf::util::TimeUtil::NanosecondsToTimestamp(
      std::chrono::nanoseconds(now.time_since_epoch()).count());
}

}  // namespace accel::agent
