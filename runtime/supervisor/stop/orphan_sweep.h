// OrphanSweep: finds and ends every process of a job that is still there, however it got away.
//
// Three nets. The caller is a subreaper, so whatever a worker started, forked twice or put into a
// session of its own, is a descendant of the caller. And every worker carries ACCEL_JOB_ID in its
// environment, so a process that left the tree in another way is found by that tag. ACCEL_NODE_ID and
// ACCEL_JOB_INSTANCE, where the job has them, tell it from another node and from another job of its
// name. Where the job has cgroups, whatever is in them is of the job. A sweep ends
// after two scans in a row that found nothing: a process that forks while it is being looked at is
// seen by the second one.
//
// The environment of a process in an uninterruptible wait (state D) is not read: the reader could have to wait with it, for a
// file server that does not answer. It is looked at again for a while; then step() goes on without it, and names it.
//
// A process is never signalled by its number: it is opened as a pidfd, its start time is compared
// with the one of the scan, and the signal goes to the pidfd.
//
// Threads:  one thread; step() does not block.
// Cost:     one pass over /proc for the first scan; later ones look only at what is new since.
#pragma once

#include <cstdint>
#include <string>
#include <unordered_set>
#include <vector>

#include "runtime/clock.h"
#include "runtime/supervisor/kernel/process_table.h"
#include "runtime/supervisor/protocol/job_outcome.h"
#include "runtime/system.h"

namespace accel::supervisor {

// Which processes belong to the job.
struct SweepScope {
  pid_t ancestor = 0;            // descendants of this process; itself excluded
  std::string job_id;            // or those with ACCEL_JOB_ID=<job_id>; empty: no search by tag
  std::string node_id = {};      // and, unless empty, ACCEL_NODE_ID=<node_id>
  std::string instance = {};     // and, unless empty, ACCEL_JOB_INSTANCE=<instance>
  std::uint64_t started_at = 0;  // clock ticks since boot; older processes are never touched
  std::vector<std::string> cgroups = {};  // and what is in these folders of cgroups (JobCgroup)
  pid_t spared = -1;  // never: the fork server, which serves the next generation too
};

// Start time of the calling process, for SweepScope::started_at.
[[nodiscard]] std::uint64_t own_start_time(System& system);

// The processes of `table` in scope, without zombies, and without those whose tag cannot be read (state D).
[[nodiscard]] std::vector<ProcessEntry> find_strays(System& system,
                                                    const SweepScope& scope,
                                                    const std::vector<ProcessEntry>& table);

// The processes of `table` that are one of `roots` or below one.
[[nodiscard]] std::vector<ProcessEntry> find_descendants(const std::vector<pid_t>& roots,
                                                         const std::vector<ProcessEntry>& table);

// Sends `signal` if the process is still the one of the scan. Returns whether it was sent.
bool signal_stray(System& system, const ProcessEntry& stray, int signal);

class OrphanSweep {
 public:
  // Gives up `kill_wait` after the first step that found something.
  OrphanSweep(System& system, SweepScope scope, Duration kill_wait);

  enum class Verdict { kClean, kScanAgain, kGaveUp };
  struct Step {
    Verdict verdict = Verdict::kClean;
    Duration wait{};  // kScanAgain: before the next step
  };

  // Scans once and kills what it finds. The caller reaps its children between the steps.
  [[nodiscard]] Step step(TimePoint now);

  // All processes that were found, by name.
  [[nodiscard]] const std::vector<Leftover>& found() const noexcept { return found_; }

  // Those of the last scan, which are still there after kGaveUp: "process 12 (name, state D)".
  [[nodiscard]] std::vector<std::string> describe_last_scan() const;
  // Those whose tag could not be read to the end, in the same words.
  [[nodiscard]] std::vector<std::string> describe_unread() const;

 private:
  [[nodiscard]] std::vector<ProcessEntry> scan();
  [[nodiscard]] Step search_again();
  [[nodiscard]] std::string describe(const ProcessEntry& process) const;
  void remember(const ProcessEntry& stray);

  System& system_;
  SweepScope scope_;
  Duration kill_wait_;
  TimePoint give_up_at_ = TimePoint::max();
  int empty_scans_ = 0;
  Duration wait_;
  std::unordered_set<pid_t> foreign_;  // seen before, and not of the job
  std::vector<ProcessEntry> last_scan_;
  std::vector<ProcessEntry> unread_;  // of the last scan
  TimePoint leave_unread_at_ = TimePoint::max();
  std::vector<Leftover> found_;
};

// Reaps every child that has ended; for callers that track none of them. Returns how many.
int reap_all_children();

}  // namespace accel::supervisor
