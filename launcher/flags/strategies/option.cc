#include "launcher/flags/strategies/option.h"

#include <algorithm>

#include "launcher/text/choice_list.h"

namespace accel::launcher {

std::span<const Paradigm* const> paradigms() {
  static const Paradigm* const all[] = {&fsdp_paradigm(),
                                        &deepspeed_paradigm(),
                                        &megatron_paradigm(),
                                        &parallelism_paradigm(),
                                        &fp8_paradigm()};
  return all;
}

const Option* find_option(const Paradigm& paradigm, std::string_view name) {
  for (const Option& option : paradigm.options) {
    if (option.flag.name == name) return &option;
    const auto old_names = split_choices(option.old_names);
    if (std::find(old_names.begin(), old_names.end(), name) != old_names.end()) return &option;
  }
  return nullptr;
}

}  // namespace accel::launcher
