// Inputs are kept as autograd keeps tensors, so that those of a part within another one are slots of that one: they are computed
// again with it. What a part keeps is gone with the last node of its graph that may ask for a slot.

#include "libaccel/engine/recompute/activation_region.h"

#include <optional>
#include <string>
#include <utility>

#include <ATen/ThreadLocalState.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/saved_variable.h>

#include <accel/activation_checkpoint.h>
#include <accel/error.h>

#include "libaccel/engine/recompute/autocast_cache.h"
#include "libaccel/engine/recompute/generator_states.h"
#include "libaccel/engine/recompute/kept_results.h"
#include "libaccel/engine/recompute/outside_memory.h"
#include "libaccel/interception/kernel_scope.h"
#include "libaccel/interception/recomputed_tensors.h"
#include "libaccel/interception/saved_tensors.h"
#include "libaccel/interception/whole_operators.h"

namespace accel {
namespace recompute {
namespace {

using interception::RecomputedTensors;

thread_local int t_num_regions = 0;

class InRegion {
 public:
  InRegion() noexcept { ++t_num_regions; }
  ~InRegion() { --t_num_regions; }
  InRegion(const InRegion&) = delete;
  InRegion& operator=(const InRegion&) = delete;
};

class Input {
 public:
  explicit Input(const at::Tensor& tensor)
      : is_defined_(tensor.defined()),
        saved_(tensor, /*is_output=*/false),
        version_(is_defined_ && !saved_.has_hooks() ? tensor._version() : 0) {}

  // It leads to no graph. index: for the error.
  [[nodiscard]] at::Tensor value(std::size_t index) const {
    if (!is_defined_) return {};
    const auto kept = saved_.get_raw_data();
    if (kept && static_cast<std::int64_t>(kept->_version()) != version_) {
      throw Error(ErrorCode::kInvalidArgument,
                  "input " + std::to_string(index) +
                      " of a part whose activations are computed again was changed in place: it "
                      "was at version " +
                      std::to_string(version_) + ", and is at version " +
                      std::to_string(kept->_version()),
                  "give checkpoint_activations() a clone(), or use the operator that does not "
                  "write in place");
    }
    const at::Tensor tensor = saved_.unpack();
    at::Tensor own = tensor.detach();
    give_role(own, graph_role_of(tensor));
    return own;
  }

 private:
  bool is_defined_;
  torch::autograd::SavedVariable saved_;
  std::int64_t version_;
};

// What the part began with.
struct RegionStart {
  std::vector<Input> inputs;
  detail::ActivationRegion::RunAgain work;
  at::ThreadLocalState thread_state;  // dispatch keys, autocast, grad mode
  GeneratorStates generators;
  OutsideMemory outside;
  std::optional<KeptResults> kept;
};

void run_again(const RegionStart& start, RecomputedTensors::Filling& filling) {
  std::vector<at::Tensor> inputs;
  for (std::size_t i = 0; i < start.inputs.size(); ++i) inputs.push_back(start.inputs[i].value(i));
  const GeneratorScope generators(start.generators);
  const at::ThreadLocalStateGuard thread_state(start.thread_state);
  const NoAutocastCache no_cache;
  const InRegion in_region;
  LaterRun later(start.outside);
  const interception::ThreadHandler handler(later);
  later.set_next(handler.outer());
  std::optional<LaterKernels> kernels;
  std::optional<interception::KernelScope> kernel_scope;
  if (start.kept) {
    kernels.emplace(*start.kept);
    kernel_scope.emplace(*kernels);
    kernels->set_next(kernel_scope->outer());
  }
  filling.run([&] { start.work(inputs); });
}

}  // namespace

bool is_in_region() noexcept {
  return t_num_regions > 0;
}

}  // namespace recompute

namespace detail {

struct ActivationRegion::Parts {
  explicit Parts(const std::shared_ptr<recompute::RegionStart>& start)
      : tensors(std::make_shared<interception::RecomputedTensors>(
            [start](interception::RecomputedTensors::Filling& filling) {
              recompute::run_again(*start, filling);
            })),
        saved([tensors = tensors] { return tensors->make_hooks(); }),
        first(start->outside),
        handler(first) {
    first.set_next(handler.outer());
    if (!start->kept) return;
    kernels.emplace(*start->kept);
    kernel_scope.emplace(*kernels);
    kernels->set_next(kernel_scope->outer());
  }

  std::shared_ptr<interception::RecomputedTensors> tensors;
  interception::SavedTensorScope saved;
  recompute::FirstRun first;
  interception::ThreadHandler handler;
  recompute::InRegion in_region;
  std::optional<recompute::FirstKernels> kernels;
  std::optional<interception::KernelScope> kernel_scope;
};

bool has_activations() {
  return at::GradMode::is_enabled();
}

ActivationRegion::ActivationRegion(const std::vector<at::Tensor>& inputs,
                                   RunAgain run_again,
                                   const ActivationCheckpointOptions& options) {
  auto start = std::make_shared<recompute::RegionStart>();
  for (const at::Tensor& input : inputs) start->inputs.emplace_back(input);
  start->work = std::move(run_again);
  if (options.keep) start->kept.emplace(*options.keep);
  parts_ = std::make_unique<Parts>(start);
}

ActivationRegion::~ActivationRegion() = default;

}  // namespace detail
}  // namespace accel
