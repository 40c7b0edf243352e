// What programs do with the parameters of a sharded model beside forward and backward: a row of the table in
// docs/guides/sharding.md each. It works, or it is refused with the name of the parameter and what to do instead.

#include <csignal>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <sstream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/_foreach_copy.h>
#include <ATen/ops/_foreach_mul.h>
#include <ATen/ops/_foreach_zero.h>
#include <ATen/ops/_fused_sgd.h>
#include <ATen/ops/add.h>
#include <ATen/ops/embedding_renorm.h>
#include <ATen/ops/full.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/csrc/jit/ir/irparser.h>
#include <torch/csrc/jit/runtime/graph_executor.h>
#include <torch/nn/cloneable.h>
#include <torch/nn/functional/embedding.h>
#include <torch/nn/init.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/utils/clip_grad.h>
#include <torch/nn/utils/convert_parameters.h>
#include <torch/optim/sgd.h>
#include <torch/serialize.h>
#include <torch/utils.h>

#include <accel/accelerator.h>
#include <accel/error.h>

#include "tests/support/rank_group.h"

namespace accel::sharded_users_code_test {
namespace {

using at::Tensor;
using ::testing::AllOf;
using ::testing::HasSubstr;

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

// A net that is sharded, and one with the same values that is not. The two ranks see the same batch, so that the mean of
// their gradients is each one's.
struct Both {
  Both() : plain(make()), net(make()) {
    sgd = std::make_shared<torch::optim::SGD>(net->parameters(), torch::optim::SGDOptions(0.1));
    auto [prepared, stepped] = accelerator.prepare(net, sgd);
    model = std::make_unique<Prepared<Net>>(prepared);
    optimizer = std::make_unique<AcceleratedOptimizer>(stepped);
  }
  static Net make() {
    torch::manual_seed(8);
    return {};
  }
  static Tensor input() { return at::ones({2, 8}); }
  Tensor loss() const { return (*model)(input()).square().sum(); }
  void step() {
    accelerator.backward(loss());
    optimizer->step();
    optimizer->zero_grad();
  }
  // What the next step says.
  Error complaint() {
    try {
      step();
    } catch (const Error& error) {
      return error;
    }
    ADD_FAILURE() << "nothing was thrown";
    return Error(ErrorCode::kInternal, "");
  }
  // As step(), of the net that is not sharded.
  void step_plain() {
    torch::optim::SGD other(plain->parameters(), torch::optim::SGDOptions(0.1));
    plain->forward(input()).square().sum().backward();
    other.step();
    plain->zero_grad();
  }
  void expect_equal_parameters() const {
    const auto expected = plain->parameters();
    const auto found = net->parameters();
    for (std::size_t i = 0; i < expected.size(); ++i) EXPECT_TRUE(found[i].equal(expected[i])) << i;
  }

