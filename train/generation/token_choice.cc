#include "train/generation/token_choice.h"

#include <algorithm>
#include <limits>
#include <tuple>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>

namespace accel::train {
namespace {

constexpr double kNever = -std::numeric_limits<double>::infinity();

}  // namespace

at::Tensor warped_scores(const at::Tensor& scores, const ChoiceOptions& options) {
  at::Tensor left = options.temperature == 1.0 ? scores : scores / options.temperature;
  if (options.top_k > 0) {
    const at::Tensor largest = std::get<0>(at::topk(left, std::min(options.top_k, left.size(0))));
    left = left.masked_fill(left < largest[-1], kNever);
  }
  if (options.top_p < 1.0) {
    const auto [ascending, places] = at::sort(left);
    at::Tensor removed = at::cumsum(at::softmax(ascending, -1), -1) <= 1.0 - options.top_p;
    removed[-1].fill_(false);
    left = left.masked_fill(removed.scatter(0, places, removed), kNever);
  }
  return left;
}

std::int64_t likeliest_token(const at::Tensor& logits) {
  return logits.to(at::kFloat).argmax().item<std::int64_t>();
}

TokenChoice::TokenChoice(const ChoiceOptions& options, std::uint64_t seed)
    : options_(options), generator_(at::detail::createCPUGenerator(seed)) {}

std::int64_t TokenChoice::operator()(const at::Tensor& logits) {
  const at::Tensor scores = logits.to(at::kFloat);
  const at::Tensor probabilities = at::softmax(warped_scores(scores, options_), -1);
  return at::multinomial(probabilities, 1, false, generator_).item<std::int64_t>();
}

}  // namespace accel::train
