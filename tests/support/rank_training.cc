#include "tests/support/rank_training.h"

#include <algorithm>
#include <exception>
#include <iostream>
#include <tuple>
#include <utility>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>
#include <torch/optim/adamw.h>
#include <torch/utils.h>

#include <accel/accelerator.h>
#include <accel/operations.h>
#include <accel/precision.h>
#include <accel/state.h>

#include "libaccel/engine/optim/fused_step.h"

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

Trained result_of(const ZooModel& model,
                  std::vector<at::Tensor> losses,
                  std::vector<at::Tensor> norms) {
  Trained result{.losses = std::move(losses), .norms = std::move(norms)};
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

// Doubles after two steps, so that steps have different scales.
constexpr GradScalerKwargs kScaler{.init_scale = 1024, .growth_interval = 2};

bool is_mixed(const Recipe& recipe) {
  return recipe.precision != PrecisionType::kNo;
}

}  // namespace

Trained train_on_ranks(const MakeZooModel& make, const Plugin& plugin, const Recipe& recipe) {
  AcceleratorState::reset();  // the precision of the model before
  AcceleratorOptions options;
  options.mixed_precision = recipe.precision;
  options.grad_scaler = kScaler;
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
  if (recipe.kernels != StepKernels::kPlain) optimizer.use_fused_kernels();
  std::vector<at::Tensor> losses;
  std::vector<at::Tensor> norms;
  for (int step = 0; step < recipe.steps; ++step) {
    for (int part = 0; part < recipe.accumulation; ++part) {
      const auto accumulating = accelerator.accumulate(model);
      const at::Tensor batch = begin_batch(*net, step, part, accelerator.process_index());
      const at::Tensor loss = loss_of(model(batch));
      accelerator.backward(loss);
      losses.push_back(loss.detach());
      if (recipe.max_norm && accelerator.sync_gradients())
        norms.push_back(accelerator.clip_grad_norm_(net->parameters(), *recipe.max_norm));
      optimizer.step();
      optimizer.zero_grad();
    }
  }
  Trained result = result_of(*net, std::move(losses), std::move(norms));
  accelerator.wait_for_everyone();  // over nodes others may still read this rank's shards
  return result;
}

namespace {

// What ranks that divide them make of trained parameters of 16 bits under autocast.
void widen(const ZooModel& model) {
  for (at::Tensor parameter : model.parameters()) {
    if (parameter.requires_grad() && at::isReducedFloatingType(parameter.scalar_type()))
      parameter.set_data(parameter.detach().to(at::kFloat));
  }
}

// The same values in that order of memory, with zeros behind them up to a multiple of 64 bytes.
at::Tensor padded(const at::Tensor& tensor, at::IntArrayRef strides) {
  const auto block = static_cast<std::int64_t>(64 / tensor.element_size());
  const std::int64_t numel = (tensor.numel() + block - 1) / block * block;
  const at::Tensor memory = at::zeros({numel}, tensor.options());
  // No view, which zero_grad() refuses.
  at::Tensor values = at::empty({0}, tensor.options());
  values.set_(memory.storage(), 0, tensor.sizes(), strides);
  return values.copy_(tensor);
}

class LoneProcess {
 public:
  LoneProcess(const MakeZooModel& make, int ranks, const Recipe& recipe)
      : recipe_(recipe), scaler_(kScaler) {
    for (int i = 0; i < ranks; ++i) {
      replicas_.push_back(seeded(make));
      if (is_mixed(recipe) && !recipe.keeps_16_bits) widen(*replicas_.back());
    }
    if (is_padded()) {
      for (at::Tensor parameter : replicas_[0]->parameters())
        parameter.set_data(padded(parameter.detach(), parameter.strides()));
    }
    optimizer_ = make_optimizer(parameters_as_in_python(*replicas_[0]));
    if (recipe.kernels != StepKernels::kPlain) fused_.emplace(*optimizer_);
    losses_.resize(replicas_.size());
  }

  void train() {
    for (int step = 0; step < recipe_.steps; ++step) {
      for (std::size_t of_rank = 0; of_rank < replicas_.size(); ++of_rank) {
        for (int part = 0; part < recipe_.accumulation; ++part) run_batch(of_rank, step, part);
      }
      const at::NoGradGuard no_grad;
      average_gradients();
      if (is_scaled()) scaler_.unscale_(*optimizer_);
      if (recipe_.max_norm) clip(static_cast<std::size_t>(step));
      update();
      optimizer_->zero_grad();
      send_parameters();
    }
  }

  // By rank.
  [[nodiscard]] std::vector<Trained> results() const {
    std::vector<Trained> results;
    for (std::size_t rank = 0; rank < replicas_.size(); ++rank)
      results.push_back(result_of(*replicas_[rank], losses_[rank], norms_));
    return results;
  }

 private:
  [[nodiscard]] bool is_scaled() const { return recipe_.precision == PrecisionType::kFp16; }
  [[nodiscard]] bool is_padded() const {
    return recipe_.kernels == StepKernels::kFusedOnPaddedMemory;
  }

  void run_batch(std::size_t of_rank, int step, int part) {
    ZooModel& model = *replicas_[of_rank];
    const at::Tensor batch = begin_batch(model, step, part, static_cast<int>(of_rank));
    at::Tensor output;
    {
      const Autocast autocast(AutocastOptions{.dtype = is_scaled() ? at::kHalf : at::kBFloat16,
                                              .enabled = is_mixed(recipe_)});
      output = model.forward(batch);
    }
    if (is_mixed(recipe_)) output = output.to(at::kFloat);
    const at::Tensor loss = loss_of(output);
    const at::Tensor share = recipe_.accumulation == 1 ? loss : loss / recipe_.accumulation;
    (is_scaled() ? scaler_.scale(share) : share).backward();
    losses_[of_rank].push_back(loss.detach());
  }

