// The parameters of a module for the Pager, by name.
//
// Threads:  pure, but that the TorchScript one changes a setting of the process (below).
#pragma once

#include <vector>

#include "libaccel/engine/pager/pager.h"

namespace torch::nn {
class Module;
}
namespace torch::jit {
struct Module;
}

namespace accel::pager {

[[nodiscard]] std::vector<NamedTensor> parameters_of(const torch::nn::Module& module);

// Switches LibTorch's fusers of tensor expressions off for the process: fused kernels read parameters past the
// dispatcher. Throws kUnsupported naming a (sub)module that is frozen: its parameters are constants of its code.
[[nodiscard]] std::vector<NamedTensor> parameters_of(const torch::jit::Module& module);

}  // namespace accel::pager
