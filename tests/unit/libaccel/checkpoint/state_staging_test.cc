// Copies that are made before anybody writes to what they are of.

#include "libaccel/interception/state_staging.h"

#include <functional>
#include <string>
#include <thread>
#include <vector>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/_foreach_add.h>
#include <ATen/ops/add.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/count_nonzero.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/full.h>
#include <ATen/ops/item.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <ATen/record_function.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <accel/error.h>

#include "tests/support/copy_gate.h"
#include "tests/support/error_of.h"
#include "tests/support/tensor_matchers.h"

namespace accel::state_staging_test {
namespace {

using test::CopyGate;
using test::error_of;
using ::testing::HasSubstr;

constexpr auto kFloatsOfChunk =
    static_cast<std::int64_t>(StateStaging::kChunkBytes / sizeof(float));

// Some chunks and a part of one.
at::Tensor numbers() {
  return at::arange(3 * kFloatsOfChunk + 5, at::kFloat);
}

at::Tensor place_for(const at::Tensor& tensor) {
  return at::empty_strided(tensor.sizes(), tensor.strides(), tensor.options()).zero_();
}

StagedTensor staged(const at::Tensor& tensor, const at::Tensor& place) {
  return {.name = "a.weight", .from = tensor.detach(), .to = place};
}

// What the copy has when `write` has written to `tensor` and nobody else has taken a chunk.
at::Tensor copy_after(const at::Tensor& tensor, const std::function<void()>& write) {
  const at::Tensor place = place_for(tensor);
  StateStaging staging({staged(tensor, place)});
  write();
  const at::Tensor had = place.clone();
  staging.copy();
  staging.check();
  return had;
}

TEST(StateStaging, CopiesAllThatIsLeftBeforeItIsWrittenTo) {
  const at::Tensor values = numbers();
  const at::Tensor turned = at::arange(6, at::kDouble).view({2, 3}).t();
  const at::Tensor none = at::zeros({0});
  const std::vector<at::Tensor> places = {place_for(values), place_for(turned), place_for(none)};
  StateStaging staging(
      {staged(values, places[0]), staged(turned, places[1]), staged(none, places[2])});

  before_state_is_written();

  EXPECT_TRUE(test::same_tensor(places[0], values));
  EXPECT_TRUE(test::same_tensor(places[1], turned));
  values.zero_();
  staging.copy();
  staging.check();
  EXPECT_TRUE(test::same_tensor(places[0], numbers()));
}

TEST(StateStaging, IsCopiedByItsOwnThreadWhenNobodyWrites) {
  const at::Tensor values = numbers();
  const at::Tensor place = place_for(values);
  StateStaging staging({staged(values, place)});
  std::thread([&] { staging.copy(); }).join();
  EXPECT_TRUE(test::same_tensor(place, values));
}

TEST(StateStaging, SharesTheWorkWithWhoIsAboutToWrite) {
  const at::Tensor values = numbers();
  const at::Tensor place = place_for(values);
  CopyGate gate;
  StateStaging staging({staged(values, place)});
  std::thread saves([&] { staging.copy(); });
  gate.let_through(2);
  gate.wait_for_arrivals(3);
  EXPECT_TRUE(test::same_tensor(place.narrow(0, 0, 2 * kFloatsOfChunk),
                                values.narrow(0, 0, 2 * kFloatsOfChunk)));
  EXPECT_EQ(place[-1].item<float>(), 0) << "copied by whom?";

  before_state_is_written();
  values.zero_();

  gate.open();
  saves.join();
  staging.check();
  EXPECT_TRUE(test::same_tensor(place, numbers()));
}

TEST(StateStaging, OperatorsThatWriteThroughAnyTensorAreSeen) {
  const at::NoGradGuard no_grad;
  const at::Tensor values = numbers();
  const at::Tensor view = values.narrow(0, 7, 3);
  const at::Tensor data = values.requires_grad_(true).data();
  const at::Tensor elsewhere = at::from_blob(values.data_ptr<float>() + 9, {2});
  const at::Tensor other = at::ones({3});
  const std::vector<std::function<void()>> writes = {
      [&] { values.clamp_(2, 3); },
      [&] { view.add_(1); },
      [&] { data.mul_(0); },  // as LibTorch's own SGD: it counts no version up
      [&] { elsewhere.fill_(4); },
      [&] {
        at::_foreach_add_({other, view}, 1);
      },
      [&] {
        at::Tensor out = view;
        at::add_out(out, other, other);
      }};
  for (std::size_t i = 0; i < writes.size(); ++i) {
    values.copy_(numbers());
    EXPECT_TRUE(test::same_tensor(copy_after(values, writes[i]), numbers())) << "write " << i;
  }
}

TEST(StateStaging, OperatorsThatReadOrWriteElsewhereCopyNothing) {
  const at::Tensor values = at::arange(50, at::kFloat);
  const at::Tensor had = copy_after(values, [&] {
    (void)values.mul(2).sum();
    at::Tensor sum = at::zeros({50});
    sum.add_(values);
    before_write_to(sum);
    before_write_to(at::Tensor());
  });
  EXPECT_EQ(had.abs().sum().item<float>(), 0);
}

// Its version counts up with theirs.
TEST(StateStaging, OperatorsThatWriteBesideItInItsStorageAreNoFault) {
  const at::Tensor all = at::arange(100, at::kFloat);
  const at::Tensor values = all.narrow(0, 10, 50);
  const at::Tensor had = copy_after(values, [&] { all.narrow(0, 60, 40).zero_(); });
  EXPECT_TRUE(test::same_tensor(had, at::arange(10, 60, at::kFloat)));
}

TEST(StateStaging, CodeThatIsNoOperatorSaysToWhatItWrites) {
  const at::Tensor values = numbers();
  const at::Tensor had = copy_after(values, [&] {
    before_write_to(values.narrow(0, 3, 2));
    values.data_ptr<float>()[3] = 9;
  });
  EXPECT_TRUE(test::same_tensor(had, numbers()));
}

TEST(StateStaging, WriteByAddressThatCountsTheVersionUpIsAnErrorThatNamesTheTensor) {
  const at::Tensor values = numbers();
  StateStaging staging({staged(values, place_for(values))});
  values.data_ptr<float>()[0] = 9;
  values.unsafeGetTensorImpl()->bump_version();
  before_state_is_written();

  const Error error = error_of([&] { staging.check(); });
  EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
  EXPECT_THAT(error.what(), HasSubstr("a.weight"));
  EXPECT_THAT(error.remedy(), HasSubstr("kAtOnce"));
}

TEST(StateStaging, WriteByAnAliasWithAVersionOfItsOwnIsAnErrorToo) {
  const at::Tensor values = numbers();
  const at::Tensor parameter = values.variable_data();
  StateStaging staging({{.name = "a.weight",
                         .from = values.detach(),
                         .to = place_for(values),
                         .aliases = {parameter.detach()}}});
  parameter.unsafeGetTensorImpl()->bump_version();
  staging.copy();
  EXPECT_THROW(staging.check(), Error);
}

TEST(StateStaging, MemoryThatAStorageHasNoMoreIsNotReadAndIsAnError) {
  constexpr std::int64_t kLarge = 16 << 20;  // so that the allocator gives it back to the kernel
  const at::Tensor values = at::ones({kLarge});
  const at::Tensor place = at::zeros({kLarge});
  const at::Tensor kept = at::full({kLarge}, 2.0);
  StateStaging staging({staged(values, place)});
  // As a program that frees a parameter's memory behind LibTorch's back.
  values.storage().set_data_ptr(at::DataPtr(kept.mutable_data_ptr(), c10::Device(c10::kCPU)));

  staging.copy();

  EXPECT_THROW(staging.check(), Error);
  EXPECT_EQ(place.count_nonzero().item<std::int64_t>(), 0);
}

TEST(StateStaging, KeepsMemoryUntilItIsCopiedAndNoLonger) {
  at::Tensor values = numbers();
  const at::Tensor place = place_for(values);
  const c10::weak_intrusive_ptr<c10::StorageImpl> storage(
      c10::intrusive_ptr<c10::StorageImpl>::reclaim_copy(values.storage().unsafeGetStorageImpl()));
  StateStaging staging({staged(values, place)});
  values.reset();
  EXPECT_FALSE(storage.expired());

  staging.copy();

  EXPECT_TRUE(storage.expired());
  EXPECT_TRUE(test::same_tensor(place, numbers()));
}

TEST(StateStaging, LooksAtOperatorsWhileItCopiesAlone) {
  EXPECT_FALSE(at::hasGlobalCallbacks());
  before_state_is_written();
  const at::Tensor values = numbers();
  StateStaging staging({staged(values, place_for(values))});
  EXPECT_TRUE(at::hasGlobalCallbacks());
  { StateStaging second({staged(values, place_for(values))}); }
  EXPECT_TRUE(at::hasGlobalCallbacks());
  staging.copy();
  EXPECT_FALSE(at::hasGlobalCallbacks());
  const StateStaging nothing({});
  EXPECT_FALSE(at::hasGlobalCallbacks());
}

}  // namespace
}  // namespace accel::state_staging_test
