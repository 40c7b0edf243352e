// ModelCall: how an exported model is called with a batch, and what of its outputs is the loss.
//
//   inputs    by their names: input_ids, or the first one: the samples. labels, targets, or y: what is to be predicted.
//             attention_mask: ones. Others are an error, unless they may be None
//   loss      the output "loss", or the only one when it has no dimensions; else the cross entropy of "logits", or of the only
//             output: with causal-lm each position predicts the next token
//
// Threads:  those of the model.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include <accel/exported_model.h>

namespace accel::train {

// The shape of a sample of an input, without the batch.
[[nodiscard]] std::vector<std::int64_t> sample_shape(const ExportedModel& net,
                                                     const std::string& input);

// Those called "logits", or the only output. Not defined where there are none.
[[nodiscard]] at::Tensor logits_of(const ExportedOutputs& outputs);

class ModelCall {
 public:
  // Throws kUnsupported for an input that is none of the above.
  ModelCall(const std::vector<std::string>& inputs, bool is_causal);

  // The input that the samples go into.
  [[nodiscard]] const std::string& sample_input() const { return inputs_.front(); }
  [[nodiscard]] ExportedInputs inputs(const at::Tensor& data, const at::Tensor& target) const;

  struct Answer {
    at::Tensor loss;    // 0-d, the mean over the batch
    at::Tensor logits;  // not defined when the model has none
  };
  // Throws kUnsupported when there is neither a loss nor logits.
  [[nodiscard]] Answer answer(const ExportedOutputs& outputs, const at::Tensor& target) const;

 private:
  enum class Role { kSamples, kTarget, kMask };
  std::vector<std::string> inputs_;
  std::vector<Role> roles_;
  bool is_causal_;
};

}  // namespace accel::train
