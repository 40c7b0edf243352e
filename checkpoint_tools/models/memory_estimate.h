// MemoryEstimate: what a model takes to load and to train, from its tensors alone.
//
//   bytes of a dtype     numel x 4 for float32, 2 for float16 and bfloat16, 1 for int8, a half for int4
//   training with Adam   float32: 4 x the model (weights, gradients, two averages); 16 bit: 2 x the model in float32;
//                        nothing is said for integers
//   largest layer        of the modules that are never cut: a block of a transformer, or a module without children
//
// Source:   estimate_training_usage() and calculate_maximum_sizes() of HF Accelerate, whose figures these are.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace accel::launcher {

struct ModelTensor {
  std::string name;         // "encoder.layer.0.attention.self.query.weight"
  std::uint64_t numel = 0;  // of what is no float: its bytes / 4
  bool is_buffer = false;   // no parameter; only where a config.json tells
};

struct ModelInventory {
  std::string name;    // as it was asked for
  std::string source;  // what it was read from, for the user
  std::vector<ModelTensor> tensors;
  // Modules that stay whole, as components of which "*" is any number: "embeddings", "encoder.layer.*". Besides these,
  // every numbered block with attention in it stays whole.
  std::vector<std::string> whole_modules;
};

struct MemoryRow {
  std::string_view dtype;
  double largest_layer = 0;  // bytes
  double total = 0;
  std::optional<double> training;
};

// "float32", "float16", "bfloat16", "int8", "int4".
[[nodiscard]] bool is_estimated_dtype(std::string_view dtype) noexcept;

// Without buffers, and with them, which take memory too.
[[nodiscard]] std::uint64_t num_parameters(const ModelInventory& model);
[[nodiscard]] std::uint64_t num_elements(const ModelInventory& model);
// The elements of the largest module that stays whole.
[[nodiscard]] std::uint64_t largest_layer(const ModelInventory& model);
// One row for each dtype, in their order. Requires: is_estimated_dtype() of each.
[[nodiscard]] std::vector<MemoryRow> estimate_memory(const ModelInventory& model,
                                                     const std::vector<std::string>& dtypes);

// "413.18 MB", by 1024, as the peer rounds it.
[[nodiscard]] std::string readable_bytes(double bytes);

}  // namespace accel::launcher
