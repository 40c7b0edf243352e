// TokenChoice: which token follows, of the scores that a model gives.
//
// As transformers' generate() chooses: scores are divided by the temperature, then those below the top_k largest go, then those
// outside of the smallest set of likeliest ones with the probability top_p. Of the rest one is drawn, with the draws of
// torch.multinomial() after torch.manual_seed(seed).
//
// Threads:  one at a time.
// Source:   transformers 5.24, generation/logits_process.py (tests/peer/generate_command.py).
#pragma once

#include <cstdint>

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>

namespace accel::train {

struct ChoiceOptions {
  double temperature = 1.0;
  std::int64_t top_k = 50;  // 0: all
  double top_p = 1.0;
};

// The scores of what may be drawn, and minus infinity for the rest. scores: floats, in one dimension. Pure.
[[nodiscard]] at::Tensor warped_scores(const at::Tensor& scores, const ChoiceOptions& options);

// logits: of the whole vocabulary, in one dimension. Pure.
[[nodiscard]] std::int64_t likeliest_token(const at::Tensor& logits);

// Draws tokens of one sequence.
class TokenChoice {
 public:
  TokenChoice(const ChoiceOptions& options, std::uint64_t seed);

  // logits: as above.
  [[nodiscard]] std::int64_t operator()(const at::Tensor& logits);

 private:
  ChoiceOptions options_;
  at::Generator generator_;
};

}  // namespace accel::train
