// What programs do with parameters beside forward and backward: a row of the table in docs/guides/sharding.md each. It works
// through operators, or it says which call of accel makes it work.

#include <csignal>
#include <cstdlib>
#include <functional>
#include <sstream>

#include <ATen/autocast_mode.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/cloneable.h>
#include <torch/nn/init.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/utils/clip_grad.h>
#include <torch/nn/utils/convert_parameters.h>
#include <torch/serialize.h>
#include <torch/utils.h>

#include <accel/error.h>

#include "libaccel/engine/pager/host_memory.h"
#include "libaccel/engine/pager/module_parameters.h"
#include "libaccel/engine/pager/paged_storage.h"
#include "libaccel/engine/pager/pager.h"

namespace accel::pager::users_code_test {
namespace {

using ::testing::HasSubstr;
using torch::Tensor;

struct NetImpl : torch::nn::Cloneable<NetImpl> {
  NetImpl() { reset(); }
  void reset() override {
    fc1 = register_module("fc1", torch::nn::Linear(8, 16));
    fc2 = register_module("fc2", torch::nn::Linear(16, 4));
  }
  Tensor forward(const Tensor& x) { return fc2(torch::relu(fc1(x))); }
  torch::nn::Linear fc1{nullptr}, fc2{nullptr};
};
TORCH_MODULE(Net);

class UsersCode : public ::testing::Test {
 protected:
  static Net make() {
    torch::manual_seed(8);
    return {};
  }
  void SetUp() override { pager_.evict_all(); }
  Tensor input() const { return torch::ones({2, 8}); }
  // The message of end_step(), which is called once a step.
  std::string complaint() {
    try {
      pager_.end_step();
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kUnsupported);
      return error.message() + " | " + error.remedy();
    }
    return "";
  }
  Net plain_ = make();
  Net net_ = make();
  Pager pager_{parameters_of(*net_), {.unit_bytes = 64}};
};
using UsersCodeDeathTest = UsersCode;

TEST_F(UsersCode, ClipGradNormAndZeroGrad) {
  for (Net net : {plain_, net_}) net->forward(input()).pow(2).sum().backward();
  const double expected = torch::nn::utils::clip_grad_norm_(plain_->parameters(), 0.1);
  EXPECT_EQ(torch::nn::utils::clip_grad_norm_(net_->parameters(), 0.1), expected);
  EXPECT_TRUE(torch::equal(net_->fc1->weight.grad(), plain_->fc1->weight.grad()));
  net_->zero_grad();
  EXPECT_FALSE(net_->fc1->weight.grad().defined());
}

TEST_F(UsersCode, AnAverageOfTheWeights) {
  const torch::NoGradGuard no_grad;
  const auto average = [](Net& net) {
    std::vector<Tensor> means;
    for (const Tensor& parameter : net->parameters()) means.push_back(parameter.clone());
    for (int step = 0; step < 3; ++step) {
      const auto parameters = net->parameters();
      for (std::size_t i = 0; i < means.size(); ++i) {
        parameters[i].add_(1);
        means[i].mul_(0.9).add_(parameters[i], 0.1);
      }
    }
    return means;
  };
  const auto expected = average(plain_);
  const auto means = average(net_);
  for (std::size_t i = 0; i < means.size(); ++i) EXPECT_TRUE(torch::equal(means[i], expected[i]));
}

TEST_F(UsersCode, ACloneOfTheModuleHasOrdinaryMemory) {
  const auto copy = std::dynamic_pointer_cast<NetImpl>(net_->clone());
  EXPECT_EQ(paged_storage(copy->fc1->weight), nullptr);
  EXPECT_TRUE(torch::equal(copy->forward(input()), plain_->forward(input())));
}

TEST_F(UsersCode, ParametersToVector) {
  EXPECT_TRUE(torch::equal(torch::nn::utils::parameters_to_vector(net_->parameters()),
                           torch::nn::utils::parameters_to_vector(plain_->parameters())));
}

TEST_F(UsersCode, VectorToParametersIsFoundOut) {
  torch::nn::utils::vector_to_parameters(torch::zeros({8 * 16 + 16 + 16 * 4 + 4}),
                                         net_->parameters());
  EXPECT_THAT(complaint(), HasSubstr("'fc1.weight' left its pages"));
}

TEST_F(UsersCode, LoopsThatLoadParametersByCopy) {
  const torch::NoGradGuard no_grad;
  torch::nn::init::ones_(plain_->fc1->weight);
  const auto values = plain_->named_parameters();
  for (auto& parameter : net_->named_parameters()) parameter.value().copy_(values[parameter.key()]);
  pager_.evict_all();
  EXPECT_TRUE(torch::equal(net_->forward(input()), plain_->forward(input())));
  EXPECT_EQ(complaint(), "");
}

TEST_F(UsersCode, ToAnotherDtypeIsFoundOutAndToTheSameIsNothing) {
  net_->to(torch::kCPU);
  net_->to(torch::kFloat);
  net_->train();
  EXPECT_EQ(complaint(), "");

  net_->to(torch::kDouble);
  EXPECT_THAT(complaint(),
              ::testing::AllOf(HasSubstr("'fc1.weight' left its pages"), HasSubstr("page_dtype")));
}

TEST_F(UsersCode, ANewTensorInThePlaceOfAParameterIsLeftToTheUser) {
  net_->fc1->weight =
      torch::zeros({16, 8});  // the module registered the old one: LibTorch's rule, not ours
  EXPECT_EQ(complaint(), "");
}

TEST_F(UsersCodeDeathTest, SavingNeedsAHold) {
  const auto save = [](Net& net) {
    std::ostringstream out;
    torch::save(net, out);
    return out.str();
  };
  EXPECT_EXIT(save(net_), ::testing::KilledBySignal(SIGSEGV), "parameter 'fc1.*with_params");

  std::string saved;
  {
    const auto held = pager_.with_params({});
    saved = save(net_);
  }
  Net loaded;
  std::istringstream in(saved);
  torch::load(loaded, in);
  EXPECT_TRUE(torch::equal(loaded->forward(input()), plain_->forward(input())));
}

TEST_F(UsersCode, LoadingIntoThePagedModuleIsRefused) {
  std::stringstream stream;
  torch::save(plain_, stream);
  try {
    torch::load(net_, stream);
    FAIL() << "its parameters would leave their pages";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kUnsupported);
    EXPECT_THAT(error.message(), HasSubstr("'fc1.weight'"));
    EXPECT_THAT(error.remedy(), HasSubstr("copy_()"));
    EXPECT_THAT(error.remedy(), HasSubstr("load_state()"));
  }
}

