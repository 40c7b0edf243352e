// StepPlan: what a step of training takes before it runs: the most memory that is used at once, with activations, for each
// way to divide the model over processes.
//
//   std::shared_ptr<Net> net;
//   {
//     const auto empty = accel::init_empty_weights({.include_buffers = true});
//     net = std::make_shared<Net>(options);
//   }
//   torch::optim::AdamW adamw(net->parameters());
//   const accel::StepPlan plan(*net, &adamw, [&] {
//     net->forward(at::empty({8, 1024}, at::kLong)).mean().backward();
//   });
//   std::cout << plan.memory().peak << plan.memory({.num_processes = 4, .strategy = accel::PlannedStrategy::kZero3}).peak;
//
// The function is run twice, each time with a step of the optimizer behind it, on tensors that have sizes and no values:
// autograd, autocast and the optimizer are those of a run, and what they would allocate is counted. Nothing is computed, so a model
// of 100 billion parameters takes less than a second. Use accel::Autocast in the function for mixed precision. Convolutions,
// LSTMs and products in 16 bits run once, on zeros and of large ones a part, because their kernels alone know what they take.
//
// Counted are tensors, and what those kernels, attention and normalization take for themselves. Not counted are what others take,
// libraries, the program, and gaps between blocks of memory.
//
// Tensors that the model makes in a forward and keeps for the next one would stay without values: plan such a model without memory,
// as above, and train another one. What compares tensors (equal()) takes those on other memory for different.
//
// Threads:  the thread that calls, whose operators have no values meanwhile. Others must not use the model and the optimizer.
// Errors    throws kUnsupported naming the operator for a step that reads values (item(), nonzero()), or one that it has no rule for; for
// tensors that the model keeps though it has values; for parameters that are sparse or on another device. What the function throws.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string_view>

#include <accel/export.h>

namespace torch::nn {
class Module;
}
namespace torch::optim {
class Optimizer;
}

namespace accel {

enum class PlannedStrategy {
  kCopies,  // one process, or DDP
  kZero1,   // the optimizer's state is divided: DeepSpeedPlugin{.zero_stage = 1}
  kZero2,   // gradients too: SHARD_GRAD_OP
  kZero3,   // parameters too: FULL_SHARD
};
// "DDP", "ZeRO-1", "SHARD_GRAD_OP", "FULL_SHARD".
[[nodiscard]] ACCEL_EXPORT std::string_view to_string(PlannedStrategy strategy) noexcept;

struct PlannedRun {
  int num_processes = 1;
  int num_machines = 1;  // processes of one share the memory of divided parameters
  PlannedStrategy strategy = PlannedStrategy::kCopies;
  // Its state lies in a file (offload_optimizer_nvme_path, docs/guides/offload.md), where the class of the optimizer allows that.
  bool optimizer_on_disk = false;
};

// Bytes of one process, each the most at any time; they do not have their most at the same time, so `peak` is less than the sum.
// docs/guides/plan.md has the formulas.
struct PlannedMemory {
  std::int64_t parameters = 0;  // this process's share of those that are trained
  std::int64_t whole = 0;       // frozen parameters and buffers
  std::int64_t gradients = 0;   // of this process's shards where they are divided
  std::int64_t optimizer = 0;   // its state; of one on disk the buckets that its step has in memory
  std::int64_t activations = 0;    // everything else that forward, backward and the step make
  std::int64_t communication = 0;  // units of parameters or gradients while they are used or filled
  std::int64_t peak = 0;           // of all of them at once
  std::int64_t disk = 0;  // of the optimizer's state, where that is on disk; in no other number
};

// What a machine does in a second for one of its processes.
struct MachineRates {
  double flops = 0;          // multiplications and additions of matrix products
  double memory_bytes = 0;   // that operators read and write
  double network_bytes = 0;  // to other machines and at once from them; of runs on several
  double disk_bytes = 0;  // read, and at once as many written; of runs with the optimizer on disk
};

// Of this process with its threads, in fp32: by matrix products and sums of large tensors, within a fifth of a second. What is of the
// network and of the disk is left out. Where n processes of a machine compute at once, each has an n-th.
[[nodiscard]] ACCEL_EXPORT MachineRates measure_machine_rates();

class ACCEL_EXPORT StepPlan {
 public:
  // optimizer: nullptr for none. Its state, the gradients, parameters and buffers of the module are as before when it returns, also
  // by an exception. step: forward and backward of one batch, as the program has them.
  StepPlan(torch::nn::Module& model,
           torch::optim::Optimizer* optimizer,
           const std::function<void()>& step);

  // Throws kInvalidArgument, naming the number: processes or machines below 1, processes that the machines do not divide.
  [[nodiscard]] PlannedMemory memory(const PlannedRun& run = {}) const;

  // Bytes that one process moves in a step beside what it computes, which is the same for each strategy: what it sends for sums of
  // gradients and for parameters, and what the optimizer reads and writes. Of two runs with equal batches the one with fewer is
  // expected to be faster. Throws as memory(). docs/guides/plan.md has the formula.
  [[nodiscard]] std::int64_t moved_bytes(const PlannedRun& run = {}) const;

  // How long a step takes, without overlap: each operator as long as its operations or its bytes take at these rates, whichever is
  // more; then the sums of gradients and the parameters of others; then the step of the optimizer, or its disk. An estimate: kernels
  // differ in how near they come to the rates. Throws as memory(), and kInvalidArgument, naming it, for a rate that the run needs
  // and that is not above 0.
  [[nodiscard]] double seconds(const MachineRates& rates, const PlannedRun& run = {}) const;

  // Multiplications and additions of matrix products, convolutions, attention and LSTMs, in forward and backward of one batch.
  [[nodiscard]] double flops() const noexcept;
  [[nodiscard]] std::int64_t num_parameters() const noexcept;

 private:
  [[nodiscard]] std::int64_t sent_bytes(const PlannedRun& run) const;

  struct Record;
  std::shared_ptr<const Record> record_;
};

// What a step takes with the options of an Accelerator: Accelerator::plan().
struct RunPlan {
  StepPlan step;         // of other ways to divide the model, too
  PlannedRun run;        // as the options, the environment and the processes of the job say
  PlannedMemory memory;  // of that run
};

}  // namespace accel
