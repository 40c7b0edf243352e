// GenerateSettings: what `accel generate` is told by flags. Names and defaults of sampling are those of transformers' generate().
//
// Threads:  values.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <CLI/App.hpp>

namespace accel::train {

struct GenerateSettings {
  std::string model;
  std::string weights;                  // a file of safetensors; empty: the model's own
  std::vector<std::string> prompt_ids;  // each as "1,2,3"
  std::string prompt_file;              // a prompt in each line; "-": standard input; empty: none
  std::int64_t max_new_tokens = 20;
  std::vector<std::int64_t> eos_token_id;
  bool do_sample = false;
  double temperature = 1.0;
  std::int64_t top_k = 50;  // 0: all
  double top_p = 1.0;
  std::uint64_t seed = 0;
  std::int64_t batch_size = 8;          // prompts at once
  std::int64_t prefill_chunk_size = 0;  // tokens of a prompt in one call; 0: all
  std::string max_memory;               // of the weights, as "2GiB"; empty: what is available
  std::string disk_cache;               // of the weights on disk, the same
  std::string offload_folder;
  std::vector<std::string> no_split_module_classes;
  bool json = false;
};

// Makes the flags that write into `settings`, which must outlive `app`.
void add_flags(CLI::App& app, GenerateSettings& settings);

}  // namespace accel::train
