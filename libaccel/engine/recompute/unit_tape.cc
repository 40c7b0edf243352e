#include "libaccel/engine/recompute/unit_tape.h"

#include <string>
#include <string_view>
#include <utility>

#include <ATen/autocast_mode.h>
#include <ATen/core/grad_mode.h>
#include <ATen/core/stack.h>

#include <accel/error.h>

#include "libaccel/engine/recompute/autocast_cache.h"

namespace accel::recompute {
namespace {

using interception::TensorPlace;

// Whether its tensors may be filled by code that takes their addresses.
bool makes_room(const c10::OperatorHandle& op, bool has_tensors) {
  const std::string_view name = op.operator_name().name;
  return name.starts_with("aten::empty") || name.starts_with("aten::new_empty") ||
         (!has_tensors && !draws(op));
}

}  // namespace

ThreadConditions::ThreadConditions()
    : keys(c10::impl::tls_local_dispatch_key_set()),
      has_grad(at::GradMode::is_enabled()),
      autocast_cpu(at::autocast::get_autocast_dtype(at::kCPU)),
      autocast_cuda(at::autocast::get_autocast_dtype(at::kCUDA)) {}

bool ThreadConditions::are_those_of_now() const {
  const auto now = c10::impl::tls_local_dispatch_key_set();
  return now.included_ == keys.included_ && now.excluded_ == keys.excluded_ &&
         at::GradMode::is_enabled() == has_grad &&
         at::autocast::get_autocast_dtype(at::kCPU) == autocast_cpu &&
         at::autocast::get_autocast_dtype(at::kCUDA) == autocast_cuda;
}

// ---- running again ----

class UnitTape::Run {
 public:
  explicit Run(const UnitTape& tape)
      : tape_(tape),
        copies_(tape.outside_),
        held_(tape.held_.size()),
        values_(tape.num_values_),
        last_reads_(tape.num_values_) {
    if (tape.kept_) {
      kernels_.emplace(*tape.kept_);
      kernel_scope_.emplace(*kernels_);
      kernels_->set_next(kernel_scope_->outer());
    }
    for (std::size_t call = 0; call < tape.calls_.size(); ++call) {
      for (const Read& read : tape.calls_[call].reads) {
        if (!read.is_held) last_reads_[read.index] = call;
      }
    }
  }

  void run(std::size_t number, interception::RecomputedTensors::Filling& filling) {
    const Call& call = tape_.calls_[number];
    torch::jit::Stack stack = interception::with_own_lists(call.arguments);
    for (const Read& read : call.reads) {
      interception::put_tensor(stack, read.place, read.is_held ? held(read.index) : value(read));
    }
    if (conditions_ != call.conditions) {
      thread_.reset();
      conditions_ = call.conditions;
      thread_.emplace(conditions_->state);
    }
    if (call.generators) call.generators->restore();
    if (kernels_) kernels_->seek(call.first_kept);
    filling.begin_operator(call.first_slot, call.num_slots);
    call.op.callBoxed(stack);
    filling.end_operator(call.op.operator_name().name);
    for (const Result& result : call.results) {
      if (last_reads_[result.value] > number)
        values_[result.value] = interception::get_tensor(stack, result.place);
    }
    for (const Read& read : call.reads) {
      if (!read.is_held && last_reads_[read.index] == number) values_[read.index].reset();
    }
  }

 private:
  const at::Tensor& held(std::size_t index) {
    at::Tensor& own = held_[index];
    if (own.defined()) return own;
    const Held& held = tape_.held_[index];
    own = copies_.in_place_of(held.tensor);
    if (!own.defined()) {
      if (interception::write_version_of(held.tensor) != held.version) {
        throw Error(
            ErrorCode::kInvalidArgument,
            "a tensor that a unit reads whose activations are computed again was changed "
            "in place since its forward: it was at version " +
                std::to_string(held.version) + ", and is at version " +
                std::to_string(interception::write_version_of(held.tensor)),
            "write to inputs and weights after the backward, as optimizer.step() behind it");
      }
      if (held.role == GraphRole::kLeaf) return own = held.tensor;
      own = held.tensor.detach();
    }
    give_role(own, held.role);
    return own;
  }

  at::Tensor value(const Read& read) {
    const at::Tensor& value = values_[read.index];
    if (value.requires_grad() == (read.role != GraphRole::kNone)) return value;
    if (read.role == GraphRole::kNone) return value.detach();
    give_role(value, read.role);
    return value;
  }