  Accelerator accelerator{AcceleratorOptions{.fsdp_plugin = FullyShardedDataParallelPlugin{}}};
  Net plain;
  Net net;
  std::shared_ptr<torch::optim::SGD> sgd;
  std::unique_ptr<Prepared<Net>> model;
  std::unique_ptr<AcceleratedOptimizer> optimizer;
};

void on_two_ranks(const std::function<void(Both&)>& act) {
  test::run_ranks(2, [&] {
    Both both;
    act(both);
  });
}

// What an operator that may not write says.
Error refusal_of(const std::function<void()>& write) {
  try {
    write();
  } catch (const Error& error) {
    return error;
  }
  ADD_FAILURE() << "nothing was thrown";
  return Error(ErrorCode::kInternal, "");
}

// The process ends with SIGSEGV after it has said which parameter was written to.
void expect_write_is_stopped(const std::string& parameter, const std::function<void(Both&)>& act) {
  const auto exits = test::run_ranks(2,
                                     [&] {
                                       Both both;
                                       act(both);
                                     },
                                     {.expect_success = false});
  for (const test::RankExit& exit : exits) {
    if (test::rank_of_this_process() >= 0) return;
    EXPECT_EQ(exit.status, 128 + SIGSEGV) << exit.output;
    EXPECT_THAT(exit.output, HasSubstr("[pager.read_only]: parameter '" + parameter + "'"));
  }
}

// What LibTorch says of a gradient that no rank has.
std::string complaint_of(const std::function<void()>& act) {
  try {
    act();
  } catch (const c10::Error& error) {
    return error.what_without_backtrace();
  }
  ADD_FAILURE() << "nothing was thrown";
  return {};
}

TEST(ShardedUsersCode, TheClippingOfLibTorchIsRefusedByNameAndThatOfTheAcceleratorClips) {
  on_two_ranks([](Both& both) {
    both.plain->forward(Both::input()).square().sum().backward();
    const double expected = torch::nn::utils::clip_grad_norm_(both.plain->parameters(), 0.01);
    both.accelerator.backward(both.loss());

    EXPECT_THAT(
        complaint_of([&] { torch::nn::utils::clip_grad_norm_(both.net->parameters(), 0.01); }),
        AllOf(HasSubstr("the gradient of fc1.weight"),
              HasSubstr("accelerator.clip_grad_norm_(model->parameters(), max_norm)")));
    const Tensor norm = both.accelerator.clip_grad_norm_(both.net->parameters(), 0.01);

    // The squares of some 200 gradients in another order: a relative error below 200 * 2^-24.
    EXPECT_NEAR(norm.item<double>(), expected, expected * 200 * 0x1p-24);
    const Tensor again = both.accelerator.clip_grad_norm_(both.net->parameters(), 0.01);
    EXPECT_NEAR(again.item<double>(), 0.01, 0.01 * 1e-3);
  });
}

TEST(ShardedUsersCode, NormsThatPartsDoNotAddUpToAreRefused) {
  on_two_ranks([](Both& both) {
    both.accelerator.backward(both.loss());
    for (const double norm_type : {0.0, -1.0, -std::numeric_limits<double>::infinity()}) {
      try {
        both.accelerator.clip_grad_norm_(both.net->parameters(), 1.0, norm_type);
        ADD_FAILURE() << "norm_type " << norm_type;
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), ErrorCode::kUnsupported);
        EXPECT_THAT(error.message(), HasSubstr("norm_type"));
      }
    }
  });
}

TEST(ShardedUsersCode, GradientsOfAnotherModelAreClippedByAnyNormWhileOneIsDivided) {
  on_two_ranks([](Both& both) {
    both.accelerator.backward(both.loss());
    const Tensor other = at::ones({4}).requires_grad_();
    (other * 3).sum().backward();
    const Tensor expected = other.grad().norm(-1.0).clone();

    EXPECT_FLOAT_EQ(both.accelerator.clip_grad_norm_({other}, 1.0, -1.0).item<float>(),
                    expected.item<float>());
  });
}

TEST(ShardedUsersCode, GradientsThatNobodyClearsAreWarnedOf) {
  using Clear = std::function<void(Both&)>;
  const auto says_warning = [](const Clear& clear) {
    bool is_said = false;
    const auto exits = test::run_ranks(2, [&] {
      Both both;
      for (int step = 0; step < 2; ++step) {
        both.accelerator.backward(both.loss());
        both.optimizer->step();
        clear(both);
      }
    });
    for (const test::RankExit& exit : exits)
      is_said = is_said || exit.output.find("are added to") != std::string::npos;
    return is_said;
  };
  const bool is_said = says_warning([](Both&) {});
  const bool is_said_of_modules = says_warning([](Both& both) { both.net->zero_grad(); });
  const bool is_said_of_zeros = says_warning([](Both& both) { both.optimizer->zero_grad(false); });
  if (test::rank_of_this_process() >= 0) return;
  EXPECT_TRUE(is_said);
  EXPECT_FALSE(is_said_of_modules);
  EXPECT_FALSE(is_said_of_zeros);
}

TEST(ShardedUsersCode, ZeroGradOfTheModuleClearsTheShards) {
  on_two_ranks([](Both& both) {
    for (int step = 0; step < 3; ++step) {
      both.net->zero_grad();
      both.accelerator.backward(both.loss());
      both.optimizer->step();
      both.step_plain();
    }
    both.expect_equal_parameters();
  });
}

TEST(ShardedUsersCode, ZeroGradOfTheModuleLeavesABatchOut) {
  on_two_ranks([](Both& both) {
    both.accelerator.backward(both.loss());
    both.net->zero_grad();
    both.optimizer->step();

    both.expect_equal_parameters();
  });
}

TEST(ShardedUsersCode, ZeroGradOfAPartOfTheModuleClearsThatPart) {
  on_two_ranks([](Both& both) {
    both.accelerator.backward(both.loss());
    both.net->fc1->zero_grad();
    both.optimizer->step();

    EXPECT_TRUE(both.net->fc1->weight.equal(both.plain->fc1->weight));
    both.step_plain();
    EXPECT_TRUE(both.net->fc2->weight.equal(both.plain->fc2->weight));
  });
}

