// VirtualCluster: a coordinator and its agents in one value, without a clock, a socket or a thread.
//
// The coordinator and the members are the real step functions; around them are links that hold
// messages until somebody delivers, repeats or drops them, a disk that writes when it is told to, and
// shims whose workers park, run and end. Each thing that can happen next is a Move; a test picks moves
// by hand, a random schedule draws them, the search tries them all. The clock moves only by kAdvance.
//
// What must hold is checked as it happens; the first breach stays in `violation`:
//   - hard fencing: workers of two generations of the job never run at the same time
//   - no rank of a generation runs on two nodes
//   - Start goes out only when every member was ready and the COMMIT is durable
//   - an agent that was told that its session is void starts nothing in that session
//   - restarts stay within their budgets
//   - a job never runs again once somebody was told that it has ended, or is stopped
//   - no job looks different to those who follow it after a step that only_answers_beats()
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <variant>
#include <vector>

#include "agent/coordinator/decisions/coordinator.h"
#include "agent/coordinator/member/member.h"

namespace accel::agent::test {

enum class MoveKind {
  kDeliverUp,     // agent -> coordinator
  kDeliverDown,   // coordinator -> agent
  kDeliverLocal,  // shim -> agent, in order
  kWrite,         // the disk writes the oldest record
  kConnect,
  kAdvance,  // the clock, to the next moment at which somebody wants it
  // faults
  kDropUp,
  kDropDown,
  kRepeatUp,
  kRepeatDown,
  kCrashAgent,  // its connection breaks; the shim keeps the workers
  kCrashNode,   // silence; the workers die
  kCrashCoordinator,
  kCut,  // nothing passes the node's link; nobody is told
  kFailRank,
  kPauseAgent,
  // what mends them
  kStartAgent,
  kStartNode,
  kStartCoordinator,
  kHeal,
  kResumeAgent,
};

struct Move {
  MoveKind kind = MoveKind::kAdvance;
  int node = 0;
  int index = 0;  // of the message in its link
};

// Bugs put in on purpose, to see that the checks bite.
enum class SeededBug {
  kNone,
  kAnswersBeforeWriting,    // the disk says "durable" before it is
  kTellsEndsBeforeWriting,  // the same, of ends and stops alone
  kForgetsLease,            // the coordinator does not wait for the leases of unreachable nodes
  kForgetsBudget,           // the coordinator never counts a restart
  kKeepsVoidSession,        // an agent goes on after Fenced
};

struct Workers {
  std::uint64_t generation = 0;
  enum class Phase { kNone, kParked, kRunning, kDone } phase = Phase::kNone;
  int first_rank = 0;
  int num_ranks = 0;
  TimePoint ends_at{};                   // kRunning: when they end with 0
  std::optional<TimePoint> lease_until;  // what the shim was told; it survives its agent
};

struct VirtualNode {
  NodeInfo info;
  bool is_up = true;        // the machine
  bool is_agent_up = true;  // the process
  bool is_paused = false;
  bool is_cut = false;
  MemberState member;
  Workers workers;
  ConnectionId connection = 0;  // 0: none
  TimePoint connect_at{};       // not before
  int num_sessions = 0;
  int num_boots = 0;
  std::string declines;  // the reason why it takes no invitation; empty: it takes any
  bool ignores_invitations = false;
  int num_invitations = 0;  // that it looked at
  using Up = std::variant<FromAgent, ConnectionLost>;
  std::deque<Up> up;
  std::deque<std::pair<ConnectionId, CoordinatorMessage>> down;
  std::deque<decltype(MemberEvent::what)> local;
};

struct ClusterOptions {
  int num_nodes = 3;
  JobDescription job;
  CoordinatorConfig config;
  Milliseconds work{3'000};  // how long a worker runs when nothing happens to it
  SeededBug bug = SeededBug::kNone;
};

[[nodiscard]] JobDescription small_job(int min_nodes, int max_nodes);

class VirtualCluster {
 public:
  explicit VirtualCluster(const ClusterOptions& options);

  // What can happen next without a fault; `window`: how many messages of a link may overtake.
  [[nodiscard]] std::vector<Move> moves(int window) const;
  void apply(const Move& move);

