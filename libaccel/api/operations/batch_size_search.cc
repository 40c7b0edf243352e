#include <algorithm>
#include <array>
#include <cstdio>
#include <new>
#include <string>
#include <string_view>

#include <ATen/ops/full.h>
#include <c10/util/Exception.h>
#include <malloc.h>

#include <accel/error.h>
#include <accel/memory.h>
#include <accel/operations.h>
#include <accel/state.h>

namespace accel {
namespace {

// Those of accelerate.utils.memory.should_reduce_batch_size.
constexpr std::array<std::string_view, 5> kTexts = {
    " out of memory.",
    "MPS backend out of memory",
    "cuDNN error: CUDNN_STATUS_NOT_SUPPORTED.",
    "DefaultCPUAllocator: can't allocate memory",
    "FATAL ERROR :: MODULE:PT_DEVMEM Allocation failed",
};

// As Python writes a float that was rounded to two digits: at least one digit, no zeros at the end.
std::string two_digits(double value) {
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "%.2f", value);
  std::string digits(text.data());
  if (digits.ends_with('0')) digits.pop_back();
  return digits;
}

// Whether it holds on any rank.
bool on_any_rank(bool here) {
  if (!PartialState::initialized()) return here;
  return reduce(at::full({1}, here ? 1 : 0, at::kInt), Reduction::kMax).item<int>() != 0;
}

}  // namespace

bool should_reduce_batch_size(const std::exception& error) {
  if (dynamic_cast<const std::bad_alloc*>(&error) != nullptr) return true;
  if (dynamic_cast<const c10::OutOfMemoryError*>(&error) != nullptr) return true;
  if (const auto* own = dynamic_cast<const Error*>(&error))
    return own->code() == ErrorCode::kOutOfMemory;
  const std::string_view text = error.what();
  return std::ranges::any_of(
      kTexts, [&](std::string_view known) { return text.find(known) != std::string_view::npos; });
}

std::string convert_bytes(std::int64_t size) {
  if (size < 1024) return std::to_string(size) + " bytes";
  auto rest = static_cast<double>(size) / 1024;
  for (const char* unit : {" KB", " MB", " GB", " TB"}) {
    if (rest < 1024) return two_digits(rest) + unit;
    rest /= 1024;
  }
  return two_digits(rest) + " PB";
}

void clear_device_cache() noexcept {
  malloc_trim(0);
}

namespace detail {

std::int64_t BatchSizeSearch::batch_size() const {
  if (batch_size_ > 0) return batch_size_;
  throw Error(ErrorCode::kOutOfMemory,
              "No executable batch size found, reached zero.",
              "make the model smaller, or let it use more memory");
}

bool BatchSizeSearch::fits_all_ranks() const {
  return !on_any_rank(false);
}

void BatchSizeSearch::hear(const std::exception& error) const {
  if (!should_reduce_batch_size(error)) throw;
  try {
    (void)on_any_rank(true);
  } catch (const Error& other) {
    throw Error(ErrorCode::kOutOfMemory,
                "a batch of " + std::to_string(batch_size_) +
                    " does not fit this rank's memory, and other ranks were in the midst of a "
                    "collective (" +
                    other.message() + ")",
                "start with a smaller batch size");
  }
}

void BatchSizeSearch::reduce() {
  clear_device_cache();
  batch_size_ = options_.reduce_batch_size
                    ? options_.reduce_batch_size()
                    : static_cast<std::int64_t>(static_cast<double>(batch_size_) * 0.9);
}

}  // namespace detail
}  // namespace accel
