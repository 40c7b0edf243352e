// NamedStates: the walk over an optimizer that saves it by the names of its parameters, the same for every class.
//
// What differs is how a state and the options of a group are written: LibTorch's classes field by field (optimizer_state.cc),
// those of the user's own as they archive themselves (archived_optimizer.cc).
//
// Threads:  the thread that trains.
#pragma once

#include <cstddef>
#include <functional>
#include <string>

#include <nlohmann/json_fwd.hpp>
#include <torch/optim/optimizer.h>

#include <accel/safetensors_file.h>

#include "libaccel/engine/checkpoint/states/optimizer_state.h"

namespace accel::checkpoint {

struct StateWriter {
  std::string type;  // of the optimizer
  // Puts the tensors of a parameter's state into `tensors`, as <name>.<field>, and returns the rest.
  std::function<nlohmann::json(torch::optim::OptimizerParamState& state,
                               const std::string& name,
                               safetensors::TensorMap& tensors)>
      write_state;
  std::function<nlohmann::json(std::size_t group)> write_options;
};

// Each parameter once, and without a state where it never had a gradient. Errors  those of the writer.
[[nodiscard]] SavedOptimizer save_by_names(torch::optim::Optimizer& optimizer,
                                           const ParameterNames& names,
                                           const StateWriter& writer);

// JSON has no infinity and no NaN; an LBFGS that diverged has them. value is one of them; the text is "nan", "inf" or "-inf".
[[nodiscard]] const char* non_finite_text(double value);
// The reverse. Any other text gives -infinity.
[[nodiscard]] double non_finite_number(const std::string& text);

// Throws kCheckpointMismatch.
[[noreturn]] void throw_mismatch(const std::string& message);

}  // namespace accel::checkpoint