TEST(ShardedUsersCode, ZerosOfTheModuleInPlaceOfGradientsAreRefusedByName) {
  on_two_ranks([](Both& both) {
    both.accelerator.backward(both.loss());

    EXPECT_THAT(complaint_of([&] { both.net->zero_grad(/*set_to_none=*/false); }),
                AllOf(HasSubstr("the gradient of fc1.weight"),
                      HasSubstr("zero_grad() of the prepared optimizer")));
  });
}

TEST(ShardedUsersCode, TheStepOfTheOptimizerItselfIsRefusedWithTheLineToWrite) {
  on_two_ranks([](Both& both) {
    both.accelerator.backward(both.loss());

    const Error error = refusal_of([&] { both.sgd->step(); });
    EXPECT_EQ(error.code(), ErrorCode::kUnsupported);
    EXPECT_THAT(error.message(), HasSubstr("would write to the parameter fc"));
    EXPECT_THAT(error.remedy(), HasSubstr("write optimizer.step(), with what prepare() returned"));
    both.optimizer->step();
    both.step_plain();
    both.expect_equal_parameters();
  });
}

TEST(ShardedUsersCode, AfterABackwardOfTheUsersOwnTheStepAndTheClippingOfLibTorchAreRefusedToo) {
  on_two_ranks([](Both& both) {
    both.loss().backward();

    EXPECT_THAT(refusal_of([&] { both.sgd->step(); }).remedy(),
                HasSubstr("write optimizer.step(), with what prepare() returned"));
    EXPECT_THAT(
        complaint_of([&] { torch::nn::utils::clip_grad_norm_(both.net->parameters(), 0.01); }),
        HasSubstr("the gradient of fc1.weight"));
    both.optimizer->step();
    both.step_plain();
    both.expect_equal_parameters();
  });
}

// Between steps a piece belongs to whoever reads the model.
TEST(ShardedUsersCode, APieceIsReadAtAnyTimeAndWrittenInAStepAlone) {
  on_two_ranks([](Both& both) {
    Tensor& piece = both.sgd->param_groups().front().params().front();
    EXPECT_TRUE(piece.detach().clone().equal(piece));
    const Error error = refusal_of([&] { piece.data().mul_(0.5); });
    EXPECT_THAT(error.message(), HasSubstr("aten::mul_ would write to the parameter fc"));
    both.accelerator.wait_for_everyone();
    both.expect_equal_parameters();
  });
}

// An optimizer that writes by addresses.
struct WritingSgd final : torch::optim::SGD {
  using torch::optim::SGD::SGD;
  Tensor step(LossClosure) override {
    for (const Tensor& parameter : param_groups().front().params()) {
      auto* const values = parameter.data_ptr<float>();
      for (std::int64_t i = 0; i < parameter.numel(); ++i)
        values[i] -= 0.1F * parameter.grad().const_data_ptr<float>()[i];
    }
    return {};
  }
};

TEST(ShardedUsersCode, StepsThatWriteByAddressesAreWarnedOfWhereNoPreparedOptimizerSteps) {
  const auto says_warning = [](bool is_prepared_one) {
    bool is_said = false;
    const auto exits = test::run_ranks(2, [&] {
      AcceleratorOptions options;
      options.fsdp_plugin.emplace().shard_by_tensor = true;
      Accelerator accelerator(options);
      Net net = Both::make();
      WritingSgd sgd(net->parameters(), torch::optim::SGDOptions(0.1));
      auto [model, optimizer] = accelerator.prepare(net, sgd);
      for (int batch = 0; batch < 2; ++batch) {
        accelerator.backward(model(Both::input()).sum());
        accelerator.wait_for_everyone();  // or a rank reads what another one writes
        if (is_prepared_one) {
          optimizer.step();
        } else {
          sgd.step(nullptr);
        }
        accelerator.wait_for_everyone();
        optimizer.zero_grad();
      }
    });
    for (const test::RankExit& exit : exits)
      is_said = is_said || exit.output.find("write optimizer.step()") != std::string::npos;
    return is_said;
  };
  const bool is_said_of_own = says_warning(false);
  const bool is_said_of_prepared = says_warning(true);
  if (test::rank_of_this_process() >= 0) return;
  EXPECT_TRUE(is_said_of_own);
  EXPECT_FALSE(is_said_of_prepared);
}

