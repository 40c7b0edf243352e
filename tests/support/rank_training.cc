#include "tests/support/rank_training.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/randn.h>
#include <torch/optim/adamw.h>
#include <torch/utils.h>

#include <accel/accelerator.h>
#include <accel/operations.h>
#include <accel/precision.h>
#include <accel/state.h>

namespace accel::test {
namespace {

constexpr std::int64_t kSamples = 6;
constexpr std::uint64_t kWeightSeed = 3;

std::shared_ptr<ZooModel> seeded(const MakeZooModel& make) {
  torch::manual_seed(kWeightSeed);
  auto model = make();
  model->train();
  return model;
}

// The batch, and the generator as it shall be when forward() draws from it.
at::Tensor begin_batch(ZooModel& model, int step, int part, int rank) {
  const std::uint64_t number =
      static_cast<std::uint64_t>(step) * 1000 + static_cast<std::uint64_t>(part) * 100 + rank;
  torch::manual_seed(number);
  model.begin_batch(number);
  // So that backward() has something to do in a model of which all is frozen.
  return at::randn({kSamples, model.width()}).requires_grad_();
}

at::Tensor loss_of(const at::Tensor& output) {
  return output.square().mean();
}

std::unique_ptr<torch::optim::Optimizer> make_optimizer(std::vector<at::Tensor> parameters) {
  return std::make_unique<torch::optim::AdamW>(std::move(parameters),
                                               torch::optim::AdamWOptions(0.01));
}

// As parameters() of Python has them: a tied one once.
std::vector<at::Tensor> parameters_as_in_python(const ZooModel& model) {
  std::vector<at::Tensor> once;
  for (const at::Tensor& parameter : model.parameters()) {
    const bool is_listed = std::any_of(
        once.begin(), once.end(), [&](const auto& it) { return it.is_same(parameter); });
    if (!is_listed) once.push_back(parameter);
  }
  return once;
}

Trained result_of(const ZooModel& model, std::vector<at::Tensor> losses) {
  Trained result{.losses = std::move(losses)};
  for (const at::Tensor& parameter : model.parameters())
    result.parameters.push_back(parameter.detach().clone());
  for (const at::Tensor& buffer : model.buffers())
    result.buffers.push_back(buffer.detach().clone());
  return result;
}

// Sums of 16-bit numbers are made in fp32, and rounded once.
at::ScalarType sum_dtype(const at::Tensor& tensor) {
  return at::isReducedFloatingType(tensor.scalar_type()) ? at::kFloat : tensor.scalar_type();
}

// Forward and backward of one process; returns the loss.
at::Tensor run_batch(ZooModel& model, int step, int part, int rank, const Recipe& recipe) {
  const at::Tensor batch = begin_batch(model, step, part, rank);
  at::Tensor output;
  {
    const Autocast autocast(AutocastOptions{.enabled = recipe.is_bf16});
    output = model.forward(batch);
  }
  if (recipe.is_bf16) output = output.to(at::kFloat);
  const at::Tensor loss = loss_of(output);
  (recipe.accumulation == 1 ? loss : loss / recipe.accumulation).backward();
  return loss.detach();
}

// The gradients of all replicas become the first one's; what none has stays undefined.
void average_gradients(const std::vector<std::shared_ptr<ZooModel>>& replicas) {
  const auto averaged = replicas[0]->parameters();
  std::vector<at::Tensor> sums(averaged.size());
  for (const auto& replica : replicas) {
    const auto parameters = replica->parameters();
    for (std::size_t p = 0; p < parameters.size(); ++p) {
      at::Tensor& gradient = parameters[p].mutable_grad();
      if (!gradient.defined()) continue;
      const double share = 1.0 / static_cast<double>(replicas.size());
      const at::Tensor part = (gradient * share).to(sum_dtype(gradient));
      sums[p] = sums[p].defined() ? sums[p] + part : part;
      gradient.reset();
    }
  }
  for (std::size_t p = 0; p < sums.size(); ++p) {
    if (sums[p].defined()) averaged[p].mutable_grad() = sums[p].to(averaged[p].scalar_type());
  }
}

}  // namespace

Trained train_on_ranks(const MakeZooModel& make, const Plugin& plugin, const Recipe& recipe) {
  AcceleratorOptions options;
  if (recipe.is_bf16) options.mixed_precision = "bf16";
  options.gradient_accumulation_steps = recipe.accumulation;
  options.ddp.find_unused_parameters = true;
  options.fsdp_plugin = plugin;
  if (recipe.zero_stage)
    options.deepspeed_plugin = DeepSpeedPlugin{.zero_stage = recipe.zero_stage};
  options.init_process_group.backend = recipe.backend;
  Accelerator accelerator(options);
  const auto net = seeded(make);
  auto [model, optimizer] = accelerator.prepare(
      net, std::shared_ptr<torch::optim::Optimizer>(make_optimizer(net->parameters())));
  std::vector<at::Tensor> losses;
  for (int step = 0; step < recipe.steps; ++step) {
    for (int part = 0; part < recipe.accumulation; ++part) {
      const auto accumulating = accelerator.accumulate(model);
      const at::Tensor batch = begin_batch(*net, step, part, accelerator.process_index());
      const at::Tensor loss = loss_of(model(batch));
      accelerator.backward(loss);
      losses.push_back(loss.detach());
      optimizer.step();
      optimizer.zero_grad();
    }
  }
  Trained result = result_of(*net, std::move(losses));
  accelerator.wait_for_everyone();  // over nodes others may still read this rank's shards
  return result;
}

namespace {

// What FULL_SHARD makes of trained parameters of 16 bits under autocast.
void widen(const ZooModel& model) {
  for (at::Tensor parameter : model.parameters()) {
    if (parameter.requires_grad() && at::isReducedFloatingType(parameter.scalar_type()))
      parameter.set_data(parameter.detach().to(at::kFloat));
  }
}

// By rank.
std::vector<Trained> train_all_alone(const MakeZooModel& make, int ranks, const Recipe& recipe) {
  std::vector<std::shared_ptr<ZooModel>> replicas;
  for (int i = 0; i < ranks; ++i) {
    replicas.push_back(seeded(make));
    if (recipe.is_bf16) widen(*replicas.back());
  }
  const auto optimizer = make_optimizer(parameters_as_in_python(*replicas[0]));
  std::vector<std::vector<at::Tensor>> losses(replicas.size());
  for (int step = 0; step < recipe.steps; ++step) {
    for (int of_rank = 0; of_rank < ranks; ++of_rank) {
      for (int part = 0; part < recipe.accumulation; ++part)
        losses[of_rank].push_back(run_batch(*replicas[of_rank], step, part, of_rank, recipe));
    }
    const at::NoGradGuard no_grad;
    average_gradients(replicas);
    optimizer->step();
    optimizer->zero_grad();
    const auto stepped = replicas[0]->parameters();
    for (int i = 1; i < ranks; ++i) {
      const auto parameters = replicas[i]->parameters();
      for (std::size_t p = 0; p < parameters.size(); ++p) parameters[p].copy_(stepped[p]);
    }
  }
  std::vector<Trained> results;
  for (int rank = 0; rank < ranks; ++rank)
    results.push_back(result_of(*replicas[rank], std::move(losses[rank])));
  return results;
}

}  // namespace

Trained train_alone(const MakeZooModel& make, int ranks, int rank, const Recipe& recipe) {
  return std::move(train_all_alone(make, ranks, recipe).at(static_cast<std::size_t>(rank)));
}

std::vector<Trained> train_alone_for_ranks(const std::vector<MakeZooModel>& makes,
                                           const Recipe& recipe) {
  using Tensors = std::vector<at::Tensor>;
  using Parts = std::tuple<Tensors, Tensors, Tensors>;
  const PartialState state;
  const int ranks = state.num_processes();
  const auto owner_of = [&](std::size_t model) { return static_cast<int>(model) % ranks; };
  std::vector<std::vector<Parts>> by_model(makes.size());
  for (std::size_t m = 0; m < makes.size(); ++m) {
    if (owner_of(m) != state.process_index()) continue;
    for (Trained& one : train_all_alone(makes[m], ranks, recipe))
      by_model[m].emplace_back(one.parameters, one.buffers, one.losses);
  }
  std::vector<Trained> own;
  for (std::size_t m = 0; m < makes.size(); ++m) {
    auto [parameters, buffers, losses] = broadcast_object(by_model[m], owner_of(m))
                                             .at(static_cast<std::size_t>(state.process_index()));
    own.push_back({std::move(parameters), std::move(buffers), std::move(losses)});
  }
  return own;
}

std::string difference(const std::vector<at::Tensor>& a, const std::vector<at::Tensor>& b) {
  if (a.size() != b.size())
    return std::to_string(a.size()) + " tensors and " + std::to_string(b.size());
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (a[i].sizes() != b[i].sizes()) return "number " + std::to_string(i) + " has another shape";
    if (a[i].equal(b[i])) continue;
    return "number " + std::to_string(i) + " differs by up to " +
           std::to_string((a[i].to(at::kDouble) - b[i].to(at::kDouble)).abs().max().item<double>());
  }
  return "";
}

}  // namespace accel::test
