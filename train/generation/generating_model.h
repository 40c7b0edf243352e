// GeneratingModel: an exported model from tokens to logits, with its weights in memory or on disk.
//
//   with a cache     input_ids [rows, tokens] and cache_position [tokens], as transformers exports with a static cache: keys and values
//                    are buffers that the graph writes. Each lane of calls has its own
//   without a cache  input_ids [batch, sequence]; labels and attention_mask too, as `accel export` has them
//
// Threads:  one at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include <ATen/core/Tensor.h>

#include <accel/exported_calls.h>
#include <accel/exported_model.h>

#include "train/generation/decoding.h"
#include "train/generation/generate_settings.h"
#include "train/model_call.h"

namespace accel::train {

class GeneratingModel {
 public:
  // The graph alone. Throws kUnsupported: it takes or keeps something else; what ExportedModel throws.
  explicit GeneratingModel(const GenerateSettings& settings);
  // Before the first call. num_sequences: how many there are, 1 or more. Throws what load_checkpoint_and_dispatch() throws.
  void load_weights(const GenerateSettings& settings, std::int64_t num_sequences);

  [[nodiscard]] const ModelShape& shape() const noexcept { return shape_; }
  // Of the tokens that it knows; -1: not known.
  [[nodiscard]] std::int64_t vocabulary() const;

  // The logits of each call, [rows, tokens, vocabulary]. Lanes that are not in `calls` are forgotten.
  [[nodiscard]] std::vector<at::Tensor> operator()(const std::vector<PlannedCall>& calls,
                                                   const std::vector<Sequence>& sequences);

 private:
  [[nodiscard]] at::Tensor tokens_of(const PlannedCall& call,
                                     const std::vector<Sequence>& sequences) const;
  // One for each call. Those of other lanes are freed before any is made.
  void hold_states(const std::vector<PlannedCall>& calls);
  [[nodiscard]] ExportedInputs inputs_of(const PlannedCall& call, const at::Tensor& tokens) const;

  ExportedModel net_;
  std::optional<ModelCall> call_;  // without a cache
  ExportedCalls calls_;
  ModelShape shape_;
  std::map<std::size_t, ExportedState> states_;  // by lane
};

}  // namespace accel::train
