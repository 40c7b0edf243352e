#include "train/model_call.h"

#include <algorithm>
#include <array>
#include <string_view>
#include <utility>

#include <ATen/Functions.h>

#include <accel/error.h>

#include "runtime/printable.h"
#include "runtime/text/joined.h"

namespace accel::train {
namespace {

constexpr std::array<std::string_view, 4> kTargets = {"labels", "label", "targets", "y"};

// The place of `name`, else of the only output there is; -1: none.
std::ptrdiff_t output_of(const ExportedOutputs& outputs, std::string_view name) {
  const auto found = std::ranges::find(outputs.names, name);
  if (found != outputs.names.end()) return found - outputs.names.begin();
  return outputs.tensors.size() == 1 ? 0 : -1;
}

// Each position predicts the token behind it.
at::Tensor causal_loss(const at::Tensor& logits, const at::Tensor& tokens) {
  const at::Tensor ahead = logits.slice(1, 0, -1);
  return at::cross_entropy_loss(ahead.flatten(0, 1), tokens.slice(1, 1).flatten());
}

}  // namespace

std::vector<std::int64_t> sample_shape(const ExportedModel& net, const std::string& input) {
  std::vector<std::int64_t> sizes = net->input_sizes(input);
  if (!sizes.empty()) sizes.erase(sizes.begin());
  return sizes;
}

ModelCall::ModelCall(const std::vector<std::string>& inputs, bool is_causal)
    : inputs_(inputs), is_causal_(is_causal) {
  const auto ids = std::ranges::find(inputs_, "input_ids");
  if (ids != inputs_.end()) std::rotate(inputs_.begin(), ids, ids + 1);
  for (const std::string& name : inputs_) {
    if (roles_.empty()) {
      roles_.push_back(Role::kSamples);
    } else if (std::ranges::find(kTargets, name) != kTargets.end()) {
      roles_.push_back(Role::kTarget);
    } else if (name == "attention_mask") {
      roles_.push_back(Role::kMask);
    } else {
      throw Error(ErrorCode::kUnsupported,
                  "the model has the input " + printable(name) +
                      ", and nothing is known to put there: inputs are " + joined(inputs, ", "),
                  "export it with the samples and `labels` alone, or write a program of your own "
                  "(docs/guides/exported-models.md)");
    }
  }
}

ExportedInputs ModelCall::inputs(const at::Tensor& data, const at::Tensor& target) const {
  std::vector<std::pair<std::string, c10::IValue>> values;
  for (std::size_t i = 0; i < inputs_.size(); ++i) {
    const at::Tensor value = roles_[i] == Role::kSamples  ? data
                             : roles_[i] == Role::kTarget ? target
                                                          : at::ones_like(data);
    values.emplace_back(inputs_[i], value);
  }
  return ExportedInputs(std::move(values));
}

at::Tensor logits_of(const ExportedOutputs& outputs) {
  const std::ptrdiff_t logits = output_of(outputs, "logits");
  if (logits < 0 || outputs[static_cast<std::size_t>(logits)].dim() < 2) return {};
  return outputs[static_cast<std::size_t>(logits)];
}

ModelCall::Answer ModelCall::answer(const ExportedOutputs& outputs,
                                    const at::Tensor& target) const {
  Answer answer;
  const std::ptrdiff_t loss = output_of(outputs, "loss");
  if (loss >= 0 && outputs[static_cast<std::size_t>(loss)].dim() == 0)
    answer.loss = outputs[static_cast<std::size_t>(loss)];
  answer.logits = logits_of(outputs);
  if (answer.loss.defined()) return answer;
  if (!answer.logits.defined()) {
    throw Error(
        ErrorCode::kUnsupported,
        "the model has neither a loss nor logits: its outputs are " + joined(outputs.names, ", "),
        "export it with `accel export --loss inside`");
  }
  const at::Tensor widened = answer.logits.to(at::kFloat);
  answer.loss = is_causal_ ? causal_loss(widened, target) : at::cross_entropy_loss(widened, target);
  return answer;
}

}  // namespace accel::train
