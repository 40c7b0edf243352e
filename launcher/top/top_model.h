// TopModel: what `accel top` knows and what the person who looks at it has chosen; no terminal, no agent.
//
//   jobs --Enter--> ranks of one job --Esc--> jobs
//     '--k--> asks whether --y--> stop (K: SIGKILL at once; of a job that stops, or was asked to, both are that)
//     '--/--> a filter is typed --Enter, Esc--> jobs
//   any page --?--> the keys --any key--> that page
//
// Threads:  one; plain values.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace accel::launcher {

struct TopRank {
  unsigned rank = 0;
  std::int64_t pid = 0;                // 0: it does not run
  std::string ending;                  // "exit code 1"; empty while it runs
  std::optional<double> memory_bytes;  // resident; nothing: not known here
  std::optional<double> cpu;           // cores in use since the frame before
  std::optional<std::uint64_t> step;   // the last one it reported; nothing: it reports none
  std::optional<double> step_seconds;  // how long a step takes
};

struct TopJob {
  std::string id;    // as it was named: not to be trusted
  std::string uuid;  // empty: nothing is known of the job
  std::string state;
  std::string user;
  unsigned num_nodes = 1;
  unsigned num_workers = 0;  // that run
  unsigned restarts = 0;
  std::optional<int> exit_code;                 // once it has ended
  std::optional<std::chrono::seconds> elapsed;  // since it was started, until it ended
  std::string reason;
  std::vector<TopRank> ranks;      // of the node that was asked
  std::vector<std::string> nodes;  // "gpu-01: ranks 0 to 7", of a job of many
};

// Of the ranks that are known; nothing: of none.
[[nodiscard]] std::optional<double> top_memory_bytes(const TopJob& job);  // together
[[nodiscard]] std::optional<std::uint64_t> top_step(
    const TopJob& job);  // of the rank farthest behind
[[nodiscard]] std::optional<double> top_step_rate(
    const TopJob& job);  // steps a second of that rank

enum class TopSort { kState, kName, kUser, kWorkers, kRate, kMemory, kRestarts, kElapsed };
inline constexpr int kNumTopSorts = 8;

enum class TopPage { kJobs, kRanks };

struct TopModel {
  // of the agent
  std::vector<TopJob> jobs;
  std::string node;
  bool is_drained = false;
  std::string notice;                  // what the agent says is missing
  std::string lost;                    // why it does not answer; empty: it does
  std::chrono::seconds silent_for{0};  // since it was asked, while no answer has come
  bool has_answer = false;

  // of the person
  TopPage page = TopPage::kJobs;
  bool shows_keys = false;         // over the page
  TopSort sort = TopSort::kState;  // those that run first
  bool is_reversed = false;
  std::string filter;          // part of a name, a user or a state, in any case
  bool is_typing = false;      // the filter
  std::string selected;        // uuid
  std::size_t first_row = 0;   // that is seen, of the ranks
  std::string asked;           // uuid of the job that is to be stopped, if the answer is yes
  bool asks_for_kill = false;  // it stops already: a second stop means SIGKILL
  // uuids of those it was asked for, unless it is known that it did not reach them (take_failed_stop())
  std::set<std::string> asked_to_stop;
  std::string message;  // what became of the last order
};

// The jobs that the filter leaves, in their order.
[[nodiscard]] std::vector<const TopJob*> shown_jobs(const TopModel& model);

// Of the list: the selected one; the first when that is not shown; nullptr: there are none.
[[nodiscard]] const TopJob* selected_job(const TopModel& model);
[[nodiscard]] const TopJob* find_job(const TopModel& model, const std::string& uuid);

// The jobs as they are now. A selection that is no longer shown goes to the job that has its row.
void take_jobs(TopModel& model, std::vector<TopJob> jobs);

// A stop of the job came to nothing for sure: it may be asked to stop again.
void take_failed_stop(TopModel& model, const std::string& uuid);

// Shows the ranks of the job with this id or uuid. False: there is none.
[[nodiscard]] bool open_job(TopModel& model, const std::string& named);

struct TopOrder {
  enum class Kind { kNone, kQuit, kFollow, kStop, kKill, kRefresh, kRedraw };
  Kind kind = Kind::kNone;
  std::string uuid;  // of the job
};

enum class TopKey {
  kLetter,
  kUp,
  kDown,
  kPageUp,
  kPageDown,
  kHome,
  kEnd,
  kEnter,
  kEscape,
  kErase,
  kRedraw  // Ctrl-L
};

struct TopPress {
  TopKey key = TopKey::kLetter;
  char letter = 0;
};

// Changes the model as the key says; the order is what the program is to do. page_rows: how many rows are seen at once.
[[nodiscard]] TopOrder press(TopModel& model, const TopPress& pressed, std::size_t page_rows);

// Keys from the bytes of a terminal; what means nothing is left out. A sequence that is not finished stays for the next call; a
// lone ESC is a key once over() says that nothing follows it.
class TopKeys {
 public:
  [[nodiscard]] std::vector<TopPress> take(std::string_view bytes);
  [[nodiscard]] bool is_within_sequence() const noexcept { return !pending_.empty(); }
  [[nodiscard]] std::optional<TopPress> over();

 private:
  std::string pending_;
};

}  // namespace accel::launcher
