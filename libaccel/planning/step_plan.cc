// Two steps are run: the second one has the state of the optimizer from its beginning, and the first one makes it beside gradients.
// What each block of memory was for is known at the end only (a tensor becomes a gradient when backward is done with it), so the
// events are kept, and played back for each way to divide the model.

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <string>
#include <type_traits>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include <c10/util/StringUtil.h>
#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>

#include <accel/error.h>
#include <accel/plan.h>

#include "libaccel/planning/shape_kernels.h"
#include "libaccel/tensors/disk_buffers.h"

namespace accel {
namespace {

using planning::BlockId;
using planning::MemoryEvent;
using planning::MemoryLedger;
using planning::ShapeKernels;

// Of docs/guides/sharding.md.
constexpr std::int64_t kUnitBytes = std::int64_t{25} << 20;
constexpr std::int64_t kUnitsFilling = 2;
constexpr std::int64_t kUnitsFetched = 3;

enum class Purpose : std::uint8_t {
  kActivation,
  kParameter,  // and buffers
  kGradient,
  kOptimizer,
  kOptimizerScratch,  // within its step
};

// Each tensor once: a tied one has several names.
struct ModelTensors {
  std::vector<at::Tensor> trained;
  std::vector<at::Tensor> whole;

  explicit ModelTensors(const torch::nn::Module& model) {
    std::unordered_set<const void*> seen;
    const auto is_new = [&](const at::Tensor& tensor) {
      return tensor.defined() && seen.insert(tensor.unsafeGetTensorImpl()).second;
    };
    for (const at::Tensor& parameter : model.parameters())
      if (is_new(parameter)) (parameter.requires_grad() ? trained : whole).push_back(parameter);
    for (const at::Tensor& buffer : model.buffers())
      if (is_new(buffer)) whole.push_back(buffer);
  }

  [[nodiscard]] bool have_values() const {
    const auto has_values = [](const at::Tensor& tensor) { return !tensor.is_meta(); };
    return std::any_of(trained.begin(), trained.end(), has_values) ||
           std::any_of(whole.begin(), whole.end(), has_values);
  }
};

// While it lives, tensors have no values and no gradients. What is changed is the memory behind the same tensor objects: set_data()
// does not take one of the device meta for one of the CPU.
class WithoutValues {
 public:
  WithoutValues(const ShapeKernels& kernels, const ModelTensors& tensors) : kernels_(kernels) {
    for (const auto* list : {&tensors.trained, &tensors.whole})
      for (const at::Tensor& tensor : *list) check(tensor);
    for (const auto* list : {&tensors.trained, &tensors.whole})
      for (const at::Tensor& tensor : *list) replace(tensor);
  }
  ~WithoutValues() {
    for (Kept& kept : kept_) {
      put(kept.tensor, kept.storage);
      kept.tensor.mutable_grad() = std::move(kept.gradient);
    }
  }
  WithoutValues(const WithoutValues&) = delete;
  WithoutValues& operator=(const WithoutValues&) = delete;

 private:
  struct Kept {
    at::Tensor tensor;
    c10::Storage storage;
    at::Tensor gradient;
  };

  static void check(const at::Tensor& tensor) {
    if (tensor.layout() != at::kStrided || !tensor.has_storage() ||
        !(tensor.is_cpu() || tensor.is_meta())) {
      throw Error(ErrorCode::kUnsupported,
                  "a model with a parameter or buffer of the layout " + c10::str(tensor.layout()) +
                      " on " + tensor.device().str() + " cannot be planned",
                  "give it dense tensors on the CPU, or without memory (accel/big_model.h)");
    }
  }

  static void put(const at::Tensor& tensor, const c10::Storage& storage) {
    c10::TensorImpl& impl = *tensor.unsafeGetTensorImpl();
    const bool was_allowed = impl.allow_tensor_metadata_change();
    impl.set_allow_tensor_metadata_change(true);
    impl._change_backend_component_keys(storage.device());
    impl.set_storage_keep_dtype(storage);
    impl.set_allow_tensor_metadata_change(was_allowed);
  }

