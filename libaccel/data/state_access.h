// State access: reading a StateDict, with an error that names what is missing.
//
// Errors  kCheckpointMismatch when the name is missing or has another type.
#pragma once

#include <string>
#include <variant>

#include <accel/error.h>
#include <accel/state_dict.h>

namespace accel {

template <typename T>
const T& value_of(const StateDict& state, const std::string& name) {
  const auto found = state.values.find(name);
  if (found == state.values.end()) {
    throw Error(ErrorCode::kCheckpointMismatch, "the state of a data loader lacks '" + name + "'");
  }
  if (const T* value = std::get_if<T>(&found->second)) return *value;
  throw Error(ErrorCode::kCheckpointMismatch,
              "'" + name + "' in the state of a data loader has another type than it should");
}

inline const at::Tensor& tensor_of(const StateDict& state, const std::string& name) {
  const auto found = state.tensors.find(name);
  if (found != state.tensors.end()) return found->second;
  throw Error(ErrorCode::kCheckpointMismatch,
              "the state of a data loader lacks the tensor '" + name + "'");
}

}  // namespace accel
