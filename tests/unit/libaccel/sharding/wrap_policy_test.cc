// Which parameters the peer's wrap policies put together.

#include "libaccel/engine/sharding/wrap_policy.h"

#include <map>
#include <set>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>

#include <accel/error.h>

#include "libaccel/tensors/unit_layout.h"
#include "tests/support/tied_net.h"

namespace accel::sharding::wrap_policy_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::UnorderedElementsAre;

// 10 x 10 weights and 10 biases.
struct BlockImpl : torch::nn::Module {
  BlockImpl() { inner = register_module("inner", torch::nn::Linear(10, 10)); }
  torch::nn::Linear inner{nullptr};
};
TORCH_MODULE(Block);

struct ModelImpl : torch::nn::Module {
  ModelImpl() {
    blocks = register_module("blocks", torch::nn::ModuleList(Block(), Block()));
    head = register_module("head", torch::nn::Linear(10, 3));
  }
  torch::nn::ModuleList blocks{nullptr};
  torch::nn::Linear head{nullptr};
};
TORCH_MODULE(Model);

// The names of the parameters of each unit.
std::vector<std::set<std::string>> units_of(const torch::nn::Module& module,
                                            const FsdpSettings& settings) {
  const auto groups = wrap_groups(module, settings);
  std::map<int, std::set<std::string>> by_group;
  for (const auto& item : module.named_parameters()) {
    by_group[groups.at(item.value().unsafeGetTensorImpl())].insert(item.key());
  }
  std::vector<std::set<std::string>> units;
  for (auto& [group, names] : by_group) units.push_back(std::move(names));
  return units;
}

TEST(WrapPolicy, NamesClassesAsPeopleDo) {
  EXPECT_EQ(class_name_of("accel::models::BlockImpl"), "Block");
  EXPECT_EQ(class_name_of("Block"), "Block");
  EXPECT_EQ(class_name_of("Impl"), "Impl");
  EXPECT_EQ(class_name_of("nn::Wrapped<nn::Other>"), "Wrapped");
  EXPECT_EQ(class_name_of("__torch__.models.___torch_mangle_3.Block"), "Block");
}

TEST(WrapPolicy, MakesAUnitOfEachModuleOfANamedClassAndOneOfTheRest) {
  FsdpSettings settings;
  settings.wrap = AutoWrapPolicy::kTransformerBasedWrap;
  settings.transformer_classes = {"Block"};
  EXPECT_THAT(
      units_of(*Model(), settings),
      UnorderedElementsAre(UnorderedElementsAre("blocks.0.inner.weight", "blocks.0.inner.bias"),
                           UnorderedElementsAre("blocks.1.inner.weight", "blocks.1.inner.bias"),
                           UnorderedElementsAre("head.weight", "head.bias")));
}

FsdpSettings wrapping(const std::string& name) {
  FsdpSettings settings;
  settings.wrap = AutoWrapPolicy::kTransformerBasedWrap;
  settings.transformer_classes = {name};
  return settings;
}

TEST(WrapPolicy, TakesQualifiedNamesOfClassesAndGlobsOfPaths) {
  const Model model;
  for (const char* name : {"BlockImpl",
                           "sharding::wrap_policy_test::(anonymous namespace)::Block",
                           "accel::sharding::wrap_policy_test::(anonymous namespace)::BlockImpl",
                           "blocks.*",
                           "blocks.?",
                           "*.[01]"}) {
    EXPECT_EQ(units_of(*model, wrapping(name)).size(), 3U) << name;
  }
  // What blocks contain, and that leaves nothing else to them.
  EXPECT_EQ(units_of(*model, wrapping("blocks.*.inner")).size(), 3U);
  EXPECT_EQ(units_of(*model, wrapping("hea*")).size(), 2U);
}

TEST(WrapPolicy, NamesOfTorchScriptMatchWithAsMuchOfTheirModuleAsIsSaid) {
  struct Part : torch::nn::Module {
    Part() : torch::nn::Module("__torch__.gpt.Block") {
      register_parameter("weight", at::ones({2}));
    }
  };
  torch::nn::Module root("__torch__.gpt.Model");
  root.register_module("a", std::make_shared<Part>());
  root.register_module("b", std::make_shared<Part>());
  for (const char* name : {"Block", "gpt.Block", "__torch__.gpt.Block"})
    EXPECT_EQ(units_of(root, wrapping(name)).size(), 2U) << name;
}

