#include "libaccel/api/selftest/self_test.h"

#include <sstream>

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>

namespace accel::selftest {

void Surroundings::expect_equal(const at::Tensor& seen,
                                const at::Tensor& wanted,
                                const std::string& what,
                                double tolerance) const {
  at::Tensor found = seen.detach().to(at::kCPU, at::kDouble).flatten();
  const at::Tensor expected = wanted.detach().to(at::kCPU, at::kDouble).flatten();
  if (is_faulty) found = found + 1;
  std::ostringstream text;
  if (seen.sizes() != wanted.sizes()) {
    text << what << ": shape " << seen.sizes() << ", expected " << wanted.sizes();
    throw CheckFailed(text.str());
  }
  const at::Tensor differs = at::logical_not((found - expected).abs() <= tolerance).nonzero();
  if (differs.size(0) == 0) return;
  const auto at = differs[0][0].item<std::int64_t>();
  text.precision(17);
  text << what << ": element " << at << " is " << found[at].item<double>() << ", expected "
       << expected[at].item<double>();
  if (tolerance > 0) text << " within " << tolerance;
  throw CheckFailed(text.str());
}

std::span<const Check> checks() noexcept {
  static constexpr Check kChecks[] = {
      {"collectives", "every collective gives what one process computes", check_collectives},
      {"objects", "objects of any length reach every rank", check_objects},
      {"data loaders", "each element of a dataset is read once", check_data_loaders},
      {"random numbers", "ranks draw the same numbers when they are told to", check_random_numbers},
      {"training", "all ranks together train as one process does", check_training}};
  return kChecks;
}

}  // namespace accel::selftest