TEST(ShardedUsersCode, AnAverageOfTheWeightsFollowsThem) {
  on_two_ranks([](Both& both) {
    const auto clones = [](const Net& net) {
      std::vector<Tensor> all;
      for (const Tensor& parameter : net->parameters()) all.push_back(parameter.detach().clone());
      return all;
    };
    auto means = clones(both.net);
    auto expected = clones(both.plain);
    for (int step = 0; step < 3; ++step) {
      both.step();
      both.step_plain();
      const at::NoGradGuard no_grad;
      for (std::size_t i = 0; i < means.size(); ++i) {
        means[i].mul_(0.9).add_(both.net->parameters()[i], 0.1);
        expected[i].mul_(0.9).add_(both.plain->parameters()[i], 0.1);
      }
    }
    for (std::size_t i = 0; i < means.size(); ++i) EXPECT_TRUE(means[i].equal(expected[i])) << i;
  });
}

TEST(ShardedUsersCode, ACloneOfTheModuleHasMemoryOfItsOwn) {
  on_two_ranks([](Both& both) {
    const auto copy = std::dynamic_pointer_cast<NetImpl>(both.net->clone());
    EXPECT_TRUE(copy->forward(Both::input()).equal(both.plain->forward(Both::input())));
    const at::NoGradGuard no_grad;
    copy->fc1->weight.zero_();
    both.expect_equal_parameters();
  });
}

TEST(ShardedUsersCode, ReadsOfEveryKind) {
  on_two_ranks([](Both& both) {
    EXPECT_TRUE(torch::nn::utils::parameters_to_vector(both.net->parameters())
                    .equal(torch::nn::utils::parameters_to_vector(both.plain->parameters())));
    std::ostringstream expected;
    std::ostringstream printed;
    expected << both.plain->fc2->bias.detach();
    printed << both.net->fc2->bias.detach();
    EXPECT_EQ(printed.str(), expected.str());
    EXPECT_EQ(both.net->fc2->bias[1].item<float>(), both.plain->fc2->bias[1].item<float>());
    // A kernel of one's own.
    const Tensor& weight = both.net->fc2->weight;
    for (std::int64_t i = 0; i < weight.numel(); ++i)
      EXPECT_EQ(weight.const_data_ptr<float>()[i], both.plain->fc2->weight.data_ptr<float>()[i]);
  });
}

TEST(ShardedUsersCode, SavingTheModuleWorksAndLoadingIsRefusedByName) {
  on_two_ranks([](Both& both) {
    std::stringstream stream;
    torch::save(both.net, stream);
    Net loaded;
    torch::load(loaded, stream);
    EXPECT_TRUE(loaded->forward(Both::input()).equal(both.plain->forward(Both::input())));

    std::stringstream other;
    torch::save(both.plain, other);
    const Error error = refusal_of([&] { torch::load(both.net, other); });
    EXPECT_EQ(error.code(), ErrorCode::kUnsupported);
    EXPECT_THAT(error.message(), HasSubstr("'fc1.weight' would give it other memory"));
    EXPECT_THAT(error.remedy(), HasSubstr("load_state()"));
    both.step();
    both.step_plain();
    both.expect_equal_parameters();
  });
}

TEST(ShardedUsersCode, ToTheSameIsNothingAndToAnotherDtypeIsFoundOut) {
  on_two_ranks([](Both& both) {
    both.net->to(at::kCPU);
    both.net->to(at::kFloat);
    both.step();
    both.step_plain();
    both.expect_equal_parameters();

    both.net->to(at::kDouble);
    const at::Tensor loss = (*both.model)(Both::input().to(at::kDouble)).sum();
    try {
      both.accelerator.backward(loss);
      both.optimizer->step();
      ADD_FAILURE() << "parameters of another dtype were trained";
    } catch (const std::exception& error) {
      EXPECT_THAT(std::string(error.what()), HasSubstr("fc1.weight"));
    }
  });
}

TEST(ShardedUsersCode, VectorToParametersIsFoundOut) {
  on_two_ranks([](Both& both) {
    torch::nn::utils::vector_to_parameters(at::ones({8 * 16 + 16 + 16 * 4 + 4}),
                                           both.net->parameters());
    EXPECT_THAT(both.complaint().message(), HasSubstr("fc1.weight has got other memory"));
  });
}

