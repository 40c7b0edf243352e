// Hooks of exported models: what they see, and what becomes of what they change.

#include <functional>
#include <regex>
#include <stdexcept>
#include <utility>

#include <ATen/Context.h>
#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <accel/error.h>
#include <accel/model_hooks.h>

#include "tests/support/error_of.h"
#include "tests/support/exported_archive.h"
#include "tests/support/scratch_folder.h"
#include "tests/support/tensor_matchers.h"

namespace accel::model_hooks_test {
namespace {

using test::error_of;
using test::exported_model;
using test::ExportedArchive;
using test::SameTensor;

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

using Events = std::vector<std::string>;

// Says what happens to it, and does what the test wants.
struct Recorder final : ModelHook {
  explicit Recorder(Events* events = nullptr, std::string name = "")
      : events(events), name(std::move(name)) {}

  [[nodiscard]] bool no_grad() const override { return is_without_grad; }
  void init_hook(const HookedModule& module) override {
    say("init", module);
    if (fails) throw std::runtime_error("no");
  }
  void pre_forward(const HookedModule& module, HookValues& values) override {
    say("pre", module);
    inputs = values;
    if (before) before(values);
  }
  void post_forward(const HookedModule& module, HookValues& values) override {
    say("post", module);
    outputs = values;
    if (after) after(values);
  }
  void detach_hook(const HookedModule& module) override { say("detach", module); }

  void say(const std::string& event, const HookedModule& module) const {
    if (events != nullptr) events->push_back(name + event + " " + module.path);
  }