  // Everything in order, and the clock when there is nothing else; returns the steps taken. Stops when
  // the job has ended, or after `most` steps.
  int run_fairly(int most);
  // Delivers what is under way, without the clock.
  void settle();
  // settle(), then the clock, step by step, until it has moved by `time`.
  void run_for(Milliseconds time);
  // The clock alone: nothing is delivered but what happens within a node.
  void advance_by(Milliseconds time);
  // Undoes every fault that lasts.
  void mend();

  [[nodiscard]] const Job* job() const;
  [[nodiscard]] JobPhase phase() const { return job() ? job()->phase : JobPhase::kPending; }
  // Also long ago, so that the coordinator has forgotten it.
  [[nodiscard]] bool has_ended() const { return job() ? is_terminal(job()->phase) : is_told_over_; }
  [[nodiscard]] std::uint64_t fingerprint() const;
  [[nodiscard]] const std::string& violation() const { return violation_; }
  [[nodiscard]] const std::vector<std::string>& reports() const { return reports_; }

  void tell(decltype(Event::what) what);  // to the coordinator
  void stop_job(bool kill,
                std::optional<Milliseconds> grace = {});  // somebody waits for the answer
  void tell_node(int node, decltype(MemberEvent::what) what);
  [[nodiscard]] VirtualNode& node(int index) { return nodes_[static_cast<std::size_t>(index)]; }
  [[nodiscard]] std::size_t num_nodes() const { return nodes_.size(); }
  [[nodiscard]] const State& state() const { return state_; }
  [[nodiscard]] TimePoint now() const { return now_; }
  [[nodiscard]] bool is_coordinator_up() const { return is_coordinator_up_; }
  // Whether the clock can bring anything.
  [[nodiscard]] bool has_moment() const { return next_moment() != TimePoint::max(); }
  [[nodiscard]] bool is_quiet() const;  // no message, no record is under way
  // The next coordinator is elsewhere, and knows nothing of the job.
  void lose_records() { durable_.clear(); }
  void set_disk_full(bool full) { disk_full_ = full; }
  [[nodiscard]] const std::vector<std::pair<ConnectionId, CoordinatorMessage>>& sent() const {
    return sent_;
  }
  void forget_sent() { sent_.clear(); }
  double chance = 0;
  bool keeps_sent = false;
  bool keeps_reports = true;

 private:
  struct Write {
    std::uint64_t ticket = 0;
    Record record;
  };

  void carry_out(const Actions& actions);
  void carry_out(VirtualNode& node, const std::vector<MemberAction>& actions);
  [[nodiscard]] bool is_answered_early(const Persist& persist) const;
  void check_start(const CoordinatorMessage& message);
  void check_release(const VirtualNode& node, const ReleaseWorkers& release);
  void check_running();
  void check_budget();
  [[nodiscard]] std::string looks() const;
  void breach(const std::string& what);

  void deliver_up(VirtualNode& node, int index, bool keep);
  void deliver_down(VirtualNode& node, int index, bool keep);
  void write_next();
  void connect(VirtualNode& node);
  void advance();
  void advance_to(TimePoint at);
  [[nodiscard]] TimePoint next_moment() const;
  void start_agent(VirtualNode& node);
  void consider(VirtualNode& node, const ConsiderJob& invitation);
  void crash_agent(VirtualNode& node);
  void crash_coordinator();
  void start_coordinator();
  void end_workers(VirtualNode& node);
  void fail_rank(VirtualNode& node);
  void put_bug();

  ClusterOptions options_;
  TimePoint now_{Milliseconds(1'000'000)};
  State state_;
  bool is_coordinator_up_ = true;
  bool disk_full_ = false;
  std::deque<Write> disk_;
  std::map<std::string, std::string> durable_;
  std::vector<VirtualNode> nodes_;
  ConnectionId next_connection_ = 1;
  std::set<SessionId> void_sessions_;
  std::map<std::uint64_t, std::set<NodeId>> ready_;  // by generation
  std::vector<std::pair<ConnectionId, CoordinatorMessage>> sent_;
  std::set<std::uint64_t> started_;  // generations that had running workers
  int num_planned_ = 0;              // changes that were asked for
  std::vector<std::string> reports_;
  bool is_told_over_ = false;  // somebody was told that the job has ended, or is stopped
  std::string violation_;
};

}  // namespace accel::agent::test
