#include "libaccel/engine/precision/lstm_kernels.h"

#include <map>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/lstm.h>
#include <ATen/ops/zeros.h>
#include <c10/util/StringUtil.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/rnn.h>

#include <accel/precision.h>

namespace accel {
namespace {

bool runs_one(c10::ScalarType dtype) {
  const at::NoGradGuard no_grad;
  const Autocast autocast({.dtype = dtype});
  const auto zeros = [](at::IntArrayRef sizes) { return at::zeros(sizes); };
  const std::vector<at::Tensor> states = {zeros({1, 1, 1}), zeros({1, 1, 1})};
  const std::vector<at::Tensor> weights = {zeros({4, 1}), zeros({4, 1}), zeros({4}), zeros({4})};
  try {
    (void)at::lstm(zeros({1, 1, 1}),
                   states,
                   weights,
                   /*has_biases=*/true,
                   /*num_layers=*/1,
                   /*dropout=*/0.0,
                   /*train=*/false,
                   /*bidirectional=*/false,
                   /*batch_first=*/false);
    return true;
  } catch (const std::exception&) {
    return false;
  }
}

// "encoder.lstm, decoder"; empty: none is registered as such, as in TorchScript.
std::string lstms_of(const torch::nn::Module& module) {
  std::string names;
  for (const auto& item : module.named_modules(/*name_prefix=*/{}, /*include_self=*/false)) {
    const auto* const lstm = dynamic_cast<const torch::nn::LSTMImpl*>(item.value().get());
    if (lstm == nullptr || lstm->options_base.proj_size() > 0) continue;
    names += (names.empty() ? "" : ", ") + item.key();
  }
  return names;
}

}  // namespace

bool has_lstm_kernel(c10::ScalarType dtype) {
  static std::mutex mutex;
  static std::map<c10::ScalarType, bool> known;
  const std::lock_guard lock(mutex);
  const auto found = known.find(dtype);
  return found != known.end() ? found->second : known.emplace(dtype, runs_one(dtype)).first->second;
}

std::optional<Error> lstm_error(const std::exception& thrown,
                                const torch::nn::Module& module,
                                c10::ScalarType dtype) {
  const std::string_view words = thrown.what();
  const bool is_of_lstm = words.find("could not create a primitive") != std::string_view::npos &&
                          words.find("LSTM") != std::string_view::npos;
  if (!is_of_lstm || has_lstm_kernel(dtype)) return std::nullopt;
  const std::string names = lstms_of(module);
  return Error(
      ErrorCode::kUnsupported,
      "LibTorch has no LSTM in " + c10::str(dtype) + " for this CPU" +
          (names.empty() ? "" : " (" + names + ")") + ": oneDNN " +
          std::string(words.substr(0, words.find_first_of(".\n"))),
      "let the LSTM compute in fp32: hold accel::Autocast({.enabled = false}) around it in "
      "the model's forward, with an input in fp32; or use torch::nn::GRU, mixed_precision = "
      "no, or a CPU with AVX-512 (bf16) or AMX (fp16)");
}

}  // namespace accel
