#include "libaccel/engine/shm/group/group_checks.h"

#include <string>

namespace accel::shm {

Result<void> check_root(int root, int world_size) {
  if (root >= 0 && root < world_size) return {};
  return Error(
      ErrorCode::kInvalidArgument,
      "root " + std::to_string(root) + " is not one of " + std::to_string(world_size) + " ranks");
}

Result<void> check_reduction(DataType type, ReduceOp op) {
  if (is_defined(type, op)) return {};
  return Error(ErrorCode::kInvalidArgument,
               std::string(name_of(op)) + " is not defined for " + std::string(name_of(type)),
               std::string(remedy_for(type, op)));
}

}  // namespace accel::shm
