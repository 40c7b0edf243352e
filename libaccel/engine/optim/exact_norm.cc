// Each square lies below 2^60 units, and fewer than 2^40 numbers are added up: 100 bits, which go to other ranks in three parts of 40.

#include "libaccel/engine/optim/exact_norm.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <limits>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>

#include <accel/types.h>

#include "libaccel/engine/process/process_group.h"
#include "libaccel/tensors/unique_parameters.h"

namespace accel {
namespace {

constexpr const char* kNormOperation = "adding up the norm of gradients";
constexpr int kSquareBits = 60;
constexpr int kPartBits = 40;

__extension__ using Wide = unsigned __int128;

// visit(numbers, count) for each gradient, as float or double.
template <typename Visit>
void for_each_gradient(const std::vector<at::Tensor>& parameters, Visit visit) {
  for (const at::Tensor& parameter : unique_parameters(parameters)) {
    if (!parameter.grad().defined()) continue;
    const bool is_double = parameter.grad().scalar_type() == at::kDouble;
    const at::Tensor numbers =
        parameter.grad().to(is_double ? at::kDouble : at::kFloat).cpu().contiguous();
    if (is_double) {
      visit(numbers.const_data_ptr<double>(), numbers.numel());
    } else {
      visit(numbers.const_data_ptr<float>(), numbers.numel());
    }
  }
}

struct Largest {
  double finite = 0;
  double kind = 0;  // 1: one is infinite; 2: one is no number
};

Largest largest_of(const std::vector<at::Tensor>& parameters) {
  Largest largest;
  for_each_gradient(parameters, [&]<typename T>(const T* numbers, std::int64_t count) {
    T most = 0;
    bool is_finite = true;
    for (std::int64_t i = 0; i < count; ++i) {
      const T size = std::abs(numbers[i]);
      is_finite = is_finite && size <= std::numeric_limits<T>::max();
      most = size > most ? size : most;
    }
    if (is_finite) {
      largest.finite = std::max(largest.finite, static_cast<double>(most));
      return;
    }
    const bool has_nan =
        std::any_of(numbers, numbers + count, [](T number) { return std::isnan(number); });
    largest.kind = std::max(largest.kind, has_nan ? 2.0 : 1.0);
  });
  return largest;
}

// In units of which 2^kSquareBits are the square of 1 / scale.
Wide squares_of(const std::vector<at::Tensor>& parameters, double scale) {
  Wide sum = 0;
  const double to_units = std::ldexp(scale, kSquareBits / 2);
  for_each_gradient(parameters, [&]<typename T>(const T* numbers, std::int64_t count) {
    for (std::int64_t i = 0; i < count; ++i) {
      const double number = static_cast<double>(numbers[i]) * to_units;
      sum += static_cast<Wide>(std::llrint(number * number));
    }
  });
  return sum;
}

Wide all_reduced(Wide sum, std::span<const std::shared_ptr<ProcessGroup>> groups) {
  constexpr Wide kMask = (Wide{1} << kPartBits) - 1;
  for (const auto& group : groups) {
    at::Tensor parts = at::zeros({3}, at::kLong);
    auto* const values = parts.data_ptr<std::int64_t>();
    for (int part = 0; part < 3; ++part)
      values[part] = static_cast<std::int64_t>((sum >> (part * kPartBits)) & kMask);
    group->all_reduce_(parts, Reduction::kSum, kNormOperation);
    sum = 0;
    for (int part = 0; part < 3; ++part)
      sum += static_cast<Wide>(values[part]) << (part * kPartBits);
  }
  return sum;
}

bool has_double(const std::vector<at::Tensor>& parameters) {
  return std::any_of(parameters.begin(), parameters.end(), [](const at::Tensor& parameter) {
    return parameter.scalar_type() == at::kDouble;
  });
}

}  // namespace

at::Tensor exact_norm(const std::vector<at::Tensor>& own,
                      const std::vector<at::Tensor>& shared,
                      std::span<const std::shared_ptr<ProcessGroup>> groups) {
  const at::NoGradGuard no_grad;
  at::Tensor said = at::zeros({3}, at::kDouble);
  auto* const values = said.data_ptr<double>();
  const Largest of_own = largest_of(own);
  const Largest of_shared = largest_of(shared);
  values[0] = std::max(of_own.finite, of_shared.finite);
  values[1] = std::max(of_own.kind, of_shared.kind);
  values[2] = has_double(own) || has_double(shared) ? 1 : 0;
  for (const auto& group : groups) group->all_reduce_(said, Reduction::kMax, kNormOperation);
  const auto result = [&](double norm) {
    return at::full({}, norm, values[2] != 0 ? at::kDouble : at::kFloat);
  };
  if (values[1] == 2) return result(std::numeric_limits<double>::quiet_NaN());
  if (values[1] == 1) return result(std::numeric_limits<double>::infinity());
  if (values[0] == 0) return result(0);
  int exponent = 0;  // the largest is below 2^exponent
  std::frexp(values[0], &exponent);
  exponent = std::max(exponent, -900);  // so that its power can be turned round
  const double scale = std::ldexp(1.0, -exponent);
  const Wide sum = all_reduced(squares_of(own, scale), groups) + squares_of(shared, scale);
  return result(std::ldexp(std::sqrt(static_cast<double>(sum)), exponent - kSquareBits / 2));
}

}  // namespace accel
