// JobPage: a list of jobs by pages, for answers whose size is bounded.
//
// The jobs of a page follow the one that the page before ended with. One that is gone meanwhile makes it the first page
// again: whoever asks knows the jobs that it has already.
//
// Threads:  plain values; join_page() on the loop of whoever answers.
#pragma once

#include <functional>
#include <set>
#include <string>
#include <vector>

#include <accel/result.h>

#include "accel/v1/control.pb.h"

namespace accel::agent {

inline constexpr std::size_t kPageBytes = 512 * 1024;

// One page that is being filled.
class JobPage {
 public:
  explicit JobPage(v1::JobList& list) : list_(list) {}

  // The next job. False: it has no room, and the list says that more follow.
  bool add(v1::Job job);

 private:
  v1::JobList& list_;
  std::size_t bytes_ = 0;
};

// Moves as many of `jobs` into `list` as have room, one at least, and says whether more follow.
void fill_page(std::vector<v1::Job> jobs, const std::string& after, v1::JobList& list);

// One page of the coordinator's list, as far as its jobs may be seen.
struct JobsElsewhere {
  std::vector<v1::Job> jobs;
  std::string last;  // uuid of the page's last job, seen or not
  bool more = false;
  std::string notice;  // what is missing, and why
};
using AskElsewhere = std::function<void(const std::string& after,
                                        std::function<void(const Result<JobsElsewhere>&)>)>;

// Fills one page of a list that begins with the coordinator's jobs and ends with `own`. It asks for one page, for more
// only while nothing of them may be seen, and for none once `after` is one of `own`. The coordinator's come first because
// it lists by uuid and so knows where a job stood that is gone. `list` lives until `done`.
void join_page(std::vector<v1::Job> own,
               const std::string& after,
               v1::JobList& list,
               const AskElsewhere& ask,
               const std::function<void()>& done);

// Puts pages together.
class JobPages {
 public:
  static constexpr int kMostPages = 10'000;  // of somebody who never comes to an end

  // Takes what a page has. The `after` of the next page; empty: there is none.
  [[nodiscard]] std::string take(v1::JobList page);

  // All jobs in the order of their pages, each once; the rest as the first page says.
  [[nodiscard]] const v1::JobList& list() const { return list_; }

 private:
  v1::JobList list_;
  std::set<std::string> known_;
  int num_pages_ = 0;
};

}  // namespace accel::agent
