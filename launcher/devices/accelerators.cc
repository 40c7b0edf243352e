#include "launcher/devices/accelerators.h"

#include <algorithm>
#include <iterator>

namespace accel::launcher {

const Accelerator* find_accelerator(std::string_view distributed_type) {
  static constexpr Accelerator kAccelerators[] = {
      {"MULTI_XPU", "ZE_AFFINITY_MASK"},
      {"MULTI_MLU", "MLU_VISIBLE_DEVICES"},
      {"MULTI_SDAA", "SDAA_VISIBLE_DEVICES"},
      {"MULTI_MUSA", "MUSA_VISIBLE_DEVICES"},
      {"MULTI_NPU", "ASCEND_RT_VISIBLE_DEVICES"},
      {"MULTI_HPU", "HABANA_VISIBLE_MODULES"},
      {"MULTI_NEURON", "NEURON_RT_VISIBLE_CORES"},
  };
  const auto* const found =
      std::ranges::find(kAccelerators, distributed_type, &Accelerator::distributed_type);
  return found == std::end(kAccelerators) ? nullptr : found;
}

}  // namespace accel::launcher
