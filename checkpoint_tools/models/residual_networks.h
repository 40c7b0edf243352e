// ResidualNetworks: the tensors of ResNets, as transformers and as timm make them.
//
// Their running averages, and the numbers of batches they are of, count too.
#pragma once

#include "checkpoint_tools/models/model_builder.h"

namespace accel::launcher {

// model_type resnet of transformers, without a head.
void resnet(Sizes& sizes, Builder& build);

// A config.json of timm, which has an architecture in the place of a model_type: resnet18, 34, 50, 101 and 152.
[[nodiscard]] bool is_timm_resnet(const std::string& architecture);
// With its classes. Requires: is_timm_resnet().
void timm_resnet(const std::string& architecture, Sizes& sizes, Builder& build);

}  // namespace accel::launcher
