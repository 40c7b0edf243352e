// The order of calls is that of Python's DistributedDataParallel, so that losses are equal to the bit: before forward {what is
// missing is named, buckets are made anew once, buffers are broadcast}, after it the gradients to come are prepared for. Like
// there, the buffers are only sent when the forward before synchronised.
//
// A forward of the module itself, past the prepared model (model->forward(x), the handle of before, a method of the module's
// own), tells nobody that a backward will come. Its first gradient arms the exchange; what is still missing when that backward
// ends is named then, and the buffers of rank 0 are sent. find_unused_parameters and static_graph look at outputs, so there
// such a backward is refused.

#include "libaccel/engine/gradients/ddp_reducer.h"

#include <limits>
#include <string>
#include <tuple>
#include <utility>

#include <ATen/core/grad_mode.h>
#include <torch/csrc/distributed/c10d/comm.hpp>
#include <torch/nn/module.h>

#include <accel/error.h>

#include "libaccel/engine/gradients/communication_hooks.h"
#include "libaccel/engine/gradients/gradient_buckets.h"
#include "libaccel/engine/gradients/library_reducer.h"
#include "libaccel/engine/gradients/power_sgd.h"
#include "libaccel/engine/gradients/tree_exchange.h"
#include "libaccel/engine/process/join_roll.h"
#include "libaccel/engine/process/model_comparison.h"
#include "libaccel/engine/process/process_group.h"
#include "libaccel/tensors/unique_parameters.h"

