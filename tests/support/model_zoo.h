// ModelZoo: one small model of each kind that paging and sharding must not change.
//
// All take [N, 16] floats and give a float tensor; in training mode as made. Equal seeds make equal models.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

namespace accel::test {

struct ZooModel : torch::nn::Module {
  virtual at::Tensor forward(const at::Tensor& input) = 0;  // [N, width()]
  // For models that leave parts out in some batches: which ones follows from this number.
  virtual void begin_batch(std::uint64_t /*number*/) {}
  [[nodiscard]] virtual std::int64_t width() const { return 16; }
};

struct ZooEntry {
  const char* name;
  std::function<std::shared_ptr<ZooModel>()> make;
  bool shares_storage = false;  // two parameters over one memory, which sharding refuses
  bool is_script = false;
};

const std::vector<ZooEntry>& model_zoo();

// For the names of parameterised tests.
inline std::string zoo_name(std::size_t index) {
  return model_zoo()[index].name;
}
inline constexpr std::size_t kZooSize = 12;  // a test compares it with model_zoo().size()

// CharGpt of the examples, small.
std::shared_ptr<ZooModel> make_zoo_gpt();

}  // namespace accel::test
