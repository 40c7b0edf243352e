// Memory: find the largest batch that fits, and release memory.
//
//   accel::find_executable_batch_size([&](std::int64_t batch_size) {
//     accelerator.free_memory();
//     Net net;  // construct everything that takes memory here
//     ...
//   }, {.starting_batch_size = 256})();
//
// The function runs with the starting size. Each time that memory runs out, it runs again from its beginning with 0.9 of the
// size, rounded down.
//
// Source:   accelerate.utils.memory.
// Threads:  the thread that trains.
#pragma once

#include <cstdint>
#include <exception>
#include <functional>
#include <string>
#include <type_traits>
#include <utility>

#include <accel/export.h>

namespace accel {

// Whether the exception reports a lack of memory: std::bad_alloc, c10::OutOfMemoryError, an accel::Error of kOutOfMemory, and
// Accelerate's list of texts (" out of memory.", "DefaultCPUAllocator: can't allocate memory",
// "cuDNN error: CUDNN_STATUS_NOT_SUPPORTED.", ...).
[[nodiscard]] ACCEL_EXPORT bool should_reduce_batch_size(const std::exception& error);

// Returns the free memory of the heap to the operating system. Cost: a walk over the heap.
ACCEL_EXPORT void clear_device_cache() noexcept;

// "512 bytes", "1.5 KB", "4.0 GB", ...: in Accelerate's format, with the largest unit (powers of 1024) that gives at least 1, and
// at most two digits after the point. libaccel's own messages have KiB and MiB.
[[nodiscard]] ACCEL_EXPORT std::string convert_bytes(std::int64_t size);

// Empties objects that can be empty (tensors, modules, smart pointers, optionals) and releases the memory that this frees.
template <typename... Objects>
void release_memory(Objects&... objects) {
  const auto release = [](auto& object) {
    if constexpr (requires { object.reset(); }) {
      object.reset();
    } else {
      object = nullptr;
    }
  };
  (release(objects), ...);
  clear_device_cache();
}

struct BatchSizeOptions {
  std::int64_t starting_batch_size = 128;
  // The next size; called once each time that memory ran out. Empty: 0.9 of the last size. Must be the same on all ranks.
  std::function<std::int64_t()> reduce_batch_size;
};

namespace detail {

// The sizes that were tried.
class ACCEL_EXPORT BatchSizeSearch {
 public:
  explicit BatchSizeSearch(BatchSizeOptions options)
      : options_(std::move(options)), batch_size_(options_.starting_batch_size) {}

  // Throws kOutOfMemory at 0.
  [[nodiscard]] std::int64_t batch_size() const;
  // Whether no rank ran out of memory. A collective.
  [[nodiscard]] bool fits_all_ranks() const;
  // After an exception of this rank: tells the other ranks, or rethrows the exception when it does not report a lack of memory.
  void hear(const std::exception& error) const;
  void reduce();

 private:
  BatchSizeOptions options_;
  std::int64_t batch_size_;
};

template <typename Function>
class WithBatchSize {
 public:
  WithBatchSize(Function function, BatchSizeOptions options)
      : function_(std::move(function)), search_(std::move(options)) {}

  template <typename... Args>
  auto operator()(Args&&... args) {
    static_assert(std::is_invocable_v<Function&, std::int64_t, Args&...>,
                  "the function takes the batch size first, then what is given here: leave the "
                  "batch size out of the call");
    for (;; search_.reduce()) {
      const std::int64_t size = search_.batch_size();
      try {
        if constexpr (std::is_void_v<std::invoke_result_t<Function&, std::int64_t, Args&...>>) {
          function_(size, args...);
          if (search_.fits_all_ranks()) return;
        } else {
          auto result = function_(size, args...);
          if (search_.fits_all_ranks()) return result;
        }
      } catch (const std::exception& error) {
        search_.hear(error);
      }
    }
  }

 private:
  Function function_;
  BatchSizeSearch search_;
};

}  // namespace detail

// A callable that runs function(batch_size, args...) until the batch fits, and returns its result. The size that fitted is kept
// for the next calls.
// With several ranks all of them try again when one ran out of memory and the others have finished the function. If the others
// were inside a collective, it fails on all ranks, and the error names the batch size.
// Errors  throws kOutOfMemory "No executable batch size found, reached zero."; the function's own exceptions for other reasons.
template <typename Function>
[[nodiscard]] detail::WithBatchSize<Function> find_executable_batch_size(
    Function function, BatchSizeOptions options = {}) {
  return {std::move(function), std::move(options)};
}

}  // namespace accel
