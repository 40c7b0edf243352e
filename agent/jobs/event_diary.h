// EventDiary: what happens to jobs on this node, as lines of JSON.
//
// Every line has the key by which events, logs and metrics are joined:
//
//   seq, wall, mono_ns, node, event     of the agent: counted since its start, RFC 3339 in UTC, CLOCK_MONOTONIC
//   job, job_uuid, generation           what it is about; rank, local_rank, pid, step where it is about a worker
//
// Threads:  plain values; the time comes from outside.
// Source:   docs/reference/metrics.md, "Events"; docs/admin/agent.md, `accel watch`.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <string>

#include "accel/v1/control.pb.h"
#include "agent/coordinator/messages/actions.h"
#include "runtime/supervisor/protocol/frames.h"

namespace accel::agent {

struct EventMoment {
  std::chrono::system_clock::time_point wall;
  std::chrono::nanoseconds mono{0};
};
[[nodiscard]] EventMoment event_moment_now();

// Whose shim speaks.
struct EventSubject {
  std::string job_id;
  std::string job_uuid;
  std::uint64_t generation = 0;
  int first_rank = 0;  // of this node
};

class EventDiary {
 public:
  EventDiary(std::string node_id,
             std::function<void(std::string line)> write,
             std::function<EventMoment()> now = event_moment_now);

  // Writes "job" when the state, the generation, the restarts or the reason is another one.
  void job_changed(const v1::Job& job);
  // Writes what a shim tells: starts and ends of workers, restarts, hangs, stragglers, stopped workers, notices.
  void heard(const EventSubject& subject, const supervisor::HostEvent& event);
  // Writes what the coordinator reports, where it decides. `state`: of the job, as it is now.
  void reported(const Report& report, const EventSubject& subject, std::string_view state);

 private:
  struct Line;

  const std::string node_id_;
  std::function<void(std::string)> write_;
  std::function<EventMoment()> now_;
  std::uint64_t next_seq_ = 1;
  std::map<std::string, std::string> told_;  // by uuid, of jobs that run: what was told last
};

}  // namespace accel::agent
