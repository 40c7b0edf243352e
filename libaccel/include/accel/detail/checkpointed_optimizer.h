// CheckpointedOptimizer: the base of libaccel's own optimizers. save_state() saves them; torch::save() would write nothing.
#pragma once

#include <memory>
#include <vector>

#include <torch/optim/optimizer.h>

#include <accel/export.h>

namespace accel::detail {

class ACCEL_EXPORT CheckpointedOptimizer : public torch::optim::Optimizer {
 public:
  CheckpointedOptimizer(const std::vector<torch::optim::OptimizerParamGroup>& groups,
                        std::unique_ptr<torch::optim::OptimizerOptions> defaults);

  // Throw kUnsupported.
  void save(torch::serialize::OutputArchive& archive) const override;
  void load(torch::serialize::InputArchive& archive) override;
};

}  // namespace accel::detail
