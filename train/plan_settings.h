// PlanSettings: what `accel plan` is told by flags. Those that `accel train` has too mean the same.
//
// Threads:  values.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include <CLI/App.hpp>

namespace accel::train {

struct PlanSettings {
  std::string model;
  std::string task = "causal-lm";
  std::optional<std::int64_t> sequence_length;  // unset: the model's own, else 128
  std::int64_t batch_size = 8;                  // of each process
  int num_processes = 1;
  int num_machines = 1;
  std::string memory;       // that one process may take, as "16GiB"; empty: any
  std::string layer_class;  // whose activations may be computed again; empty: none
  std::string
      optimizer_folder;  // where the optimizer's state may lie, on a disk; empty: in memory alone
  std::string mixed_precision = "no";
  std::string optimizer = "adamw";
  int gradient_accumulation_steps = 1;
  std::string network_rate = "1.25GB";  // bytes a second to other machines
  std::string disk_rate =
      "1GB";  // bytes a second that the disk of optimizer_folder reads while it writes as many
  bool fit = false;
  bool json = false;
};

// Makes the flags that write into `settings`, which must outlive `app`.
void add_flags(CLI::App& app, PlanSettings& settings);

}  // namespace accel::train
