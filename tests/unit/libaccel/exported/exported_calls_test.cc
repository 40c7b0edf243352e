// Calls of exported models side by side are the calls alone, to the bit, each with the buffers of its own sequence.

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/record_function.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <accel/error.h>
#include <accel/exported_calls.h>
#include <accel/exported_model.h>
#include <accel/model_hooks.h>

#include "tests/support/error_of.h"
#include "tests/support/exported_archive.h"
#include "tests/support/tensor_matchers.h"

namespace accel::exported_calls_test {
namespace {

using test::error_of;
using test::exported_model;
using test::SameTensor;

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

thread_local std::vector<std::string>* t_order = nullptr;  // of operators

ExportedModel in_evaluation(const std::string& name) {
  ExportedModel net(exported_model(name));
  net->eval();
  return net;
}

ExportedInputs tokens(const at::Tensor& ids, std::int64_t begin) {
  return ExportedInputs{{"input_ids", ids},
                        {"cache_position", at::arange(begin, begin + ids.size(1))}};
}

TEST(ExportedCalls, SideBySideAreTheCallsAlone) {
  const at::NoGradGuard no_grad;
  ExportedModel net = in_evaluation("blocks");
  const at::Tensor small = at::arange(6).view({2, 3});
  const at::Tensor large = at::arange(12).view({3, 4});
  const ExportedOutputs first = net(small, small);
  const ExportedOutputs second = net(large, large);

  const ExportedCalls calls(*net);
  ExportedState one = calls.new_state();
  ExportedState other = calls.new_state();
  const auto found = calls({{ExportedInputs{{"ids", small}, {"labels", small}}, &one},
                            {ExportedInputs{{"ids", large}, {"labels", large}}, &other}});
  ASSERT_EQ(found.size(), 2u);
  EXPECT_THAT(found[0]["logits"], SameTensor(first["logits"]));
  EXPECT_THAT(found[0]["loss"], SameTensor(first["loss"]));
  EXPECT_THAT(found[1]["logits"], SameTensor(second["logits"]));
}

TEST(ExportedCalls, KnowTheBuffersThatOperatorsAndOutputsWrite) {
  const auto written = [](const std::string& name) {
    ExportedModel net(exported_model(name));
    return ExportedCalls(*net).written_buffers();
  };
  EXPECT_THAT(written("blocks"), ElementsAre("calls"));
  EXPECT_THAT(written("counting"), ElementsAre("sum"));
  EXPECT_THAT(written("cached"), ElementsAre("key_cache_0", "value_cache_0"));
  EXPECT_THAT(written("prefix"), IsEmpty());
}

TEST(ExportedCalls, AStateKeepsOneSequenceApartFromTheOthers) {
  const at::NoGradGuard no_grad;
  const at::Tensor ids = at::tensor({3, 1, 4, 1, 5, 9}, at::kLong).view({2, 3});
  std::vector<at::Tensor> alone;
  for (std::int64_t sequence = 0; sequence < 2; ++sequence) {
    ExportedModel net = in_evaluation("stepwise");
    for (std::int64_t place = 0; place < 3; ++place)
      alone.push_back(net(tokens(ids[sequence][place].view({1, 1}), place))[0]);
  }

  ExportedModel net = in_evaluation("stepwise");
  const at::Tensor before = net->named_buffers()["key_cache_0"].clone();
  const ExportedCalls calls(*net);
  ExportedState first = calls.new_state();
  ExportedState second = calls.new_state();
  for (std::int64_t place = 0; place < 3; ++place) {
    const auto found = calls({{tokens(ids[0][place].view({1, 1}), place), &first},
                              {tokens(ids[1][place].view({1, 1}), place), &second}});
    EXPECT_THAT(found[0][0], SameTensor(alone[static_cast<std::size_t>(place)]));
    EXPECT_THAT(found[1][0], SameTensor(alone[static_cast<std::size_t>(place + 3)]));
  }
  EXPECT_THAT(net->named_buffers()["key_cache_0"], SameTensor(before));
}

TEST(ExportedCalls, WriteTheBuffersOfTheModelWhereTheyHaveNoState) {
  const at::NoGradGuard no_grad;
  ExportedModel net(exported_model("counting"));
  const at::Tensor x = at::ones({2, 4});
  const ExportedCalls calls(*net);
  ExportedState state = calls.new_state();
  (void)calls({{ExportedInputs{{"x", x}, {"seen", at::zeros(1)}}, &state},
               {ExportedInputs{{"x", x * 3}, {"seen", at::zeros(1)}}}});
  EXPECT_THAT(state["sum"], SameTensor(at::full({4}, 2.0)));
  EXPECT_THAT(net->named_buffers()["sum"], SameTensor(at::full({4}, 6.0)));
}

TEST(ExportedCalls, ACacheGivesTheLogitsOfTheWholePrefix) {
  const at::NoGradGuard no_grad;
  ExportedModel whole = in_evaluation("prefix");
  ExportedModel cached = in_evaluation("cached");
  const at::Tensor ids = at::arange(14).view({2, 7});
  const at::Tensor expected = whole(ExportedInputs{{"input_ids", ids}})[0];
  const ExportedCalls calls(*cached);
  ExportedState state = calls.new_state();
  std::vector<at::Tensor> parts;
  for (const auto& [begin, end] : {std::pair(0, 4), std::pair(4, 5), std::pair(5, 7)})
    parts.push_back(calls({{tokens(ids.slice(1, begin, end), begin), &state}})[0][0]);
  EXPECT_TRUE(at::allclose(at::cat(parts, 1), expected, 1e-5, 1e-6));
}

TEST(ExportedCalls, RefuseOneStateForTwoCallsAndInputsOfOtherSizes) {
  const at::NoGradGuard no_grad;
  ExportedModel net = in_evaluation("cached");
  const ExportedCalls calls(*net);
  ExportedState state = calls.new_state();
  const at::Tensor ids = at::zeros({2, 3}, at::kLong);
  const Error twice = error_of([&] {
    (void)calls({{tokens(ids, 0), &state}, {tokens(ids, 0), &state}});
  });
  EXPECT_EQ(twice.code(), ErrorCode::kInvalidArgument);
  EXPECT_THAT(twice.message(), HasSubstr("two calls"));
  EXPECT_THAT(twice.message(), HasSubstr("key_cache_0"));
  const Error shape = error_of([&] { (void)calls({{tokens(ids.slice(0, 0, 1), 0), &state}}); });
  EXPECT_EQ(shape.code(), ErrorCode::kInvalidArgument);
  EXPECT_THAT(shape.message(), HasSubstr("input_ids"));
}

TEST(ExportedCalls, RefuseAModelWithHooks) {
  const at::NoGradGuard no_grad;
  ExportedModel net = in_evaluation("prefix");
  const ExportedCalls calls(*net);
  add_hook_to_module(*net, "", std::make_shared<ModelHook>());
  const ExportedInputs inputs{{"input_ids", at::zeros({2, 7}, at::kLong)}};
  EXPECT_EQ(error_of([&] { (void)calls({{inputs}}); }).code(), ErrorCode::kUnsupported);
  remove_hook_from_submodules(*net);
  EXPECT_EQ(calls({{inputs}}).size(), 1u);
}

TEST(ExportedCalls, RefuseAStateThatLacksABufferWhichTheGraphWrites) {
  const at::NoGradGuard no_grad;
  ExportedModel net = in_evaluation("cached");
  const at::Tensor before = net->named_buffers()["value_cache_0"].clone();
  const ExportedCalls calls(*net);
  const at::Tensor ids = at::zeros({2, 3}, at::kLong);
  for (const at::Tensor& missing : {at::Tensor(), calls.new_state()["value_cache_0"]}) {
    ExportedState state = calls.new_state();
    if (missing.defined())
      state.erase("value_cache_0");
    else
      state["value_cache_0"] = missing;
    const Error error = error_of([&] { (void)calls({{tokens(ids, 0), &state}}); });
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
    EXPECT_THAT(error.message(), HasSubstr("lacks the buffer value_cache_0"));
  }
  EXPECT_THAT(net->named_buffers()["value_cache_0"], SameTensor(before));
}

TEST(ExportedCalls, RefuseStatesThatShareMemoryAmongThemOrWithTheModel) {
  const at::NoGradGuard no_grad;
  ExportedModel net = in_evaluation("cached");
  const ExportedCalls calls(*net);
  const at::Tensor ids = at::zeros({2, 3}, at::kLong);
  ExportedState first = calls.new_state();
  const at::Tensor before = first["key_cache_0"].clone();
  ExportedState second = first;
  ExportedState third = calls.new_state();
  third["value_cache_0"] = first["value_cache_0"].slice(2, 1);
  ExportedState own = calls.own_state();
  for (const auto& states : std::vector<std::pair<ExportedState*, ExportedState*>>{
           {&first, &second}, {&first, &third}, {&own, nullptr}, {nullptr, nullptr}}) {
    const Error error = error_of([&] {
      (void)calls({{tokens(ids, 0), states.first}, {tokens(ids, 0), states.second}});
    });
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
    EXPECT_THAT(error.message(), HasSubstr("write the same memory"));
  }
  EXPECT_THAT(first["key_cache_0"], SameTensor(before));
}

TEST(ExportedCalls, AWeightThatIsMadeOfAnotherIsUsedBeforeTheNextCallMakesIt) {
  const at::NoGradGuard no_grad;
  ExportedModel net = in_evaluation("casting");
  const at::Tensor x = at::arange(8, at::kDouble).view({2, 4});
  const at::Tensor y = x + 1;
  const at::Tensor alone = net(x);
  const ExportedCalls calls(*net);
  std::vector<std::string> order;
  const auto callback = at::addThreadLocalCallback(at::RecordFunctionCallback(
      [](const at::RecordFunction& function) -> std::unique_ptr<at::ObserverContext> {
        const std::string_view name = function.name();
        if (name == "aten::to" || name == "aten::linear") t_order->emplace_back(name);
        return nullptr;
      }));
  t_order = &order;
  const auto found = calls({{ExportedInputs{{"x", x}}}, {ExportedInputs{{"x", y}}}});
  at::removeCallback(callback);
  EXPECT_THAT(found[0][0], SameTensor(alone));
  std::vector<std::string> expected;
  for (int operation = 0; operation < 4; ++operation)  // two for each call
    expected.insert(expected.end(), {"aten::to", "aten::to", "aten::linear"});
  EXPECT_EQ(order, expected);
}

}  // namespace
}  // namespace accel::exported_calls_test
