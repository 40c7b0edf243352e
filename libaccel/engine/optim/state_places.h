// StatePlaces: where loaded states of an optimizer go that does not keep them in memory.
//
// Threads:  the thread that trains.
#pragma once

#include <cstddef>
#include <span>

#include <ATen/core/Tensor.h>

namespace accel {

// A tensor of a parameter's state, by its number among the tensors of OptimizerStateView.
struct StateField {
  at::Tensor parameter;
  std::size_t field = 0;
};

class StatePlaces {
 public:
  virtual ~StatePlaces() = default;

  // Makes those places that are not there yet. Throws kDiskFull, and then has made none; kFileIo.
  virtual void make(std::span<const StateField> wanted) = 0;
  // Undefined: there is none, and the state stays in memory.
  [[nodiscard]] virtual at::Tensor place_of(const StateField& wanted) const = 0;
};

}  // namespace accel
