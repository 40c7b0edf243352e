#include "libaccel/prepare/parameter_list.h"

#include <algorithm>
#include <sstream>
#include <string_view>
#include <unordered_set>
#include <utility>

#include <torch/nn/module.h>
#include <torch/nn/modules/embedding.h>

#include <accel/error.h>

#include "libaccel/process/agreement.h"

namespace accel {
namespace {

bool has_sparse_gradients(const torch::nn::Module& module) {
  if (const auto* embedding = module.as<torch::nn::EmbeddingImpl>()) {
    return embedding->options.sparse();
  }
  if (const auto* bag = module.as<torch::nn::EmbeddingBagImpl>()) return bag->options.sparse();
  return false;
}

// visit(name, tensor, the module that registered it) for each once: a tied one under its first name.
template <typename Visit>
void for_each_parameter(const torch::nn::Module& module, const Visit& visit) {
  std::unordered_set<const c10::TensorImpl*> seen;
  const auto visit_those_of = [&](const std::string& prefix, const torch::nn::Module& owner) {
    for (const auto& item : owner.named_parameters(/*recurse=*/false)) {
      const at::Tensor& tensor = item.value();
      if (!tensor.defined() || !seen.insert(tensor.unsafeGetTensorImpl()).second) continue;
      visit(prefix.empty() ? item.key() : prefix + "." + item.key(), tensor, owner);
    }
  };
  visit_those_of("", module);
  for (const auto& item : module.named_modules("", /*include_self=*/false)) {
    visit_those_of(item.key(), *item.value());
  }
}

constexpr std::string_view kBuffer = " buffer";
constexpr std::string_view kFrozen = " frozen";

std::string line_of(const std::string& name, const at::Tensor& tensor, std::string_view kind) {
  std::ostringstream line;
  line << name << ' ' << tensor.scalar_type() << ' ' << tensor.sizes();
  if (tensor.layout() == at::kStrided && !tensor.is_contiguous())
    line << " strides " << tensor.strides();
  line << kind << '\n';
  return line.str();
}

}  // namespace

std::vector<NamedParameter> trainable_parameters(const torch::nn::Module& module) {
  std::vector<NamedParameter> parameters;
  for_each_parameter(
      module,
      [&](const std::string& name, const at::Tensor& tensor, const torch::nn::Module& owner) {
        if (tensor.requires_grad())
          parameters.push_back({name, tensor, has_sparse_gradients(owner)});
      });
  return parameters;
}

std::string describe(const torch::nn::Module& module, Buffers buffers) {
  std::string text;
  for_each_parameter(
      module, [&](const std::string& name, const at::Tensor& tensor, const torch::nn::Module&) {
        text += line_of(name, tensor, tensor.requires_grad() ? "" : kFrozen);
      });
  if (buffers == Buffers::kOwn) return text;
  for (const auto& item : module.named_buffers()) {
    if (item.value().defined()) text += line_of(item.key(), item.value(), kBuffer);
  }
  return text;
}

std::optional<std::string> first_difference(const std::string& reference,
                                            const std::string& other) {
  const std::vector<std::string> expected = lines_of(reference);
  const std::vector<std::string> found = lines_of(other);
  const std::size_t length = std::max(expected.size(), found.size());
  for (std::size_t i = 0; i < length; ++i) {
    const std::string left = i < expected.size() ? "'" + expected[i] + "'" : "nothing more";
    const std::string right = i < found.size() ? "'" + found[i] + "'" : "nothing more";
    if (left == right) continue;
    const bool is_buffer = (i < expected.size() && expected[i].ends_with(kBuffer)) ||
                           (i < found.size() && found[i].ends_with(kBuffer));
    return "has " + right + " where rank 0 has " + left +
           (is_buffer ? "" : " (parameter " + std::to_string(i) + ")");
  }
  return std::nullopt;
}

void verify_same_models(const torch::nn::Module& module, Buffers buffers, ProcessGroup& group) {
  const auto other = first_deviation(
      describe(module, buffers), first_difference, group, "comparing the models of the ranks");
  if (!other) return;
  throw Error(ErrorCode::kShapeMismatch,
              "the model of rank " + std::to_string(other->rank) + " " + other->difference,
              "construct the same model on every rank, and freeze the same parameters")
      .while_doing("preparing the model");
}

}  // namespace accel
