#include "libaccel/engine/optim/speculative_step.h"

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <optional>
#include <thread>
#include <type_traits>
#include <utility>
#include <variant>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/_amp_foreach_non_finite_check_and_unscale.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <torch/optim/optimizer.h>

#include <accel/error.h>

#include "libaccel/engine/optim/step_memory.h"
#include "libaccel/tensors/alignment.h"
#include "libaccel/tensors/optimizer_traits.h"

namespace accel {
namespace {

using torch::optim::Optimizer;

// Parts of states on their way to the disk.
constexpr std::size_t kNumBuffers = 4;
// Gradients ahead of which the disk is asked for states.
constexpr std::ptrdiff_t kAskedAhead = 2;

// As at::empty() of that shape, with zeros behind it up to a multiple of 64 bytes: kernels may step those too.
at::Tensor padded_like(const at::Tensor& tensor) {
  const auto element = static_cast<std::int64_t>(tensor.element_size());
  const auto numel = static_cast<std::int64_t>(rounded_up(tensor.nbytes(), kCacheLine)) / element;
  const at::Tensor memory = at::empty({numel}, tensor.options().requires_grad(false));
  memory.narrow(0, tensor.numel(), numel - tensor.numel()).zero_();
  return memory.as_strided(tensor.sizes(), tensor.strides(), 0);
}

at::Tensor copy_of(const at::Tensor& tensor) {
  return padded_like(tensor).copy_(tensor);
}

bool is_same_value(const OptimizerField::Value& one, const OptimizerField::Value& other) {
  return std::visit(
      [&other](const auto* value) {
        using Value = std::remove_const_t<std::remove_pointer_t<decltype(value)>>;
        const Value& theirs = *std::get<Value*>(other);
        if constexpr (std::is_same_v<Value, at::Tensor> ||
                      std::is_same_v<Value, std::deque<at::Tensor>>) {
          return false;  // no optimizer that steps elements has such options
        } else {
          return *value == theirs;
        }
      },
      one);
}

// While it lives, the optimizer has one parameter.
class LoneParameter {
 public:
  LoneParameter(Optimizer& optimizer, std::size_t group, const at::Tensor& shown)
      : optimizer_(optimizer) {
    for (auto& each : optimizer.param_groups()) kept_.push_back(std::exchange(each.params(), {}));
    optimizer.param_groups()[group].params().push_back(shown);
  }
  ~LoneParameter() {
    for (std::size_t g = 0; g < kept_.size(); ++g)
      optimizer_.param_groups()[g].params() = std::move(kept_[g]);
  }
  LoneParameter(const LoneParameter&) = delete;
  LoneParameter& operator=(const LoneParameter&) = delete;

 private:
  Optimizer& optimizer_;
  std::vector<std::vector<at::Tensor>> kept_;
};

}  // namespace

struct SpeculativeStep::Landed {
  at::Tensor parameter;
  std::size_t group = 0;
  std::uint32_t version = 0;  // of the parameter
  at::Tensor gradient;        // that it was stepped by
  std::uint32_t gradient_version = 0;
  at::Tensor step_gradient;  // the same, or unscaled
  const void* state = nullptr;
  at::Tensor values;                                                 // the parameter afterwards
  std::unique_ptr<torch::optim::OptimizerParamState> state_of_part;  // of the last one, for numbers
};

// Writes parts of states behind the backward.
class SpeculativeStep::Writer {
 public:
  struct Part {
    StateRange to;
    at::Tensor values;
    std::optional<StateRange> read;  // what it was made of, which may leave memory
  };

  Writer() : thread_([this] { run(); }) {}
  ~Writer() {
    {
      const std::lock_guard lock(mutex_);
      is_stopping_ = true;
      changed_.notify_all();
    }
    thread_.join();
  }
  Writer(const Writer&) = delete;
  Writer& operator=(const Writer&) = delete;

