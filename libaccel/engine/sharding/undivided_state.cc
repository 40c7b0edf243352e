#include "libaccel/engine/sharding/undivided_state.h"

#include <vector>

#include <ATen/core/grad_mode.h>
#include <torch/nn/module.h>

#include "libaccel/engine/construction/tensor_memory.h"
#include "libaccel/engine/homes/parameter_claim.h"
#include "libaccel/engine/process/model_comparison.h"
#include "libaccel/engine/process/process_group.h"
#include "libaccel/tensors/parameter_list.h"

namespace accel::sharding {

void take_from_rank_0(at::Tensor& tensor, ProcessGroup& group) {
  if (ParameterClaim::was_divided(tensor)) return;
  if (tensor.is_meta()) construction::give_memory(tensor, construction::memory_like(tensor));
  at::Tensor values = tensor.detach();
  group.broadcast_(values, 0, "sending the model of rank 0 to all ranks");
}

void send_frozen_model(const torch::nn::Module& module,
                       const FsdpSettings& settings,
                       ProcessGroup& group) {
  const bool sends = settings.sync_module_states;
  verify_same_models(module, sends ? Buffers::kCompared : Buffers::kOwn, group);
  if (!sends) return;
  std::vector<NamedParameter> parameters;
  for (const auto& item : module.named_parameters()) {
    if (item.value().defined()) parameters.push_back({item.key(), item.value()});
  }
  const ParameterClaim claim(parameters);  // for as long as they are written to
  const at::NoGradGuard no_grad;
  const auto send = [&](at::Tensor& tensor) {
    if (tensor.defined() && tensor.layout() == at::kStrided) take_from_rank_0(tensor, group);
  };
  for (NamedParameter& parameter : parameters) send(parameter.tensor);
  for (at::Tensor& buffer : module.buffers()) send(buffer);
}

}  // namespace accel::sharding
