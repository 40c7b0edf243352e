#include <typeinfo>
#include <utility>

#include <c10/util/Type.h>

#include <accel/detail/checkpointed_optimizer.h>
#include <accel/error.h>

namespace accel::detail {
namespace {

[[noreturn]] void refuse_archives(const torch::optim::Optimizer& optimizer) {
  throw Error(ErrorCode::kUnsupported,
              c10::demangle(typeid(optimizer).name()) + " is not saved by torch::save()",
              "prepare() it, and use save_state() and load_state() of the Accelerator");
}

}  // namespace

CheckpointedOptimizer::CheckpointedOptimizer(
    const std::vector<torch::optim::OptimizerParamGroup>& groups,
    std::unique_ptr<torch::optim::OptimizerOptions> defaults)
    : Optimizer(groups, std::move(defaults)) {}

void CheckpointedOptimizer::save(torch::serialize::OutputArchive& /*archive*/) const {
  refuse_archives(*this);
}

void CheckpointedOptimizer::load(torch::serialize::InputArchive& /*archive*/) {
  refuse_archives(*this);
}

}  // namespace accel::detail
