// The C++ side of train_peer.py: trains, schedules and accumulates as it says, and prints what came out.
//
//   train_peer loss MODEL FILE PRECISION ACCUMULATION [HOOK [WRAPPER]]   one rank; losses, one line each, and, with a hook, the
//                                                       bytes of each parameter at the end
//                                                       HOOK of PowerSGD: power_sgd:COLUMNS or batched_power_sgd:COLUMNS, and :cold
//   train_peer uneven MODEL FILE BACKEND STAGE COUNTS   one rank of those with so many batches each ("4,7"); losses, one line
//                                                       each, and the bytes of each parameter at the end. STAGE: of ZeRO; 0: copies
//   train_peer diloco FILE BACKEND SYNC_EVERY FRAGMENTS DELAY ALPHA   one rank; losses, and the bytes of each parameter before and
//                                                       after the end of the scope
//   train_peer weighted FILE ACCUMULATION               one rank, of batches with a number of labels each; the bytes of each
//                                                       parameter at the end
//   train_peer optimizer NAME FILE                      one process; losses, and the bytes of each parameter at the end
//   train_peer schedules                                "NAME rate rate ..." for every schedule
//   train_peer sequence ACCUMULATION                    one line per batch: synced, rate, step counts
//   train_peer resume OPTIMIZER FILE IN OUT FIRST STEPS SAFE      trains FIRST .. FIRST + STEPS from the checkpoint IN, or from FILE
//                                                       where that is "-", and saves OUT as HF Accelerate does; the rate, what
//                                                       was registered, and the bytes of each parameter at the end
//
// Numbers are printed as C hexadecimal floats: no digit is lost.

#include <cstdio>
#include <cstdlib>
#include <functional>
#include <map>
#include <memory>
#include <sstream>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>

#include <accel/accelerator.h>
#include <accel/checkpoint.h>
#include <accel/dataloader.h>
#include <accel/diloco.h>
#include <accel/lion.h>
#include <accel/lomo.h>
#include <accel/muon.h>
#include <accel/safetensors_file.h>
#include <accel/schedule_free.h>

