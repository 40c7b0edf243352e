// TrainSettings: what `accel train` is told, by flags or by a YAML file with the same names.
//
// Threads:  values.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <CLI/App.hpp>

namespace accel::train {

struct TrainSettings {
  std::string model;
  std::string weights;  // safetensors in place of the archive's; empty: the archive's

  std::string task = "causal-lm";  // or classification
  std::vector<std::string> data;
  std::vector<std::string> eval_data;
  std::string tokenizer;    // of files of text: a tokenizer.json; empty: there are none
  std::string end_of_text;  // behind each document: a token, or none; empty: the tokenizer's own
  std::string text_field = "text";  // of a line of .jsonl
  std::string tokens_dir;           // of texts; empty: tokens in project_dir
  std::string python;               // that has `tokenizers`; empty: the launcher's
  // What `accel train` made of data and eval_data with a tokenizer: the same files, with tokens in place of texts.
  std::vector<std::string> tokenized_data;
  std::vector<std::string> tokenized_eval_data;
  std::int64_t sequence_length = 128;    // causal-lm: tokens of a sample
  std::string label_column = "label";    // classification: of a CSV file
  std::vector<std::string> labels;       // classification: of .npy files, one for each of `data`
  std::vector<std::string> eval_labels;  // of eval_data
  double scale = 1.0;                    // numbers of .npy are divided by it
  std::vector<double> mean;     // then these are taken off, one for each channel or one for all,
  std::vector<double> stddev;   // and the rest is divided by these
  bool channels_last = false;   // samples of .npy are height, width, channels
  std::int64_t batch_size = 8;  // of each process
  int num_workers = 0;
  bool keeps_order = false;  // of the samples, in training

  int num_epochs = 1;
  std::int64_t max_steps = -1;  // -1: all epochs
  std::string optimizer = "adamw";
  double lr = 1e-4;
  double weight_decay = 0.01;
  std::string schedule = "linear";
  std::int64_t warmup_steps = 0;
  double max_grad_norm = 1.0;  // 0: gradients are not clipped
  int gradient_accumulation_steps = 1;
  std::optional<std::string> mixed_precision;  // otherwise as the launcher was told
  std::optional<std::string> fsdp;  // a sharding strategy; otherwise as the launcher was told
  std::uint64_t seed = 0;

  std::string project_dir = "accel_train";
  std::int64_t save_steps = 500;
  std::int64_t eval_steps = 0;  // 0: after each epoch
  std::int64_t log_steps = 10;
  int total_limit = 2;
  int memory_checkpoint_every = 0;
  std::string metrics_file;  // empty: metrics.jsonl in project_dir
  bool resume = false;
  bool overwrite = false;

  [[nodiscard]] const std::vector<std::string>& training_files() const {
    return tokenized_data.empty() ? data : tokenized_data;
  }
  [[nodiscard]] const std::vector<std::string>& evaluation_files() const {
    return tokenized_eval_data.empty() ? eval_data : tokenized_eval_data;
  }
};

// Makes the flags that write into `settings`, which must outlive `app`.
void add_flags(CLI::App& app, TrainSettings& settings);

}  // namespace accel::train
