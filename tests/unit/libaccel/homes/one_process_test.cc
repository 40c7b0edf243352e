// A module of one process whose parameters lie in a file, and in memory while operators use them: no ranks, no exchange of
// gradients.

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>
#include <torch/optim/adamw.h>
#include <torch/utils.h>
#include <unistd.h>

#include <accel/error.h>
#include <accel/state.h>

#include "libaccel/engine/homes/page_budget.h"
#include "libaccel/engine/homes/paged_home.h"
#include "libaccel/engine/pager/paged_storage.h"
#include "runtime/unique_fd.h"
#include "tests/support/error_of.h"
#include "tests/support/scratch_folder.h"

namespace accel::sharding::one_process_test {
namespace {

constexpr std::int64_t kWidth = 64;

// What is behind the pages: a file, each unit at its own place.
class FileOfUnits : public pager::PageSource {
 public:
  FileOfUnits(const std::string& path, UnitLayout layout, std::span<const at::Tensor> values)
      : layout_(std::move(layout)),
        file_(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600)) {
    off_t end = 0;
    for (const Unit& unit : layout_.units) {
      offsets_.push_back(end);
      for (const Slot& slot : unit.slots) {
        const at::Tensor value = values[slot.parameter].clone();
        write(value.const_data_ptr(), unit.bytes_of(slot.numel), end + off(unit, slot));
      }
      end += static_cast<off_t>(unit.bytes());
    }
    if (::ftruncate(file_.get(), end) != 0) throw Error(ErrorCode::kInternal, "no file of units");
  }

  void fill(std::size_t unit, pager::GuardRange& range) override {
    const std::size_t bytes = layout_.units[unit].bytes();
    if (::pread(file_.get(), range.commit().data(), bytes, offsets_[unit]) != ssize_t(bytes))
      throw Error(ErrorCode::kInternal, "a unit cannot be read");
  }
  void release(std::size_t unit,
               pager::GuardRange& range,
               std::span<const std::size_t> written) override {
    const Unit& of = layout_.units[unit];
    for (const std::size_t index : written) {
      const Slot& slot = of.slots[index];
      write(range.begin() + of.bytes_of(slot.offset),
            of.bytes_of(slot.numel),
            offsets_[unit] + off(of, slot));
    }
  }

 private:
  static off_t off(const Unit& unit, const Slot& slot) {
    return static_cast<off_t>(unit.bytes_of(slot.offset));
  }
  void write(const void* from, std::size_t bytes, off_t offset) {
    if (::pwrite(file_.get(), from, bytes, offset) != ssize_t(bytes))
      throw Error(ErrorCode::kInternal, "a unit cannot be written");
  }

  UnitLayout layout_;
  UniqueFd file_;
  std::vector<off_t> offsets_;
};

torch::nn::Sequential seeded_net() {
  torch::manual_seed(5);
  torch::nn::Sequential net(torch::nn::Linear(kWidth, 2 * kWidth),
                            torch::nn::LayerNorm(torch::nn::LayerNormOptions({2 * kWidth})),
                            torch::nn::Linear(2 * kWidth, kWidth),
                            torch::nn::Linear(kWidth, kWidth));
  for (at::Tensor& parameter : net[3]->as<torch::nn::Linear>()->parameters())
    parameter.set_requires_grad(false);
  return net;
}

// Each its own unit; frozen ones too.
struct Planned {
  std::vector<NamedParameter> parameters;
  std::vector<Unit> units;
};
Planned planned(const torch::nn::Module& module) {
  Planned result;
  std::vector<PlannedParameter> described;
  for (const auto& item : module.named_parameters()) {
    result.parameters.push_back({item.key(), item.value()});
    described.push_back({item.key(), item.value().numel(), item.value().scalar_type()});
  }
  result.units = plan_units(described, /*world_size=*/1, /*max_unit_bytes=*/1);
  return result;
}

// Everything that a training shows.
struct Record {
  std::vector<at::Tensor> losses;
  std::vector<at::Tensor> gradients;
  std::vector<at::Tensor> parameters;
};

Record trained(torch::nn::Sequential& net, const std::function<void()>& end_step) {
  Record record;
  std::vector<at::Tensor> learned;
  for (const at::Tensor& parameter : net->parameters())
    if (parameter.requires_grad()) learned.push_back(parameter);
  torch::optim::AdamW optimizer(learned, torch::optim::AdamWOptions(0.01));
  for (int step = 0; step < 4; ++step) {
    optimizer.zero_grad();
    const at::Tensor input = (at::arange(4 * kWidth).view({4, kWidth}) + 3 * step).sin();
    const at::Tensor loss = (net->forward(input) - 0.5).square().mean();
    loss.backward();
    record.losses.push_back(loss.detach());
    for (const at::Tensor& parameter : learned)
      record.gradients.push_back(parameter.grad().clone());
    optimizer.step();
    end_step();
  }
  for (const at::Tensor& parameter : net->parameters())
    record.parameters.push_back(parameter.detach().clone());
  return record;
}

void expect_equal(const std::vector<at::Tensor>& a, const std::vector<at::Tensor>& b) {
  ASSERT_EQ(a.size(), b.size());
  for (std::size_t i = 0; i < a.size(); ++i) EXPECT_TRUE(at::equal(a[i], b[i])) << i;
}

class OneProcess : public ::testing::Test {
 protected:
  OneProcess() { PartialState::reset(); }