TEST(WrapPolicy, LayersOfATracedModelAreOfOneClassHoweverTorchScriptCallsThem) {
  struct Part : torch::nn::Module {
    explicit Part(const std::string& name) : torch::nn::Module(name) {
      register_parameter("weight", at::ones({2}));
    }
  };
  torch::nn::Module root("__torch__.gpt.___torch_mangle_12.Model");
  root.register_module("a", std::make_shared<Part>("__torch__.gpt.Block"));
  root.register_module("b", std::make_shared<Part>("__torch__.gpt.___torch_mangle_1.Block"));
  root.register_module("c", std::make_shared<Part>("__torch__.___torch_mangle_30.gpt.Block"));
  root.register_module("d", std::make_shared<Part>("__torch__.gpt.My___torch_mangle_4.Block"));
  for (const char* name : {"gpt.Block", "__torch__.gpt.Block", "___torch_mangle_1.gpt.Block"})
    EXPECT_EQ(units_of(root, wrapping(name)).size(), 4U) << name;
  EXPECT_EQ(units_of(root, wrapping("Block")).size(), 4U);
}

TEST(WrapPolicy, SaysWhichClassesThereAreAndTheNearest) {
  for (const char* name : {"Blok", "other::Block", "lock", "blocks.*.*.*", "blocks"}) {
    try {
      std::ignore = units_of(*Model(), wrapping(name));
      ADD_FAILURE() << name << " was found";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
      EXPECT_THAT(error.message(), HasSubstr("it has Block, Linear, Model, ModuleList"));
    }
  }
  try {
    std::ignore = units_of(*Model(), wrapping("Blok"));
  } catch (const Error& error) {
    EXPECT_THAT(error.message(), HasSubstr("did you mean Block?"));
  }
}

TEST(WrapPolicy, MakesAUnitOfEachModuleThatIsLargeEnoughAfterItsChildren) {
  FsdpSettings settings;
  settings.wrap = AutoWrapPolicy::kSizeBasedWrap;
  settings.min_num_params = 110;
  EXPECT_EQ(units_of(*Model(), settings).size(), 3U);
  // Now no block is, but the list of both would be: it is a list, so all belongs to the root.
  settings.min_num_params = 111;
  EXPECT_EQ(units_of(*Model(), settings).size(), 1U);
}

TEST(WrapPolicy, CountsAWeightUnderTwoNamesOnce) {
  torch::nn::Sequential net(test::TiedNet(), torch::nn::Linear(6, 6));  // 84 and 42
  FsdpSettings settings;
  settings.wrap = AutoWrapPolicy::kSizeBasedWrap;
  settings.min_num_params = 100;
  EXPECT_EQ(units_of(*net, settings).size(), 1U);
  settings.min_num_params = 84;
  EXPECT_EQ(units_of(*net, settings).size(), 2U);
}

TEST(WrapPolicy, LeavesTheCutToBytesWithoutAPolicy) {
  const Model model;
  const auto groups = wrap_groups(*model, {});
  for (const auto& [parameter, group] : groups) EXPECT_EQ(group, kNoGroup);
  EXPECT_EQ(groups.size(), 6U);
}

TEST(WrapPolicy, IgnoresModulesWhoseWholeNameMatches) {
  const Model model;
  FsdpSettings settings;
  settings.ignored_modules = "blocks\\.\\d\\.inner";
  EXPECT_EQ(ignored_parameters(*model, settings).size(), 4U);
  settings.ignored_modules = "hea";
  try {
    std::ignore = ignored_parameters(*model, settings);
    ADD_FAILURE() << "nothing was thrown";
  } catch (const Error& error) {
    EXPECT_THAT(error.message(),
                HasSubstr("'hea', which is the whole name of no module; there are "));
    EXPECT_THAT(error.message(), HasSubstr("head"));
  }
  settings.ignored_modules = "(";
  EXPECT_THROW(std::ignore = ignored_parameters(*model, settings), Error);
}

TEST(WrapPolicy, IgnoresTheModulesOfAListAndSaysTheNearestNameOfAnUnknownOne) {
  const Model model;
  FsdpSettings settings;
  settings.ignored_names = {"blocks.0.inner", "head"};
  EXPECT_EQ(ignored_parameters(*model, settings).size(), 4U);
  settings.ignored_names = {"blocks.0.iner", "head", "qqq"};
  try {
    std::ignore = ignored_parameters(*model, settings);
    ADD_FAILURE() << "nothing was thrown";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
    EXPECT_THAT(error.message(),
                HasSubstr("'blocks.0.iner' (did you mean 'blocks.0.inner'?), 'qqq', which no"));
  }
}

}  // namespace
}  // namespace accel::sharding::wrap_policy_test