  void replace(const at::Tensor& tensor) {
    // Tensors on one memory stay on one.
    auto& memory = memories_[tensor.storage().unsafeGetStorageImpl()];
    if (!memory) {
      const auto bytes = static_cast<std::int64_t>(tensor.storage().nbytes());
      memory = kernels_.make({{bytes}, c10::ScalarType::Byte}).storage();
    }
    kept_.push_back({tensor, tensor.storage(), tensor.grad()});
    tensor.mutable_grad().reset();
    put(tensor, memory);
  }

  const ShapeKernels& kernels_;
  std::unordered_map<const void*, c10::Storage> memories_;
  std::vector<Kept> kept_;
};

class WithoutState {
 public:
  explicit WithoutState(torch::optim::Optimizer* optimizer) : optimizer_(optimizer) {
    if (optimizer_ != nullptr) std::swap(optimizer_->state(), kept_);
  }
  ~WithoutState() {
    if (optimizer_ != nullptr) std::swap(optimizer_->state(), kept_);
  }
  WithoutState(const WithoutState&) = delete;
  WithoutState& operator=(const WithoutState&) = delete;

 private:
  torch::optim::Optimizer* optimizer_;
  std::remove_reference_t<decltype(std::declval<torch::optim::Optimizer>().state())> kept_;
};

std::int64_t storage_bytes_of(const std::vector<at::Tensor>& tensors) {
  std::int64_t bytes = 0;
  std::unordered_set<const void*> seen;
  for (const at::Tensor& tensor : tensors)
    if (seen.insert(tensor.storage().unsafeGetStorageImpl()).second)
      bytes += static_cast<std::int64_t>(tensor.storage().nbytes());
  return bytes;
}

std::int64_t share_of(std::int64_t bytes, std::int64_t of) {
  return (bytes + of - 1) / of;
}

}  // namespace

struct StepPlan::Record {
  static constexpr int kSteps = 2;

  std::vector<MemoryEvent> events;
  std::vector<Purpose> purposes;  // by block
  std::vector<std::pair<std::size_t, std::size_t>>
      optimizer_steps;  // events: the first, one past the last
  std::int64_t parameters = 0;
  std::int64_t whole = 0;
  std::int64_t gradients = 0;
  std::int64_t state = 0;  // of the optimizer
  std::int64_t largest_parameter = 0;
  std::int64_t num_parameters = 0;
  double flops = 0;
  std::vector<planning::OperatorWork> products;  // of all steps
  double other_bytes = 0;                        // of one, without the optimizer's
  double optimizer_bytes = 0;

  Record(torch::nn::Module& model,
         torch::optim::Optimizer* optimizer,
         const std::function<void()>& step);
  void run(const ModelTensors& tensors,
           const std::shared_ptr<MemoryLedger>& ledger,
           torch::optim::Optimizer* optimizer,
           const std::function<void()>& step);

  // What is there beside parameters, in bytes.
  struct Live {
    std::int64_t gradients = 0;
    std::int64_t activations = 0;
    std::int64_t state = 0;
    std::int64_t scratch = 0;
  };
  // Calls visit(live, step) after each event: the step of the optimizer that it is in, from 1 on; 0: it is in none.
  template <typename Visit>
  void play(const Visit& visit) const {
    Live live;
    std::size_t step = 0;  // the next one that ends
    for (std::size_t i = 0; i < events.size(); ++i) {
      while (step < optimizer_steps.size() && i == optimizer_steps[step].second) ++step;
      switch (purposes[events[i].block]) {
        case Purpose::kParameter:
          continue;
        case Purpose::kGradient:
          live.gradients += events[i].bytes;
          break;
        case Purpose::kOptimizer:
          live.state += events[i].bytes;
          break;
        case Purpose::kOptimizerScratch:
          live.scratch += events[i].bytes;
          break;
        case Purpose::kActivation:
          live.activations += events[i].bytes;
          break;
      }
      const bool is_within = step < optimizer_steps.size() && i >= optimizer_steps[step].first;
      visit(live, is_within ? step + 1 : 0);
    }
  }

