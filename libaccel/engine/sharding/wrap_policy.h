// WrapPolicy: which parameters of a module the peer's auto wrap policies put together.
//
// The peer wraps modules; here a wrapped module is a unit: the parameters of it and of its children
// that no inner unit has. What belongs to no wrapped module forms the unit of the root.
//
// Threads:  the thread that owns the module; nothing is changed.
#pragma once

#include <limits>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include <ATen/core/Tensor.h>

#include "libaccel/engine/settings/fsdp_settings.h"

namespace torch::nn {
class Module;
}

namespace accel::sharding {

// "Block" for the classes Block, BlockImpl, models::BlockImpl, and __torch__.models.Block of TorchScript. Pure.
[[nodiscard]] std::string class_name_of(const std::string& cpp_name);

// The parameters of the modules whose names match FsdpSettings::ignored_modules whole, or are in ignored_names, by
// implementation. Errors  throws kInvalidArgument: no regular expression; one that matches no module (the names are
// listed); a name that no module has (the nearest one is said).
[[nodiscard]] std::unordered_set<const c10::TensorImpl*> ignored_parameters(
    const torch::nn::Module& module, const FsdpSettings& settings);

// Of the parameters that are in no wrapped module, where a policy wraps any.
inline constexpr int kRootGroup = std::numeric_limits<int>::max();

// The number of the unit of each parameter, by implementation; kNoGroup for all under NO_WRAP. A parameter that is
// used in several units belongs to the first. TRANSFORMER_BASED_WRAP takes names of classes, with as much of their namespace
// as is said, and globs of the paths of modules ("blocks.*"). Errors  throws kInvalidArgument naming a class that no module
// has, and the classes that there are.
[[nodiscard]] std::unordered_map<const c10::TensorImpl*, int> wrap_groups(
    const torch::nn::Module& module, const FsdpSettings& settings);

}  // namespace accel::sharding
