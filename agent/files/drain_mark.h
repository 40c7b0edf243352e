// DrainMark: the file that keeps a node drained over a restart of its agent.
//
//   drain     the file is replaced in one step, and durable before the operator is answered
//   undrain   it is removed
//   start     it is there: drained, whatever stands in it; damaged is said
//
// Threads:  plain functions on one small file; they wait for its disk.
// Source:   docs/admin/agent.md.
#pragma once

#include <optional>
#include <string>

#include <accel/result.h>

namespace accel::agent {

class DrainMark {
 public:
  struct Found {
    std::string reason;     // as the operator gave it; printable
    std::string complaint;  // why it cannot be read; the node is drained all the same
  };

  explicit DrainMark(std::string state_dir) : folder_(std::move(state_dir)) {}

  // std::nullopt: the node is not drained.
  [[nodiscard]] std::optional<Found> read() const;
  // Errors  kFileIo, kShimState.
  [[nodiscard]] Result<void> set(const std::string& reason) const;
  // Also when there is none. Errors  kFileIo.
  [[nodiscard]] Result<void> remove() const;

 private:
  std::string folder_;
};

}  // namespace accel::agent
