// FairQueue: the work of many callers, in turn: whoever brings much of it waits for itself.
//
// Threads:  one thread at a time.
// Cost:     O(log callers).
#pragma once

#include <cstddef>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <utility>

namespace accel::agent {

template <typename Work>
class FairQueue {
 public:
  struct Taken {
    std::string caller;
    Work work;
  };

  // most_each: work of one caller under way at a time.
  explicit FairQueue(int most_each) : most_each_(most_each) {}

  void push(const std::string& caller, Work work) {
    Line& line = lines_[caller];
    line.waiting.push_back(std::move(work));
    stand(caller, line);
  }

  // Of one caller.
  [[nodiscard]] std::size_t num_waiting(const std::string& caller) const {
    const auto line = lines_.find(caller);
    return line == lines_.end() ? 0 : line->second.waiting.size();
  }

  // The oldest work of the caller whose turn it is; std::nullopt: nobody has any that may begin. It is under way until done().
  [[nodiscard]] std::optional<Taken> take() {
    if (turns_.empty()) return std::nullopt;
    Taken taken{std::move(turns_.front()), {}};
    turns_.pop_front();
    Line& line = lines_.at(taken.caller);
    line.has_turn = false;
    taken.work = std::move(line.waiting.front());
    line.waiting.pop_front();
    ++line.num_busy;
    stand(taken.caller, line);
    return taken;
  }

  // Work that was taken is over.
  void done(const std::string& caller) {
    Line& line = lines_.at(caller);
    --line.num_busy;
    stand(caller, line);
    if (line.num_busy == 0 && line.waiting.empty()) lines_.erase(caller);
  }

  // Callers who have work that may begin.
  [[nodiscard]] int num_ready() const { return static_cast<int>(turns_.size()); }

 private:
  struct Line {
    std::deque<Work> waiting;
    int num_busy = 0;
    bool has_turn = false;
  };

  void stand(const std::string& caller, Line& line) {
    if (line.has_turn || line.waiting.empty() || line.num_busy >= most_each_) return;
    line.has_turn = true;
    turns_.push_back(caller);
  }

  int most_each_;
  std::map<std::string, Line> lines_;
  std::deque<std::string> turns_;  // callers who have work that may begin
};

}  // namespace accel::agent
