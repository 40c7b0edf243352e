// Numbers: the dataset of the data loader's tests, 0, 1, ..., length - 1, and passes over it.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/Tensor.h>

#include <accel/dataloader.h>

namespace accel::test {

using NumberBatches = std::vector<std::vector<std::int64_t>>;

struct Numbers {
  std::int64_t length;
  // How often get() was called, by all copies.
  std::shared_ptr<std::atomic<int>> reads = std::make_shared<std::atomic<int>>(0);

  [[nodiscard]] std::int64_t get(std::size_t index) const {
    ++*reads;
    return static_cast<std::int64_t>(index);
  }
  [[nodiscard]] std::size_t size() const { return static_cast<std::size_t>(length); }
};

inline std::vector<std::int64_t> numbers_of(const at::Tensor& batch) {
  const at::Tensor numbers = batch.contiguous();
  const auto* first = numbers.const_data_ptr<std::int64_t>();
  return {first, first + numbers.numel()};
}

inline NumberBatches pass_of(const DataLoader<at::Tensor>& loader) {
  NumberBatches batches;
  for (const at::Tensor& batch : loader) batches.push_back(numbers_of(batch));
  return batches;
}

// The first `count` batches of a pass that is then left.
inline NumberBatches first_batches(const DataLoader<at::Tensor>& loader, int count) {
  NumberBatches batches;
  for (const at::Tensor& batch : loader) {
    batches.push_back(numbers_of(batch));
    if (--count == 0) break;
  }
  return batches;
}

inline at::Generator generator_with(std::uint64_t seed) {
  return at::detail::createCPUGenerator(seed);
}

}  // namespace accel::test
