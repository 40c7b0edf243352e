// The best of several short measurements: what else the machine does makes it slower, never faster.

#include <algorithm>
#include <chrono>

#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/add.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/ones.h>

#include <accel/plan.h>

#include "libaccel/interception/kernel_scope.h"

namespace accel {
namespace {

using Clock = std::chrono::steady_clock;
constexpr std::chrono::milliseconds kLongest{80};  // of one rate
constexpr int kFewest = 3;

template <typename Run>
double fewest_seconds(const Run& run) {
  double fewest = std::chrono::duration<double>::max().count();
  const Clock::time_point end = Clock::now() + kLongest;
  for (int i = 0; i < kFewest || Clock::now() < end; ++i) {
    const Clock::time_point begun = Clock::now();
    run();
    fewest = std::min(fewest, std::chrono::duration<double>(Clock::now() - begun).count());
  }
  return fewest;
}

}  // namespace

MachineRates measure_machine_rates() {
  const at::NoGradGuard no_grad;
  const interception::NoKernelScope plain;
  constexpr std::int64_t kWidth = 512;
  const at::Tensor factor = at::ones({kWidth, kWidth});
  at::Tensor product = at::ones({kWidth, kWidth});
  const double of_product = fewest_seconds([&] { at::mm_out(product, factor, factor); });

  constexpr std::int64_t kElements = std::int64_t{8} << 20;  // more than caches hold
  const at::Tensor term = at::ones({kElements});
  at::Tensor sum = at::ones({kElements});
  const double of_sum = fewest_seconds([&] { at::add_out(sum, term, term); });

  constexpr double kWide = kWidth;
  return {.flops = 2 * kWide * kWide * kWide / of_product,
          .memory_bytes = 2.0 * static_cast<double>(term.nbytes()) / of_sum};
}

}  // namespace accel
