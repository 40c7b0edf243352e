#include "train/train_settings.h"

#include <cmath>
#include <istream>
#include <iterator>
#include <memory>

#include <CLI/CLI.hpp>
#include <yaml-cpp/yaml.h>

namespace accel::train {
namespace {

// A map of names of flags to values or lists, as CLI11 wants it.
class YamlConfig : public CLI::Config {
 public:
  std::string to_config(const CLI::App* /*app*/, bool, bool, std::string) const override {
    return "";
  }
  std::vector<CLI::ConfigItem> from_config(std::istream& input) const override {
    const std::string text(std::istreambuf_iterator<char>(input), {});
    std::vector<CLI::ConfigItem> items;
    try {
      const YAML::Node root = YAML::Load(text);
      if (root.IsNull()) return items;
      if (!root.IsMap()) throw CLI::FileError("the file of settings is no map of flags to values");
      for (const auto& entry : root) items.push_back(item_of(entry.first, entry.second));
    } catch (const YAML::Exception& error) {
      throw CLI::FileError(std::string("the file of settings is no YAML: ") + error.what());
    }
    return items;
  }

 private:
  static CLI::ConfigItem item_of(const YAML::Node& key, const YAML::Node& value) {
    CLI::ConfigItem item;
    item.name = key.as<std::string>();
    if (value.IsMap()) throw CLI::FileError(item.name + " is a map, expected a value or a list");
    if (value.IsSequence()) {
      for (const YAML::Node& part : value) item.inputs.push_back(part.as<std::string>());
    } else if (!value.IsNull()) {
      item.inputs.push_back(value.as<std::string>());
    }
    return item;
  }
};

CLI::Validator finite() {
  return {[](std::string& text) {
            char* end = nullptr;
            const double value = std::strtod(text.c_str(), &end);
            const bool is_number = end != text.c_str() && *end == '\0' && std::isfinite(value);
            return is_number ? std::string() : "not a number: " + text;
          },
          "NUMBER"};
}

constexpr int kMost = 1'000'000'000;

void add_data_flags(CLI::App& app, TrainSettings& settings) {
  const std::string group = "Data";
  app.add_option("--task", settings.task, "causal-lm: predict the next token; classification")
      ->check(CLI::IsMember({"causal-lm", "classification"}))
      ->group(group)
      ->capture_default_str();
  app.add_option("--data",
                 settings.data,
                 "files: tokens as .npy, .safetensors or .bin; text as .txt or .jsonl, with "
                 "--tokenizer; rows or images to classify as .csv or .npy")
      ->required()
      ->check(CLI::ExistingFile)
      ->group(group);
  app.add_option("--eval_data", settings.eval_data, "files of the same kind, to evaluate with")
      ->check(CLI::ExistingFile)
      ->group(group);
  app.add_option("--sequence_length", settings.sequence_length, "tokens of a sample")
      ->check(CLI::Range(2, kMost))
      ->group(group)
      ->capture_default_str();
  app.add_option("--label_column", settings.label_column, "the column of a .csv with the class")
      ->group(group)
      ->capture_default_str();
  app.add_option(
         "--labels", settings.labels, ".npy files with the classes, one for each .npy of --data")
      ->check(CLI::ExistingFile)
      ->group(group);
  app.add_option("--eval_labels", settings.eval_labels, "the same for --eval_data")
      ->check(CLI::ExistingFile)
      ->group(group);
  app.add_option("--scale", settings.scale, "numbers of .npy to classify are divided by it")
      ->check(finite())
      ->check(CLI::PositiveNumber)
      ->group(group)
      ->capture_default_str();
  app.add_option("--mean", settings.mean, "taken off after that: one, or one for each channel")
      ->check(finite())
      ->group(group);
  app.add_option("--std", settings.stddev, "then the numbers are divided by it, as by --mean")
      ->check(finite())
      ->check(CLI::PositiveNumber)
      ->group(group);
  app.add_flag("--channels_last",
               settings.channels_last,
               "images of .npy are height, width, channels; the model takes channels first")
      ->group(group);
  app.add_option("--batch_size", settings.batch_size, "samples a batch and process")
      ->check(CLI::Range(1, kMost))
      ->group(group)
      ->capture_default_str();
  app.add_flag("--no_shuffle", settings.keeps_order, "take the samples in the order of the files")
      ->group(group);
  app.add_option("--num_workers", settings.num_workers, "threads that read ahead")
      ->check(CLI::Range(0, 1024))
      ->group(group)
      ->capture_default_str();
}

void add_text_flags(CLI::App& app, TrainSettings& settings) {
  const std::string group = "Text";
  app.add_option("--tokenizer",
                 settings.tokenizer,
                 "a tokenizer.json: files of text become tokens, once, before workers start")
      ->check(CLI::ExistingFile)
      ->group(group);
  app.add_option("--end_of_text",
                 settings.end_of_text,
                 "the token behind each document, or none; else the tokenizer's own")
      ->group(group);
  app.add_option("--text_field", settings.text_field, "the text in a line of .jsonl")
      ->group(group)
      ->capture_default_str();
  app.add_option("--tokens_dir",
                 settings.tokens_dir,
                 "where tokens of texts are kept for the next run; else tokens in the project")
      ->group(group);
  app.add_option(
         "--python", settings.python, "with the library tokenizers; else the one of a launch")
      ->group(group);
  // For the workers, from the launcher.
  app.add_option("--tokenized_data", settings.tokenized_data)->group("");
  app.add_option("--tokenized_eval_data", settings.tokenized_eval_data)->group("");
}

void add_training_flags(CLI::App& app, TrainSettings& settings) {
  const std::string group = "Training";
  app.add_option("--num_epochs", settings.num_epochs, "passes over the data")
      ->check(CLI::Range(1, kMost))
      ->group(group)
      ->capture_default_str();
  app.add_option("--max_steps", settings.max_steps, "stop after so many optimizer steps")
      ->check(CLI::Range(1, kMost))
      ->group(group);
  app.add_option("--optimizer", settings.optimizer, "adamw, adam or sgd")
      ->check(CLI::IsMember({"adamw", "adam", "sgd"}))
      ->group(group)
      ->capture_default_str();
  app.add_option("--lr", settings.lr, "the highest learning rate")
      ->check(finite())
      ->check(CLI::NonNegativeNumber)
      ->group(group)
      ->capture_default_str();
  app.add_option("--weight_decay", settings.weight_decay, "of the optimizer")
      ->check(finite())
      ->check(CLI::NonNegativeNumber)
      ->group(group)
      ->capture_default_str();
  app.add_option("--schedule", settings.schedule, "of the rate: constant, linear or cosine")
      ->check(CLI::IsMember({"constant", "linear", "cosine"}))
      ->group(group)
      ->capture_default_str();
  app.add_option("--warmup_steps", settings.warmup_steps, "steps in which the rate rises from 0")
      ->check(CLI::Range(0, kMost))
      ->group(group)
      ->capture_default_str();
  app.add_option("--max_grad_norm", settings.max_grad_norm, "clip gradients to it; 0: do not")
      ->check(finite())
      ->check(CLI::NonNegativeNumber)
      ->group(group)
      ->capture_default_str();
  app.add_option("--gradient_accumulation_steps",
                 settings.gradient_accumulation_steps,
                 "batches of an optimizer step")
      ->check(CLI::Range(1, kMost))
      ->group(group)
      ->capture_default_str();
  app.add_option("--mixed_precision",
                 settings.mixed_precision,
                 "no, bf16 or fp16; else as the launcher was told")
      ->group(group);
  app.add_option("--fsdp",
                 settings.fsdp,
                 "FULL_SHARD, SHARD_GRAD_OP, NO_SHARD, HYBRID_SHARD or HYBRID_SHARD_ZERO2; else as "
                 "the launcher was told")
      ->group(group);
  app.add_option("--seed", settings.seed, "of the order of samples and of dropout")
      ->group(group)
      ->capture_default_str();
}

void add_run_flags(CLI::App& app, TrainSettings& settings) {
  const std::string group = "Run";
  app.add_option(
         "--project_dir", settings.project_dir, "where checkpoints, metrics and the model go")
      ->group(group)
      ->capture_default_str();
  app.add_option("--save_steps", settings.save_steps, "steps between two checkpoints")
      ->check(CLI::Range(1, kMost))
      ->group(group)
      ->capture_default_str();
  app.add_option(
         "--eval_steps", settings.eval_steps, "steps between two evaluations; 0: each epoch")
      ->check(CLI::Range(0, kMost))
      ->group(group)
      ->capture_default_str();
  app.add_option("--log_steps", settings.log_steps, "steps between two lines of metrics")
      ->check(CLI::Range(1, kMost))
      ->group(group)
      ->capture_default_str();
  app.add_option("--total_limit", settings.total_limit, "checkpoints that are kept")
      ->check(CLI::Range(1, kMost))
      ->group(group)
      ->capture_default_str();
  app.add_option("--memory_checkpoint_every",
                 settings.memory_checkpoint_every,
                 "steps between two checkpoints in the launcher's memory, for --max_restarts")
      ->check(CLI::Range(0, kMost))
      ->group(group)
      ->capture_default_str();
  app.add_option("--metrics_file",
                 settings.metrics_file,
                 "a line of JSON for each, or of a table when it ends with .csv")
      ->group(group);
  CLI::Option* const resume =
      app.add_flag("--resume", settings.resume, "go on from the newest complete checkpoint");
  resume->group(group);
  app.add_flag("--overwrite", settings.overwrite, "delete the checkpoints of an earlier run")
      ->excludes(resume)
      ->group(group);
}

}  // namespace

void add_flags(CLI::App& app, TrainSettings& settings) {
  app.add_option("model", settings.model, "a .pt2 file, as `accel export` writes it")
      ->required()
      ->check(CLI::ExistingFile);
  app.add_option(
         "--weights", settings.weights, "a .safetensors file with the values of its parameters")
      ->check(CLI::ExistingFile);
  add_data_flags(app, settings);
  add_text_flags(app, settings);
  add_training_flags(app, settings);
  add_run_flags(app, settings);
  app.config_formatter(std::make_shared<YamlConfig>());
  app.set_config("--config", "", "a YAML file of these flags; what is typed holds before it");
  app.allow_config_extras(CLI::config_extras_mode::error);
}

}  // namespace accel::train