  // The gradients of all replicas become the first one's; what none has stays undefined.
  void average_gradients() {
    std::vector<std::vector<at::Tensor>> by_replica;
    for (const auto& replica : replicas_) by_replica.push_back(parameters_as_in_python(*replica));
    const auto& averaged = by_replica[0];
    for (std::size_t p = 0; p < averaged.size(); ++p) {
      at::Tensor sum;
      at::Tensor of_node;
      for (std::size_t rank = 0; rank < replicas_.size(); ++rank) {
        add(of_node, take_share(by_replica[rank][p]));
        const bool ends_node = (rank + 1) % static_cast<std::size_t>(recipe_.ranks_per_node) == 0;
        if (!ends_node && rank + 1 < replicas_.size()) continue;
        add(sum, std::exchange(of_node, {}));
      }
      if (!sum.defined()) continue;
      const at::Tensor gradient = sum.to(averaged[p].scalar_type());
      averaged[p].mutable_grad() = is_padded() ? padded(gradient, averaged[p].strides()) : gradient;
    }
  }

  [[nodiscard]] at::Tensor take_share(const at::Tensor& parameter) const {
    at::Tensor& gradient = parameter.mutable_grad();
    if (!gradient.defined()) return {};
    const at::Tensor part = gradient * (1.0 / static_cast<double>(replicas_.size()));
    gradient.reset();
    return part.to(sum_dtype(part));
  }

  static void add(at::Tensor& sum, const at::Tensor& part) {
    if (part.defined()) sum = sum.defined() ? sum + part : part;
  }

  void clip(std::size_t step) {
    at::Tensor squares = at::zeros({}, at::kDouble);
    const at::Tensor norm = recipe_.norms.at(step);
    const at::Tensor factor = (norm + 1e-6).reciprocal().mul_(*recipe_.max_norm).clamp_max_(1.0);
    for (const at::Tensor& parameter : parameters_as_in_python(*replicas_[0])) {
      if (!parameter.grad().defined()) continue;
      squares += parameter.grad().to(at::kDouble).square().sum();
      parameter.mutable_grad().mul_(factor);
    }
    norms_.push_back(squares.sqrt());
  }

  void update() {
    const auto step = [this] {
      if (!fused_) {
        optimizer_->step();
        return;
      }
      fused_->step([this](const at::Tensor&) { return is_padded(); });
    };
    if (!is_scaled()) {
      step();
      return;
    }
    scaler_.step(*optimizer_, step);
    scaler_.update();
  }

  void send_parameters() {
    const auto stepped = replicas_[0]->parameters();
    for (std::size_t i = 1; i < replicas_.size(); ++i) {
      const auto parameters = replicas_[i]->parameters();
      for (std::size_t p = 0; p < parameters.size(); ++p) parameters[p].copy_(stepped[p]);
    }
  }

  Recipe recipe_;
  std::vector<std::shared_ptr<ZooModel>> replicas_;
  std::unique_ptr<torch::optim::Optimizer> optimizer_;
  std::optional<FusedStep> fused_;
  GradScaler scaler_;
  std::vector<std::vector<at::Tensor>> losses_;
  std::vector<at::Tensor> norms_;
};

std::vector<Trained> train_all_alone(const Lesson& lesson, int ranks) {
  LoneProcess process(lesson.make, ranks, lesson.recipe);
  process.train();
  return process.results();
}

}  // namespace

bool can_run(const MakeZooModel& make, const Recipe& recipe) {
  Recipe short_recipe = recipe;
  short_recipe.steps = 1;
  short_recipe.max_norm.reset();
  try {
    LoneProcess(make, 1, short_recipe).train();
    return true;
  } catch (const std::exception& error) {
    // What oneDNN says where it has none; everything else is a mistake.
    const std::string what = error.what();
    if (what.find("could not create a primitive") == std::string::npos) throw;
    std::cerr << "left out: " << what.substr(0, what.find('\n')) << '\n';
    return false;
  }
}

Trained train_alone(const MakeZooModel& make, int ranks, int rank, const Recipe& recipe) {
  return std::move(train_all_alone({make, recipe}, ranks).at(static_cast<std::size_t>(rank)));
}

std::vector<Trained> train_alone_for_ranks(const std::vector<Lesson>& lessons) {
  using Tensors = std::vector<at::Tensor>;
  using Parts = std::tuple<Tensors, Tensors, Tensors>;
  const PartialState state;
  const int ranks = state.num_processes();
  const auto owner_of = [&](std::size_t lesson) { return static_cast<int>(lesson) % ranks; };
  std::vector<std::vector<Parts>> by_lesson(lessons.size());
  for (std::size_t i = 0; i < lessons.size(); ++i) {
    if (owner_of(i) != state.process_index()) continue;
    for (Trained& one : train_all_alone(lessons[i], ranks))
      by_lesson[i].emplace_back(one.parameters, one.buffers, one.losses);
  }
  std::vector<Trained> own;
  for (std::size_t i = 0; i < lessons.size(); ++i) {
    auto [parameters, buffers, losses] = broadcast_object(by_lesson[i], owner_of(i))
                                             .at(static_cast<std::size_t>(state.process_index()));
    own.push_back({.parameters = std::move(parameters),
                   .buffers = std::move(buffers),
                   .losses = std::move(losses),
                   .norms = {}});
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
