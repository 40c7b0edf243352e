// The order of what is called during a backward, and that the program's hooks keep their places.

#include "libaccel/interception/backward_hooks.h"

#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include <ATen/TensorOperators.h>
#include <ATen/ops/ones.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>

namespace accel::interception::backward_hooks_test {
namespace {

using ::testing::ElementsAre;

class BackwardHooks : public ::testing::Test {
 protected:
  std::function<void()> note(const char* what) {
    return [this, what] { notes_.emplace_back(what); };
  }
  std::vector<std::string> backward() {
    notes_.clear();
    (weight_ * 2).sum().backward();
    return notes_;
  }

  std::vector<std::string> notes_;
  at::Tensor weight_ = at::ones({2}).requires_grad_();
};

class UsersHook final : public torch::autograd::PostAccumulateGradHook {
 public:
  explicit UsersHook(std::function<void()> call) : call_(std::move(call)) {}
  void operator()(const at::Tensor&) override { call_(); }

 private:
  std::function<void()> call_;
};

TEST_F(BackwardHooks, AreCalledBeforeAfterAndBehindTheSum) {
  torch::autograd::impl::set_post_acc_grad_hooks(weight_,
                                                 std::make_unique<UsersHook>(note("user")));
  std::optional<GradientHook> before(before_adding(weight_, [this](const at::Tensor& arriving) {
    EXPECT_TRUE(arriving.defined());
    notes_.emplace_back(weight_.grad().defined() ? "before: a gradient" : "before");
  }));
  std::optional<GradientHook> behind(behind_adding(weight_, [this](const at::Tensor&) {
    call_at_end_of_backward([this] {
      call_at_end_of_backward(note("last"));
      notes_.emplace_back(is_in_backward() ? "end: in a node" : "end");
    });
    call_at_end_of_backward(note("end too"));
    notes_.emplace_back(is_in_backward() ? "behind" : "behind: in no node");
  }));

  EXPECT_THAT(backward(), ElementsAre("before", "user", "behind", "end", "end too", "last"));
  EXPECT_FALSE(is_in_backward());

  before.reset();
  behind.reset();
  EXPECT_THAT(backward(), ElementsAre("user"));
}

TEST_F(BackwardHooks, TellBeforeTheProgramDoesThatAnExceptionHasEndedABackward) {
  bool throws = true;
  const GradientHook behind(behind_adding(weight_, [&](const at::Tensor&) {
    call_at_end_of_backward(note("end"), note("exception"));
    if (throws) throw std::runtime_error("the program's own");
  }));

  try {
    backward();
    ADD_FAILURE() << "nothing was thrown";
  } catch (const std::runtime_error&) {
    notes_.emplace_back("caught");
  }
  EXPECT_THAT(notes_, ElementsAre("exception", "caught"));

  throws = false;
  EXPECT_THAT(backward(), ElementsAre("end"));
}

TEST_F(BackwardHooks, AreNotReplacedByOneThatTheProgramPutsThereLater) {
  const GradientHook behind(
      behind_adding(weight_, [this](const at::Tensor&) { notes_.emplace_back("behind"); }));
  torch::autograd::impl::set_post_acc_grad_hooks(weight_,
                                                 std::make_unique<UsersHook>(note("user")));

  EXPECT_THAT(backward(), ElementsAre("user", "behind"));
}

TEST_F(BackwardHooks, StandBehindThoseThatTheProgramHasOnTheTensor) {
  weight_.register_hook([this](const at::Tensor&) { notes_.emplace_back("user"); });
  std::optional<GradientHook> first(
      before_adding(weight_, [this](const at::Tensor&) { notes_.emplace_back("first"); }));
  const GradientHook second(
      before_adding(weight_, [this](const at::Tensor&) { notes_.emplace_back("second"); }));

  EXPECT_THAT(backward(), ElementsAre("user", "first", "second"));

  first.reset();
  EXPECT_THAT(backward(), ElementsAre("user", "second"));
}

TEST_F(BackwardHooks, TwoObjectsMayWatchOneParameter) {
  std::optional<GradientHook> first(
      behind_adding(weight_, [this](const at::Tensor&) { notes_.emplace_back("first"); }));
  const GradientHook second(
      behind_adding(weight_, [this](const at::Tensor&) { notes_.emplace_back("second"); }));

  EXPECT_THAT(backward(), ElementsAre("first", "second"));

  first.reset();
  EXPECT_THAT(backward(), ElementsAre("second"));
}

}  // namespace
}  // namespace accel::interception::backward_hooks_test