TEST(ShardedUsersCode, ALoopThatLoadsByCopyIsRefusedWithTheName) {
  on_two_ranks([](Both& both) {
    const at::NoGradGuard no_grad;
    const auto values = both.plain->named_parameters();
    const Error error = refusal_of([&] {
      for (auto& parameter : both.net->named_parameters())
        parameter.value().copy_(values[parameter.key()]);
    });
    EXPECT_EQ(error.code(), ErrorCode::kUnsupported);
    EXPECT_THAT(error.message(),
                HasSubstr("aten::copy_ would write to the parameter fc1.weight, which the ranks "
                          "share"));
    EXPECT_THAT(error.remedy(), AllOf(HasSubstr("before prepare()"), HasSubstr("load_state()")));
  });
}

TEST(ShardedUsersCode, OperatorsOfEveryKindThatWriteAreRefusedWithTheNameAndTrainingGoesOn) {
  on_two_ranks([](Both& both) {
    const at::NoGradGuard no_grad;
    Tensor weight = both.net->fc2->weight;  // [4, 16]
    const Tensor ones = at::ones({4, 16});
    const Tensor rows = at::zeros({1}, at::kLong);
    const std::vector<std::pair<const char*, std::function<void()>>> writes = {
        {"an initialisation", [&] { torch::nn::init::xavier_uniform_(weight); }},
        {"data()", [&] { weight.data().add_(1); }},
        {"detach()", [&] { weight.detach().mul_(0.5); }},
        {"a view", [&] { weight[3].zero_(); }},
        {"a view of a view", [&] { weight.t().slice(0, 2, 4).fill_(1); }},
        {"a flat view", [&] { weight.view({-1}).clamp_(0, 1); }},
        {"a view of other numbers", [&] { weight.view(at::kInt).bitwise_not_(); }},
        {"an index", [&] { weight.index_put_({rows}, at::zeros({16})); }},
        {"a scatter",
         [&] {
           weight.index_add_(0, rows, at::ones({1, 16}));
         }},
        {"a mask", [&] { weight.masked_fill_(ones > 0, 0.0); }},
        {"an out argument", [&] { at::add_out(weight, ones, ones); }},
        {"an out argument of a product",
         [&] {
           at::mm_out(weight, at::ones({4, 2}), at::ones({2, 16}));
         }},
        {"a list",
         [&] {
           at::_foreach_mul_({at::ones({2}), weight}, 0.5);
         }},
        {"a list of copies", [&] { at::_foreach_copy_({weight}, {ones}); }},
        {"a fused step",
         [&] { at::_fused_sgd_({weight}, {ones}, {}, 0.0, 0.0, 0.1, 0.0, false, false, true); }},
        {"a lerp", [&] { weight.lerp_(ones, 0.5); }},
        {"the norm of an embedding", [&] { at::embedding_renorm_(weight, rows, 0.01, 2); }},
    };
    for (const auto& [what, write] : writes) {
      const Error error = refusal_of(write);
      EXPECT_EQ(error.code(), ErrorCode::kUnsupported) << what;
      EXPECT_THAT(error.message(), HasSubstr("to the parameter fc2.weight")) << what;
    }
    const Error error = refusal_of([&] { at::_foreach_zero_({both.net->fc1->bias}); });
    EXPECT_THAT(error.message(), HasSubstr("to the parameter fc1.bias"));
    const at::AutoGradMode with_gradients(true);
    both.step();
    both.step_plain();
    both.expect_equal_parameters();
  });
}

// As F::embedding with max_norm does: prepare() sees it of torch::nn::Embedding alone.
TEST(ShardedUsersCode, AForwardThatWritesToAParameterIsRefusedWithItsName) {
  struct RenormImpl : torch::nn::Module {
    RenormImpl() { words = register_parameter("words", at::ones({4, 2})); }
    Tensor forward(const Tensor& input) {
      return torch::nn::functional::embedding(
          input, words, torch::nn::functional::EmbeddingFuncOptions().max_norm(0.5));
    }
    Tensor words;
  };
  test::run_ranks(2, [] {
    Accelerator accelerator({.fsdp_plugin = FullyShardedDataParallelPlugin{}});
    auto model = accelerator.prepare(std::make_shared<RenormImpl>());
    const Error error = refusal_of([&] { (void)model(at::zeros({1}, at::kLong)); });
    EXPECT_THAT(error.message(),
                HasSubstr("aten::embedding_renorm_ would write to the parameter words"));
  });
}

