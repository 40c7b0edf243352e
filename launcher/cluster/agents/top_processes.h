// TopProcesses: what the kernel says of workers on this machine: memory and processors.
//
// Threads:  one.
// Source:   proc(5), /proc/PID/statm and /proc/PID/stat.
#pragma once

#include <cstdint>
#include <map>

#include "launcher/top/top_model.h"
#include "runtime/clock.h"

namespace accel::cluster {

class TopProcesses {
 public:
  // Fills in memory_bytes, and cpu from the second time on. A process of another user than `uid` is another one of the same
  // number (the agent sees other processes than we do), and is left out.
  void look_at(launcher::TopJob& job, unsigned uid, TimePoint now);
  // Forgets those that were not looked at since the last call.
  void forget_others();

 private:
  struct Seen {
    std::uint64_t ticks = 0;
    TimePoint at;
    bool is_new = true;
  };
  std::map<std::int64_t, Seen> seen_;
};

}  // namespace accel::cluster