  // Waits where too many are on their way. Throws what the disk has said.
  void add(Part part) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return parts_.size() < kNumBuffers || error_; });
    if (error_) throw Error(*error_);
    parts_.push_back(std::move(part));
    changed_.notify_all();
  }
  void wait() {
    wait_until_idle();
    const std::lock_guard lock(mutex_);
    if (error_) throw Error(*error_);
  }
  void wait_until_idle() noexcept {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return parts_.empty() || error_; });
  }

 private:
  void run() {
    std::unique_lock lock(mutex_);
    for (;;) {
      changed_.wait(lock, [&] { return !parts_.empty() || is_stopping_; });
      if (is_stopping_ || error_) return;
      const Part& part = parts_.front();
      lock.unlock();
      std::optional<Error> failed;
      try {
        part.to.write(static_cast<const std::byte*>(part.values.const_data_ptr()));
        if (part.read) part.read->store();
      } catch (const Error& error) {
        failed = error;
      }
      lock.lock();
      if (failed) error_ = std::move(failed);
      parts_.pop_front();
      changed_.notify_all();
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Part> parts_;  // the first one is being written
  std::optional<Error> error_;
  bool is_stopping_ = false;
  std::thread thread_;  // last: it uses the rest
};

SpeculativeStep::SpeculativeStep(Optimizer& optimizer,
                                 const OptimizerTraits& traits,
                                 StateFile& file,
                                 StatesByParameter& states,
                                 std::size_t part_bytes)
    : optimizer_(optimizer),
      traits_(traits),
      file_(file),
      states_(states),
      part_bytes_(part_bytes) {}

SpeculativeStep::~SpeculativeStep() = default;

std::size_t SpeculativeStep::group_of(const at::Tensor& parameter) const {
  const auto& groups = optimizer_.param_groups();
  for (std::size_t g = 0; g < groups.size(); ++g) {
    for (const at::Tensor& own : groups[g].params())
      if (own.is_same(parameter)) return g;
  }
  return groups.size();
}

// Its state is on disk, all of it.
bool SpeculativeStep::can_step(const at::Tensor& parameter, const at::Tensor& gradient) const {
  const auto state = optimizer_.state().find(parameter.unsafeGetTensorImpl());
  const auto on_disk = states_.find(parameter.unsafeGetTensorImpl());
  if (state == optimizer_.state().end() || on_disk == states_.end()) return false;
  if (!gradient.defined() || gradient.layout() != at::kStrided ||
      gradient.strides() != parameter.strides() || !parameter.is_non_overlapping_and_dense())
    return false;
  const OptimizerStateView view(traits_, *state->second);
  for (std::size_t f = 0; f < view.tensors.size(); ++f) {
    const at::Tensor& present = *view.tensors[f];
    const at::Tensor& place = on_disk->second.fields[f];
    if (present.defined() != place.defined()) return false;
    if (present.defined() && present.const_data_ptr() != place.const_data_ptr()) return false;
  }
  return true;
}

// All at once, so that they lie together.
void SpeculativeStep::make_all_spare() {
  std::vector<at::Tensor> like;
  std::vector<std::pair<const void*, std::size_t>> wanted;
  for (auto& [key, states] : states_) {
    for (std::size_t f = 0; f < states.fields.size(); ++f) {
      if (!states.fields[f].defined() || (!states.spare.empty() && states.spare[f].defined()))
        continue;
      like.push_back(states.fields[f]);
      wanted.emplace_back(key, f);
    }
  }
  const std::vector<at::Tensor> made = file_.make(like);
  for (std::size_t i = 0; i < made.size(); ++i) {
    StatesOnDisk& states = states_.at(wanted[i].first);
    states.spare.resize(states.fields.size());
    states.spare[wanted[i].second] = made[i];
  }
}

void SpeculativeStep::note_options() {
  options_.clear();
  for (const auto& group : optimizer_.param_groups()) options_.push_back(group.options().clone());
}

bool SpeculativeStep::has_same_options() const {
  auto& groups = optimizer_.param_groups();
  if (groups.size() != options_.size()) return false;
  for (std::size_t g = 0; g < groups.size(); ++g) {
    const OptimizerFields then = traits_.option_fields(*options_[g]);
    const OptimizerFields now = traits_.option_fields(groups[g].options());
    for (std::size_t i = 0; i < then.size(); ++i)
      if (!is_same_value(then[i].value, now[i].value)) return false;
  }
  return true;
}

void SpeculativeStep::ask_for_next(const void* parameter) {
  const auto found = std::ranges::find(last_order_, parameter);
  const auto left = last_order_.end() - found;
  for (std::ptrdiff_t ahead = 1; ahead <= std::min(kAskedAhead, left - 1); ++ahead) {
    const auto states = states_.find(found[ahead]);
    if (states == states_.end()) continue;
    for (const at::Tensor& place : states->second.fields)
      if (const auto range = StateRange::of(place)) range->ask();
  }
}

void SpeculativeStep::land(const at::Tensor& parameter,
                           const at::Tensor& gradient,
                           const at::Tensor& inverse_scale,
                           const Step& step,
                           const IsPadded& is_padded) {
  if (is_void_) return;
  const void* const key = parameter.unsafeGetTensorImpl();
  const std::size_t group = group_of(parameter);
  if (group == optimizer_.param_groups().size()) return;  // of another optimizer
  if (landed_.contains(key) || !can_step(parameter, gradient)) {
    is_void_ = true;
    return;
  }
  const at::NoGradGuard no_grad;
  const StepMemory memory;
  if (landed_.empty()) {
    make_all_spare();
    note_options();
    if (writer_ == nullptr) writer_ = std::make_unique<Writer>();
  }
  ask_for_next(key);
  auto landed = std::make_unique<Landed>();
  landed->parameter = parameter;
  landed->group = group;
  landed->version = static_cast<std::uint32_t>(parameter._version());
  landed->gradient = gradient;
  landed->gradient_version = static_cast<std::uint32_t>(gradient._version());
  landed->step_gradient = gradient;
  landed->state = optimizer_.state().at(parameter.unsafeGetTensorImpl()).get();
  if (inverse_scale.defined()) {
    landed->step_gradient = copy_of(gradient);
    std::vector<at::Tensor> scaled{landed->step_gradient};
    at::Tensor overflow = at::zeros({}, at::kFloat);  // looked at where all are unscaled
    at::_amp_foreach_non_finite_check_and_unscale_(scaled, overflow, inverse_scale);
  }
  landed->values = copy_of(parameter.detach());
  std::size_t bytes_of_element = 0;
  for (const at::Tensor& place : states_.at(key).fields)
    if (place.defined()) bytes_of_element += place.element_size();
  const std::int64_t numel = parameter.numel();
  std::int64_t most = numel;
  if (is_element_wise(traits_) && bytes_of_element > 0) {
    most = kPartElements *
           std::max<std::int64_t>(
               1, static_cast<std::int64_t>(part_bytes_ / bytes_of_element) / kPartElements);
  }
  std::int64_t begin = 0;
  do {  // once for one without elements too: its steps are counted
    step_part(*landed, begin, std::min(most, numel - begin), step, is_padded);
    begin += most;
  } while (begin < numel);
  landed->step_gradient.reset();
  order_.push_back(key);
  landed_.emplace(key, std::move(landed));
}

void SpeculativeStep::step_part(Landed& landed,
                                std::int64_t begin,
                                std::int64_t numel,
                                const Step& step,
                                const IsPadded& is_padded) {
  const StatesOnDisk& places = states_.at(landed.parameter.unsafeGetTensorImpl());
  const bool is_whole = numel == landed.parameter.numel();
  const auto part_of = [&](const at::Tensor& tensor) {
    return is_whole ? tensor.detach() : flat_part(tensor, begin, numel);
  };
  at::Tensor shown = part_of(landed.values);
  shown.mutable_grad() = part_of(landed.step_gradient);
  auto state = optimizer_.state().at(landed.parameter.unsafeGetTensorImpl())->clone();
  std::vector<std::optional<StateRange>> read;
  for (at::Tensor* const field : OptimizerStateView(traits_, *state).tensors) {
    read.emplace_back();
    if (!field->defined()) continue;
    const at::Tensor present = part_of(*field);
    read.back() = StateRange::of(present);
    if (read.back()) read.back()->fetch(StateRange::Access::kRead);
    *field = copy_of(present);
  }
  auto& states = optimizer_.state();
  void* const key = shown.unsafeGetTensorImpl();
  try {
    states[key] = std::move(state);
    const LoneParameter alone(optimizer_, landed.group, shown);
    step([&](const at::Tensor&) { return is_padded(landed.parameter); });
  } catch (...) {
    states.erase(key);
    throw;
  }
  landed.state_of_part = std::move(states.at(key));
  states.erase(key);
  const OptimizerStateView stepped(traits_, *landed.state_of_part);
  for (std::size_t f = 0; f < stepped.tensors.size(); ++f) {
    at::Tensor values = std::exchange(*stepped.tensors[f], at::Tensor());
    if (!places.fields[f].defined() || !values.defined()) continue;
    const auto to = StateRange::of(flat_part(places.spare[f], begin, numel));
    if (!to) continue;
    writer_->add({.to = *to, .values = std::move(values), .read = read[f]});
  }
}

bool SpeculativeStep::is_right() const {
  if (is_void_ || landed_.empty() || !has_same_options()) return false;
  for (const auto& group : optimizer_.param_groups()) {
    for (const at::Tensor& parameter : group.params()) {
      const at::Tensor& gradient = parameter.grad();
      if (!gradient.defined()) continue;
      const auto found = landed_.find(parameter.unsafeGetTensorImpl());
      if (found == landed_.end()) return false;
      const Landed& landed = *found->second;
      const auto state = optimizer_.state().find(parameter.unsafeGetTensorImpl());
      if (gradient.const_data_ptr() != landed.gradient.const_data_ptr() ||
          gradient._version() != landed.gradient_version ||
          parameter._version() != landed.version || state == optimizer_.state().end() ||
          state->second.get() != landed.state)
        return false;
    }
  }
  return true;
}

void SpeculativeStep::gradients_were_unscaled() {
  for (const auto& [key, landed] : landed_)
    landed->gradient_version = static_cast<std::uint32_t>(landed->gradient._version());
}

void SpeculativeStep::commit(const WasStepped& was_stepped) {
  const at::NoGradGuard no_grad;
  writer_->wait();
  for (const void* const key : order_) {
    Landed& landed = *landed_.at(key);
    if (!landed.parameter.grad().defined()) continue;  // no rank has used it
    StatesOnDisk& places = states_.at(key);
    std::swap(places.fields, places.spare);
    auto& state = *optimizer_.state().at(landed.parameter.unsafeGetTensorImpl());
    const OptimizerStateView present(traits_, state);
    const OptimizerStateView stepped(traits_, *landed.state_of_part);
    for (std::size_t f = 0; f < present.tensors.size(); ++f)
      if (places.fields[f].defined()) *present.tensors[f] = places.fields[f];
    for (std::size_t n = 0; n < present.numbers.size(); ++n)
      *present.numbers[n] = *stepped.numbers[n];
    landed.parameter.copy_(landed.values);
    landed.values.reset();
    if (was_stepped) was_stepped(landed.parameter, 0, landed.parameter.numel());
    if (const auto range = StateRange::of(landed.parameter)) range->store();
  }
  last_order_ = order_;
  drop();
}

void SpeculativeStep::drop() noexcept {
  if (writer_ != nullptr) writer_->wait_until_idle();
  landed_.clear();
  order_.clear();
  options_.clear();
  is_void_ = false;
}

}  // namespace accel