namespace accel {
namespace {

constexpr std::size_t kBroadcastBytes = std::size_t{250} << 20;  // of one message, as in Python

// Tensors without history that can be sent: Gloo knows no bool.
std::vector<at::Tensor> sendable(const std::vector<at::Tensor>& tensors) {
  std::vector<at::Tensor> views;
  for (const at::Tensor& tensor : tensors) {
    if (!tensor.defined() || tensor.numel() == 0) continue;
    const at::Tensor detached = tensor.detach();
    views.push_back(detached.scalar_type() == at::kBool ? detached.view(at::kByte) : detached);
  }
  return views;
}

// Throws kInvalidArgument.
std::int64_t bucket_bytes(const DistributedDataParallelKwargs& options) {
  const double cap = options.bucket_cap_mb * 1024 * 1024;
  constexpr auto kMaxCap = static_cast<double>(std::numeric_limits<std::int64_t>::max());
  if (cap > 0 && cap < kMaxCap) return static_cast<std::int64_t>(cap);  // nor NaN
  throw Error(ErrorCode::kInvalidArgument,
              "bucket_cap_mb is " + std::to_string(options.bucket_cap_mb) +
                  ", expected a finite number above 0");
}

}  // namespace

DdpReducer::DdpReducer(const torch::nn::Module& module,
                       std::shared_ptr<ProcessGroup> group,
                       const DistributedDataParallelKwargs& options,
                       FirstState first_state,
                       std::function<void()> at_end)
    : module_(module.weak_from_this()),
      group_(std::move(group)),
      at_end_(std::move(at_end)),
      first_state_(first_state) {
  const std::int64_t cap_bytes = bucket_bytes(options);
  ExchangeHook hook = exchange_hook(options);
  hook_state_ = hook.state;
  const bool sends_buffers = first_state == FirstState::kIsSent || options.broadcast_buffers;
  verify_same_models(module, sends_buffers ? Buffers::kCompared : Buffers::kOwn, *group_);
  const std::vector<NamedParameter> parameters = trainable_parameters(module);
  refuse_hooked_gradients(options, parameters);
  for (const NamedParameter& parameter : parameters)
    trained_.insert(parameter.tensor.unsafeGetTensorImpl());
  if (options.broadcast_buffers) buffers_ = sendable(module.buffers());

  if (first_state == FirstState::kIsSent) {
    std::vector<at::Tensor> states = sendable(unique_parameters(module.parameters()));
    for (const at::Tensor& buffer : sendable(module.buffers())) states.push_back(buffer);
    broadcast(states, /*from=*/0, "sending the model of rank 0 to all ranks");
  }
  const bool is_usual =
      !options.find_unused_parameters && !options.static_graph && options.gradient_as_bucket_view;
  if (is_usual && GradientBuckets::can_serve(parameters, *group_)) {
    policy_ =
        std::make_shared<GradientBuckets>(parameters, group_, cap_bytes, std::move(hook.call));
  } else {
    policy_ = library_ =
        std::make_shared<LibraryReducer>(parameters, group_, options, std::move(hook.call));
  }
  exchange_ = std::make_shared<GradientExchange>(
      parameters,
      *policy_,
      group_->rank(),
      GradientExchange::Events{
          .at_own_end = [this] { after_backward(); },
          .unannounced = [this, parameters](std::size_t index) { arm_late(parameters[index]); }});
  if (library_ != nullptr) library_->connect();
}

void DdpReducer::broadcast(const std::vector<at::Tensor>& tensors,
                           int from,
                           const char* operation) {
  try {
    c10d::broadcast_coalesced(group_->c10d_group(), tensors, kBroadcastBytes, from);
  } catch (const Error&) {
    throw;
  } catch (const std::exception& error) {
    throw collective_error(error.what(), operation, group_->rank(), group_->size());
  }
}

// Rank 0 may have run out of batches, and have buffers of a while ago: then those of the last rank that trains, as in Python.
void DdpReducer::send_buffers() {
  const JoinRoll* const roll = JoinRoll::current();
  const int from = roll == nullptr ? 0 : roll->last_training_rank();
  if (!buffers_.empty()) broadcast(buffers_, from, "sending the buffers of one rank to all ranks");
}

void DdpReducer::end_join(int from) {
  std::vector<at::Tensor> states;
  if (const auto module = module_.lock(); module && first_state_ == FirstState::kIsSent)
    states = sendable(unique_parameters(module->parameters()));
  states.insert(states.end(), buffers_.begin(), buffers_.end());
  if (!states.empty()) broadcast(states, from, "sending the model of the last rank to all ranks");
}

void DdpReducer::refuse_added() const {
  if (const auto module = module_.lock()) refuse_added_parameters(*module, trained_);
}

void DdpReducer::arm_late(const NamedParameter& parameter) {
  const auto refuse = [&](const std::string& why) {
    throw Error(
        ErrorCode::kInvalidArgument,
        "the parameter " + parameter.name +
            " got a gradient from a forward of the module itself, " + why,
        "write model(x) or model.forward(x), with the model that prepare() returned, in place "
        "of model->forward(x)");
  };
  if (library_ != nullptr && library_->looks_at_outputs())
    refuse("whose outputs find_unused_parameters and static_graph have not seen");
  if (library_ != nullptr && library_->is_broken())
    refuse("after a backward that an exception ended");
  refuse_added();
  policy_->before_forward(/*sync=*/true);
  exchange_->arm();
}

void DdpReducer::before_forward() {
  if (at::GradMode::is_enabled()) {
    refuse_added();
    exchange_->before_forward();
  }
  if (buffers_are_due_) send_buffers();
}

bool DdpReducer::wants_outputs() const noexcept {
  return library_ != nullptr && library_->wants_outputs();
}

void DdpReducer::after_forward(std::vector<at::Tensor>& outputs) {
  const bool sync = exchange_->syncs();
  buffers_are_due_ = at::GradMode::is_enabled() && sync;
  if (!at::GradMode::is_enabled()) return;
  exchange_->after_forward(outputs);
  if (library_ == nullptr) return;
  LibraryReducer::watch(
      library_, outputs, [weak = std::weak_ptr<GradientExchange>(exchange_), sync] {
        if (const auto exchange = weak.lock()) exchange->resume(sync);
      });
}

void DdpReducer::after_backward() {
  const GradientExchange::End end = exchange_->end_backward();
  if (end == GradientExchange::End::kExchangedLate) {
    send_buffers();
    buffers_are_due_ = false;
  }
  if (at_end_ && end != GradientExchange::End::kNothingCame) at_end_();
}

Stateful* DdpReducer::hook_state() const noexcept {
  return hook_state_.get();
}

void DdpReducer::agree_on_hook_state() {
  if (hook_state_ == nullptr) return;
  CommunicationGroup ranks(group_);
  hook_state_->agree(ranks);
}

void DdpReducer::sync_next_backward() {
  exchange_->set_sync(true);
  exchange_->arm();
}

void DdpReducer::sum_in_order(SubtreeSums& own, const MicroBatches& run) {
  TreeExchange exchange(group_, run);
  std::vector<SubtreeSums::Gradients> subtrees = own.take_subtrees();
  std::ignore = exchange.fill_up(own.parameters(), subtrees);
  own.give(exchange.all_reduce(std::move(subtrees)));
  if (at_end_) at_end_();
}

}  // namespace accel