TEST_F(UsersCodeDeathTest, AKernelOfOnesOwnNeedsAHold) {
  const auto kernel = [](const Tensor& weight) {
    float sum = 0;
    for (std::int64_t i = 0; i < weight.numel(); ++i) sum += weight.data_ptr<float>()[i];
    return sum;
  };
  EXPECT_EXIT(
      std::exit(kernel(net_->fc2->weight) > 0), ::testing::KilledBySignal(SIGSEGV), "'fc2.weight'");

  const auto held = pager_.with_params({"fc2.weight"});
  EXPECT_EQ(kernel(net_->fc2->weight), kernel(plain_->fc2->weight));
}

TEST_F(UsersCode, PrintingAndItems) {
  std::ostringstream expected;
  std::ostringstream printed;
  expected << plain_->fc2->bias.detach();
  printed << net_->fc2->bias.detach();
  EXPECT_EQ(printed.str(), expected.str());
  EXPECT_EQ(net_->fc2->bias[1].item<float>(), plain_->fc2->bias[1].item<float>());
}

TEST_F(UsersCode, AutocastReadsParametersThroughOperators) {
  const auto gradients = [&](Net& net, const std::function<void()>& between) {
    at::autocast::set_autocast_enabled(torch::kCPU, true);
    at::autocast::set_autocast_dtype(torch::kCPU, torch::kBFloat16);
    at::autocast::increment_nesting();
    const Tensor output = net->forward(input());
    if (at::autocast::decrement_nesting() == 0) at::autocast::clear_cache();
    at::autocast::set_autocast_enabled(torch::kCPU, false);
    EXPECT_EQ(output.scalar_type(), torch::kBFloat16);
    between();
    output.sum().backward();
    std::vector<Tensor> all;
    for (const Tensor& parameter : net->parameters()) all.push_back(parameter.grad());
    return all;
  };
  const auto expected = gradients(plain_, [] {});
  const auto paged = gradients(net_, [&] { pager_.evict_all(); });
  for (std::size_t i = 0; i < paged.size(); ++i) EXPECT_TRUE(torch::equal(paged[i], expected[i]));
}

