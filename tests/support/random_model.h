// RandomModel: a small model made from a seed: layers of many kinds, used once or more often, one tensor under two names, frozen, of two dtypes,
// experts of which a batch uses one; some layers are skipped in some batches.
#pragma once

#include <cstdint>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "tests/support/model_zoo.h"

namespace accel::test {

struct RandomModelOptions {
  bool may_share_storage = true;  // also two parameters over one memory
  // The first layer, which each batch uses. Copies cannot average the gradients of a rank that has none at all.
  bool may_freeze_first_layer = true;
};

class RandomModel final : public ZooModel {
 public:
  explicit RandomModel(std::uint64_t seed, const RandomModelOptions& options = {});

  at::Tensor forward(const at::Tensor& input) override;
  // Bits that say which layers are left out and which experts are used.
  void begin_batch(std::uint64_t number) override { choices_ = std::mt19937_64(number)(); }
  [[nodiscard]] std::int64_t width() const override { return width_; }

 private:
  using Layer = std::function<at::Tensor(const at::Tensor&)>;

  std::int64_t below(std::int64_t limit) {
    return static_cast<std::int64_t>(random_() % static_cast<std::uint64_t>(limit));
  }
  void add_layer(const std::string& name);
  void add_experts(const std::string& name);

  RandomModelOptions options_;
  std::mt19937_64 random_;
  std::int64_t width_;
  std::uint64_t choices_ = 0;
  std::vector<Layer> layers_;
  std::vector<at::Tensor> matrices_;  // [width, width], of the layers so far
};

}  // namespace accel::test
