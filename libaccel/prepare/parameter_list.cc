#include "libaccel/prepare/parameter_list.h"

#include <algorithm>
#include <sstream>
#include <unordered_set>
#include <utility>

#include <ATen/ops/empty.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/embedding.h>
#include <xxhash.h>

#include <accel/error.h>

#include "libaccel/process/process_group.h"
#include "libaccel/process/text_gather.h"

namespace accel {
namespace {

bool has_sparse_gradients(const torch::nn::Module& module) {
  if (const auto* embedding = module.as<torch::nn::EmbeddingImpl>()) {
    return embedding->options.sparse();
  }
  if (const auto* bag = module.as<torch::nn::EmbeddingBagImpl>()) return bag->options.sparse();
  return false;
}

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.push_back(std::move(line));
  return lines;
}

}  // namespace

std::vector<NamedParameter> trainable_parameters(const torch::nn::Module& module) {
  std::vector<NamedParameter> parameters;
  std::unordered_set<const c10::TensorImpl*> seen;
  const auto add = [&](const std::string& prefix, const torch::nn::Module& owner) {
    const bool is_sparse = has_sparse_gradients(owner);
    for (const auto& item : owner.named_parameters(/*recurse=*/false)) {
      const at::Tensor& tensor = item.value();
      if (!tensor.defined() || !tensor.requires_grad()) continue;
      if (!seen.insert(tensor.unsafeGetTensorImpl()).second) continue;
      parameters.push_back(
          {prefix.empty() ? item.key() : prefix + "." + item.key(), tensor, is_sparse});
    }
  };
  add("", module);
  for (const auto& item : module.named_modules("", /*include_self=*/false)) {
    add(item.key(), *item.value());
  }
  return parameters;
}

std::string describe(const std::vector<NamedParameter>& parameters) {
  std::ostringstream text;
  for (const NamedParameter& parameter : parameters) {
    text << parameter.name << ' ' << parameter.tensor.scalar_type() << ' '
         << parameter.tensor.sizes();
    if (!parameter.tensor.is_contiguous()) text << " strides " << parameter.tensor.strides();
    text << '\n';
  }
  return text.str();
}

std::optional<std::string> first_difference(const std::string& reference,
                                            const std::string& other) {
  const std::vector<std::string> expected = lines_of(reference);
  const std::vector<std::string> found = lines_of(other);
  const std::size_t length = std::max(expected.size(), found.size());
  for (std::size_t i = 0; i < length; ++i) {
    const std::string left = i < expected.size() ? "'" + expected[i] + "'" : "nothing more";
    const std::string right = i < found.size() ? "'" + found[i] + "'" : "nothing more";
    if (left != right) {
      return "has " + right + " where rank 0 has " + left + " (parameter " + std::to_string(i) +
             ")";
    }
  }
  return std::nullopt;
}

void verify_same_parameters(const std::vector<NamedParameter>& parameters, ProcessGroup& group) {
  const std::string own = describe(parameters);
  at::Tensor digest = at::empty({2}, at::kLong);
  auto* values = digest.data_ptr<std::int64_t>();
  values[0] = static_cast<std::int64_t>(XXH3_64bits(own.data(), own.size()));
  values[1] = static_cast<std::int64_t>(own.size());
  const at::Tensor digests = group.all_gather(digest, "comparing the models of the ranks");
  const auto* all = digests.data_ptr<std::int64_t>();
  std::int64_t longest = 0;
  bool all_equal = true;
  for (int rank = 0; rank < group.size(); ++rank) {
    all_equal = all_equal && all[2 * rank] == all[0] && all[2 * rank + 1] == all[1];
    longest = std::max(longest, all[2 * rank + 1]);
  }
  if (all_equal) return;

  const std::vector<std::string> texts =
      gather_texts(own, longest, group, "comparing the models of the ranks");
  for (std::size_t rank = 1; rank < texts.size(); ++rank) {
    const auto difference = first_difference(texts[0], texts[rank]);
    if (!difference) continue;
    throw Error(ErrorCode::kShapeMismatch,
                "the model of rank " + std::to_string(rank) + " " + *difference,
                "construct the same model on every rank, and freeze the same parameters")
        .while_doing("preparing the model");
  }
}

}  // namespace accel
