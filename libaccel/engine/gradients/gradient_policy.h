// GradientPolicy: what becomes of gradients that the ranks exchange.
//
//   GradientBuckets   averages whole gradients in shared memory: copies of a model (DDP), ZeRO-1
//   LibraryReducer    the same by LibTorch's c10d::Reducer, where the buckets cannot serve
//   GradientShards    averages and scatters: ZeRO-2 and 3; scatters in groups and averages between them: HYBRID_SHARD
//
// GradientExchange calls it, in this order: before_forward(), before_backward(), begin(), take() and reduce() by turns,
// end_backward(); of Missing::kIsZero then take() and reduce() of the rest, finish().
//
// Threads:  the thread that trains; take() and reduce() also LibTorch's of the backward.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include <ATen/core/Tensor.h>

#include <accel/error.h>

#include "libaccel/engine/gradients/exchange_state.h"
#include "libaccel/tensors/parameter_list.h"

namespace accel {

class GradientPolicy {
 public:
  virtual ~GradientPolicy() = default;

  [[nodiscard]] virtual ExchangeState::Rules rules() const = 0;
  // A forward with gradients begins.
  virtual void before_forward(bool /*sync*/) {}
  // A backward will come whose gradients are exchanged, or stay. outputs: of its forward.
  virtual void before_backward(bool exchanges, const std::vector<at::Tensor>& outputs) = 0;
  // The exchange begins. has_gradients: on this rank. False: no rank has any.
  [[nodiscard]] virtual bool begin(bool /*has_gradients*/) { return true; }
  // The parameter's gradient is complete. arrived: what autograd has made it of, or added to it; may be undefined.
  virtual void take(std::size_t parameter, const at::Tensor& arrived) = 0;
  // arrived: as ExchangeState::arrived().
  virtual void reduce(std::size_t group, std::span<const std::uint8_t> arrived) = 0;
  // Of Missing::kIsZero: all groups were reduced.
  virtual void finish(std::span<const std::uint8_t> /*arrived*/) {}
  // A backward has brought its gradients, which may be one of several of an exchange: what reduce() has begun is done when it comes
  // back. Throws as reduce().
  virtual void end_backward() {}
  // An exception ended the backward.
  virtual void drop() noexcept {}
  // For a parameter that gets another gradient when its first one may be exchanged already.
  [[nodiscard]] virtual Error second_gradient(const NamedParameter& parameter) const;
};

// Names parameters, by their places in the list, that a backward has brought no gradient of.
[[nodiscard]] Error missing_gradients(const std::vector<NamedParameter>& parameters,
                                      const std::vector<std::size_t>& missing,
                                      int rank);

}  // namespace accel
