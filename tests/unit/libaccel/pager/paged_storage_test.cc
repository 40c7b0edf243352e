// What the dispatch key on a parameter does, operator by operator. A new version of LibTorch is tried against this file.

#include "libaccel/engine/pager/paged_storage.h"

#include <csignal>
#include <functional>
#include <thread>

#include <ATen/core/dispatch/Dispatcher.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/init.h>
#include <torch/utils.h>

#include <accel/error.h>

#include "libaccel/engine/pager/pager.h"

namespace accel::pager::paged_storage_test {
namespace {

using interception::num_hooked_operators;
using ::testing::HasSubstr;
using torch::Tensor;

class ParameterKey : public ::testing::Test {
 protected:
  std::uint64_t hooks() const { return num_hooked_operators(); }
  PagerStatistics statistics() const { return pager_.statistics(); }
  Tensor plain_ = torch::arange(12, torch::kFloat).view({3, 4});
  Tensor weight_ = plain_.clone().requires_grad_();
  Tensor other_ = torch::ones({4}).requires_grad_();
  const c10::TensorImpl* impl_ = weight_.unsafeGetTensorImpl();
  Pager pager_{{{"weight", weight_}, {"other", other_}}, {.unit_bytes = 1}};
};

using ParameterKeyDeathTest = ParameterKey;

TEST_F(ParameterKey, TheTensorStaysTheSameAndNothingIsResidentAtFirst) {
  EXPECT_EQ(weight_.unsafeGetTensorImpl(), impl_);
  EXPECT_TRUE(weight_.requires_grad());
  EXPECT_TRUE(weight_.is_leaf());
  EXPECT_EQ(weight_.sizes(), plain_.sizes());
  EXPECT_NE(paged_storage(weight_), nullptr);
  EXPECT_EQ(paged_storage(plain_), nullptr);
  EXPECT_EQ(statistics().live_bytes, 0u);
}

TEST_F(ParameterKey, OnlyOperatorsOnTheParameterAndItsViewsAreSeen) {
  const auto before = hooks();
  (void)(plain_ + plain_).sum();
  EXPECT_EQ(hooks(), before);

  EXPECT_TRUE(torch::equal(weight_, plain_));
  EXPECT_GT(hooks(), before);
  EXPECT_EQ(statistics().num_fills, 1u) << "of its own unit, not of the other";
}

TEST_F(ParameterKey, ViewsAreMadeWithoutAFillAndReadWithOne) {
  const torch::NoGradGuard no_grad;
  const std::vector<std::pair<const char*, std::function<Tensor()>>> views = {
      {"t", [&] { return weight_.t(); }},
      {"view", [&] { return weight_.view({12}); }},
      {"reshape",
       [&] {
         return weight_.reshape({4, 3});
       }},
      {"select", [&] { return weight_.select(0, 1); }},
      {"slice", [&] { return weight_.slice(1, 1, 3); }},
      {"narrow", [&] { return weight_.narrow(0, 1, 2); }},
      {"expand",
       [&] {
         return weight_.expand({2, 3, 4});
       }},
      {"unsqueeze", [&] { return weight_.unsqueeze(0); }},
      {"squeeze", [&] { return weight_.squeeze(); }},
      {"permute",
       [&] {
         return weight_.permute({1, 0});
       }},
      {"as_strided",
       [&] {
         return weight_.as_strided({2, 2}, {1, 5});
       }},
      {"detach", [&] { return weight_.detach(); }},
      {"unbind", [&] { return weight_.unbind(0)[2]; }},
      {"split", [&] { return weight_.split(2)[1]; }},
      {"split_with_sizes",
       [&] {
         return weight_.split_with_sizes({1, 2})[1];
       }},
      {"chunk", [&] { return weight_.chunk(2, 1)[1]; }},
      {"diagonal", [&] { return weight_.diagonal(); }},
      {"unfold", [&] { return weight_.unfold(1, 2, 1); }},
      {"flatten", [&] { return weight_.flatten(); }},
      {"data", [&] { return weight_.data(); }},
      {"alias", [&] { return weight_.alias(); }},
      {"transpose", [&] { return weight_.transpose(0, 1); }},
      {"view", [&] { return weight_.view(torch::kInt); }},
      {"view_as", [&] { return weight_.view_as(plain_); }},
      {"expand_as", [&] { return weight_.expand_as(plain_); }},
      {"mT", [&] { return weight_.mT(); }},
  };
  for (const auto& [name, make] : views) {
    pager_.evict_all();
    const auto num_hooks = hooks();
    const auto num_fills = statistics().num_fills;
    const Tensor view = make();
    EXPECT_EQ(hooks(), num_hooks) << name;
    EXPECT_EQ(statistics().num_fills, num_fills) << name;
    EXPECT_NE(paged_storage(view), nullptr) << name;
    (void)view.sum();
    EXPECT_EQ(statistics().num_fills, num_fills + 1) << name;
  }
  EXPECT_TRUE(torch::equal(weight_.as_strided({2, 2}, {1, 5}), plain_.as_strided({2, 2}, {1, 5})));
}

TEST_F(ParameterKey, WhatOnlyTakesTheShapeNeedsNoFill) {
  (void)torch::empty_like(weight_);
  (void)torch::zeros_like(weight_);
  (void)torch::ones_like(weight_);
  (void)weight_.new_zeros({2});
  EXPECT_TRUE(weight_.is_contiguous());
  EXPECT_EQ(weight_.size(1), 4);

  EXPECT_EQ(statistics().num_fills, 0u);
}

TEST_F(ParameterKey, ResultsHaveOrdinaryMemory) {
  const std::vector<Tensor> results = {weight_.clone(),
                                       weight_ + 1,
                                       weight_.to(torch::kDouble),
                                       weight_.matmul(other_),
                                       torch::cat({weight_, plain_}),
                                       torch::stack({weight_, weight_}),
                                       weight_.index_select(0, torch::zeros({1}, torch::kLong)),
                                       torch::empty_like(weight_),
                                       torch::empty({3, 4}).copy_(weight_.detach()),
                                       weight_.contiguous().t().contiguous()};
  for (std::size_t i = 0; i < results.size(); ++i)
    EXPECT_EQ(paged_storage(results[i]), nullptr) << i;
}

TEST_F(ParameterKey, ListsAndOptionalListsOfTensorsAreLookedInto) {
  const Tensor indices = torch::tensor({0, 2});
  const auto sums = torch::_foreach_norm({other_.detach(), weight_.detach()});
  EXPECT_TRUE(torch::equal(sums[1], plain_.norm()));
  pager_.evict_all();
  // The index is a list of optional tensors, of which the first is absent and the second lies on pages.
  const Tensor long_index = torch::tensor({1, 3});
  Tensor index_parameter = long_index.clone();
  Pager pager({{"index", index_parameter}}, {});
  EXPECT_TRUE(torch::equal(torch::_unsafe_index(plain_, {std::optional<Tensor>(), index_parameter}),
                           torch::_unsafe_index(plain_, {std::optional<Tensor>(), long_index})));
  EXPECT_EQ(pager.statistics().num_fills, 1u);
}

TEST_F(ParameterKey, WhatIsWrittenInPlaceOutlivesEviction) {
  const torch::NoGradGuard no_grad;
  const auto check = [&](const char* what, const Tensor& expected) {
    pager_.evict_all();
    EXPECT_TRUE(torch::equal(weight_, expected)) << what;
    EXPECT_EQ(paged_storage(weight_)->parameter, 0u) << what;
  };
  torch::nn::init::constant_(weight_, 3);
  check("init", torch::full({3, 4}, 3.F));
  weight_.copy_(plain_);
  check("copy_", plain_);
  weight_[1].zero_();
  Tensor expected = plain_.clone();
  expected[1].zero_();
  check("a view", expected);
  weight_.data().add_(1);
  check("data()", expected + 1);
  torch::add_out(weight_, expected, expected);
  check("an out argument", expected * 2);
  torch::_foreach_mul_({weight_, other_}, 0.5);
  check("a list", expected);
  weight_.mul_(other_);
  check("beside another", expected * 0.5);
  weight_.index_put_({torch::tensor({0})}, torch::zeros({4}));
  expected[0].zero_();
  check("index_put_", expected * 0.5);
}

TEST_F(ParameterKey, ReadingWritesNothingBack) {
  (void)weight_.sum();
  (void)(weight_ * 2).sum().backward();
  pager_.discard_all();
  EXPECT_TRUE(torch::equal(weight_, plain_));
  {
    const torch::NoGradGuard no_grad;
    weight_.add_(1);
  }
  pager_.discard_all();
  EXPECT_TRUE(torch::equal(weight_, plain_)) << "discarding is what it says";
}

TEST_F(ParameterKey, OperatorsThatWouldChangeItsMemoryAreRefusedByName) {
  Tensor frozen = plain_.clone();
  const Pager pager({{"frozen", frozen}}, {});
  const auto refused = [&](auto&& call) -> std::string {
    try {
      call();
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kUnsupported);
      return error.message();
    }
    return "nothing was thrown";
  };
  EXPECT_THAT(refused([&] { frozen.resize_({5, 5}); }), HasSubstr("'frozen'"));
  EXPECT_THAT(refused([&] { frozen.set_(plain_); }), HasSubstr("'frozen'"));
  EXPECT_THAT(refused([&] { torch::empty({0}).set_(frozen); }), HasSubstr("'frozen'"));
  EXPECT_THAT(refused([&] { frozen.resize_as_(torch::ones({2})); }), HasSubstr("'frozen'"));
}

TEST_F(ParameterKeyDeathTest, TakingDataPtrOfAnEvictedParameterDiesWithItsName) {
  pager_.evict_all();
  EXPECT_EXIT(
      {
        const volatile float* values = weight_.data_ptr<float>();
        (void)values[5];
      },
      ::testing::KilledBySignal(SIGSEGV),
      "parameter 'weight' was touched at byte 20 of 48");
  EXPECT_EXIT((other_.accessor<float, 1>()[0] = 1), ::testing::KilledBySignal(SIGSEGV), "'other'");
}

TEST_F(ParameterKey, HeldParametersCanBeReadAndWrittenByAddress) {
  {
    const auto held = pager_.with_params({"weight"}, Access::kReadWrite);
    pager_.evict_all();
    EXPECT_EQ(weight_.data_ptr<float>()[5], 5);
    weight_.data_ptr<float>()[5] = 50;
  }
  pager_.evict_all();
  EXPECT_EQ(statistics().live_bytes, 0u);
  EXPECT_EQ(weight_[1][1].item<float>(), 50);
  {
    const auto held = pager_.with_params({});
    EXPECT_EQ(other_.data_ptr<float>()[0], 1);
  }
  EXPECT_THROW((void)pager_.with_params({"nobody"}), Error);
}

TEST_F(ParameterKey, ViewsOutliveThePager) {
  Tensor view;
  {
    Tensor other = plain_.clone();
    Pager pager({{"other", other}}, {});
    view = other[2];
    other.add_(1);
  }
  EXPECT_TRUE(torch::equal(view, plain_[2] + 1));
}

TEST_F(ParameterKey, ThreadsUseParametersAtOnce) {
  const Tensor input = torch::ones({5, 3});
  const Tensor expected = input.matmul(plain_);
  std::vector<std::jthread> threads;
  std::atomic<int> num_wrong{0};
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([&] {
      for (int i = 0; i < 200; ++i) {
        if (!torch::equal(input.matmul(weight_), expected)) ++num_wrong;
        if (i % 10 == 0) pager_.evict_all();
      }
    });
  threads.clear();
  EXPECT_EQ(num_wrong, 0);
}

TEST(PagerRefuses, WhatItCannotPageByName) {
  const auto message = [](std::vector<NamedTensor> parameters,
                          PagerOptions options = {}) -> std::string {
    try {
      Pager pager(std::move(parameters), std::move(options));
    } catch (const Error& error) {
      return error.message() + " | " + error.remedy();
    }
    return "nothing was thrown";
  };
  const Tensor w = torch::ones({4, 4}).requires_grad_();
  const Tensor computed = w + 1;
  EXPECT_THAT(message({{"s", torch::eye(3).to_sparse()}}),
              HasSubstr("'s' cannot be paged: it is sparse"));
  EXPECT_THAT(message({{"m", torch::ones({2}, torch::kMeta)}}), HasSubstr("'m'"));
  EXPECT_THAT(message({{"u", Tensor()}}), HasSubstr("'u'"));
  EXPECT_THAT(message({{"c", computed}}), HasSubstr("no leaf"));
  const Tensor base = torch::ones({4});
  const Tensor view = base[1];
  EXPECT_THAT(message({{"v", view}}), HasSubstr("'v' shares its memory with 1 other"));
  {
    const Pager pager({{"w", w}}, {});
    EXPECT_THAT(message({{"w", w}}), HasSubstr("paged already"));
  }
  EXPECT_THAT(
      message({{"a", torch::ones({2})}, {"big", torch::ones({3000})}},
              {.max_live_bytes = 4096, .unit_bytes = 1}),
      ::testing::AllOf(HasSubstr("'big'"), HasSubstr("12288 bytes"), HasSubstr("at least 12288")));
}

TEST(PagerRefuses, AnOperatorThatNeedsMoreThanTheBudget) {
  const Tensor a = torch::ones({1000});
  const Tensor b = torch::ones({1000});
  Pager pager({{"a", a}, {"b", b}}, {.max_live_bytes = 4096, .unit_bytes = 1});

  EXPECT_EQ((a.sum() + b.sum()).item<float>(), 2000);
  try {
    (void)(a + b);
    FAIL() << "8192 bytes in a budget of 4096";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kOutOfMemory);
    EXPECT_THAT(error.message(), HasSubstr("needs 8192 bytes"));
    EXPECT_THAT(error.remedy(), HasSubstr("at least 8192"));
  }
  EXPECT_EQ(b.sum().item<float>(), 1000) << "and it goes on";
  EXPECT_EQ(pager.statistics().peak_bytes, 4096u);
}

}  // namespace
}  // namespace accel::pager::paged_storage_test
