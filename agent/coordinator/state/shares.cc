#include "agent/coordinator/state/shares.h"

#include <algorithm>
#include <deque>

namespace accel::agent {

std::vector<std::size_t> surplus_of(const std::vector<std::string>& owners, int keep) {
  std::map<std::string, std::deque<std::size_t>> of_owner;
  for (std::size_t i = 0; i < owners.size(); ++i) of_owner[owners[i]].push_back(i);
  std::vector<std::size_t> surplus;
  for (auto left = owners.size(); left > static_cast<std::size_t>(keep); --left) {
    const auto most =
        std::max_element(of_owner.begin(), of_owner.end(), [](const auto& one, const auto& other) {
          return one.second.size() < other.second.size();
        });
    surplus.push_back(most->second.front());
    most->second.pop_front();
  }
  return surplus;
}

std::optional<std::string> CallerShares::take(const std::string& caller) {
  const bool is_favoured = std::ranges::find(favoured_, caller) != favoured_.end();
  const std::string things = " " + std::string(limits_.things);
  const int room = is_favoured ? limits_.most : limits_.most - limits_.kept;
  if (count_ >= room) {
    return std::to_string(count_) + things + " in all are as many as there may be" +
           (is_favoured || limits_.kept == 0
                ? ""
                : " of users other than " + std::string(limits_.favoured));
  }
  const auto known = callers_.find(caller);
  const int owned = known == callers_.end() ? 0 : known->second;
  const bool is_greedy = limits_.leaves_room && owned > 0 && owned >= room - count_;
  if (owned >= limits_.most_each || is_greedy)
    return "it has " + std::to_string(owned) + things + ", as many as one caller may" +
           (is_greedy ? " of what is left" : "");
  add(caller);
  return std::nullopt;
}

void CallerShares::add(const std::string& caller) {
  ++count_;
  ++callers_[caller];
}

void CallerShares::give_back(const std::string& caller) {
  const auto known = callers_.find(caller);
  if (known == callers_.end()) return;
  --count_;
  if (--known->second == 0) callers_.erase(known);
}

}  // namespace accel::agent
