// That several give tensors memory before LibTorch's allocator does, and each gets its own back.

#include "libaccel/interception/cpu_allocator.h"

#include <cstdlib>
#include <vector>

#include <ATen/ops/empty.h>
#include <c10/core/CPUAllocator.h>
#include <gtest/gtest.h>

namespace accel::interception::cpu_allocator_test {
namespace {

// Has memory for tensors of one size.
class OneSize final : public CpuMemory {
 public:
  explicit OneSize(std::size_t bytes) : bytes_(bytes) {}
  at::DataPtr allocate(std::size_t bytes) override {
    if (bytes != bytes_) return {};
    ++num_given;
    void* const memory = std::malloc(bytes);
    mine_.push_back(memory);
    return {memory, memory, [](void* own) { std::free(own); }, at::kCPU};
  }
  bool free(void* memory) override {
    if (std::erase(mine_, memory) == 0) return false;
    ++num_freed;
    std::free(memory);
    return true;
  }
  int num_given = 0;
  int num_freed = 0;

 private:
  std::size_t bytes_;
  std::vector<void*> mine_;
};

TEST(CpuAllocator, AsksTheLastOneFirstAndThenThoseBehind) {
  auto* const first = new OneSize(48);   // NOLINT: for good
  auto* const second = new OneSize(80);  // NOLINT: for good
  auto* const third = new OneSize(48);   // NOLINT: for good
  stand_before_allocator(*first);
  stand_before_allocator(*second);

  const at::Tensor of_first = at::empty({12});
  const at::Tensor of_second = at::empty({20});
  const at::Tensor of_nobody = at::empty({13});
  EXPECT_EQ(first->num_given, 1);
  EXPECT_EQ(second->num_given, 1);

  stand_before_allocator(*third);
  const at::Tensor of_third = at::empty({12});
  EXPECT_EQ(first->num_given, 1);
  EXPECT_EQ(third->num_given, 1);

  c10::Allocator* const allocator = c10::GetCPUAllocator();
  for (const std::size_t bytes : {80u, 48u, 52u})
    allocator->raw_deallocate(allocator->raw_allocate(bytes));
  EXPECT_EQ(second->num_freed, 1);
  EXPECT_EQ(third->num_freed, 1);
  EXPECT_EQ(first->num_freed, 0);
}

}  // namespace
}  // namespace accel::interception::cpu_allocator_test