  Events* events;
  std::string name;
  bool fails = false;
  bool is_without_grad = false;
  HookValues inputs;
  HookValues outputs;
  std::function<void(HookValues&)> before;
  std::function<void(HookValues&)> after;
};

at::Tensor ids() {
  return at::arange(12).view({3, 4});
}

ExportedModel evaluated(const std::string& path) {
  ExportedModel net(path);
  net->eval();
  return net;
}

void doubled(HookValues& values) {
  values.values[0] = values.values[0].toTensor() * 2;
}

// What the rest of the model makes of an output of its first block.
at::Tensor logits_behind(const ExportedModel& net, const at::Tensor& x) {
  const at::Tensor y = net->region("blocks.1")({x})[0].toTensor();
  return at::linear(y, net->named_parameters()["embed.weight"]);
}

TEST(ModelHook, SeesWhatGoesIntoASubmoduleAndWhatComesOutOfIt) {
  ExportedModel net = evaluated(exported_model("blocks"));
  const auto hook = std::make_shared<Recorder>();
  add_hook_to_module(*net, "blocks.0", hook);
  const ExportedOutputs outputs = net(ids(), ids());

  EXPECT_THAT(hook->inputs.names, ElementsAre("add"));
  ASSERT_EQ(hook->outputs.values.size(), 1u);
  remove_hook_from_module(*net, "blocks.0");
  EXPECT_THAT(hook->outputs.values[0].toTensor(),
              SameTensor(net->region("blocks.0")({hook->inputs["add"]})[0].toTensor()));
  EXPECT_THAT(outputs["logits"], SameTensor(net(ids(), ids())["logits"]));
}

TEST(ModelHook, ChangesWhatFollowsItsSubmodule) {
  ExportedModel net = evaluated(exported_model("blocks"));
  const auto hook = std::make_shared<Recorder>();
  hook->after = doubled;
  add_hook_to_module(*net, "blocks.0", hook);
  const at::Tensor logits = net(ids(), ids())["logits"];
  EXPECT_THAT(logits, SameTensor(logits_behind(net, hook->outputs.values[0].toTensor() * 2)));
}

TEST(ModelHook, ChangesAnInputForItsSubmoduleAlone) {
  ExportedModel net = evaluated(exported_model("blocks"));
  const auto around = std::make_shared<Recorder>();
  const auto norm = std::make_shared<Recorder>();
  norm->before = [](HookValues& values) {
    values.values[0] = at::ones_like(values.values[0].toTensor());
  };
  add_hook_to_module(*net, "blocks.0", around);
  add_hook_to_module(*net, "blocks.0.norm", norm);
  static_cast<void>(net(ids(), ids()));

  // The residual connection still has what came in.
  const auto p = net->named_parameters();
  const at::Tensor x = around->inputs.values[0].toTensor();
  const at::Tensor h = at::layer_norm(
      at::ones_like(x), {8}, p["blocks.0.norm.weight"], p["blocks.0.norm.bias"], 1e-5, false);
  const at::Tensor up = at::gelu(at::linear(h, p["blocks.0.up.weight"], p["blocks.0.up.bias"]));
  EXPECT_THAT(around->outputs.values[0].toTensor(),
              SameTensor(x + at::linear(up, p["blocks.0.down.weight"], p["blocks.0.down.bias"])));
}

TEST(ModelHook, OfTheWholeModelSeesItsInputsAndOutputs) {
  ExportedModel net = evaluated(exported_model("blocks"));
  const auto hook = std::make_shared<Recorder>();
  hook->before = [](HookValues& values) { values["ids"] = at::zeros({3, 4}, at::kLong); };
  add_hook_to_module(*net, "", hook);
  const at::Tensor logits = net(ids(), ids())["logits"];
  EXPECT_THAT(hook->inputs.names, ElementsAre("ids", "labels"));
  EXPECT_THAT(hook->inputs["ids"].toTensor(), SameTensor(ids()));
  remove_hook_from_module(*net, "");
  EXPECT_THAT(logits, SameTensor(net(at::zeros({3, 4}, at::kLong), ids())["logits"]));
}

TEST(ModelHook, RunsWithinThatOfTheSubmoduleAround) {
  ExportedModel net = evaluated(exported_model("blocks"));
  Events events;
  const auto hook = std::make_shared<Recorder>(&events);
  for (const char* path : {"blocks.1.down", "blocks.1", "blocks.0", ""})
    add_hook_to_module(*net, path, hook);
  events.clear();
  static_cast<void>(net(ids(), ids()));
  EXPECT_THAT(events,
              ElementsAre("pre ",
                          "pre blocks.0",
                          "post blocks.0",
                          "pre blocks.1",
                          "pre blocks.1.down",
                          "post blocks.1.down",
                          "post blocks.1",
                          "post "));
}

// The blocks are one module that is called twice.
ExportedModel called_twice(const test::ScratchFolder& folder) {
  ExportedArchive archive("blocks");
  for (auto& node : archive.nodes()) {
    auto stack = node["metadata"].value("nn_module_stack", std::string());
    stack = std::regex_replace(stack, std::regex(R"(blocks\.1(\.\w+)?)"), "blocks.0$1@1");
    if (!stack.empty()) node["metadata"]["nn_module_stack"] = stack;
  }
  return evaluated(archive.write(folder.file("twice.pt2")));
}

TEST(ModelHook, RunsInEachCallOfAModuleThatIsCalledSeveralTimes) {
  const test::ScratchFolder folder;
  ExportedModel net = called_twice(folder);
  Events events;
  add_hook_to_module(*net, "blocks.0", std::make_shared<Recorder>(&events));
  events.clear();
  static_cast<void>(net(ids(), ids()));
  EXPECT_THAT(events,
              ElementsAre("pre blocks.0", "post blocks.0", "pre blocks.0", "post blocks.0"));
  EXPECT_EQ(error_of([&] {
              add_hook_to_module(*net, "blocks.0@1", std::make_shared<Recorder>());
            }).code(),
            ErrorCode::kInvalidArgument);
}

TEST(ModelHook, MayRemoveItself) {
  ExportedModel net = evaluated(exported_model("blocks"));
  Events events;
  auto hook = std::make_shared<Recorder>(&events);
  hook->after = [&](HookValues& values) {
    remove_hook_from_module(*net, "blocks.0");
    doubled(values);
  };
  add_hook_to_module(*net, "blocks.0", std::move(hook));
  add_hook_to_module(*net, "blocks.1", std::make_shared<Recorder>(&events));
  events.clear();
  const at::Tensor changed = net(ids(), ids())["logits"];
  EXPECT_THAT(
      events,
      ElementsAre(
          "pre blocks.0", "post blocks.0", "detach blocks.0", "pre blocks.1", "post blocks.1"));
  events.clear();
  EXPECT_FALSE(test::same_tensor(net(ids(), ids())["logits"], changed));
  EXPECT_THAT(events, ElementsAre("pre blocks.1", "post blocks.1"));
}

TEST(ModelHook, HasTheOutputsOfTheWholeModelInTheirOrder) {
  ExportedModel net = evaluated(exported_model("blocks"));
  const auto hook = std::make_shared<Recorder>();
  add_hook_to_module(*net, "", hook);
  const ExportedOutputs outputs = net(ids(), ids());
  ASSERT_EQ(hook->outputs.values.size(), outputs.tensors.size());
  for (std::size_t i = 0; i < outputs.tensors.size(); ++i)
    EXPECT_THAT(hook->outputs.values[i].toTensor(), SameTensor(outputs.tensors[i]));
}

TEST(ModelHook, ThatIsAddedAnewToItsModuleStays) {
  ExportedModel net = evaluated(exported_model("blocks"));
  Events events;
  const auto hook = std::make_shared<Recorder>(&events);
  add_hook_to_module(*net, "blocks.0", hook);
  add_hook_to_module(*net, "blocks.0", hook);
  EXPECT_THAT(events, ElementsAre("init blocks.0", "init blocks.0"));
}

TEST(ModelHook, RunsWithoutAutogradWithinASubmoduleThatWantsNone) {
  ExportedModel net = evaluated(exported_model("blocks"));
  const auto around = std::make_shared<Recorder>();
  around->is_without_grad = true;
  const auto within = std::make_shared<Recorder>();
  const at::Tensor factor = at::ones({1}).requires_grad_();
  within->after = [&](HookValues& values) {
    values.values[0] = values.values[0].toTensor() * factor;
  };
  add_hook_to_module(*net, "blocks.0", around);
  add_hook_to_module(*net, "blocks.0.drop", within);
  net(ids(), ids())["loss"].backward();
  EXPECT_FALSE(factor.grad().defined());
}

TEST(ModelHook, IsRefusedWhereTwoModulesRunAmongEachOther) {
  const test::ScratchFolder folder;
  ExportedArchive archive("blocks");
  bool is_first = true;  // node of the second block, that now lies behind one of the first
  for (auto& node : archive.nodes()) {
    auto stack = node["metadata"].value("nn_module_stack", std::string());
    if (stack.find("blocks.1.down") != std::string::npos && std::exchange(is_first, false))
      node["metadata"]["nn_module_stack"] =
          std::regex_replace(stack, std::regex(R"(blocks\.1)"), "blocks.0");
  }
  ExportedModel net = evaluated(archive.write(folder.file("among.pt2")));
  add_hook_to_module(*net, "blocks.0", std::make_shared<Recorder>());
  const Error refused =
      error_of([&] { add_hook_to_module(*net, "blocks.1", std::make_shared<Recorder>()); });
  EXPECT_EQ(refused.code(), ErrorCode::kUnsupported);
  EXPECT_THAT(refused.message(), HasSubstr("'blocks.1' among those of 'blocks.0'"));
}

TEST(ModelHook, LetsGradientsThroughWhatItChanges) {
  ExportedModel net = evaluated(exported_model("blocks"));
  const auto hook = std::make_shared<Recorder>();
  hook->after = doubled;
  add_hook_to_module(*net, "blocks.1", hook);
  net(ids(), ids())["loss"].backward();
  const at::Tensor gradient = net->named_parameters()["blocks.0.up.weight"].grad().clone();

  remove_hook_from_module(*net, "blocks.1");
  net->zero_grad();
  const auto parts = net->regions({"blocks.0", "blocks.1"});
  const at::Tensor x = parts[0]({ids()})[0].toTensor();
  const at::Tensor y = parts[2](parts[1]({x}))[0].toTensor() * 2;
  const at::Tensor logits = at::linear(y, net->named_parameters()["embed.weight"]);
  at::cross_entropy_loss(logits.flatten(0, 1), ids().flatten()).backward();
  EXPECT_THAT(gradient, SameTensor(net->named_parameters()["blocks.0.up.weight"].grad()));
}

TEST(ModelHook, RunsItsSubmoduleWithoutAutogradWhereItWantsNone) {
  ExportedModel net = evaluated(exported_model("blocks"));
  const auto hook = std::make_shared<Recorder>();
  hook->is_without_grad = true;
  add_hook_to_module(*net, "blocks.0", hook);
  add_hook_to_module(*net, "blocks.0", std::make_shared<Recorder>(), true);
  net(ids(), ids())["loss"].backward();
  EXPECT_FALSE(net->named_parameters()["blocks.0.up.weight"].grad().defined());
  EXPECT_TRUE(net->named_parameters()["blocks.1.up.weight"].grad().defined());
  const at::NoGradGuard no_grad;
  hook->is_without_grad = false;
  EXPECT_FALSE(net(ids(), ids())["loss"].requires_grad());
}

TEST(ModelHook, RunsInRegionsThatHoldItsWholeCall) {
  ExportedModel net = evaluated(exported_model("blocks"));
  Events events;
  const auto hook = std::make_shared<Recorder>(&events);
  add_hook_to_module(*net, "blocks.0", hook);
  add_hook_to_module(*net, "", hook);
  events.clear();
  static_cast<void>(net->region("blocks.0.up")({at::randn({3, 4, 8})}));
  EXPECT_THAT(events, IsEmpty());
  static_cast<void>(net->region("blocks.0")({at::randn({3, 4, 8})}));
  EXPECT_THAT(events, ElementsAre("pre blocks.0", "post blocks.0"));
}

TEST(ModelHook, KnowsItsModule) {
  ExportedModel net(exported_model("blocks"));
  struct Asking final : ModelHook {
    void init_hook(const HookedModule& module) override { asked = module; }
    HookedModule asked;
  };
  const auto hook = std::make_shared<Asking>();
  add_hook_to_module(*net, "blocks.0.norm", hook);
  EXPECT_THAT(hook->asked.class_name, HasSubstr("LayerNorm"));
  EXPECT_THAT(hook->asked.module->named_parameters(false)["weight"],
              SameTensor(net->named_parameters()["blocks.0.norm.weight"]));
  add_hook_to_module(*net, "blocks.0.drop", hook);
  EXPECT_THAT(hook->asked.class_name, HasSubstr("Dropout"));
  EXPECT_EQ(hook->asked.module, nullptr);
}

TEST(ModelHook, RunsInTheGraphOfEachMode) {
  ExportedModel net(exported_model("pair"));
  Events events;
  add_hook_to_module(*net, "line", std::make_shared<Recorder>(&events));
  events.clear();
  for (const bool is_training : {true, false}) {
    net->train(is_training);
    static_cast<void>(net(at::randn({2, 4})));
  }
  EXPECT_THAT(events, ElementsAre("pre line", "post line", "pre line", "post line"));
}

TEST(ModelHook, IsReplacedChainedAndRemoved) {
  ExportedModel net = evaluated(exported_model("blocks"));
  Events events;
  const auto hook = [&](const char* name) { return std::make_shared<Recorder>(&events, name); };
  add_hook_to_module(*net, "blocks.0", hook("a "));
  add_hook_to_module(*net, "blocks.0", hook("b "));
  add_hook_to_module(*net, "blocks.0", hook("c "), true);
  EXPECT_THAT(
      events,
      ElementsAre("a init blocks.0", "b init blocks.0", "a detach blocks.0", "c init blocks.0"));
  events.clear();
  static_cast<void>(net(ids(), ids()));
  EXPECT_THAT(
      events,
      ElementsAre("b pre blocks.0", "c pre blocks.0", "b post blocks.0", "c post blocks.0"));
  events.clear();
  remove_hook_from_module(*net, "blocks.1");
  remove_hook_from_module(*net, "blocks");
  EXPECT_THAT(events, IsEmpty());
  add_hook_to_module(*net, "blocks.1.up", hook("d "));
  remove_hook_from_module(*net, "blocks", true);
  EXPECT_THAT(
      events,
      ElementsAre(
          "d init blocks.1.up", "b detach blocks.0", "c detach blocks.0", "d detach blocks.1.up"));
  events.clear();
  static_cast<void>(net(ids(), ids()));
  EXPECT_THAT(events, IsEmpty());
  add_hook_to_module(*net, "blocks.1.up", hook("e "));
  remove_hook_from_submodules(*net);
  EXPECT_THAT(events, ElementsAre("e init blocks.1.up", "e detach blocks.1.up"));
}

TEST(ModelHook, ThatCannotBeAddedLeavesTheModelAsItWas) {
  ExportedModel net = evaluated(exported_model("blocks"));
  EXPECT_THAT(error_of([&] {
                add_hook_to_module(*net, "blocks.7", std::make_shared<Recorder>());
              }).message(),
              HasSubstr("'blocks.7'"));
  EXPECT_THAT(error_of([&] { add_hook_to_module(*net, "blocks.0", nullptr); }).message(),
              HasSubstr("nullptr"));
  EXPECT_THAT(error_of([&] { static_cast<void>(SequentialHook({nullptr})); }).message(),
              HasSubstr("nullptr"));
  Events events;
  add_hook_to_module(*net, "blocks.0", std::make_shared<Recorder>(&events));
  const auto failing = std::make_shared<Recorder>();
  failing->fails = true;
  EXPECT_THROW(add_hook_to_module(*net, "blocks.0", failing), std::runtime_error);
  events.clear();
  static_cast<void>(net(ids(), ids()));
  EXPECT_THAT(events, ElementsAre("pre blocks.0", "post blocks.0"));
}

TEST(ModelHook, ThatLosesValuesIsNamed) {
  ExportedModel net = evaluated(exported_model("blocks"));
  const auto hook = std::make_shared<Recorder>();
  hook->after = [](HookValues& values) { values.values.clear(); };
  add_hook_to_module(*net, "blocks.1", hook);
  const Error lost = error_of([&] { static_cast<void>(net(ids(), ids())); });
  EXPECT_EQ(lost.code(), ErrorCode::kInvalidArgument);
  EXPECT_THAT(lost.message(), HasSubstr("'blocks.1' got 1 values and left 0"));
  hook->after = [](HookValues& values) { static_cast<void>(values["other"]); };
  EXPECT_THAT(error_of([&] { static_cast<void>(net(ids(), ids())); }).message(),
              HasSubstr("no value 'other'"));
}

}  // namespace
}  // namespace accel::model_hooks_test
