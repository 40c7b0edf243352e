// Shares: how many of a thing there may be, in all and of one caller, and how many stay for favoured callers.
//
// Threads:  one thread at a time.
// Cost:     O(log callers).
#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace accel::agent {

struct ShareLimits {
  int most = 1;       // in all
  int most_each = 1;  // of one caller
  int kept = 0;       // of `most`, for favoured callers alone
  std::string_view things = "connections";
  std::string_view favoured = "root";  // who they are
  // Nobody gets more than are left for all others: half for one that floods, a third each for two, and room for the next.
  bool leaves_room = false;
};

// Of what `owners` have, the oldest first: which go so that `keep` stay. The oldest of whoever has most, again and again.
[[nodiscard]] std::vector<std::size_t> surplus_of(const std::vector<std::string>& owners, int keep);

class CallerShares {
 public:
  explicit CallerShares(ShareLimits limits, std::vector<std::string> favoured = {})
      : limits_(limits), favoured_(std::move(favoured)) {}

  // std::nullopt: counted. Else why there is no room.
  [[nodiscard]] std::optional<std::string> take(const std::string& caller);

  // Counts one that is there, whatever the limits say.
  void add(const std::string& caller);

  // Of one that was counted.
  void give_back(const std::string& caller);

  [[nodiscard]] int count() const { return count_; }

 private:
  ShareLimits limits_;
  std::vector<std::string> favoured_;
  int count_ = 0;
  std::map<std::string, int> callers_;
};

}  // namespace accel::agent
