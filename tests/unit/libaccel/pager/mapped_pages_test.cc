// A source whose memory the pages are: the halves of each unit lie in two memfds, as those of two ranks would, and are
// mapped side by side where the unit is. Nothing is copied, and what an operator writes is in the memfd at once.

#include <cstring>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <torch/optim/sgd.h>
#include <torch/utils.h>
#include <unistd.h>

#include "libaccel/engine/pager/pager.h"
#include "runtime/unique_fd.h"

namespace accel::pager::mapped_pages_test {
namespace {

using torch::Tensor;

constexpr std::size_t kPage = 4096;

class TwoHalves : public PageSource {
 public:
  TwoHalves(const UnitLayout& layout, std::span<const Tensor> values) {
    for (const Unit& unit : layout.units) {
      const std::size_t half = (unit.bytes() / 2 + kPage - 1) / kPage * kPage;
      std::vector<std::byte> bytes(2 * half);
      for (const Slot& slot : unit.slots) {
        const Tensor value = values[slot.parameter].clone();
        std::memcpy(bytes.data() + unit.bytes_of(slot.offset),
                    value.const_data_ptr(),
                    unit.bytes_of(slot.numel));
      }
      auto& files = units_.emplace_back();
      for (int i = 0; i < 2; ++i) {
        files.shard[i] = UniqueFd(::memfd_create("shard", MFD_CLOEXEC));
        if (::pwrite(files.shard[i].get(), bytes.data() + i * half, half, 0) != ssize_t(half))
          throw std::runtime_error("no memory for a shard");
      }
      files.half = half;
    }
  }
  void fill(std::size_t unit, GuardRange& range) override {
    const Files& files = units_[unit];
    const std::size_t rest = range.reserved_bytes() - std::min(range.reserved_bytes(), files.half);
    range.map(
        files.shard[0].get(), 0, 0, range.reserved_bytes() - rest, GuardRange::Access::kReadWrite);
    if (rest > 0)
      range.map(files.shard[1].get(), 0, files.half, rest, GuardRange::Access::kReadWrite);
  }
  void release(std::size_t, GuardRange&, std::span<const std::size_t>) override {}

  float first_of_high_half(std::size_t unit) const {
    float value = 0;
    (void)::pread(units_[unit].shard[1].get(), &value, sizeof value, 0);
    return value;
  }

 private:
  struct Files {
    UniqueFd shard[2];
    std::size_t half = 0;
  };
  std::vector<Files> units_;
};

TEST(MappedPages, TrainAsInMemoryAndArePartOfTheirSource) {
  const auto train = [](const std::vector<Tensor>& weights, const std::function<void()>& between) {
    torch::optim::SGD optimizer(weights, torch::optim::SGDOptions(0.01));
    torch::manual_seed(6);
    for (int step = 0; step < 3; ++step) {
      optimizer.zero_grad();
      const Tensor input = torch::randn({4, 64});
      between();
      const Tensor loss = torch::tanh(input.matmul(weights[0])).matmul(weights[1]).pow(2).mean();
      between();
      loss.backward();
      between();
      optimizer.step();
    }
  };
  const auto make = [] {
    torch::manual_seed(9);
    return std::vector<Tensor>{torch::randn({64, 64}).requires_grad_(),
                               torch::randn({64, 3}).requires_grad_()};
  };
  const auto plain = make();
  train(plain, [] {});
  const auto paged = make();
  Pager pager({{"w1", paged[0]}, {"w2", paged[1]}},
              {.unit_bytes = 64},
              [](const UnitLayout& layout, std::span<const Tensor> values) {
                return std::make_unique<TwoHalves>(layout, values);
              });

  train(paged, [&] { pager.evict_all(); });

  EXPECT_TRUE(torch::equal(paged[0], plain[0]));
  EXPECT_TRUE(torch::equal(paged[1], plain[1]));
  EXPECT_EQ(dynamic_cast<TwoHalves&>(pager.source()).first_of_high_half(0),
            plain[0].flatten()[8192 / 4].item<float>());
}

}  // namespace
}  // namespace accel::pager::mapped_pages_test
