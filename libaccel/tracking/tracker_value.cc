#include <algorithm>

#include <accel/tracker_value.h>

namespace accel {

TrackerDict::TrackerDict(std::initializer_list<Item> items) : items_(items) {}

void TrackerDict::emplace_back(std::string name, TrackerValue value) {
  items_.emplace_back(std::move(name), std::move(value));
}

const TrackerValue* TrackerDict::find(std::string_view name) const {
  const auto found = std::ranges::find(items_, name, &Item::first);
  return found == items_.end() ? nullptr : &found->second;
}

bool TrackerValue::is_number() const noexcept {
  return std::holds_alternative<bool>(data_) || std::holds_alternative<std::int64_t>(data_) ||
         std::holds_alternative<double>(data_);
}

double TrackerValue::number() const noexcept {
  if (const auto* truth = std::get_if<bool>(&data_)) return *truth ? 1 : 0;
  if (const auto* whole = std::get_if<std::int64_t>(&data_)) return static_cast<double>(*whole);
  const auto* number = std::get_if<double>(&data_);
  return number != nullptr ? *number : 0;
}

}  // namespace accel