namespace {

namespace nn = torch::nn;

struct FlattenImpl : nn::Module {
  at::Tensor forward(const at::Tensor& input) { return input.flatten(1); }
};
TORCH_MODULE(Flatten);

nn::Sequential make_model(const std::string& name) {
  if (name == "mlp") {
    return nn::Sequential(
        nn::Linear(8, 32), nn::Tanh(), nn::Linear(32, 32), nn::ReLU(), nn::Linear(32, 4));
  }
  return nn::Sequential(nn::Conv2d(nn::Conv2dOptions(1, 4, 3).padding(1)),
                        nn::BatchNorm2d(4),
                        nn::ReLU(),
                        Flatten(),
                        nn::Linear(4 * 8 * 8, 4));
}

void fill(nn::Module& model, const std::map<std::string, at::Tensor>& tensors) {
  const at::NoGradGuard no_grad;
  for (auto& item : model.named_parameters()) item.value().copy_(tensors.at("model." + item.key()));
  for (auto& item : model.named_buffers()) item.value().copy_(tensors.at("model." + item.key()));
}

accel::DistributedDataParallelKwargs hooked(int count, char** names) {
  accel::DistributedDataParallelKwargs ddp;
  if (count > 0) {
    std::istringstream parts(names[0]);
    std::string name, columns, cold;
    std::getline(parts, name, ':');
    std::getline(parts, columns, ':');
    std::getline(parts, cold, ':');
    ddp.comm_hook = accel::parse<accel::DDPCommunicationHookType>(name);
    ddp.comm_state_option.start_powerSGD_iter = 2;
    ddp.comm_state_option.warm_start = cold.empty();
    if (!columns.empty()) ddp.comm_state_option.matrix_approximation_rank = std::stoll(columns);
  }
  if (count > 1) ddp.comm_wrapper = accel::parse<accel::DDPCommunicationHookType>(names[1]);
  return ddp;
}

void print_bytes(const at::Tensor& tensor) {
  const at::Tensor values = tensor.detach().contiguous();
  const auto* const bytes = static_cast<const unsigned char*>(values.const_data_ptr());
  for (std::size_t i = 0; i < values.nbytes(); ++i) std::printf("%02x", bytes[i]);
  std::printf("\n");
}

int train(int count, char** arguments) {
  const std::string model_name = arguments[0];
  const auto tensors = accel::safetensors::load_file(arguments[1]);
  accel::Accelerator accelerator({.mixed_precision = std::string(arguments[2]),
                                  .gradient_accumulation_steps = std::atoi(arguments[3]),
                                  .ddp = hooked(count - 4, arguments + 4)});
  nn::Sequential net = make_model(model_name);
  fill(*net, tensors);
  torch::optim::SGD sgd(net->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
  auto [model, optimizer] = accelerator.prepare(net, sgd);

  const at::Tensor& inputs = tensors.at("inputs");  // [batches, ranks, samples, ...]
  const at::Tensor& labels = tensors.at("labels");
  const int rank = accelerator.process_index();
  for (std::int64_t batch = 0; batch < inputs.size(0); ++batch) {
    const auto scope = accelerator.accumulate(model);
    const at::Tensor loss = at::cross_entropy_loss(model(inputs[batch][rank]), labels[batch][rank]);
    accelerator.backward(loss);
    optimizer.step();
    optimizer.zero_grad();
    std::printf("%a\n", loss.item<double>());
  }
  model->eval();
  const at::NoGradGuard no_grad;
  const at::Tensor loss = at::cross_entropy_loss(model(inputs[0][rank]), labels[0][rank]);
  std::printf("%a\n", loss.item<double>());
  for (const at::Tensor& parameter : net->parameters())
    if (count > 4) print_bytes(parameter);
  accelerator.end_training();
  return 0;
}

int train_apart(char** arguments) {
  const auto tensors = accel::safetensors::load_file(arguments[0]);
  accel::AcceleratorOptions options;
  options.init_process_group.backend = arguments[1];
  accel::Accelerator accelerator(options);
  nn::Sequential net = make_model("mlp");
  fill(*net, tensors);
  torch::optim::AdamW adamw(net->parameters(), torch::optim::AdamWOptions(0.01));
  auto [model, optimizer] = accelerator.prepare(net, adamw);
  optimizer.use_fused_kernels();

  const int rank = accelerator.process_index();
  {
    accel::DiLoCo diloco(accelerator,
                         model,
                         optimizer,
                         {.sync_every = std::atoi(arguments[2]),
                          .num_fragments = std::atoi(arguments[3]),
                          .fragment_sync_delay = std::atoi(arguments[4]),
                          .fragment_update_alpha = std::atof(arguments[5])});
    for (std::int64_t batch = 0; batch < tensors.at("inputs").size(0); ++batch) {
      const at::Tensor loss = at::cross_entropy_loss(model(tensors.at("inputs")[batch][rank]),
                                                     tensors.at("labels")[batch][rank]);
      accelerator.backward(loss);
      optimizer.step();
      optimizer.zero_grad();
      diloco.step();
      std::printf("%a\n", loss.item<double>());
    }
    for (const at::Tensor& parameter : net->parameters()) print_bytes(parameter);
  }
  for (const at::Tensor& parameter : net->parameters()) print_bytes(parameter);
  accelerator.end_training();
  return 0;
}

// The batches of a rank, of "4,7".
std::int64_t count_of(const std::string& counts, int rank) {
  std::istringstream list(counts);
  std::string count;
  for (int i = 0; i <= rank; ++i) std::getline(list, count, ',');
  return std::stoll(count);
}

int train_unevenly(char** arguments) {
  const auto tensors = accel::safetensors::load_file(arguments[1]);
  accel::AcceleratorOptions options;
  options.init_process_group.backend = arguments[2];
  if (const int stage = std::atoi(arguments[3]); stage > 0)
    options.deepspeed_plugin = accel::DeepSpeedPlugin{.zero_stage = stage};
  accel::Accelerator accelerator(options);
  nn::Sequential net = make_model(arguments[0]);
  fill(*net, tensors);
  torch::optim::SGD sgd(net->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
  auto [model, optimizer] = accelerator.prepare(net, sgd);

  const int rank = accelerator.process_index();
  const auto loss_of = [&, &model = model](std::int64_t batch) {
    return at::cross_entropy_loss(model(tensors.at("inputs")[batch][rank]),
                                  tensors.at("labels")[batch][rank]);
  };
  {
    const auto joining = accelerator.join_uneven_inputs(model, {.even_batches = false});
    for (std::int64_t batch = 0; batch < count_of(arguments[4], rank); ++batch) {
      const at::Tensor loss = loss_of(batch);
      accelerator.backward(loss);
      optimizer.step();
      optimizer.zero_grad();
      std::printf("%a\n", loss.item<double>());
    }
  }
  model->eval();
  const at::NoGradGuard no_grad;
  std::printf("%a\n", loss_of(0).item<double>());
  for (const at::Tensor& parameter : net->parameters()) print_bytes(parameter);
  accelerator.end_training();
  return 0;
}

// Labels below 0 count for nothing.
int train_weighted(char** arguments) {
  const auto tensors = accel::safetensors::load_file(arguments[0]);
  accel::Accelerator accelerator({.gradient_accumulation_steps = std::atoi(arguments[1])});
  nn::Sequential net = make_model("mlp");
  fill(*net, tensors);
  torch::optim::SGD sgd(net->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
  auto [model, optimizer] = accelerator.prepare(net, sgd);
  const at::Tensor& inputs = tensors.at("inputs");
  const at::Tensor& labels = tensors.at("labels");
  const int rank = accelerator.process_index();
  for (std::int64_t batch = 0; batch < inputs.size(0); ++batch) {
    const auto scope = accelerator.accumulate(model);
    const at::Tensor own = labels[batch][rank];
    accelerator.backward(at::cross_entropy_loss(model(inputs[batch][rank]), own),
                         {.weight = own.ge(0).sum().item<double>()});
    optimizer.step();
    optimizer.zero_grad();
  }
  for (const at::Tensor& parameter : net->parameters()) print_bytes(parameter);
  accelerator.end_training();
  return 0;
}

std::unique_ptr<torch::optim::Optimizer> make_optimizer(const std::string& name,
                                                        const std::vector<at::Tensor>& parameters) {
  if (name == "adamw_schedule_free") {
    return std::make_unique<accel::AdamWScheduleFree>(
        parameters, accel::AdamWScheduleFreeOptions(0.01).weight_decay(0.1).warmup_steps(4).r(0.5));
  }
  if (name == "sgd_schedule_free") {
    return std::make_unique<accel::SGDScheduleFree>(
        parameters, accel::SGDScheduleFreeOptions(0.5).weight_decay(0.01).warmup_steps(3));
  }
  if (name == "lion")
    return std::make_unique<accel::Lion>(parameters, accel::LionOptions(0.01).weight_decay(0.1));
  if (name == "lomo")
    return std::make_unique<accel::Lomo>(parameters, accel::LomoOptions().weight_decay(0.1));
  if (name == "lomo_clipped")
    return std::make_unique<accel::Lomo>(parameters, accel::LomoOptions().clip_grad_norm(0.1));
  if (name == "adalomo") {
    return std::make_unique<accel::AdaLomo>(
        parameters, accel::AdaLomoOptions().weight_decay(0.1).clip_grad_value(0.01));
  }
  std::vector<at::Tensor> matrices;
  for (const at::Tensor& parameter : parameters)
    if (parameter.dim() == 2) matrices.push_back(parameter);
  accel::MuonOptions options(0.02);
  if (name == "muon_matched") options.adjust_lr_fn("match_rms_adamw").nesterov(false);
  return std::make_unique<accel::Muon>(matrices, options);
}

// Schedule-free optimizers are looked at in the middle.
int optimize(char** arguments) {
  const std::string name = arguments[0];
  const auto tensors = accel::safetensors::load_file(arguments[1]);
  accel::Accelerator accelerator;
  nn::Sequential net = make_model("mlp");
  fill(*net, tensors);
  auto [model, optimizer] = accelerator.prepare(
      net, std::shared_ptr<torch::optim::Optimizer>(make_optimizer(name, net->parameters())));
  accel::BackwardOptions options;
  if (name.find("lomo") != std::string::npos) options.learning_rate = 0.05;
  optimizer.train();
  const at::Tensor& inputs = tensors.at("inputs");
  const at::Tensor& labels = tensors.at("labels");
  for (std::int64_t batch = 0; batch < inputs.size(0); ++batch) {
    const at::Tensor loss = at::cross_entropy_loss(model(inputs[batch][0]), labels[batch][0]);
    accelerator.backward(loss, options);
    optimizer.step();
    net->zero_grad();
    std::printf("%a\n", loss.item<double>());
    if (batch != 5) continue;
    optimizer.eval();
    const at::NoGradGuard no_grad;
    std::printf("%a\n", at::cross_entropy_loss(model(inputs[0][0]), labels[0][0]).item<double>());
    optimizer.train();
  }
  optimizer.eval();
  for (const at::Tensor& parameter : net->parameters()) print_bytes(parameter);
  accelerator.end_training();
  return 0;
}

// What a program registers: the first weight after each step.
struct FirstWeights final : accel::Stateful {
  std::vector<double> values;
  std::int64_t count = 0;
  [[nodiscard]] accel::StateDict state_dict() const override {
    return {
        .tensors = {{"last", at::full({1}, values.empty() ? 0.0 : values.back())}},
        .values = {{"values", values}, {"count", count}, {"name", std::string("first weight")}}};
  }
  void load_state_dict(const accel::StateDict& state) override {
    values = std::get<std::vector<double>>(state.values.at("values"));
    count = std::get<std::int64_t>(state.values.at("count"));
    if (state.tensors.at("last").item<float>() != static_cast<float>(values.back()))
      throw std::runtime_error("the tensor is not what was saved");
  }
};

std::unique_ptr<torch::optim::Optimizer> resumed_optimizer(const std::string& name,
                                                           std::vector<at::Tensor> parameters) {
  if (name == "sgd")
    return std::make_unique<torch::optim::SGD>(
        std::move(parameters), torch::optim::SGDOptions(0.1).momentum(0.9).weight_decay(1e-3));
  return std::make_unique<torch::optim::AdamW>(std::move(parameters),
                                               torch::optim::AdamWOptions(0.05).amsgrad(true));
}

int resume(char** arguments) {
  const std::string optimizer_name = arguments[0];
  const auto tensors = accel::safetensors::load_file(arguments[1]);
  const std::string from = arguments[2];
  const std::string to = arguments[3];
  const int first = std::atoi(arguments[4]);
  const int steps = std::atoi(arguments[5]);
  accel::Accelerator accelerator;
  nn::Sequential net(
      nn::Linear(8, 32), nn::Tanh(), nn::Dropout(0.25), nn::Linear(32, 32), nn::Linear(32, 16));
  fill(*net, tensors);
  std::shared_ptr<torch::optim::Optimizer> own =
      resumed_optimizer(optimizer_name, net->parameters());
  accel::LambdaLR schedule(
      *own, [](std::int64_t step) { return 1.0 / (1.0 + static_cast<double>(step)); });
  FirstWeights weights;
  auto [model, optimizer, scheduler] = accelerator.prepare(net, own, schedule);
  if (optimizer_name == "adamw") optimizer.use_fused_kernels();
  accelerator.register_for_checkpointing(weights);
  at::manual_seed(7 + static_cast<std::uint64_t>(accelerator.process_index()));
  if (from != "-") accelerator.load_state(from);
  for (int batch = first; batch < first + steps; ++batch) {
    const int rank = accelerator.process_index();
    const at::Tensor loss = at::cross_entropy_loss(model(tensors.at("inputs")[batch][rank]),
                                                   tensors.at("labels")[batch][rank]);
    accelerator.backward(loss);
    optimizer.step();
    scheduler.step();
    optimizer.zero_grad();
    // The same on all ranks: rank 0's is saved.
    weights.values.push_back(net->parameters()[0].flatten()[0].item<double>());
    ++weights.count;
  }
  if (to != "-")
    accelerator.save_state(to,
                           {.safe_serialization = std::string(arguments[6]) == "safe",
                            .format = accel::CheckpointFormat::kAccelerate});
  std::printf("%a %lld\n", scheduler.get_last_lr()[0], static_cast<long long>(weights.count));
  for (const double weight : weights.values) std::printf("%a\n", weight);
  for (const at::Tensor& parameter : net->parameters()) print_bytes(parameter);
  accelerator.end_training();
  return 0;
}

torch::optim::SGD sgd_with_rate(double rate) {
  return torch::optim::SGD({at::ones({1}).set_requires_grad(true)}, torch::optim::SGDOptions(rate));
}

void print_rates(
    const char* name,
    const std::function<std::unique_ptr<accel::LRScheduler>(torch::optim::Optimizer&)>& make,
    int steps) {
  torch::optim::SGD optimizer = sgd_with_rate(0.3);
  const auto scheduler = make(optimizer);
  std::printf("%s", name);
  for (int step = 0; step <= steps; ++step) {
    std::printf(" %a", optimizer.param_groups()[0].options().get_lr());
    if (step < steps) scheduler->step(1.0 / (1 + step / 4));
  }
  std::printf("\n");
}

int schedules() {
  using accel::LambdaLR;
  using Optimizer = torch::optim::Optimizer;
  const auto print_factor = [](const char* name, accel::LrFactor factor) {
    print_rates(
        name, [&](Optimizer& o) { return std::make_unique<LambdaLR>(o, factor); }, 30);
  };
  print_factor("constant_with_warmup", accel::constant_with_warmup(5));
  print_factor("linear",
               accel::linear_with_warmup({.num_warmup_steps = 5, .num_training_steps = 25}));
  print_factor("cosine",
               accel::cosine_with_warmup({.num_warmup_steps = 5, .num_training_steps = 25}));
  print_factor("cosine_restarts",
               accel::cosine_with_hard_restarts(
                   {.num_warmup_steps = 5, .num_training_steps = 25, .num_cycles = 3}));
  print_factor(
      "polynomial",
      accel::polynomial_with_warmup(
          {.num_warmup_steps = 5, .num_training_steps = 25, .lr_end = 1e-4, .power = 2.0}, 0.3));
  print_factor("wsd",
               accel::warmup_stable_decay({.num_warmup_steps = 5,
                                           .num_stable_steps = 8,
                                           .num_decay_steps = 10,
                                           .warmup = accel::DecayShape::kCosine,
                                           .decay = accel::DecayShape::kOneMinusSqrt,
                                           .min_lr_ratio = 0.1}));
  print_factor("wsd_cosine",
               accel::warmup_stable_decay(
                   {.num_warmup_steps = 5, .num_stable_steps = 8, .num_decay_steps = 10}));
  print_rates(
      "step", [](Optimizer& o) { return std::make_unique<accel::StepLR>(o, 4, 0.5); }, 30);
  print_rates(
      "cosine_annealing",
      [](Optimizer& o) { return std::make_unique<accel::CosineAnnealingLR>(o, 7, 0.01); },
      30);
  print_rates(
      "one_cycle",
      [](Optimizer& o) {
        return std::make_unique<accel::OneCycleLR>(
            o, accel::OneCycleOptions{.max_lr = 0.5, .total_steps = 30});
      },
      30);
  print_rates(
      "one_cycle_three_phase_linear",
      [](Optimizer& o) {
        return std::make_unique<accel::OneCycleLR>(
            o,
            accel::OneCycleOptions{
                .max_lr = 0.5, .total_steps = 30, .linear = true, .three_phase = true});
      },
      30);
  print_rates(
      "plateau",
      [](Optimizer& o) {
        return std::make_unique<accel::ReduceLROnPlateau>(
            o, accel::PlateauOptions{.factor = 0.5, .patience = 2, .cooldown = 1});
      },
      30);
  return 0;
}

// 80 samples, each its own number.
struct Numbers {
  [[nodiscard]] at::Tensor get(std::size_t index) const {
    return at::full({1}, static_cast<double>(index));
  }
  [[nodiscard]] std::size_t size() const { return 80; }
};

int sequence(char** arguments) {
  accel::Accelerator accelerator({.gradient_accumulation_steps = std::atoi(arguments[0])});
  nn::Linear net(1, 1);
  torch::optim::SGD sgd(net->parameters(), torch::optim::SGDOptions(1.0));
  accel::LambdaLR schedule(
      sgd, [](std::int64_t step) { return 1.0 - 0.01 * static_cast<double>(step); });
  accel::DataLoader numbers(Numbers{}, {.batch_size = 8});
  auto [model, optimizer, loader, scheduler] = accelerator.prepare(net, sgd, numbers, schedule);

  for (int epoch = 0; epoch < 2; ++epoch) {
    for (const at::Tensor& batch : loader) {
      const auto scope = accelerator.accumulate(model);
      accelerator.backward(model(batch).mean() * 0.0);
      optimizer.step();
      scheduler.step();
      optimizer.zero_grad();
      std::printf("%d %a %lld %lld\n",
                  accelerator.sync_gradients() ? 1 : 0,
                  scheduler.get_last_lr()[0],
                  static_cast<long long>(schedule.last_epoch()),
                  static_cast<long long>(schedule.step_count()));
    }
  }
  accelerator.end_training();
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  at::set_num_threads(1);
  const std::string mode = argc > 1 ? argv[1] : "";
  try {
    if (mode == "loss" && argc >= 6 && argc <= 8) return train(argc - 2, argv + 2);
    if (mode == "uneven" && argc == 7) return train_unevenly(argv + 2);
    if (mode == "diloco" && argc == 8) return train_apart(argv + 2);
    if (mode == "weighted" && argc == 4) return train_weighted(argv + 2);
    if (mode == "optimizer" && argc == 4) return optimize(argv + 2);
    if (mode == "schedules" && argc == 2) return schedules();
    if (mode == "sequence" && argc == 3) return sequence(argv + 2);
    if (mode == "resume" && argc == 9) return resume(argv + 2);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "train_peer: %s\n", error.what());
    return 1;
  }
  std::fprintf(stderr,
               "use: train_peer loss MODEL FILE PRECISION STEPS [HOOK [WRAPPER]] | uneven MODEL "
               "FILE BACKEND STAGE COUNTS | diloco FILE BACKEND SYNC_EVERY FRAGMENTS DELAY ALPHA | "
               "weighted FILE STEPS | optimizer NAME FILE | schedules "
               "| sequence STEPS | "
               "resume OPTIMIZER FILE IN OUT FIRST STEPS SAFE\n");
  return 2;
}