TEST_F(UsersCodeDeathTest, PrintingADoubleNeedsAHold) {
  const Tensor weight = torch::arange(3, torch::kDouble);
  Pager pager({{"weight", weight}}, {});
  const auto print = [&] {
    std::ostringstream out;
    out << weight;
    return out.str();
  };
  EXPECT_EXIT(std::exit(print().empty()), ::testing::KilledBySignal(SIGSEGV), "parameter 'weight'");

  const auto held = pager.with_params({"weight"});
  EXPECT_THAT(print(), HasSubstr("2"));
}

// ---- pages of another dtype than the values kept ----

TEST(MixedPrecision, PagesOfFp32ValuesAreTheirRounding) {
  torch::manual_seed(2);
  torch::nn::Linear plain(32, 16);
  torch::nn::Linear paged(32, 16);
  {
    const torch::NoGradGuard no_grad;
    paged->weight.copy_(plain->weight);
    paged->bias.copy_(plain->bias);
  }
  Pager pager(parameters_of(*paged), {.page_dtype = torch::kBFloat16});
  EXPECT_EQ(paged->weight.scalar_type(), torch::kBFloat16);
  EXPECT_EQ(pager.layout().units[0].bytes(), (32 * 16 + 32) * 2u);
  const Tensor values = plain->weight.detach().flatten();
  plain->to(torch::kBFloat16);
  const Tensor input = torch::randn({4, 32}).to(torch::kBFloat16);

  for (auto& net : {plain, paged}) torch::nn::Linear(net)->forward(input).sum().backward();

  EXPECT_TRUE(torch::equal(paged->forward(input), plain->forward(input)));
  EXPECT_EQ(paged->weight.grad().scalar_type(), torch::kBFloat16);
  EXPECT_TRUE(torch::equal(paged->weight.grad(), plain->weight.grad()));
  pager.evict_all();
  auto& source = dynamic_cast<HostMemory&>(pager.source());
  EXPECT_TRUE(torch::equal(source.values(0), values)) << "reading rounds nothing that is kept";

  // An optimizer on what is kept: the next fill sees it.
  source.values(0).add_(1e-3);
  pager.discard_all();
  EXPECT_TRUE(torch::equal(paged->weight.flatten(), (values + 1e-3).to(torch::kBFloat16)));
  // A write through the pages replaces what was kept, of that parameter alone.
  {
    const torch::NoGradGuard no_grad;
    paged->bias.zero_();
  }
  pager.evict_all();
  EXPECT_TRUE(torch::equal(source.values(0), values + 1e-3));
  EXPECT_TRUE(torch::equal(source.values(1), torch::zeros({16})));
  EXPECT_THROW(Pager({{"w", torch::ones({2})}}, {.learns_units = true, .page_dtype = torch::kHalf}),
               Error);
}

}  // namespace
}  // namespace accel::pager::users_code_test
