// RobustSpread: middle and width of numbers of which some may be far off.
//
//   sigma = max(1.4826 MAD, 1 % of |median|)    MAD: median of the distances from the median
//
// 1.4826 makes it the standard deviation where the numbers are normal; the second part keeps numbers that are all alike from
// making each deviation an outlier. (x - median) / sigma is the robust z-score.
//
// Pure.
// Source:   Iglewicz and Hoaglin, How to Detect and Handle Outliers (1993).
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <utility>
#include <vector>

namespace accel {

struct RobustSpread {
  double median = 0;
  double sigma = 0;
};

// Of at least one number; the upper one of two in the middle.
[[nodiscard]] inline double median_of(std::vector<double> values) {
  const std::size_t middle = values.size() / 2;
  std::nth_element(
      values.begin(), values.begin() + static_cast<std::ptrdiff_t>(middle), values.end());
  return values[middle];
}

[[nodiscard]] inline RobustSpread robust_spread(std::vector<double> values) {
  constexpr double kMadToSigma = 1.4826;
  constexpr double kLeastDeviation = 0.01;
  const double median = median_of(values);
  for (double& value : values) value = std::abs(value - median);
  return {median,
          std::max(kMadToSigma * median_of(std::move(values)), kLeastDeviation * std::abs(median))};
}

}  // namespace accel
