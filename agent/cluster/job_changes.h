// ViewLog, KnownViews: what has changed of jobs since somebody knew them.
//
//   coordinator                                              agent whose users follow jobs
//   look(state): each change has a number
//                <--- ChangesReq{question, since, jobs} ---   request()
//   answer()     ---- JobChanges{question, now} --------->   take(): views as they are at `now`
//
// An answer is made of the log and of the question alone, and who asks takes the answer to the question that it would ask
// now. So one that is lost is asked for again, and one that comes twice or late changes nothing. A question of another life
// of the coordinator, or of a number whose jobs that went are forgotten, is answered with everything.
//
// What changes is a job's head, sent whole, and nodes by their place. The list of nodes is kept while nobody has a seat:
// a restart with the same nodes sends none.
//
// Threads:  plain values.
// Source:   etcd's watches from a revision; tests/unit/agent/cluster/job_changes_test.cc drops, repeats and reorders.
// Cost:     look() compares each job that has not ended, with all its nodes; an answer goes over what changed since.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "accel/v1/cluster.pb.h"
#include "agent/coordinator/state/state.h"

namespace accel::agent {

// The coordinator's end.
class ViewLog {
 public:
  static constexpr std::size_t kMostGone = 1'000;

  // id: of this log, and of no other.
  explicit ViewLog(std::uint64_t id) : id_(id) {}

  // Numbers what has changed since the last look. A job that has ended stays as it was then.
  void look(const State& state);

  // At most kPageBytes, but one job at least.
  [[nodiscard]] v1::JobChanges answer(const v1::ChangesReq& request) const;

  [[nodiscard]] bool contains(const std::string& uuid) const { return jobs_.contains(uuid); }

 private:
  struct Entry {
    v1::Job head;
    std::string head_text;  // serialized
    bool shows_nodes = false;
    std::vector<v1::JobNode> nodes;
    std::vector<std::uint64_t> node_changed;
    std::uint64_t changed = 0;  // the last number
  };

  void take(const State& state, const std::string& uuid, const Job& job);
  void forget(const std::string& uuid);
  static v1::JobChange change_of(const Entry& entry, std::uint64_t since, bool is_whole);

  std::uint64_t id_;
  std::uint64_t now_ = 0;
  std::map<std::string, Entry> jobs_;
  std::map<std::uint64_t, std::string> by_change_;
  std::map<std::uint64_t, std::string> gone_;  // the last kMostGone
  std::uint64_t forgotten_ = 0;                // the last number that is not in it any more
};

// Whether there is something in it for whoever asked.
[[nodiscard]] bool has_news(const v1::JobChanges& answer);

// The other end.
class KnownViews {
 public:
  // Which jobs it follows from now on.
  void want(std::set<std::string> jobs, bool all);

  [[nodiscard]] v1::ChangesReq request() const;

  struct News {
    std::vector<std::string> changed;  // uuids
    std::vector<std::string> gone;
  };
  // Empty: the answer is not to request() as it is now, and nothing was taken of it.
  std::optional<News> take(const v1::JobChanges& answer);

  // nullptr: not known.
  [[nodiscard]] const v1::Job* find(const std::string& uuid) const;
  [[nodiscard]] std::vector<std::string> uuids() const;

 private:
  struct Known {
    v1::Job job;
    std::vector<v1::JobNode> nodes;
  };
  [[nodiscard]] bool is_wanted(const std::string& uuid) const {
    return all_ || wanted_.contains(uuid);
  }
  bool take(const v1::JobChange& change);

  std::set<std::string> wanted_;
  bool all_ = false;
  v1::ViewRevision since_;
  std::uint64_t question_ = 1;  // another one after each answer that was taken, and for other jobs
  std::map<std::string, Known> jobs_;
};

}  // namespace accel::agent