  void mark(BlockId block, Purpose purpose) {
    if (purposes.size() <= block) purposes.resize(block + 1, Purpose::kActivation);
    purposes[block] = purpose;
  }
};

StepPlan::Record::Record(torch::nn::Module& model,
                         torch::optim::Optimizer* optimizer,
                         const std::function<void()>& step) {
  const auto ledger = std::make_shared<MemoryLedger>();
  const ModelTensors tensors(model);
  parameters = storage_bytes_of(tensors.trained);
  whole = storage_bytes_of(tensors.whole);
  for (const at::Tensor& parameter : tensors.trained) {
    num_parameters += parameter.numel();
    largest_parameter = std::max(largest_parameter, static_cast<std::int64_t>(parameter.nbytes()));
  }

  run(tensors, ledger, optimizer, step);
  if (const std::int64_t kept = ledger->live_bytes(); kept > 0 && tensors.have_values()) {
    throw Error(ErrorCode::kUnsupported,
                "the step that was planned has left " + std::to_string(kept) +
                    " bytes of tensors without values in the program: the model keeps some, as "
                    "views or tables, that it would compute with",
                "plan a model of its own, made within accel::init_empty_weights(), and train "
                "another one");
  }
}

void StepPlan::Record::run(const ModelTensors& tensors,
                           const std::shared_ptr<MemoryLedger>& ledger,
                           torch::optim::Optimizer* optimizer,
                           const std::function<void()>& step) {
  ShapeKernels kernels(ledger);
  const WithoutValues without_values(kernels, tensors);
  const WithoutState without_state(optimizer);
  for (BlockId block = 0; block < ledger->num_blocks(); ++block) mark(block, Purpose::kParameter);
  const interception::KernelScope scope(kernels);
  for (int i = 0; i < kSteps; ++i) {
    for (const at::Tensor& parameter : tensors.trained) parameter.mutable_grad().reset();
    step();
    gradients = 0;
    for (const at::Tensor& parameter : tensors.trained) {
      const at::Tensor& gradient = parameter.grad();
      if (!gradient.defined() || !planning::has_no_values(*gradient.unsafeGetTensorImpl()))
        continue;
      gradients += static_cast<std::int64_t>(gradient.nbytes());
      mark(planning::block_of(*gradient.unsafeGetTensorImpl()), Purpose::kGradient);
    }
    if (optimizer == nullptr) continue;
    const std::size_t first_event = ledger->num_events();
    const double bytes_before = kernels.other_bytes();
    optimizer->step();
    optimizer_bytes += (kernels.other_bytes() - bytes_before) / kSteps;
    const auto all = ledger->events();
    optimizer_steps.emplace_back(first_event, all.size());
    for (std::size_t event = first_event; event < all.size(); ++event) {
      // What is there when the step is over is state.
      if (all[event].bytes > 0)
        mark(all[event].block, Purpose::kOptimizer);
      else if (all[event].block < purposes.size() &&
               purposes[all[event].block] == Purpose::kOptimizer)
        mark(all[event].block, Purpose::kOptimizerScratch);
    }
  }
  events = ledger->events();
  purposes.resize(ledger->num_blocks(), Purpose::kActivation);
  products = kernels.products();
  for (const planning::OperatorWork& product : products) flops += product.flops / kSteps;
  other_bytes = kernels.other_bytes() / kSteps - optimizer_bytes;
  for (const MemoryEvent& event : events)
    if (purposes[event.block] == Purpose::kOptimizer) state += event.bytes;
}

std::string_view to_string(PlannedStrategy strategy) noexcept {
  switch (strategy) {
    case PlannedStrategy::kCopies:
      return "DDP";
    case PlannedStrategy::kZero1:
      return "ZeRO-1";
    case PlannedStrategy::kZero2:
      return "SHARD_GRAD_OP";
    case PlannedStrategy::kZero3:
      return "FULL_SHARD";
  }
  return "";
}

StepPlan::StepPlan(torch::nn::Module& model,
                   torch::optim::Optimizer* optimizer,
                   const std::function<void()>& step)
    : record_(std::make_shared<const Record>(model, optimizer, step)) {}

double StepPlan::flops() const noexcept {
  return record_->flops;
}

std::int64_t StepPlan::num_parameters() const noexcept {
  return record_->num_parameters;
}

namespace {

// What a run divides.
struct Division {
  explicit Division(const PlannedRun& run);

