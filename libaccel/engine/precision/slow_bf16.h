// SlowBf16: what a program is told that computes in bf16 on a CPU which has no instructions for it.
//
// oneDNN emulates the products there: of 128 x 1024 and 1024 x 1024 on one core they took 2.2 times as long as in fp32 with
// AVX-512 alone, and 4.8 times with AVX2, where avx512_bf16 takes 0.4 (LibTorch 2.11, an EPYC with ONEDNN_MAX_CPU_ISA).
//
// Threads:  any.
#pragma once

#include <optional>
#include <string>

#include <c10/core/Device.h>

#include "libaccel/engine/precision/precision_recipe.h"

namespace accel {

struct CpuFeatures {
  bool is_x86 = false;  // of other CPUs nothing is said
  bool has_avx512_bf16 = false;
  bool has_amx_bf16 = false;
};

// Of this machine, as LibTorch sees it.
[[nodiscard]] CpuFeatures read_cpu_features();

// std::nullopt where the recipe does not compute in bf16, or not on such a CPU.
[[nodiscard]] std::optional<std::string> slow_bf16_notice(const PrecisionRecipe& recipe,
                                                          c10::DeviceType device,
                                                          const CpuFeatures& cpu);

}  // namespace accel