TEST(ShardedUsersCode, AKernelThatWritesIsStoppedWithTheName) {
  expect_write_is_stopped("fc2.bias",
                          [](Both& both) { both.net->fc2->bias.data_ptr<float>()[1] = 0.0F; });
}

TEST(ShardedUsersCode, AParameterThatIsAddedAfterPrepareIsNamed) {
  on_two_ranks([](Both& both) {
    both.step();
    both.net->fc2->register_parameter("scale", at::ones({4}));
    const Error error = both.complaint();
    EXPECT_EQ(error.code(), ErrorCode::kUnsupported);
    EXPECT_THAT(error.message(),
                HasSubstr("the parameter fc2.scale was added or unfrozen after prepare()"));
    EXPECT_THAT(error.remedy(), HasSubstr("before prepare()"));
  });
}

TEST(ShardedUsersCode, AParameterThatIsUnfrozenAfterPrepareIsNamed) {
  test::run_ranks(2, [] {
    Accelerator accelerator({.fsdp_plugin = FullyShardedDataParallelPlugin{}});
    Net net = Both::make();
    net->fc1->bias.set_requires_grad(false);
    torch::optim::SGD sgd(net->parameters(), torch::optim::SGDOptions(0.1));
    auto [model, optimizer] = accelerator.prepare(net, sgd);
    net->fc1->bias.set_requires_grad(true);
    accelerator.backward(model(Both::input()).sum());
    try {
      optimizer.step();
      ADD_FAILURE() << "each rank would have trained it for itself";
    } catch (const Error& error) {
      EXPECT_THAT(error.message(),
                  HasSubstr("the parameter fc1.bias was added or unfrozen after prepare()"));
    }
  });
}

// Copies (DDP) say so at the next forward, before a gradient is lost.
TEST(ShardedUsersCode, CopiesNameParametersThatAreAddedOrUnfrozenAfterPrepareToo) {
  test::run_ranks(2, [] {
    for (const bool has_plugin : {false, true}) {
      AcceleratorOptions options;
      if (has_plugin) options.fsdp_plugin.emplace().sharding_strategy = ShardingStrategy::kNoShard;
      for (const bool unfreezes : {false, true}) {
        Accelerator accelerator(options);
        Net net = Both::make();
        net->fc1->bias.set_requires_grad(false);
        auto model = accelerator.prepare(net);
        accelerator.backward(model(Both::input()).sum());
        if (unfreezes) {
          net->fc1->bias.set_requires_grad(true);
        } else {
          net->fc2->register_parameter("scale", at::ones({4}));
        }
        try {
          (void)model(Both::input());
          ADD_FAILURE() << "each rank would have trained it for itself";
        } catch (const Error& error) {
          EXPECT_EQ(error.code(), ErrorCode::kUnsupported);
          EXPECT_THAT(
              error.message(),
              HasSubstr("the parameter " + std::string(unfreezes ? "fc1.bias" : "fc2.scale") +
                        " was added or unfrozen after prepare()"));
        }
      }
    }
  });
}

TEST(ShardedUsersCode, AFrozenParameterThatIsAddedAfterPrepareIsLeftAlone) {
  on_two_ranks([](Both& both) {
    both.net->register_parameter("scale", at::ones({4}), /*requires_grad=*/false);
    both.step();
    both.step_plain();
    EXPECT_TRUE(both.net->fc1->weight.equal(both.plain->fc1->weight));
  });
}

// Rank 1 has no piece of the group, but a parameter that is whole on every rank.
TEST(ShardedUsersCode, AGroupOfWhichARankHasAnIgnoredParameterAloneIsClippedAll) {
  test::run_ranks(2, [] {
    AcceleratorOptions options;
    options.fsdp_plugin.emplace().ignored_modules = "fc2";
    Accelerator accelerator(options);
    Net net = Both::make();
    std::vector<torch::optim::OptimizerParamGroup> groups;
    groups.emplace_back(std::vector<Tensor>{net->fc1->weight});
    groups.emplace_back(std::vector<Tensor>{net->fc1->bias, net->fc2->bias});
    torch::optim::SGD sgd(std::move(groups), torch::optim::SGDOptions(0.1));
    auto [model, optimizer] = accelerator.prepare(net, sgd);
    accelerator.backward(model(Both::input() * (1 + accelerator.process_index())).sum());
    const std::vector<Tensor>& own = sgd.param_groups()[1].params();

    const double norm = accelerator.clip_grad_norm_(own, 0.01).item<double>();

    const Tensor sizes = accelerator.gather(at::full({1}, std::ssize(own), at::kLong));
    EXPECT_EQ(sizes.sum().item<std::int64_t>(), 3) << "fc1.bias was to lie in one rank's shard";
    const Tensor norms = accelerator.gather(at::full({1}, norm, at::kDouble));
    EXPECT_EQ(norms[0].item<double>(), norms[1].item<double>());
    const Tensor whole = accelerator.gather(net->fc2->bias.grad().unsqueeze(0));
    EXPECT_TRUE(whole[0].equal(whole[1]));
  });
}

