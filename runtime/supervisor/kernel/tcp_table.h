// TcpTable: what the kernel says about TCP sockets: whose a connection is, and who holds a port.
//
// SO_PEERCRED does not exist for TCP. The kernel does know the owner of every local socket: one
// sock_diag question (netlink) finds it in a hash table, in a few microseconds however many sockets
// there are. Where netlink is closed to us, /proc/net/tcp says the same in time proportional to the
// number of sockets.
//
// Threads:  a TcpOwners belongs to one thread; the functions are free of state.
// Source:   sock_diag(7), proc(5); tests/unit/supervisor/tcp_table_test.cc.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <sys/types.h>

#include "runtime/supervisor/kernel/tcp_endpoint.h"
#include "runtime/unique_fd.h"

namespace accel::supervisor {

struct TcpEntry {
  TcpEndpoint local;
  TcpEndpoint remote;
  bool is_listening = false;
  uid_t uid = 0;
  std::uint64_t inode = 0;
};

// Reads the text of /proc/net/tcp or tcp6. Lines that make no sense are left out; addresses of IPv4
// in IPv6 form come back as IPv4.
[[nodiscard]] std::vector<TcpEntry> parse_tcp_table(std::string_view text);

class TcpOwners {
 public:
  TcpOwners();

  // The user whose socket has the end `local` and is connected to `remote`. std::nullopt when there
  // is no such socket on this machine, or nobody tells.
  [[nodiscard]] std::optional<uid_t> owner_of(const TcpEndpoint& local, const TcpEndpoint& remote);

 private:
  enum class Answer { kFound, kAbsent, kUnknown };
  [[nodiscard]] Answer ask_kernel(const TcpEndpoint& local, const TcpEndpoint& remote, uid_t& uid);

  UniqueFd netlink_;  // empty where sock_diag is not to be had
};

struct PortHolder {
  std::int64_t pid = 0;  // 0: a process that we may not look into
  std::string command;
  uid_t uid = 0;

  // "process 4242 (python train.py)", "a process of uid 1000".
  [[nodiscard]] std::string describe() const;
};

// Who listens on `port`, on any address. Reads /proc of every process: for messages only.
[[nodiscard]] std::optional<PortHolder> find_port_holder(std::uint16_t port);

}  // namespace accel::supervisor
