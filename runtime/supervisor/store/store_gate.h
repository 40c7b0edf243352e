// StoreGate: who may connect to a store.
//
// From this machine the kernel knows whose the other end is; of other machines only the address can be
// known, so they must be members.
//
// Threads:  one at a time.
// Cost:     a question to the kernel for each client (tcp_table.h).
// Source:   tests/unit/supervisor/store_server_test.cc.
#pragma once

#include <set>
#include <string>
#include <vector>

#include <boost/asio/ip/address.hpp>
#include <sys/types.h>

#include <accel/result.h>

#include "runtime/supervisor/kernel/tcp_table.h"
#include "runtime/unique_fd.h"

namespace accel::supervisor {

class StoreGate {
 public:
  // members: numeric addresses, or kEveryMachine; peer_uid: who may connect from this machine.
  // Errors  kInvalidArgument: a member that is no address.
  [[nodiscard]] static Result<StoreGate> make(const std::vector<std::string>& members,
                                              uid_t peer_uid);

  // Whether the client at `peer`, connected to our `socket`, may stay; false: it is another user's, or
  // nobody tells whose. Errors  kStoreLimit: it is on another machine, which is no member.
  [[nodiscard]] Result<bool> admits(const UniqueFd& socket, const TcpEndpoint& peer);

 private:
  StoreGate() = default;

  TcpOwners owners_;
  std::set<boost::asio::ip::address> members_;
  bool admits_every_machine_ = false;
  uid_t peer_uid_ = 0;
};

}  // namespace accel::supervisor
