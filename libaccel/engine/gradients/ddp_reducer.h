// DdpReducer: keeps copies of one model in step: averages their gradients over the ranks while backward still runs, and sends
// rank 0's buffers.
//
// The policy of its GradientExchange is GradientBuckets where ranks share memory and all gradients are dense and of real
// numbers; else, and with find_unused_parameters, static_graph or without gradient_as_bucket_view, LibraryReducer. Both pack
// gradients into buckets, all-reduce a bucket as soon as it is full, and give the same bits, but for gradients that
// zero_grad(false) keeps on a number of ranks that is no power of two.
//
// Threads:  the thread that trains; LibTorch calls back from its backward threads.
// Cost:     one copy of all gradients; with gradient_as_bucket_view the gradients are that copy.
#pragma once

#include <functional>
#include <memory>
#include <unordered_set>
#include <vector>

#include <ATen/core/Tensor.h>

#include <accel/accelerator_options.h>

#include "libaccel/engine/gradients/gradient_exchange.h"
#include "libaccel/engine/gradients/model_sync.h"

namespace accel {

class LibraryReducer;
class PowerSgd;
class ProcessGroup;

class DdpReducer final : public ModelSync {
 public:
  // Whether rank 0's values have to be sent to the others first.
  enum class FirstState { kIsSent, kIsEqual };

  // Checks that every rank has the same parameters, frozen ones too, and buffers, and sends rank 0's to
  // all. at_end: called at the end of a backward that has brought gradients; may be empty. Throws kShapeMismatch on every
  // rank, naming the first tensor that differs and the rank; what exchange_hook() and refuse_hooked_gradients() throw;
  // kPeerLost, kProcessGroup. Requires: every rank calls it; at
  // least one parameter that requires a gradient.
  DdpReducer(const torch::nn::Module& module,
             std::shared_ptr<ProcessGroup> group,
             const DistributedDataParallelKwargs& options,
             FirstState first_state = FirstState::kIsSent,
             std::function<void()> at_end = {});
  DdpReducer(const DdpReducer&) = delete;
  DdpReducer& operator=(const DdpReducer&) = delete;

  // Throws kInvalidArgument naming the parameters without a gradient when the backward before did
  // not complete; kUnsupported naming a parameter that was registered or unfrozen since; kPeerLost or kProcessGroup.
  void before_forward() override;

  [[nodiscard]] bool wants_outputs() const noexcept override;
  void after_forward(std::vector<at::Tensor>& outputs) override;
  void begin_backward() noexcept override { exchange_->begin_backward(); }
  // Throws kInvalidArgument naming parameters that the backward of a forward of the module itself has left out.
  void after_backward() override;
  // The next forward with gradients begins with new buckets. Requires: the backward ended so on every rank, at the same place.
  void abandon_backward() noexcept override { exchange_->abandon(); }

  bool set_sync_in_backward(bool sync) noexcept override { return exchange_->set_sync(sync); }
  [[nodiscard]] bool syncs_in_backward() const noexcept override { return exchange_->syncs(); }
  void sync_next_backward() override;
  void sum_in_order(SubtreeSums& own, const MicroBatches& run) override;

  [[nodiscard]] GradientExchange& exchange() noexcept override { return *exchange_; }
  // Parameters, unless they are divided, and the buffers that forwards send.
  void end_join(int from) override;

  [[nodiscard]] Stateful* hook_state() const noexcept override;
  void agree_on_hook_state() override;

 private:
  void broadcast(const std::vector<at::Tensor>& tensors, int from, const char* operation);
  void send_buffers();
  void refuse_added() const;
  // Arms in a backward.
  void arm_late(const NamedParameter& parameter);

  std::weak_ptr<const torch::nn::Module> module_;
  std::shared_ptr<ProcessGroup> group_;
  std::function<void()> at_end_;
  FirstState first_state_;
  std::shared_ptr<PowerSgd> hook_state_;  // nullptr: there is none
  std::unordered_set<const c10::TensorImpl*> trained_;
  std::vector<at::Tensor> buffers_;
  bool buffers_are_due_ = true;  // the forward before synchronised
  std::shared_ptr<GradientPolicy> policy_;
  std::shared_ptr<LibraryReducer> library_;     // the policy, or nullptr
  std::shared_ptr<GradientExchange> exchange_;  // autograd nodes that outlive a forward look for it
};

}  // namespace accel
