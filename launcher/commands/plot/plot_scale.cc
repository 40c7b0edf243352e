#include "launcher/commands/plot/plot_scale.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>

namespace accel::launcher {
namespace {

class RangeOfValues {
 public:
  void add(double value) {
    if (std::isnan(value)) return;
    low_ = std::min(low_, value);
    high_ = std::max(high_, value);
  }
  [[nodiscard]] PlotScale scale() const {
    // Below this the ticks of a range are no longer numbers of their own.
    const double largest = std::max(std::abs(low_), std::abs(high_));
    const double least = std::max(largest * 1e-12, 1e-290);
    if (high_ - low_ > least) return {low_, high_};
    const double middle = low_ + (high_ - low_) / 2;
    const double half = largest > 1e-280 ? largest / 10 : 1;
    return {middle - half, middle + half};
  }

 private:
  double low_ = std::numeric_limits<double>::infinity();
  double high_ = -std::numeric_limits<double>::infinity();
};

std::string whole_number(double value) {
  char text[32];
  const auto end = std::to_chars(text, text + sizeof text, value, std::chars_format::fixed, 0).ptr;
  return std::string(text, end);
}

}  // namespace

PanelScales scales_of(const Panel& panel) {
  RangeOfValues x;
  RangeOfValues y;
  for (const Curve& curve : panel.curves) {
    for (const CurvePoint& point : curve.points) {
      if (std::isnan(point.y)) continue;
      x.add(point.x);
      y.add(point.y);
    }
    for (const CurvePoint& point : curve.smooth) y.add(point.y);
  }
  return {x.scale(), y.scale()};
}

std::vector<PlotTick> ticks_of(const PlotScale& scale, int most) {
  const double raw = (scale.high - scale.low) / most;
  const double power = std::pow(10, std::floor(std::log10(raw)));
  const double factor = raw / power <= 1 ? 1 : raw / power <= 2 ? 2 : raw / power <= 5 ? 5 : 10;
  const double step = factor * power;
  const double largest = std::max(std::abs(scale.low), std::abs(scale.high));
  const int digits = std::clamp(static_cast<int>(std::ceil(std::log10(largest / step))) + 1, 1, 15);
  const double first = std::ceil(scale.low / step - 1e-9);
  std::vector<PlotTick> ticks;
  for (int i = 0; i <= most + 1; ++i) {
    double value = (first + i) * step;
    if (value > scale.high + step * 1e-9) break;
    if (std::abs(value) < step * 1e-6) value = 0;  // no -0
    const bool is_whole = step >= 1 && largest < 1e7;
    ticks.push_back({value, is_whole ? whole_number(value) : short_number(value, digits)});
  }
  return ticks;
}

std::string short_number(double value, int digits) {
  char text[64];
  const auto [end, failure] =
      std::to_chars(text, text + sizeof text, value, std::chars_format::general, digits);
  return failure == std::errc() ? std::string(text, end) : "";
}

}  // namespace accel::launcher