  bool is_on_one_machine;
  bool divides_state = false;
  bool divides_gradients = false;
  bool divides_parameters = false;
};

Division::Division(const PlannedRun& run) : is_on_one_machine(run.num_machines == 1) {
  if (run.num_processes < 1 || run.num_machines < 1 || run.num_processes % run.num_machines != 0) {
    throw Error(ErrorCode::kInvalidArgument,
                std::to_string(run.num_processes) + " processes on " +
                    std::to_string(run.num_machines) +
                    " machines: both have to be 1 or more, and each machine has equally many",
                "set num_processes to a multiple of num_machines");
  }
  if (run.num_processes == 1) return;
  divides_state = run.strategy != PlannedStrategy::kCopies;
  divides_gradients =
      run.strategy == PlannedStrategy::kZero2 || run.strategy == PlannedStrategy::kZero3;
  divides_parameters =
      divides_state && (is_on_one_machine || run.strategy == PlannedStrategy::kZero3);
}

void check_rate(const char* name, double rate) {
  if (rate > 0 && std::isfinite(rate)) return;
  throw Error(ErrorCode::kInvalidArgument,
              "MachineRates::" + std::string(name) + " is " + std::to_string(rate) +
                  ", and this run needs a rate above 0",
              "set it to what the machine does in a second");
}

}  // namespace

// Each sums its share of the gradients, and unless they are divided gets the shares of the others. Parameters come from other
// machines: after the step, or for forward and again for backward.
std::int64_t StepPlan::sent_bytes(const PlannedRun& run) const {
  const Division division(run);
  const std::int64_t num_ranks = run.num_processes;
  const auto of_others = [&](std::int64_t bytes) { return bytes / num_ranks * (num_ranks - 1); };
  std::int64_t sent = of_others(record_->gradients) * (division.divides_gradients ? 1 : 2);
  if (division.divides_state && !division.is_on_one_machine)
    sent += of_others(record_->parameters) * (division.divides_parameters ? 2 : 1);
  return sent;
}

double StepPlan::seconds(const MachineRates& rates, const PlannedRun& run) const {
  const Division division(run);
  const auto sent = static_cast<double>(sent_bytes(run));
  const bool is_on_network = sent > 0 && !division.is_on_one_machine;
  check_rate("flops", rates.flops);
  check_rate("memory_bytes", rates.memory_bytes);
  if (is_on_network) check_rate("network_bytes", rates.network_bytes);
  if (run.optimizer_on_disk) check_rate("disk_bytes", rates.disk_bytes);

  double seconds = record_->other_bytes / rates.memory_bytes;
  for (const planning::OperatorWork& product : record_->products)
    seconds +=
        std::max(product.flops / rates.flops, product.bytes / rates.memory_bytes) / Record::kSteps;
  // Between ranks of one machine each byte is written and read.
  seconds += is_on_network ? sent / rates.network_bytes : 2 * sent / rates.memory_bytes;
  const double share = division.divides_state ? run.num_processes : 1;
  double step = record_->optimizer_bytes / share / rates.memory_bytes;
  if (run.optimizer_on_disk)
    step = std::max(step, static_cast<double>(record_->state) / share / rates.disk_bytes);
  return seconds + step;
}

std::int64_t StepPlan::moved_bytes(const PlannedRun& run) const {
  const Division division(run);
  const Record& record = *record_;
  const std::int64_t stepped =
      record.gradients == 0 ? 0 : 2 * record.parameters + record.gradients + 2 * record.state;
  return sent_bytes(run) + share_of(stepped, division.divides_state ? run.num_processes : 1);
}

namespace {

// What of an optimizer one process has in memory.
class OptimizerShare {
 public:
  OptimizerShare(std::int64_t num_shares, bool is_on_disk, std::int64_t state, double largest)
      : num_shares_(num_shares), is_on_disk_(is_on_disk), own_(share_of(state, num_shares)) {
    // The step takes a larger parameter in parts of a bucket.
    const double of_largest = largest * static_cast<double>(own_);
    if (is_on_disk && of_largest > kBucket) part_ = kBucket / of_largest;
  }

