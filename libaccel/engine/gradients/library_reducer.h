// LibraryReducer: averages gradients by LibTorch's c10d::Reducer, which copes with what GradientBuckets does not serve: Gloo,
// sparse and complex gradients, parameters that are unused or used again, gradients that stay out of buckets.
//
// Threads:  as GradientPolicy.
// Errors    throws kPeerLost, kProcessGroup; kInvalidArgument naming parameters without a gradient.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include <ATen/core/Tensor.h>

#include <accel/accelerator_options.h>

#include "libaccel/engine/gradients/gradient_policy.h"

namespace c10d {
class Logger;
class Reducer;
}  // namespace c10d

namespace accel {

class ProcessGroup;

class LibraryReducer final : public GradientPolicy {
 public:
  // hook: as GradientBuckets.
  LibraryReducer(std::vector<NamedParameter> parameters,
                 std::shared_ptr<ProcessGroup> group,
                 const DistributedDataParallelKwargs& options,
                 CommunicationHook hook);
  ~LibraryReducer() override;
  LibraryReducer(const LibraryReducer&) = delete;
  LibraryReducer& operator=(const LibraryReducer&) = delete;

  // Puts the Reducer's hooks at the parameters, behind those that are there: it is called before the first forward.
  void connect();
  // Whether an exception has ended a backward, so that the Reducer waits for the rest of it until the next forward.
  [[nodiscard]] bool is_broken() const noexcept { return is_broken_; }
  // Whether gradients depend on the outputs of the forward.
  [[nodiscard]] bool looks_at_outputs() const noexcept {
    return options_.find_unused_parameters || options_.static_graph;
  }
  // Whether it has to see the outputs of the next forward.
  [[nodiscard]] bool wants_outputs() const noexcept;
  // Replaces outputs by copies through which gradients come by, undefined ones too; start() is called when they do. self: this.
  static void watch(const std::shared_ptr<LibraryReducer>& self,
                    std::vector<at::Tensor>& outputs,
                    std::function<void()> start);

  [[nodiscard]] ExchangeState::Rules rules() const override;
  void before_forward(bool sync) override;
  void before_backward(bool exchanges, const std::vector<at::Tensor>& outputs) override;
  void take(std::size_t, const at::Tensor&) override {}
  void reduce(std::size_t, std::span<const std::uint8_t>) override {}
  void drop() noexcept override { is_broken_ = true; }

 private:
  // Runs a call into c10d and says in our words what went wrong.
  void guarded(const char* operation, const std::function<void()>& call) const;

  std::vector<NamedParameter> parameters_;  // in the Reducer's order
  std::shared_ptr<ProcessGroup> group_;
  DistributedDataParallelKwargs options_;
  CommunicationHook hook_;
  std::shared_ptr<c10d::Reducer> reducer_;
  std::shared_ptr<c10d::Logger> logger_;  // the Reducer calls it unasked when the graph changes
  bool is_broken_ = false;
  bool first_static_backward_seen_ = false;
};

}  // namespace accel
