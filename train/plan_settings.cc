#include "train/plan_settings.h"

#include <CLI/CLI.hpp>

namespace accel::train {

void add_flags(CLI::App& app, PlanSettings& settings) {
  constexpr int kMany = 1'000'000;
  app.add_option("model", settings.model, "a .pt2 file, as `accel export` writes it")
      ->required()
      ->check(CLI::ExistingFile);
  app.add_option("--num_processes", settings.num_processes, "that train together")
      ->check(CLI::Range(1, kMany))
      ->capture_default_str();
  app.add_option("--num_machines", settings.num_machines, "that they are on, equally many each")
      ->check(CLI::Range(1, kMany))
      ->capture_default_str();
  CLI::Option* const memory = app.add_option(
      "--memory", settings.memory, "that one process may take, as 16GiB: says what fits");
  app.add_flag("--fit", settings.fit, "name the fastest strategy that fits, or what is missing")
      ->needs(memory);
  app.add_option("--fsdp_transformer_layer_cls_to_wrap",
                 settings.layer_class,
                 "a class of layers: plans computing them again, too");
  app.add_option("--offload_optimizer_nvme_path",
                 settings.optimizer_folder,
                 "a folder: plans the optimizer's state on its disk, too")
      ->check(CLI::ExistingDirectory);
  app.add_option("--network_rate", settings.network_rate, "bytes a second between machines")
      ->capture_default_str();
  app.add_option("--disk_rate", settings.disk_rate, "bytes a second of that folder, each way")
      ->capture_default_str();
  app.add_option("--batch_size", settings.batch_size, "samples a batch and process")
      ->check(CLI::Range(1, kMany))
      ->capture_default_str();
  app.add_option("--gradient_accumulation_steps",
                 settings.gradient_accumulation_steps,
                 "batches of an optimizer step")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  app.add_option("--task", settings.task, "causal-lm, or classification")
      ->check(CLI::IsMember({"causal-lm", "classification"}))
      ->capture_default_str();
  app.add_option("--sequence_length",
                 settings.sequence_length,
                 "tokens of a sample; else what the model takes, or 128")
      ->check(CLI::Range(2, kMany));
  app.add_option("--optimizer", settings.optimizer, "adamw, adam or sgd")
      ->check(CLI::IsMember({"adamw", "adam", "sgd"}))
      ->capture_default_str();
  app.add_option("--mixed_precision", settings.mixed_precision, "no, bf16 or fp16")
      ->check(CLI::IsMember({"no", "bf16", "fp16"}))
      ->capture_default_str();
  app.add_flag("--json", settings.json, "JSON, in bytes");
}

}  // namespace accel::train
