// GradientExchange: exchanges the gradients of one model between the ranks while backward runs.
//
// Hooks at the parameters tell it of each gradient as soon as it is added up; exchange_state.h says which are exchanged and
// when, a GradientPolicy what that is. Copies of a model and divided ones follow the same rule: a forward decides by the switch
// of sync; a backward that no forward has told of, as of model->forward(x), goes by the switch when its first gradient comes.
//
// Threads:  the thread that trains; hooks run on LibTorch's thread of the backward, one at a time.
// Errors    throws what the policy throws; kInvalidArgument naming parameters with a second gradient, or none, where the
//           policy does not allow that.
#pragma once

#include <cstddef>
#include <functional>
#include <vector>

#include <ATen/core/Tensor.h>

#include "libaccel/engine/gradients/exchange_state.h"
#include "libaccel/engine/gradients/gradient_hooks.h"
#include "libaccel/engine/gradients/gradient_policy.h"
#include "libaccel/tensors/parameter_list.h"

namespace accel {

class GradientExchange {
 public:
  struct Events {
    // A backward is at its end that Accelerator::backward() does not run: calls end_backward().
    std::function<void()> at_own_end;
    // A gradient is to be exchanged that no forward has told of: throws, or calls arm(). May be empty.
    std::function<void(std::size_t parameter)> unannounced = {};
  };
  enum class End {
    kNothingCame,
    kNotExchanged,  // gradients have come and stay, or wait for those of a further backward
    kExchanged,
    kExchangedLate,  // those of a forward that has not told
  };

  // Borrows the policy. parameters: leaves that require a gradient, those of the policy. rank: for messages.
  GradientExchange(std::vector<NamedParameter> parameters,
                   GradientPolicy& policy,
                   int rank,
                   Events events);
  GradientExchange(const GradientExchange&) = delete;
  GradientExchange& operator=(const GradientExchange&) = delete;

  // Around a forward with gradients. Throws where the backward before has left out parameters.
  void before_forward();
  void after_forward(const std::vector<at::Tensor>& outputs);
  void arm();
  // The backward of a forward that ended with this switch of sync goes through its outputs, and may not be the first.
  void resume(bool sync) noexcept { state_.resume(sync); }
  void begin_backward() noexcept { is_in_backward_ = true; }
  // Of Accelerator::backward(), of the program's own, or of one that has brought this rank nothing. has_others: this rank has
  // gradients to exchange that are not of these parameters. Requires: every rank calls it.
  End end_backward(bool has_others = false);
  void abandon() noexcept;

  bool set_sync(bool sync) noexcept { return state_.set_sync(sync); }
  [[nodiscard]] bool syncs() const noexcept { return state_.syncs(); }
  // Whether gradients that come now are exchanged.
  [[nodiscard]] bool exchanges() const noexcept { return state_.exchanges(); }
  void settled() noexcept { state_.settled(); }
  [[nodiscard]] bool is_owed() const noexcept { return state_.is_owed(); }
  // What a parameter counts as that a backward has brought no gradient of.
  [[nodiscard]] ExchangeState::Missing missing() const noexcept { return state_.rules().missing; }

 private:
  using Missing = ExchangeState::Missing;
  using Phase = ExchangeState::Phase;

  void on_gradient(std::size_t parameter, const at::Tensor& arrived);
  void await_end();
  [[nodiscard]] bool begin(bool has_gradients, bool is_late);
  void take(std::size_t parameter, const at::Tensor& arrived);
  void reduce(bool at_end);
  [[nodiscard]] bool fill_up(bool has_others);
  [[nodiscard]] bool has_gradients() const;

  std::vector<NamedParameter> parameters_;
  GradientPolicy& policy_;
  int rank_;
  Events events_;
  ExchangeState state_;
  bool is_in_backward_ = false;  // of Accelerator::backward()
  bool has_come_ = false;        // a gradient of the backward that runs
  GradientHooks hooks_;
};

}  // namespace accel