TEST(ShardedUsersCode, AHookOfTheUserOnAGradientRunsAndHasItsPlaceBackInTheEnd) {
  struct Count final : torch::autograd::PostAccumulateGradHook {
    explicit Count(int& count) : count(count) {}
    void operator()(const Tensor& parameter) override {
      EXPECT_TRUE(parameter.grad().defined());
      ++count;
    }
    int& count;
  };
  test::run_ranks(2, [] {
    int count = 0;
    Net net = Both::make();
    torch::autograd::impl::set_post_acc_grad_hooks(net->fc1->weight,
                                                   std::make_unique<Count>(count));
    {
      Accelerator accelerator({.fsdp_plugin = FullyShardedDataParallelPlugin{}});
      torch::optim::SGD sgd(net->parameters(), torch::optim::SGDOptions(0.1));
      auto [model, optimizer] = accelerator.prepare(net, sgd);
      const Tensor before = net->fc1->weight.clone();
      for (int step = 0; step < 2; ++step) {
        accelerator.backward(model(Both::input()).sum());
        optimizer.step();
        optimizer.zero_grad();
      }
      EXPECT_FALSE(net->fc1->weight.equal(before)) << "the gradient was lost";
    }
    EXPECT_EQ(count, 2);
    net->forward(Both::input()).sum().backward();
    EXPECT_EQ(count, 3);
  });
}

TEST(ShardedUsersCode, ForwardRunsFromTwoThreads) {
  on_two_ranks([](Both& both) {
    const Tensor expected = both.plain->forward(Both::input()).detach();
    std::vector<int> num_equal(2);
    std::vector<std::thread> threads;
    for (int& count : num_equal) {
      threads.emplace_back([&] {
        const at::NoGradGuard no_grad;
        for (int i = 0; i < 100; ++i) count += both.net->forward(Both::input()).equal(expected);
      });
    }
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(num_equal, std::vector<int>({100, 100}));
  });
}

TEST(ShardedUsersCode, BackwardRunsOnAnotherThread) {
  on_two_ranks([](Both& both) {
    const Tensor loss = both.loss();
    std::thread([&] { both.accelerator.backward(loss); }).join();
    both.optimizer->step();
    both.step_plain();
    both.expect_equal_parameters();
  });
}

TEST(ShardedUsersCode, ForkedPartsOfTorchScriptReadParametersOnTheirThreads) {
  on_two_ranks([](Both& both) {
    auto part = std::make_shared<torch::jit::Graph>();
    torch::jit::parseIR(R"IR(
graph(%x : Tensor, %w : Tensor):
  %r : Tensor = aten::matmul(%x, %w)
  return (%r))IR",
                        part.get());
    auto graph = std::make_shared<torch::jit::Graph>();
    auto* x = graph->addInput("x");
    auto* w = graph->addInput("w");
    auto* fork = graph->insertNode(graph->create(c10::prim::fork, {x, w}, 1));
    fork->g_(c10::attr::Subgraph, part);
    fork->output()->setType(c10::FutureType::create(c10::TensorType::get()));
    graph->registerOutput(graph->insert(c10::aten::wait, {fork->output()}));
    torch::jit::GraphExecutor executor(graph, "forks");
    const at::NoGradGuard no_grad;
    const Tensor input = at::ones({2, 4});
    std::vector<c10::IValue> stack = {input, both.net->fc2->weight};

    executor.run(stack);

    EXPECT_TRUE(stack.at(0).toTensor().equal(input.matmul(both.plain->fc2->weight)));
  });
}

}  // namespace
}  // namespace accel::sharded_users_code_test
