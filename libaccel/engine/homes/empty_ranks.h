// EmptyRanks: ranks that come to prepare() with a model without memory (accel/big_model.h), and whether that can be.
//
// Threads:  the thread that trains.
#pragma once

#include <optional>

#include "libaccel/engine/settings/fsdp_settings.h"

namespace torch::nn {
class Module;
}
namespace accel {
class ProcessGroup;
}

namespace accel::sharding {

// Whether a parameter or buffer of the module has no memory.
[[nodiscard]] bool is_empty(const torch::nn::Module& module);

// settings: nullopt without FSDP. Throws kInvalidArgument naming a parameter without memory that nobody would give its
// values: without sharding, without sync_module_states, or on rank 0; the same on all ranks. group: nullptr for one process.
// Cost: one message of 256 bytes. Requires: every rank calls it.
void refuse_empty_models(const torch::nn::Module& module,
                         ProcessGroup* group,
                         const std::optional<FsdpSettings>& settings);

// What init_empty_unless_main() goes by: of the Accelerator that was made last in this process.
void set_loads_on_main_only(const std::optional<FsdpSettings>& settings) noexcept;
[[nodiscard]] bool loads_on_main_only() noexcept;

}  // namespace accel::sharding