  // A home of the net that reads and writes a file.
  std::unique_ptr<PagedHome> home_of(const torch::nn::Module& net, PagedHomeOptions options) {
    Planned plan = planned(net);
    auto home = std::make_unique<PagedHome>(
        std::move(plan.units), options, [this](const UnitLayout& layout, auto values) {
          return std::make_unique<FileOfUnits>(folder_.file("units"), layout, values);
        });
    home->take_in(plan.parameters);
    return home;
  }

  test::ScratchFolder folder_;
  // Two weights have 32 KiB, one 16, and what else there is a page each: 96 KiB in all. A layer needs 36 at once.
  std::uint64_t two_units_ = std::uint64_t{72} << 10;
};

TEST_F(OneProcess, TrainsOutOfAFileToTheBitsOfTrainingInMemory) {
  torch::nn::Sequential plain = seeded_net();
  const Record expected = trained(plain, [] {});
  for (const int units_ahead : {0, 2}) {
    torch::nn::Sequential net = seeded_net();
    auto home = home_of(*net, {.max_live_bytes = two_units_, .units_ahead = units_ahead});
    EXPECT_NE(pager::paged_storage(net->parameters()[0]), nullptr);

    const Record record = trained(net, [&] { home->end_step(); });

    expect_equal(record.losses, expected.losses);
    expect_equal(record.gradients, expected.gradients);
    expect_equal(record.parameters, expected.parameters);
    EXPECT_GT(home->statistics().num_evictions, 4u) << "everything stayed in memory";
    EXPECT_LE(home->statistics().peak_bytes, two_units_);
    EXPECT_FALSE(PartialState::initialized()) << "ranks were asked for";
  }
}

TEST_F(OneProcess, GivesOrdinaryMemoryWithTheValuesBackAtItsEnd) {
  torch::nn::Sequential plain = seeded_net();
  torch::nn::Sequential net = seeded_net();
  home_of(*net, {.max_live_bytes = two_units_}).reset();

  EXPECT_EQ(pager::paged_storage(net->parameters()[0]), nullptr);
  expect_equal(net->parameters(), plain->parameters());
}

TEST_F(OneProcess, ParametersOutliveItOnTheirPagesWhereTheyShall) {
  torch::nn::Sequential plain = seeded_net();
  torch::nn::Sequential net = seeded_net();
  home_of(*net, {.max_live_bytes = two_units_, .at_end = PagedHomeOptions::AtEnd::kPages}).reset();

  EXPECT_NE(pager::paged_storage(net->parameters()[0]), nullptr);
  expect_equal(net->parameters(), plain->parameters());
}

TEST_F(OneProcess, WhatIsHeldStaysUntilItIsLetGoOf) {
  torch::nn::Sequential plain = seeded_net();
  torch::nn::Sequential net = seeded_net();
  const auto home = home_of(*net, {.max_live_bytes = two_units_});
  auto held = pager::hold_pages(std::vector{net->parameters()[0], plain->parameters()[0]});

  EXPECT_FALSE(home->give_all_back());
  const auto* values = static_cast<const float*>(net->parameters()[0].const_data_ptr());
  EXPECT_EQ(values[1], plain->parameters()[0].const_data_ptr<float>()[1]);

  held.reset();
  EXPECT_TRUE(home->give_all_back());
  EXPECT_EQ(pager::hold_pages(plain->parameters()), nullptr);
}

TEST(LiveBytes, AreTheBudgetElseRoomForSomeOfTheLargestUnit) {
  const EnvLookup nothing = [](std::string_view) { return std::nullopt; };
  const EnvLookup variable = [](std::string_view) { return std::string("64K"); };

  EXPECT_EQ(live_bytes({.live_units = 3}, 4096, nothing), 3u * 4096);
  EXPECT_EQ(live_bytes({.live_units = 3}, 4096, variable), 65536u);
  EXPECT_EQ(live_bytes({.max_live_bytes = 8192}, 4096, variable), 8192u);
  EXPECT_EQ(
      test::error_of([&] { (void)live_bytes({.max_live_bytes = 4095}, 4096, nothing); }).code(),
      ErrorCode::kOutOfMemory);
}

}  // namespace
}  // namespace accel::sharding::one_process_test
