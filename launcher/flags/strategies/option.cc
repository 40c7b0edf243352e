#include "launcher/flags/strategies/option.h"

#include <algorithm>

#include "launcher/text/choice_list.h"

namespace accel::launcher {

std::span<const Strategy* const> strategies() {
  static const Strategy* const all[] = {&fsdp_strategy(),
                                        &deepspeed_strategy(),
                                        &megatron_strategy(),
                                        &parallelism_strategy(),
                                        &fp8_strategy()};
  return all;
}

const Option* find_option(const Strategy& strategy, std::string_view name) {
  for (const Option& option : strategy.options) {
    if (option.flag.name == name) return &option;
    const auto old_names = split_choices(option.old_names);
    if (std::find(old_names.begin(), old_names.end(), name) != old_names.end()) return &option;
  }
  return nullptr;
}

}  // namespace accel::launcher