  [[nodiscard]] std::int64_t on_disk() const noexcept { return is_on_disk_ ? own_ : 0; }
  // state, scratch: of all processes.
  [[nodiscard]] std::int64_t state(std::int64_t state, std::size_t step) const {
    if (!is_on_disk_) return share_of(state, num_shares_);
    if (step == 0) return 0;
    // The first one makes that of a bucket in memory, and copies it.
    return std::min(own_, kBuffers) + (step == 1 ? std::min(own_, kBucket) : 0);
  }
  [[nodiscard]] std::int64_t scratch(std::int64_t scratch) const {
    return static_cast<std::int64_t>(part_ * static_cast<double>(share_of(scratch, num_shares_)));
  }

 private:
  static constexpr std::int64_t kBucket = DiskBuffers{}.bucket_bytes;
  static constexpr std::int64_t kBuffers = DiskBuffers{}.num_buffers * kBucket;

  std::int64_t num_shares_;
  bool is_on_disk_;
  std::int64_t own_;  // state
  double part_ = 1;
};

}  // namespace

PlannedMemory StepPlan::memory(const PlannedRun& run) const {
  const Division division(run);
  const Record& record = *record_;
  const std::int64_t num_ranks = run.num_processes;
  const std::int64_t unit =
      std::max(record.largest_parameter, std::min(kUnitBytes, record.parameters));
  const OptimizerShare optimizer(
      division.divides_state ? num_ranks : 1,
      run.optimizer_on_disk,
      record.state,
      static_cast<double>(record.largest_parameter) /
          static_cast<double>(std::max<std::int64_t>(1, record.parameters)));

  PlannedMemory most;
  most.parameters =
      division.divides_parameters ? share_of(record.parameters, num_ranks) : record.parameters;
  most.whole = record.whole;
  most.disk = optimizer.on_disk();
  if (division.divides_gradients)
    most.communication += std::min(record.gradients, kUnitsFilling * unit);
  if (division.divides_parameters && !division.is_on_one_machine)
    most.communication += std::min(record.parameters, kUnitsFetched * unit);

  const std::int64_t constant = most.parameters + most.whole + most.communication;
  most.peak = constant;
  record.play([&](const Record::Live& live, std::size_t step) {
    // Ranks have room for gradients from the beginning.
    std::int64_t kept = live.gradients;
    if (num_ranks > 1)
      kept = division.divides_gradients ? share_of(record.gradients, num_ranks) : record.gradients;
    const std::int64_t state = optimizer.state(live.state, step);
    const std::int64_t activations = live.activations + optimizer.scratch(live.scratch);
    most.gradients = std::max(most.gradients, kept);
    most.optimizer = std::max(most.optimizer, state);
    most.activations = std::max(most.activations, activations);
    most.peak = std::max(most.peak, constant + kept + state + activations);
  });
  return most;
}

}  // namespace accel
