// TrackerValue: a value for an experiment tracker, with the types of JSON.
//
//   accelerator.log({{"loss", 0.5}, {"epoch", 3}, {"note", "warm-up is over"}}, step);
//   accelerator.log({{"losses", accel::TrackerDict{{"train", 0.5}, {"eval", 0.6}}}}, step);
//   accelerator.log({{"loss", loss}}, step);  // a tensor: listify()
//
// Threads:  a value type.
// Cost:     a tensor is copied to the host when the value is made, which waits for its device.
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include <accel/export.h>

namespace at {
class Tensor;
}

namespace accel {

class TrackerValue;
using TrackerList = std::vector<TrackerValue>;

// Names and values, in the given order. Use a name only once: in trackers with a table the last value wins.
class ACCEL_EXPORT TrackerDict {
 public:
  using Item = std::pair<std::string, TrackerValue>;

  TrackerDict() = default;
  TrackerDict(std::initializer_list<Item> items);

  // Adds an item at the end.
  void emplace_back(std::string name, TrackerValue value);
  // nullptr if there is no such name.
  [[nodiscard]] const TrackerValue* find(std::string_view name) const;
  [[nodiscard]] bool empty() const noexcept;
  [[nodiscard]] std::size_t size() const noexcept;
  [[nodiscard]] const Item* begin() const noexcept;
  [[nodiscard]] const Item* end() const noexcept;

 private:
  std::vector<Item> items_;
};

class ACCEL_EXPORT TrackerValue {
 public:
  using Data = std::
      variant<std::monostate, bool, std::int64_t, double, std::string, TrackerList, TrackerDict>;

  TrackerValue() = default;  // none: None of Python, null of JSON
  template <std::same_as<bool> T>
  TrackerValue(T value) : data_(value) {}  // NOLINT: implicit, so that {"loss", 0.5} is a value
  template <std::integral T>
  requires(!std::same_as<T, bool>) TrackerValue(T value)  // NOLINT
      : data_(static_cast<std::int64_t>(value)) {}
  template <std::floating_point T>
  TrackerValue(T value) : data_(static_cast<double>(value)) {}            // NOLINT
  TrackerValue(const char* text) : data_(std::string(text)) {}            // NOLINT
  TrackerValue(std::string_view text) : data_(std::string(text)) {}       // NOLINT
  TrackerValue(std::string text) : data_(std::move(text)) {}              // NOLINT
  TrackerValue(TrackerList list) : data_(std::move(list)) {}              // NOLINT
  TrackerValue(TrackerDict dictionary) : data_(std::move(dictionary)) {}  // NOLINT
  // Like utils.listify: a number for a tensor without dimensions, else nested lists. bfloat16 is converted to float32 first.
  TrackerValue(const at::Tensor& tensor);  // NOLINT

  [[nodiscard]] const Data& data() const noexcept { return data_; }
  // Whether it is a number; true and false are, as in Python.
  [[nodiscard]] bool is_number() const noexcept;
  [[nodiscard]] double number() const noexcept;  // 0 unless is_number()
  [[nodiscard]] const std::string* text() const noexcept {
    return std::get_if<std::string>(&data_);
  }
  [[nodiscard]] const TrackerDict* dictionary() const noexcept {
    return std::get_if<TrackerDict>(&data_);
  }

 private:
  Data data_;
};

inline bool TrackerDict::empty() const noexcept {
  return items_.empty();
}
inline std::size_t TrackerDict::size() const noexcept {
  return items_.size();
}
inline const TrackerDict::Item* TrackerDict::begin() const noexcept {
  return items_.data();
}
inline const TrackerDict::Item* TrackerDict::end() const noexcept {
  return items_.data() + items_.size();
}

// The numbers of a tensor, on the host. Throws c10::Error for an undefined tensor.
ACCEL_EXPORT TrackerValue listify(const at::Tensor& tensor);

// Pictures of one size, a byte for each channel of a pixel.
struct ImageBatch {
  std::int64_t count = 0;
  std::int64_t height = 0;
  std::int64_t width = 0;
  std::int64_t channels = 0;         // 1: grey, 3: RGB
  std::vector<std::uint8_t> pixels;  // [count, height, width, channels]
};

// Converts a tensor [N, C, H, W] or [C, H, W] with C 1 or 3. Bytes stay unchanged. Other types are taken as 0 to 1 and clamped.
// Throws kInvalidArgument for other shapes.
ACCEL_EXPORT ImageBatch image_batch(const at::Tensor& images);

using TrackerImages = std::vector<std::pair<std::string, ImageBatch>>;

}  // namespace accel
