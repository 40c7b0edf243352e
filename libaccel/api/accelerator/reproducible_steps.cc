#include "libaccel/api/accelerator/reproducible_steps.h"

#include <string>
#include <utility>
#include <variant>

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <ATen/ops/zeros.h>
#include <torch/nn/module.h>

#include <accel/env_contract.h>
#include <accel/error.h>

#include "libaccel/engine/process/process_group.h"
#include "libaccel/engine/settings/variable_values.h"
#include "libaccel/tensors/parameter_list.h"
#include "libaccel/tensors/state_reader.h"

namespace accel::detail {
namespace {

constexpr const char* kReproducibleVariable = "ACCEL_REPRODUCIBLE";
constexpr const char* kRecordSeedKey = "reproducible.seed";
constexpr const char* kRecordStepKey = "reproducible.step";
constexpr const char* kRecordMicroBatchesKey = "reproducible.micro_batches";
constexpr const char* kRecordThreadsKey = "reproducible.threads";

// SplitMix64 (Steele, Lea and Flood 2014): neighbouring numbers become unlike ones.
std::uint64_t scattered(std::uint64_t number) noexcept {
  number += 0x9e3779b97f4a7c15U;
  number = (number ^ (number >> 30U)) * 0xbf58476d1ce4e5b9U;
  number = (number ^ (number >> 27U)) * 0x94d049bb133111ebU;
  return number ^ (number >> 31U);
}

std::uint64_t micro_batch_seed(const ReproducibleSteps::Record& record,
                               std::int64_t micro_batch) noexcept {
  const std::uint64_t of_step = scattered(scattered(static_cast<std::uint64_t>(record.seed)) +
                                          static_cast<std::uint64_t>(record.step));
  return scattered(of_step + static_cast<std::uint64_t>(micro_batch));
}

[[noreturn]] void refuse_in_reproducible(const std::string& what, const std::string& remedy) {
  throw Error(ErrorCode::kUnsupported, "reproducible training cannot have " + what, remedy);
}

}  // namespace

bool wants_reproducible(const AcceleratorOptions& options) {
  if (options.reproducible) return *options.reproducible;
  return sharding::flag_of(process_env(), kReproducibleVariable).value_or(false);
}

void refuse_irreproducible(const torch::nn::Module& module,
                           const AcceleratorOptions& options,
                           const std::optional<sharding::FsdpSettings>& fsdp,
                           const PrecisionRecipe& recipe,
                           int num_processes) {
  for (const auto& buffer : module.named_buffers()) {
    if (!buffer.key().ends_with("num_batches_tracked")) continue;
    refuse_in_reproducible("the running averages of " + buffer.key() +
                               ", which are of the micro-batches that one rank sees",
                           "use GroupNorm or LayerNorm, or track_running_stats(false)");
  }
  if (!std::holds_alternative<DDPCommunicationHookType>(options.ddp.comm_hook) ||
      std::get<DDPCommunicationHookType>(options.ddp.comm_hook) != DDPCommunicationHookType::kNo)
    refuse_in_reproducible("a comm_hook, which sums gradients in its own order",
                           "leave ddp.comm_hook out");
  if (!fsdp) return;
  // Of several ranks each computes with parameters in 16 bits, and one alone has no shards and keeps fp32.
  if (fsdp->strategy != ShardingStrategy::kNoShard && recipe.is_of_shards() && num_processes == 1 &&
      fsdp->parameter_folder.empty())
    refuse_in_reproducible(
        "a mixed_precision_policy on one process, which several have and one has not",
        "start two processes or more, or use mixed_precision in place of the policy");
  if (fsdp->gradient_clipping) {
    refuse_in_reproducible(
        "gradient_clipping of the DeepSpeed file, which adds up its norm rank by rank",
        "call accelerator.clip_grad_norm_()");
  }
  if (!fsdp->ignored_modules.empty() || !fsdp->ignored_names.empty())
    refuse_in_reproducible("ignored_modules, whose gradients are averaged rank by rank",
                           "divide the whole model");
}

ReproducibleSteps::ReproducibleSteps(const Preparation& prepared, std::int64_t total)
    : prepared_(prepared),
      run_(micro_batches_of(total, prepared.state.process_index(), prepared.state.num_processes())),
      next_(run_.begin) {
  record_.micro_batches = total;
  record_.threads = at::get_num_threads();
}

// Rank 0's, once: others may have been seeded otherwise.
void ReproducibleSteps::agree_on_seed() {
  has_seed_ = true;
  at::Tensor seed = at::zeros({}, at::kLong);
  seed.fill_(
      static_cast<std::int64_t>(at::globalContext().defaultGenerator(at::kCPU).current_seed()));
  if (const auto group = prepared_.state.process_group())
    group->broadcast_(seed, 0, "agreeing on the seed of micro-batches");
  record_.seed = seed.item<std::int64_t>();
}

void ReproducibleSteps::begin_micro_batch() {
  if (!has_backward_) {
    throw Error(ErrorCode::kInvalidArgument,
                "micro-batch " + std::to_string(micro_batch()) + " of step " +
                    std::to_string(record_.step) +
                    " had no backward, and the gradient of a step is that of all of them",
                "call accelerator.backward() once within each accumulate()");
  }
  if (!has_seed_) agree_on_seed();
  if (next_ == run_.end) next_ = run_.begin;
  at::manual_seed(micro_batch_seed(record_, next_++));
  has_backward_ = false;
}

void ReproducibleSteps::begin_backward() {
  if (has_backward_) {
    throw Error(ErrorCode::kInvalidArgument,
                "reproducible training got a backward that is of no micro-batch, or the second one "
                "of it",
                "hold accelerator.accumulate(model) around each micro-batch, and add its losses");
  }
  for (const auto& model : prepared_.models) {
    if (model->sync() == nullptr || !model->sync()->syncs_in_backward()) continue;
    throw Error(ErrorCode::kUnsupported,
                "trigger_sync_in_backward() in reproducible training: the last micro-batch of a "
                "step exchanges for all",
                "leave it out");
  }
  if (micro_batch() > run_.begin) {
    for (auto& [model, sums] : sums_) sums.before_backward(micro_batch());
    return;
  }
  for (const auto& model : prepared_.models) {
    auto found = sums_.find(model.get());
    if (found == sums_.end()) {
      found =
          sums_
              .emplace(model.get(),
                       SubtreeSums(trainable_parameters(*model->module()), model->recipe().reduce))
              .first;
    }
    found->second.begin();
  }
}

void ReproducibleSteps::end_backward() {
  for (auto& [model, sums] : sums_) sums.take(micro_batch());
  has_backward_ = true;
  if (!is_last()) return;
  sum_over_ranks();
  ++record_.step;
}

// In the order of prepare(), on every rank.
void ReproducibleSteps::sum_over_ranks() {
  for (const auto& model : prepared_.models) {
    const auto found = sums_.find(model.get());
    if (found == sums_.end()) continue;
    SubtreeSums& sums = found->second;
    if (const auto& sync = model->sync()) {
      sync->sum_in_order(sums, run_);
    } else {
      sums.give(sums.take_total());
    }
  }
}

void ReproducibleSteps::begin_anew() {
  sums_.clear();
  next_ = run_.begin;
  has_backward_ = true;
}

void ReproducibleSteps::save(StateDict& state) const {
  state.values[kRecordSeedKey] = record_.seed;
  state.values[kRecordStepKey] = record_.step;
  state.values[kRecordMicroBatchesKey] = record_.micro_batches;
  state.values[kRecordThreadsKey] = record_.threads;
}

void ReproducibleSteps::load(const StateDict& state) {
  const StateReader reader("reproducible training", state);
  if (!reader.has(kRecordStepKey)) return;
  loaded_ = Record{.seed = reader.integer(kRecordSeedKey),
                   .step = reader.integer(kRecordStepKey),
                   .micro_batches = reader.integer(kRecordMicroBatchesKey),
                   .threads = reader.integer(kRecordThreadsKey)};
}

void ReproducibleSteps::agree_on_record() {
  begin_anew();
  at::Tensor said = at::zeros({5}, at::kLong);
  auto* const values = said.data_ptr<std::int64_t>();
  if (const auto loaded = std::exchange(loaded_, std::nullopt)) {
    values[0] = 1;
    values[1] = loaded->seed;
    values[2] = loaded->step;
    values[3] = loaded->micro_batches;
    values[4] = loaded->threads;
  }
  if (const auto group = prepared_.state.process_group())
    group->broadcast_(said, 0, "agreeing on the step of a checkpoint");
  if (values[0] == 0) {
    prepared_.logger.warning(
        "the checkpoint is of no reproducible training: its random numbers begin anew here");
    return;
  }
  record_.seed = values[1];
  record_.step = values[2];
  has_seed_ = true;
  if (values[3] != record_.micro_batches) {
    prepared_.logger.warning("the checkpoint was made with " + std::to_string(values[3]) +
                             " micro-batches a step, and there are " +
                             std::to_string(record_.micro_batches) +
                             " now: the steps from here on are others");
  }
  if (values[4] != record_.threads) {
    prepared_.logger.warning(
        "the checkpoint was made with " + std::to_string(values[4]) +
        " threads a rank, and there are " + std::to_string(record_.threads) +
        " now, by which kernels sum: the bits from here on are others; set OMP_NUM_THREADS=" +
        std::to_string(values[4]));
  }
}

}  // namespace accel::detail
