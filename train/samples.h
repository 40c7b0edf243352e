// Samples: what a task trains on, as a dataset of libaccel's loader: `data` goes into the model's first input, `target` is what it
// is to predict.
//
//   causal-lm        data: sequence_length tokens (int64); target: the same ones. The samples of a file lie one behind the other;
//                    what is left at its end is no sample
//   classification   data: the numbers of a row of .csv or .npy (float32), in the shape of the model's input; target: its class
//                    (int64). Those of .npy are read as they are asked for, scaled and normalized: (x / scale - mean) / std
//
// Threads:  get() may be called by many at once.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/data/example.h>

#include "train/train_settings.h"

namespace accel::train {

class SampleSource;

class Samples {
 public:
  // labels: of .npy files to classify, one for each. shape: of a sample of the model's first input, without the batch; -1: any size, at most once. num_tokens: that the model knows;
  // -1: it is not known. Throws what reading the files throws; kInvalidArgument for files with no sample, and rows that do not
  // fit the shape.
  Samples(const TrainSettings& settings,
          const std::vector<std::string>& files,
          const std::vector<std::string>& labels,
          const std::vector<std::int64_t>& shape,
          std::int64_t num_tokens);

  // Throws what reading throws; kInvalidArgument for a token that the model does not know.
  [[nodiscard]] torch::data::Example<> get(std::size_t index) const;
  [[nodiscard]] std::size_t size() const;

 private:
  std::shared_ptr<const SampleSource> source_;  // of all copies
};

}  // namespace accel::train
