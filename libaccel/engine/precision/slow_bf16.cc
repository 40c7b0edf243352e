#include "libaccel/engine/precision/slow_bf16.h"

#include <ATen/cpu/Utils.h>

namespace accel {

CpuFeatures read_cpu_features() {
  const auto capabilities = at::cpu::get_cpu_capabilities();
  const auto has = [&](const char* name) {
    const auto found = capabilities.find(name);
    return found != capabilities.end() && found->second.isBool() && found->second.toBool();
  };
  const auto architecture = capabilities.find("architecture");
  return {.is_x86 = architecture != capabilities.end() && architecture->second.isString() &&
                    architecture->second.toStringRef() == "x86_64",
          .has_avx512_bf16 = has("avx512_bf16"),
          .has_amx_bf16 = has("amx_bf16")};
}

std::optional<std::string> slow_bf16_notice(const PrecisionRecipe& recipe,
                                            c10::DeviceType device,
                                            const CpuFeatures& cpu) {
  const bool by_autocast = recipe.casts_by_autocast() && recipe.compute == c10::kBFloat16;
  if (!by_autocast && recipe.parameter != c10::kBFloat16) return std::nullopt;
  if (device != c10::DeviceType::CPU || !cpu.is_x86 || cpu.has_avx512_bf16 || cpu.has_amx_bf16)
    return std::nullopt;
  return std::string(by_autocast ? "mixed_precision is bf16" : "param_dtype is BFloat16") +
         ", and this CPU has neither avx512_bf16 nor amx_bf16: products in bf16 take two to five "
         "times as long as in fp32. Train with " +
         (by_autocast ? "mixed_precision = no" : "another mixed_precision_policy") +
         ", or on a CPU that has one of them; ACCELERATE_LOG_LEVEL=error leaves out this line";
}

}  // namespace accel
