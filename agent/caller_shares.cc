#include "agent/caller_shares.h"

#include <algorithm>
#include <cstring>
#include <deque>

#include <arpa/inet.h>
#include <netinet/in.h>
#include <unistd.h>

namespace accel::agent {

std::string caller_of(const sockaddr_storage& address) {
  char text[INET6_ADDRSTRLEN] = {};
  if (address.ss_family == AF_INET) {
    const auto& v4 = reinterpret_cast<const sockaddr_in&>(address);
    ::inet_ntop(AF_INET, &v4.sin_addr, text, sizeof text);
    return text;
  }
  in6_addr prefix = reinterpret_cast<const sockaddr_in6&>(address).sin6_addr;
  if (IN6_IS_ADDR_V4MAPPED(&prefix)) {
    ::inet_ntop(AF_INET, &prefix.s6_addr[12], text, sizeof text);
    return text;
  }
  std::memset(&prefix.s6_addr[8], 0, 8);
  ::inet_ntop(AF_INET6, &prefix, text, sizeof text);
  return std::string(text) + "/64";
}

std::string caller_of(uid_t user) {
  return "uid " + std::to_string(user);
}

std::vector<std::string> favoured_users() {
  return {caller_of(uid_t{0}), caller_of(::geteuid())};
}

std::vector<std::size_t> surplus_of(const std::vector<uid_t>& owners, int keep) {
  std::map<uid_t, std::deque<std::size_t>> of_owner;
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
  if (count_ >= (is_favoured ? limits_.most : limits_.most - limits_.kept)) {
    return std::to_string(count_) + things + " in all are as many as there may be" +
           (is_favoured || limits_.kept == 0 ? "" : " of users other than root");
  }
  const auto known = callers_.find(caller);
  if (known != callers_.end() && known->second >= limits_.most_each)
    return "it has " + std::to_string(known->second) + things + ", as many as one caller may";
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
