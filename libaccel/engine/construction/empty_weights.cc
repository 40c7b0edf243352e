// How tensors come to be made without memory.
//
// While a scope lives, every operator of its thread comes here (interception/whole_operators.h), with the arguments that the
// caller gave:
//
//   makes a tensor (no tensor among the arguments), no device named   runs on the meta device, goes on the tape
//   the same, with a device                                           runs as it is
//   has a tensor of the tape                                          runs on meta, goes on the tape
//   the same, but LibTorch cannot do it without values                these tensors are made real, then it runs
//
// torch::tensor({1, 2}) writes to memory directly; it names the CPU, and so stays as it is.
//
// At the end of the scope the tape makes real what somebody still holds and is no parameter. That it is no parameter
// cannot be told when it is made, only then: register_parameter() is no operator, but sets requires_grad.
//
// Operators that run inside of others do not come by again.

#include <utility>

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include <accel/big_model.h>
#include <accel/env_contract.h>
#include <accel/error.h>
#include <accel/result.h>

#include "libaccel/engine/construction/operator_tape.h"
#include "libaccel/engine/construction/tensor_memory.h"
#include "libaccel/interception/whole_operators.h"

namespace accel {
namespace {

bool includes_buffers(const InitEmptyWeightsOptions& options) {
  constexpr const char* kVariable = "ACCELERATE_INIT_INCLUDE_BUFFERS";
  if (options.include_buffers) return *options.include_buffers;
  const auto value = process_env()(kVariable);
  return value && !value->empty() && or_throw(parse_env_bool(kVariable, *value));
}

}  // namespace

namespace detail {

// What one scope does, for its thread.
class EmptyConstruction final : public interception::OperatorHandler {
 public:
  explicit EmptyConstruction(const InitEmptyWeightsOptions& options)
      : includes_buffers_(includes_buffers(options)), scope_(*this) {}
  ~EmptyConstruction() override {
    const interception::NoHandlers as_ever;
    try {
      if (!includes_buffers_) make_real_what_is_no_parameter();
      for (const at::Tensor& tensor : tape_.held()) construction::explain_addresses(tensor);
      for (const auto& weak : real_) {
        if (const auto held = weak.lock()) empty(at::Tensor(held));
      }
    } catch (...) {  // NOLINT: prepare() names what has no memory
    }
  }
  EmptyConstruction(const EmptyConstruction&) = delete;
  EmptyConstruction& operator=(const EmptyConstruction&) = delete;

  bool run(const c10::OperatorHandle& op, torch::jit::Stack* stack) override {
    const auto arguments = torch::jit::last(*stack, op.schema().arguments().size());
    bool has_tensors = false;
    std::vector<at::Tensor> known;
    const auto look_at = [&](const c10::IValue& value) {
      if (!value.isTensor() || !value.toTensor().defined()) return;
      has_tensors = true;
      if (tape_.knows(value.toTensor())) known.push_back(value.toTensor());
    };
    for (const c10::IValue& argument : arguments) {
      look_at(argument);
      if (!argument.isList()) continue;
      for (const c10::IValue& item : argument.toListRef()) look_at(item);
    }
    if (known.empty() && has_tensors) return false;
    if (known.empty()) {
      make(op, stack, arguments.vec());
    } else {
      run_on_meta(op, stack, arguments.vec(), known);
    }
    return true;
  }

 private:
  // An operator without tensors among its arguments.
  void make(const c10::OperatorHandle& op,
            torch::jit::Stack* stack,
            std::vector<c10::IValue> arguments) {
    const auto device = op.schema().argumentIndexWithName("device");
    if (!device || !arguments[static_cast<std::size_t>(*device)].isNone()) {
      return run_as_it_is(op, stack);
    }
    (*stack)[stack->size() - arguments.size() + static_cast<std::size_t>(*device)] =
        c10::Device(c10::kMeta);
    run_on_meta(op, stack, std::move(arguments), {});
  }

  void run_as_it_is(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
    op.callBoxed(stack);
    for (const c10::IValue& result : torch::jit::last(*stack, op.schema().returns().size())) {
      if (result.isTensor() && result.toTensor().defined() && result.toTensor().device().is_cpu())
        real_.emplace_back(result.toTensor().getIntrusivePtr());
    }
  }

  void run_on_meta(const c10::OperatorHandle& op,
                   torch::jit::Stack* stack,
                   std::vector<c10::IValue> arguments,
                   const std::vector<at::Tensor>& known) {
    const std::size_t begin = stack->size() - arguments.size();
    try {
      op.callBoxed(stack);
    } catch (const c10::Error&) {
      // It needs values, or tensors of another device. If not even that helps, it throws what it would without us.
      tape_.make_real(known);
      stack->resize(begin);
      stack->insert(stack->end(), arguments.begin(), arguments.end());
      run_as_it_is(op, stack);
      return;
    }
    const c10::ArrayRef<c10::IValue> results(stack->data() + begin, stack->size() - begin);
    for (const c10::IValue& result : results) {
      if (result.isTensor() && result.toTensor().defined() && result.toTensor().is_meta())
        construction::forbid_addresses(result.toTensor());
    }
    tape_.record(op, std::move(arguments), results);
  }

  void make_real_what_is_no_parameter() {
    std::vector<at::Tensor> others;
    for (const at::Tensor& tensor : tape_.held()) {
      if (!tensor.requires_grad()) others.push_back(tensor);
    }
    tape_.make_real(others);
  }

  // A parameter whose constructor named the CPU.
  static void empty(const at::Tensor& tensor) {
    if (tensor.requires_grad() && tensor.is_leaf() && tensor.device().is_cpu())
      construction::give_memory(tensor, construction::without_memory(tensor));
  }

  bool includes_buffers_;
  construction::OperatorTape tape_;
  std::vector<c10::weak_intrusive_ptr<c10::TensorImpl>> real_;  // made with a device, on the CPU
  interception::ThreadHandler scope_;  // last: operators come once it is there
};

}  // namespace detail

EmptyWeights::EmptyWeights() = default;
EmptyWeights::EmptyWeights(const InitEmptyWeightsOptions& options)
    : construction_(std::make_unique<detail::EmptyConstruction>(options)) {}
EmptyWeights::~EmptyWeights() = default;
EmptyWeights::EmptyWeights(EmptyWeights&&) noexcept = default;

EmptyWeights init_on_device(const c10::Device& device, const InitEmptyWeightsOptions& options) {
  if (device.is_meta()) return init_empty_weights(options);
  if (device.is_cpu()) return {};
  throw Error(
      ErrorCode::kUnsupported,
      "init_on_device was asked for " + device.str() + ", and this build of libaccel has no GPUs",
      "name meta or cpu");
}

}  // namespace accel
