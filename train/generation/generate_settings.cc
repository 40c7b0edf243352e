#include "train/generation/generate_settings.h"

#include <cmath>
#include <limits>

#include <CLI/CLI.hpp>

namespace accel::train {
namespace {

constexpr std::int64_t kMostTokens = 1'000'000'000;

// A range lets NaN through. The message; empty: none.
std::string refuse_no_number(const std::string& text) {
  double number = 0;
  const bool is_finite = CLI::detail::lexical_cast(text, number) && std::isfinite(number);
  return is_finite ? "" : text + " is no finite number";
}

void add_prompt_flags(CLI::App& app, GenerateSettings& settings) {
  const std::string group = "Prompts";
  app.add_option("--prompt_ids", settings.prompt_ids, "token ids as 1,2,3 (repeatable)")
      ->allow_extra_args(false)
      ->group(group);
  app.add_option("--prompt_file",
                 settings.prompt_file,
                 "a file with such a prompt in each line; - is stdin")
      ->group(group);
  app.add_option("--batch_size", settings.batch_size, "prompts that run at once")
      ->check(CLI::Range(std::int64_t{1}, kMostTokens))
      ->group(group)
      ->capture_default_str();
  app.add_option("--prefill_chunk_size",
                 settings.prefill_chunk_size,
                 "tokens of a prompt in one call; 0: all")
      ->check(CLI::Range(std::int64_t{0}, kMostTokens))
      ->group(group)
      ->capture_default_str();
}

void add_token_flags(CLI::App& app, GenerateSettings& settings) {
  const std::string group = "Tokens";
  constexpr double kLargest = std::numeric_limits<double>::max();
  app.add_option("--max_new_tokens", settings.max_new_tokens, "the most for a prompt")
      ->check(CLI::Range(std::int64_t{1}, kMostTokens))
      ->group(group)
      ->capture_default_str();
  app.add_option("--eos_token_id", settings.eos_token_id, "ids that end a sequence, as 2 or 1,2")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->group(group);
  app.add_flag("--do_sample", settings.do_sample, "draw tokens; else the likeliest is taken")
      ->group(group);
  app.add_option("--temperature", settings.temperature, "scores are divided by it")
      ->check(CLI::Range(std::numeric_limits<double>::min(), kLargest))
      ->check(refuse_no_number)
      ->group(group)
      ->capture_default_str();
  app.add_option("--top_k", settings.top_k, "draw among so many of the likeliest; 0: all")
      ->check(CLI::Range(std::int64_t{0}, kMostTokens))
      ->group(group)
      ->capture_default_str();
  app.add_option("--top_p", settings.top_p, "then among the likeliest of this probability")
      ->check(CLI::Range(0.0, 1.0))
      ->check(refuse_no_number)
      ->group(group)
      ->capture_default_str();
  app.add_option("--seed", settings.seed, "of the draws; the second prompt has the next one")
      ->group(group)
      ->capture_default_str();
}

void add_memory_flags(CLI::App& app, GenerateSettings& settings) {
  const std::string group = "Memory";
  app.add_option("--max_memory",
                 settings.max_memory,
                 "of the weights, as 2GiB; others stay on disk. Else what is available")
      ->group(group);
  app.add_option("--no_split_module_classes",
                 settings.no_split_module_classes,
                 "classes of modules that stay in one place")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->group(group);
  app.add_option("--offload_folder",
                 settings.offload_folder,
                 "for weights that cannot be read in their own file")
      ->group(group);
  app.add_option("--disk_cache",
                 settings.disk_cache,
                 "the most of the weights on disk that is in memory at once")
      ->group(group);
}

}  // namespace

void add_flags(CLI::App& app, GenerateSettings& settings) {
  app.add_option("model", settings.model, "a .pt2 file of a model from tokens to logits")
      ->required()
      ->check(CLI::ExistingFile);
  app.add_option(
         "--weights", settings.weights, "a .safetensors file with the values of its parameters")
      ->check(CLI::ExistingFile);
  add_prompt_flags(app, settings);
  add_token_flags(app, settings);
  add_memory_flags(app, settings);
  app.add_flag("--json", settings.json, "a line of JSON for each prompt");
}

}  // namespace accel::train
