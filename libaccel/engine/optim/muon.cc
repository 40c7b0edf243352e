// The Newton-Schulz iteration X <- a X + (b A + c A^2) X with A = X X^T drives the singular values of X towards 1: its odd
// polynomial has been chosen to do so from anywhere between 0 and 1 in five rounds, roughly. It is computed in bf16, of the
// matrix or its transpose, whichever has fewer rows.

#include <algorithm>
#include <cmath>
#include <memory>
#include <sstream>
#include <utility>

#include <ATen/ops/addmm.h>
#include <ATen/ops/lerp.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/norm.h>
#include <ATen/ops/zeros_like.h>

#include <accel/muon.h>

#include "libaccel/engine/optim/stepped_parameters.h"
#include "libaccel/tensors/checked_number.h"

namespace accel {
namespace {

constexpr const char* kOriginal = "original";
constexpr const char* kMatchRms = "match_rms_adamw";

const MuonOptions& checked_muon_options(const MuonOptions& options) {
  check_number(options.lr() >= 0, "lr", options.lr(), "0 or above");
  check_number(options.momentum() >= 0, "momentum", options.momentum(), "0 or above");
  check_number(options.weight_decay() >= 0, "weight_decay", options.weight_decay(), "0 or above");
  check_number(options.ns_steps() >= 0 && options.ns_steps() < 100,
               "ns_steps",
               static_cast<double>(options.ns_steps()),
               "0 or more, and below 100");
  const auto& adjust = options.adjust_lr_fn();
  if (adjust && *adjust != kOriginal && *adjust != kMatchRms) {
    throw Error(ErrorCode::kInvalidArgument,
                "adjust_lr_fn is '" + *adjust + "', expected original or match_rms_adamw");
  }
  return options;
}

void refuse_other_than_matrices(const std::vector<torch::optim::OptimizerParamGroup>& groups) {
  for (const auto& group : groups) {
    for (const at::Tensor& parameter : group.params()) {
      if (parameter.dim() == 2) continue;
      std::ostringstream text;
      text << "Muon steps matrices, and got a parameter of shape " << parameter.sizes();
      throw Error(ErrorCode::kInvalidArgument,
                  text.str(),
                  "give biases, norms and convolutions to an AdamW of their own");
    }
  }
}

at::Tensor orthogonalized(const at::Tensor& update, const MuonOptions& options) {
  const auto [a, b, c] = options.ns_coefficients();
  const bool is_tall = update.size(0) > update.size(1);
  at::Tensor x = update.to(at::kBFloat16);
  if (x.is_same(update)) x = x.clone();
  if (is_tall) x = x.t();
  x.div_(at::norm(x).clamp_min(options.eps()));
  for (std::int64_t step = 0; step < options.ns_steps(); ++step) {
    const at::Tensor gram = at::mm(x, x.t());
    const at::Tensor gram_update = at::addmm(gram, gram, gram, /*beta=*/b, /*alpha=*/c);
    x = at::addmm(x, gram_update, x, /*beta=*/a);
  }
  return is_tall ? x.t() : x;
}

double adjusted_lr(const MuonOptions& options, const at::Tensor& parameter) {
  const auto rows = static_cast<double>(parameter.size(0));
  const auto columns = static_cast<double>(parameter.size(1));
  return options.lr() * (options.adjust_lr_fn() == kMatchRms
                             ? 0.2 * std::sqrt(std::max(rows, columns))
                             : std::sqrt(std::max(1.0, rows / columns)));
}

}  // namespace

MuonOptions::MuonOptions(double lr) : lr_(lr) {}

Muon::Muon(const std::vector<torch::optim::OptimizerParamGroup>& groups, MuonOptions defaults)
    : CheckpointedOptimizer(groups, std::make_unique<MuonOptions>(checked_muon_options(defaults))) {
  refuse_other_than_matrices(groups);
}

Muon::Muon(std::vector<at::Tensor> parameters, MuonOptions defaults)
    : Muon({torch::optim::OptimizerParamGroup(std::move(parameters))}, std::move(defaults)) {}

at::Tensor Muon::step(LossClosure closure) {
  const at::NoGradGuard no_grad;
  at::Tensor loss = loss_of(closure);
  for (auto& group : param_groups()) {
    const auto& options = static_cast<const MuonOptions&>(group.options());
    step_each<MuonState>(
        *this,
        group,
        "Muon",
        [&](at::Tensor& parameter, const at::Tensor& gradient, MuonState& state) {
          if (gradient.is_complex()) {
            throw Error(ErrorCode::kUnsupported,
                        "Muon got a gradient of complex numbers",
                        "give the parameter to an AdamW of its own");
          }
          if (!state.momentum_buffer().defined())
            state.momentum_buffer(at::zeros_like(gradient, at::MemoryFormat::Preserve));
          at::Tensor& momentum = state.momentum_buffer();
          momentum.lerp_(gradient, 1 - options.momentum());
          const at::Tensor update =
              options.nesterov() ? at::lerp(gradient, momentum, options.momentum()) : momentum;
          const at::Tensor direction = orthogonalized(update, options);
          parameter.mul_(1 - options.lr() * options.weight_decay());
          parameter.add_(direction, -adjusted_lr(options, parameter));
        });
  }
  return loss;
}

}  // namespace accel