  const UnitTape& tape_;
  OutsideCopies copies_;
  std::vector<at::Tensor> held_;
  std::vector<at::Tensor> values_;
  std::vector<std::size_t> last_reads_;  // by value: the last call that reads it
  std::optional<LaterKernels> kernels_;
  std::optional<interception::KernelScope> kernel_scope_;
  std::shared_ptr<const ThreadConditions> conditions_;
  std::optional<at::ThreadLocalStateGuard> thread_;
};

void UnitTape::run_again(interception::RecomputedTensors::Filling& filling) const {
  const GeneratorScope generators;
  const NoAutocastCache no_cache;
  filling.run([&] {
    Run run(*this);
    for (std::size_t call = 0; call < calls_.size(); ++call) run.run(call, filling);
  });
}

// ---- recording ----

UnitRecorder::UnitRecorder(interception::Comparison comparison, const KeptOperators* keep)
    : tensors_(std::make_shared<interception::RecomputedTensors>(
          [tape = tape_](interception::RecomputedTensors::Filling& filling) {
            tape->run_again(filling);
          },
          comparison)) {
  if (keep != nullptr) tape_->kept_.emplace(*keep);
}

std::vector<const c10::StorageImpl*> UnitRecorder::take_newly_held() {
  return std::exchange(newly_held_, {});
}

std::shared_ptr<const ThreadConditions> UnitRecorder::conditions() {
  if (conditions_ == nullptr || !conditions_->are_those_of_now())
    conditions_ = std::make_shared<const ThreadConditions>();
  return conditions_;
}

bool UnitRecorder::can_record(c10::ArrayRef<c10::IValue> arguments) const {
  bool can = true;
  interception::for_each_tensor(arguments, [&](const TensorPlace&, const at::Tensor& tensor) {
    if (has_bytes(tensor) && inside_.contains(tensor) &&
        !known_.contains(tensor.unsafeGetTensorImpl()))
      can = false;
  });
  return can;
}

UnitTape::Read UnitRecorder::read_of(const TensorPlace& place, const at::Tensor& tensor) {
  const GraphRole role = graph_role_of(tensor);
  const auto found = known_.find(tensor.unsafeGetTensorImpl());
  if (found != known_.end()) return {place, found->second.is_held, found->second.index, role};
  const std::size_t index = tape_->held_.size();
  tape_->held_.push_back({role == GraphRole::kLeaf ? tensor : tensor.detach(),
                          role,
                          interception::write_version_of(tensor)});
  known_.emplace(tensor.unsafeGetTensorImpl(),
                 Known{c10::weak_intrusive_ptr<c10::TensorImpl>(tensor.getIntrusivePtr()),
                       /*is_held=*/true,
                       index});
  if (has_bytes(tensor)) newly_held_.push_back(tensor.storage().unsafeGetStorageImpl());
  return {place, true, index, role};
}

void UnitRecorder::run(const c10::OperatorHandle& op,
                       torch::jit::Stack* stack,
                       interception::OperatorHandler* next) {
  const auto given = torch::jit::last(*stack, op.schema().arguments().size());
  const std::vector<c10::IValue> before(given.begin(), given.end());
  UnitTape::Call call{op, interception::with_own_lists(before), {}, {}, 0, 0, 0, conditions(), {}};
  bool has_writes = false;
  bool has_tensors = false;
  std::vector<UnitTape::Read> reads;
  interception::for_each_tensor(before, [&](const TensorPlace& place, const at::Tensor& tensor) {
    has_tensors = true;
    const bool is_written = writes(op, place.position);
    has_writes = has_writes || is_written;
    if (is_written && has_bytes(tensor) && !inside_.contains(tensor)) tape_->keep(tensor);
    reads.push_back(read_of(place, tensor));
  });
  for (const UnitTape::Read& read : reads) interception::put_tensor(call.arguments, read.place, {});
  call.reads = std::move(reads);
  if (draws(op)) call.generators.emplace();
  call.first_slot = tensors_->num_slots();
  if (tape_->kept_) call.first_kept = tape_->kept_->size();
  {
    struct InOperator {
      bool& is_in;
      explicit InOperator(bool& flag) : is_in(flag) { is_in = true; }
      ~InOperator() { is_in = false; }
    } const in_operator(is_in_operator_);
    if (next == nullptr || !next->run(op, stack)) op.callBoxed(stack);
  }
  call.num_slots = tensors_->num_slots() - call.first_slot;
  if (makes_room(op, has_tensors) && call.num_slots == 0) return;
  const auto results = torch::jit::last(*stack, op.schema().returns().size());
  interception::for_each_tensor(results, [&](const TensorPlace& place, const at::Tensor& tensor) {
    const auto [known, is_new] =
        known_.try_emplace(tensor.unsafeGetTensorImpl(),
                           Known{c10::weak_intrusive_ptr<c10::TensorImpl>(tensor.getIntrusivePtr()),
                                 /*is_held=*/false,
                                 tape_->num_values_});
    if (is_new) call.results.push_back({place, tape_->num_values_++});
  });
  inside_.add_made(before, results);
  if (has_writes || call.num_slots > 0 || !call.results.empty())
    tape_->calls_.push_back(std::move(call));
}

}  // namespace accel::recompute
