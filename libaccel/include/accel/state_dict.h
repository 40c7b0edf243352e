// StateDict: the state of an object in a checkpoint: named tensors and named plain values.
//
// Any object with state_dict() and load_state_dict(const StateDict&) can be registered for
// checkpointing. Tensors go to a safetensors file, values to JSON; both keep their names.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <variant>
#include <vector>

#include <ATen/core/Tensor.h>

#include <accel/export.h>

namespace accel {

using StateValue = std::variant<bool,
                                std::int64_t,
                                double,
                                std::string,
                                std::vector<std::int64_t>,
                                std::vector<double>>;

struct StateDict {
  std::map<std::string, at::Tensor> tensors;
  std::map<std::string, StateValue> values;
};

// The interface behind register_for_checkpointing(), schedulers and data loaders.
class ACCEL_EXPORT Stateful {
 public:
  virtual ~Stateful() = default;
  [[nodiscard]] virtual StateDict state_dict() const = 0;
  // Throws kCheckpointMismatch when a name is missing or has another type.
  virtual void load_state_dict(const StateDict& state) = 0;
};

}  // namespace accel
