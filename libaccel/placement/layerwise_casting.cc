// Weights that are kept in one dtype and computed with in another one.
//
// They are paged (engine/pager/pager.h): the source keeps them in storage_dtype, and fills the pages in compute_dtype when an
// operator reads them. Pages for the two largest weights stay in memory, those that were used last.

#include <algorithm>
#include <memory>
#include <regex>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/grad_mode.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/linear.h>

#include <accel/error.h>
#include <accel/layerwise_casting.h>

#include "libaccel/engine/pager/host_memory.h"
#include "libaccel/engine/pager/pager.h"
#include "libaccel/engine/sharding/wrap_policy.h"
#include "libaccel/placement/module_outline.h"
#include "libaccel/tensors/unit_layout.h"

namespace accel {
namespace {

using torch::nn::Module;

bool is_castable(const Module& module) {
  return module.as<torch::nn::LinearImpl>() != nullptr ||
         module.as<torch::nn::Conv1dImpl>() != nullptr ||
         module.as<torch::nn::Conv2dImpl>() != nullptr ||
         module.as<torch::nn::Conv3dImpl>() != nullptr ||
         module.as<torch::nn::ConvTranspose1dImpl>() != nullptr ||
         module.as<torch::nn::ConvTranspose2dImpl>() != nullptr ||
         module.as<torch::nn::ConvTranspose3dImpl>() != nullptr;
}

void check_dtype(const char* name, at::ScalarType dtype) {
  if (at::isFloatingType(dtype)) return;
  throw Error(
      ErrorCode::kInvalidArgument,
      std::string(name) + " is " + c10::toString(dtype) + ", which is no floating point type",
      "use at::kFloat8_e4m3fn or at::kBFloat16 for storage, at::kBFloat16 or at::kFloat to "
      "compute");
}

std::vector<std::regex> compiled(const std::vector<std::string>& patterns) {
  std::vector<std::regex> expressions;
  for (const std::string& pattern : patterns) {
    try {
      expressions.emplace_back(pattern);
    } catch (const std::regex_error&) {
      throw Error(ErrorCode::kInvalidArgument,
                  "skip_modules_pattern has '" + pattern + "', which is no regular expression",
                  "write a literal '(' or '[' as '\\(' or '\\['");
    }
  }
  return expressions;
}

// Collects the weights of layers to be cast, parents first.
class CastLayers {
 public:
  explicit CastLayers(const LayerwiseCastingOptions& options)
      : patterns_(compiled(options.skip_modules_pattern)), classes_(options.skip_modules_classes) {}

  void visit(const Module& module, const std::string& path) {
    if (is_skipped(module, path)) return;
    if (!is_castable(module)) {
      for (const auto& child : module.named_children())
        visit(*child.value(), placement::path_of(path, child.key()));
      return;
    }
    for (const auto& parameter : module.named_parameters(/*recurse=*/false))
      if (parameter.value().is_floating_point())
        weights_.push_back({placement::path_of(path, parameter.key()), parameter.value()});
  }

  [[nodiscard]] const std::vector<pager::NamedTensor>& weights() const { return weights_; }

 private:
  [[nodiscard]] bool is_skipped(const Module& module, const std::string& path) const {
    return std::ranges::count(classes_, sharding::class_name_of(module.name())) > 0 ||
           std::ranges::any_of(patterns_,
                               [&](const std::regex& one) { return std::regex_search(path, one); });
  }

  std::vector<std::regex> patterns_;
  const std::vector<std::string>& classes_;
  std::vector<pager::NamedTensor> weights_;
};

std::size_t largest_cast_bytes(const std::vector<pager::NamedTensor>& weights,
                               at::ScalarType dtype) {
  std::size_t largest = 0;
  for (const auto& weight : weights)
    largest = std::max(largest,
                       static_cast<std::size_t>(weight.tensor.numel()) * c10::elementSize(dtype));
  return largest;
}

}  // namespace

void attach_layerwise_casting_hooks(Module& module,
                                    at::ScalarType storage_dtype,
                                    at::ScalarType compute_dtype,
                                    const LayerwiseCastingOptions& options) {
  check_dtype("storage_dtype", storage_dtype);
  check_dtype("compute_dtype", compute_dtype);
  CastLayers layers(options);
  layers.visit(module, "");
  if (layers.weights().empty()) return;
  const auto in_storage = [&](const UnitLayout& layout, std::span<const at::Tensor> values) {
    const at::NoGradGuard no_grad;
    std::vector<at::Tensor> stored;
    for (const at::Tensor& value : values) stored.push_back(value.to(storage_dtype));
    return std::make_unique<pager::HostMemory>(layout, stored);
  };
  // The pages outlive the pager: parameters keep them.
  (void)pager::Pager(layers.weights(),
                     {.max_live_bytes = 2 * largest_cast_bytes(layers.weights(), compute_dtype),
                      .unit_bytes = 1,
                      .page_dtype = compute_dtype,
                      .may_exceed = true,
                      .stays_paged = true},
                     in_storage);
}

}  // namespace accel
