// An LSTM in 16 bits on a CPU for which oneDNN has none: what a program is told, and that the remedy helps.

#include "libaccel/engine/precision/lstm_kernels.h"

#include <stdexcept>
#include <string>
#include <tuple>

#include <ATen/ops/ones.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/rnn.h>

#include <accel/accelerator.h>
#include <accel/error.h>

#include "tests/support/error_of.h"

namespace accel::lstm_kernels_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

struct ReaderImpl : torch::nn::Module {
  torch::nn::LSTM words{nullptr};
  bool leaves_autocast = false;

  ReaderImpl() { words = register_module("words", torch::nn::LSTM(3, 4)); }
  at::Tensor forward(const at::Tensor& input) {
    const Autocast scope({.enabled = !leaves_autocast});
    return std::get<0>(words(input)).square().mean();
  }
};
TORCH_MODULE(Reader);

class LstmKernels : public ::testing::Test {
 protected:
  void TearDown() override { PartialState::reset(); }
};

TEST_F(LstmKernels, AForwardWithoutOneNamesTheModuleAndTheRemedy) {
  Accelerator accelerator({.mixed_precision = PrecisionType::kBf16, .cpu = true});
  Reader reader;
  auto model = accelerator.prepare(reader);
  const at::Tensor input = at::ones({5, 2, 3});

  if (has_lstm_kernel(at::kBFloat16)) {
    accelerator.backward(model(input));
    EXPECT_TRUE(reader->words->parameters()[0].grad().defined());
    return;
  }
  const Error error = test::error_of([&] { (void)model(input); });
  EXPECT_EQ(error.code(), ErrorCode::kUnsupported);
  EXPECT_THAT(error.message(),
              AllOf(HasSubstr("no LSTM in BFloat16 for this CPU (words)"),
                    HasSubstr("could not create a primitive")));
  EXPECT_THAT(error.remedy(), HasSubstr("accel::Autocast({.enabled = false})"));
}

TEST_F(LstmKernels, AnLstmOutsideOfAutocastTrains) {
  Accelerator accelerator({.mixed_precision = PrecisionType::kBf16, .cpu = true});
  Reader reader;
  reader->leaves_autocast = true;
  auto model = accelerator.prepare(reader);

  accelerator.backward(model(at::ones({5, 2, 3})));

  EXPECT_TRUE(reader->words->parameters()[0].grad().defined());
}

TEST_F(LstmKernels, WhatElseAForwardThrowsStaysAsItIs) {
  const Reader reader;
  const std::runtime_error of_convolution(
      "could not create a primitive descriptor for convolution");
  EXPECT_FALSE(lstm_error(of_convolution, *reader, at::kBFloat16).has_value());

  Accelerator accelerator({.mixed_precision = PrecisionType::kBf16, .cpu = true});
  auto model = accelerator.prepare(reader);
  try {
    (void)model(at::ones({5, 2, 7}));  // of another width
    FAIL() << "nothing was thrown";
  } catch (const Error& error) {
    FAIL() << error.what();
  } catch (const std::exception& error) {
    EXPECT_THAT(error.what(), HasSubstr("3"));
  }
}

}  // namespace
}  // namespace accel::lstm_kernels_test
