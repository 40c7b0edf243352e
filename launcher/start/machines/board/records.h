// Records: what the launchers of a job on several machines write into its store for one another.
//
//   key              written by                what it says
//   ---------------  ------------------------  ------------------------------------------------------
//   accel/host       machine 0                 its MachineCard: what the others compare with
//   accel/hello/S    with a token: any other   the id of a launcher that asks whether machine 0 lives now
//   accel/welcome/S  with a token: machine 0   that id: it does (board_seal.h)
//   accel/joins      who has no machine rank   a counter: from which place on it looks for a free one
//   accel/claim/R    one launcher, once        its MachineCard: machine rank R is taken
//   accel/fault      anyone, once              why the machines cannot form a job
//   accel/plan       machine 0                 JobPlan: how many workers each machine has
//   accel/ready/R    machine R                 its workers are prepared
//   accel/go         machine 0                 all are: start
//   accel/beat/R     machine R                 a number that changes while its launcher lives
//   accel/stop       anyone, once              StopNote: why the workers are to be stopped
//   accel/end/R      machine R                 EndNote: how its workers ended
//   accel/verdict    machine 0                 Verdict: how the job ended, or that it starts again
//   accel/left/R     machine R                 it has read the verdict
//
// Values carry ranks, counts, versions, addresses and sentences for people; never a command, an
// environment or code. They come from other machines: numbers are checked where they are read, and
// sentences are cleaned where they are shown.
//
// Threads:  plain values and pure functions.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include <accel/result.h>

#include "launcher/workers/compute_device.h"

namespace accel::launcher {

namespace board_key {
inline constexpr std::string_view kHost = "accel/host";
inline constexpr std::string_view kJoins = "accel/joins";
inline constexpr std::string_view kFault = "accel/fault";
inline constexpr std::string_view kPlan = "accel/plan";
inline constexpr std::string_view kGo = "accel/go";
inline constexpr std::string_view kStop = "accel/stop";
inline constexpr std::string_view kVerdict = "accel/verdict";
inline constexpr std::string_view kHello = "accel/hello/";
inline constexpr std::string_view kWelcome = "accel/welcome/";
inline constexpr std::string_view kClaim = "accel/claim/";  // and the others of one machine
inline constexpr std::string_view kReady = "accel/ready/";
inline constexpr std::string_view kBeat = "accel/beat/";
inline constexpr std::string_view kEnd = "accel/end/";
inline constexpr std::string_view kLeft = "accel/left/";

[[nodiscard]] std::string of(std::string_view prefix, int machine_rank);
}  // namespace board_key

inline constexpr std::string_view kSuspendedBeat = "suspended";  // it is stopped by its user

struct MachineCard {
  static constexpr int kVersion = 2;

  int version = kVersion;
  std::string id;      // of this launcher alone
  std::string run_id;  // of the job: --rdzv_id
  int generation = 0;
  int rank = 0;  // of the machine
  int num_machines = 1;
  int num_workers = 1;                            // on it
  int num_processes = 0;                          // on all; 0: each machine says its own
  ComputeDevice device = ComputeDevice::kUnsaid;  // also of an older launcher
  std::string host;                               // its name
  std::string address;                            // from which it reaches the store

  // "machine 1 (gpu-02, 10.0.0.2)", printable.
  [[nodiscard]] std::string describe() const;
  // "gpu-02 (10.0.0.2)", printable.
  [[nodiscard]] std::string describe_host() const;
};

struct JobPlan {
  int restart_count = 0;
  std::vector<int> num_workers;        // by machine
  std::vector<std::string> hosts;      // by machine
  std::vector<std::string> launchers;  // by machine: the ids of their cards

  [[nodiscard]] int world_size() const;
  [[nodiscard]] int first_rank(int machine_rank) const;
  // "machine 1 (gpu-02)", printable.
  [[nodiscard]] std::string describe(int machine_rank) const;
};

enum class StopKind { kFailure, kSignal, kNotReady, kLost };

struct StopNote {
  StopKind kind = StopKind::kFailure;
  int machine = 0;
  int rank = -1;      // kFailure: which worker
  int exit_code = 1;  // that it would end the job with
  bool may_restart = false;
  std::string text;  // "rank 3 failed with exit code 7"
};

struct EndNote {
  bool success = false;
  bool has_saved = false;  // preempted, and every rank had saved
  int exit_code = 0;       // that it would end the job with
};

enum class VerdictKind { kSucceeded, kFailed, kStopped, kRestart };

struct Verdict {
  VerdictKind kind = VerdictKind::kSucceeded;
  int code = 0;       // kFailed: the ErrorCode
  int exit_code = 0;  // of every launcher
  int machine = -1;   // where it began; -1: nowhere
  std::string text;
  std::string remedy;
};

[[nodiscard]] std::string to_text(const MachineCard& card);
[[nodiscard]] std::string to_text(const JobPlan& plan);
[[nodiscard]] std::string to_text(const StopNote& note);
[[nodiscard]] std::string to_text(const EndNote& note);
[[nodiscard]] std::string to_text(const Verdict& verdict);

// Errors  kProtocol: it is no such record, or a number is out of range.
[[nodiscard]] Result<MachineCard> card_from(std::string_view text);
[[nodiscard]] Result<JobPlan> plan_from(std::string_view text);
[[nodiscard]] Result<StopNote> stop_from(std::string_view text);
[[nodiscard]] Result<EndNote> end_from(std::string_view text);
[[nodiscard]] Result<Verdict> verdict_from(std::string_view text);

}  // namespace accel::launcher
