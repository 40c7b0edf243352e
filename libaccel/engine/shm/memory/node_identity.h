// NodeIdentity: what two processes must have in common to share memory and to watch each other by pid.
//
// The kernel that they run on (its boot id) and the namespaces that give pids and owners their meaning. A host name will
// not do: containers of one image carry the same, and one host may carry two.
//
// Threads:  a pure value; read_node_identity() reads /proc.
// Source:   namespaces(7), /proc/sys/kernel/random/boot_id in random(4).
#pragma once

#include <string>

#include <accel/result.h>

namespace accel::shm {

struct NodeIdentity {
  std::string boot_id;
  std::string pid_namespace;
  std::string user_namespace;

  friend bool operator==(const NodeIdentity&, const NodeIdentity&) = default;
};

// Processes of one machine that have different values of this variable take each other for processes of different nodes:
// the seam for tests of several nodes on one machine.
inline constexpr const char* kTestNodeVariable = "ACCEL_TEST_NODE";

// Of this process. Errors  kUnsupported: /proc is not mounted, or hides it.
[[nodiscard]] Result<NodeIdentity> read_node_identity();

// One word without blanks.
[[nodiscard]] std::string to_text(const NodeIdentity& identity);

// What differs: "another kernel", "another pid namespace"; empty when nothing does.
[[nodiscard]] std::string difference(const NodeIdentity& one, const NodeIdentity& other);

// Errors  kInvalidArgument for anything that to_text() does not write.
[[nodiscard]] Result<NodeIdentity> parse_node_identity(const std::string& text);

}  // namespace accel::shm
