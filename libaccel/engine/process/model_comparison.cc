#include "libaccel/engine/process/model_comparison.h"

#include <algorithm>
#include <optional>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#include <torch/nn/module.h>

#include <accel/error.h>

#include "libaccel/engine/process/agreement.h"
#include "libaccel/tensors/parameter_list.h"

namespace accel {
namespace {

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

// A line for each parameter, then for each buffer that is compared: "name dtype [2, 3]", with its strides when they are
// not those of a contiguous tensor (flat gradients and shards are laid out as the parameter is), and the word frozen or
// buffer.
std::string describe_model(const torch::nn::Module& module, Buffers buffers) {
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

// How the first line of `other` that differs from rank 0's `reference` differs, as the end of a sentence
// ("has 'w Float [2]' where ...").
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

}  // namespace

void verify_same_models(const torch::nn::Module& module, Buffers buffers, ProcessGroup& group) {
  const auto other = first_deviation(describe_model(module, buffers),
                                     first_difference,
                                     group,
                                     "comparing the models of the ranks");
  if (!other) return;
  throw Error(ErrorCode::kShapeMismatch,
              "the model of rank " + std::to_string(other->rank) + " " + other->difference,
              "construct the same model on every rank, and freeze the same parameters")
      .while_doing("preparing the model");
}

}  // namespace accel
