// Where a loader stands in its passes.
//
// Random numbers are drawn as PyTorch's DataLoader does when a pass begins: first the state of rank
// 0 is taken over, then one 63-bit number is drawn (PyTorch seeds its worker processes with it),
// then the sampler draws its order. A pass that is resumed in its middle draws none but the order.

#include <algorithm>
#include <string>
#include <utility>

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>

#include <accel/detail/dataloader_base.h>
#include <accel/error.h>
#include <accel/operations.h>
#include <accel/random.h>

#include "libaccel/tensors/state_reader.h"

namespace accel {
namespace {

constexpr std::string_view kSamplerPrefix = "sampler.";

template <typename Map>
void add_prefixed(const Map& from, Map& to) {
  for (const auto& [name, value] : from) to.emplace(std::string(kSamplerPrefix) + name, value);
}

template <typename Map>
void add_unprefixed(const Map& from, Map& to) {
  for (const auto& [name, value] : from) {
    if (name.starts_with(kSamplerPrefix)) to.emplace(name.substr(kSamplerPrefix.size()), value);
  }
}

// What PyTorch draws as the seed of its worker processes.
void draw_worker_seed(const at::Generator& generator) {
  at::empty({}, at::kLong).random_(generator.defined() ? std::optional(generator) : std::nullopt);
}

}  // namespace

DataLoaderBase::DataLoaderBase(LoaderPlan plan) : plan_(std::move(plan)) {}

DataLoaderBase::~DataLoaderBase() {
  if (is_in_pass_ && GradientState::initialized()) GradientState().remove_dataloader(this);
}

void DataLoaderBase::set_epoch(std::int64_t epoch) {
  if (epoch != epoch_) {
    batches_consumed_ = first_sample_ = 0;
    resumes_ = false;
  }
  epoch_ = epoch;
}

DataLoaderBase::PassStart DataLoaderBase::begin_pass(std::int64_t skip_batches) {
  reach_boundary();
  synchronize_generators();
  if (!resumes_) first_sample_ = 0;
  const std::int64_t first = (resumes_ ? batches_consumed_ : 0) + skip_batches;
  const bool goes_on = resumes_ && (batches_consumed_ > 0 || first_sample_ > 0);
  if (!goes_on) draw_worker_seed(plan_.generator);

  PassStart start{++pass_number_, epoch_, first, first_sample_, std::nullopt};
  const bool reads = !plan_.dispatch_batches || plan_.process_index == 0;
  if (plan_.batch_sampler) plan_.batch_sampler->set_epoch(epoch_);
  if (plan_.batch_sampler && reads) start.batches = begin_batches();
  num_samples_ = {};
  if (start.batches) {
    num_samples_ = [list = *start.batches](std::int64_t number) {
      return list.num_samples(number);
    };
  }

  resumes_ = false;
  batches_consumed_ = first;
  end_of_dataloader_ = false;
  own_remainder_.reset();
  const auto elements = plan_.num_elements();
  const auto rows = plan_.total_batch_size();
  const bool repeats = !plan_.drop_last && !plan_.shards_itself;
  remainder_ = elements && rows && repeats
                   ? std::max<std::int64_t>(0, *elements - first_sample_) % *rows
                   : -1;
  if (!is_in_pass_) GradientState().add_dataloader(this);
  is_in_pass_ = true;
  return start;
}

BatchList DataLoaderBase::begin_batches() {
  BatchSamplerBase& sampler = *plan_.batch_sampler;
  return first_sample_ == 0 ? sampler.begin_pass() : sampler.begin_pass_at(first_sample_);
}

void DataLoaderBase::synchronize_generators() {
  if (plan_.num_processes == 1 || !PartialState::initialized()) return;
  std::vector<RNGType> types = plan_.rng_types;
  if (!plan_.synchronized_generator.defined()) std::erase(types, RNGType::kGenerator);
  synchronize_rng_states(types, plan_.synchronized_generator);
  const auto sampler = plan_.batch_sampler ? plan_.batch_sampler->sampler() : nullptr;
  if (const auto seedable = std::dynamic_pointer_cast<SeedableRandomSampler>(sampler)) {
    seedable->set_initial_seed(broadcast_object(seedable->initial_seed()));
  } else if (const auto permuted = std::dynamic_pointer_cast<PermutationSampler>(sampler)) {
    permuted->set_seed(broadcast_object(permuted->seed()));
  }
}

void DataLoaderBase::count_batch(std::int64_t pass, bool is_last, std::int64_t rows_of_last) {
  if (pass != pass_number_) {
    throw Error(ErrorCode::kInvalidArgument,
                "another pass over this data loader was begun before this one ended",
                "use two data loaders to read a dataset twice at the same time");
  }
  ++batches_consumed_;
  if (!is_last) return;
  end_of_dataloader_ = true;
  if (rows_of_last >= 0) remainder_ = rows_of_last;
  if (num_samples_) own_remainder_ = num_samples_(batches_consumed_ - 1);
  if (plan_.batch_sampler) plan_.batch_sampler->end_pass();
}

void DataLoaderBase::end_pass(std::int64_t pass, bool read_to_end) {
  if (pass != pass_number_ || !is_in_pass_) return;
  is_in_pass_ = false;
  if (GradientState::initialized()) GradientState().remove_dataloader(this);
  if (!read_to_end) return;
  ++epoch_;
  batches_consumed_ = first_sample_ = 0;
}

StateDict DataLoaderBase::state_dict() const {
  // While the last batch is yielded the epoch is over, but for the loop around it.
  const bool is_over = is_in_pass_ && end_of_dataloader_;
  const std::int64_t batches = is_over ? 0 : batches_consumed_;
  StateDict state;
  state.values["epoch"] = is_over ? epoch_ + 1 : epoch_;
  state.values["batches"] = batches;
  const std::int64_t first_sample = is_over ? 0 : first_sample_;
  if (const auto rows = plan_.total_batch_size())
    state.values["samples"] = first_sample + batches * *rows;
  if (first_sample > 0) state.values["first_sample"] = first_sample;
  if (plan_.shards_itself) state.values["shards"] = plan_.num_processes;
  if (const auto& run = plan_.micro_batches)
    state.values["micro_batches"] = batches / run->size() * run->total;
  if (const auto sampler = plan_.batch_sampler ? plan_.batch_sampler->sampler() : nullptr) {
    const StateDict of_sampler = sampler->state_dict();
    add_prefixed(of_sampler.values, state.values);
    add_prefixed(of_sampler.tensors, state.tensors);
  }
  return state;
}

// What begins between two batches of now: the pass goes on from that sample. But where the passes of before began at a sample of
// their own, and had these batches, it is theirs that goes on, so that the last one is completed alike.
DataLoaderBase::Position DataLoaderBase::position_of(std::int64_t samples,
                                                     std::int64_t first_sample,
                                                     std::int64_t rows) {
  if (first_sample > 0 && (samples - first_sample) % rows == 0)
    return {(samples - first_sample) / rows, first_sample};
  if (samples % rows == 0) return {samples / rows, 0};
  return {0, samples};
}

void DataLoaderBase::load_state_dict(const StateDict& state) {
  const StateReader reader("a data loader", state);
  const std::int64_t epoch = reader.integer("epoch");
  Position position{reader.integer("batches"), 0};
  const auto rows = plan_.total_batch_size();
  if (rows && reader.has("samples")) {
    const std::int64_t samples = reader.integer("samples");
    position = position_of(
        samples, reader.has("first_sample") ? reader.integer("first_sample") : 0, *rows);
    const bool begins_anywhere =
        plan_.batch_sampler ? plan_.batch_sampler->begins_anywhere() : !plan_.shards_itself;
    if (position.first_sample > 0 && !begins_anywhere) {
      throw Error(ErrorCode::kCheckpointMismatch,
                  "the checkpoint was saved after " + std::to_string(samples) +
                      " samples of epoch " + std::to_string(epoch) +
                      ", where no batch begins now: all ranks read " + std::to_string(*rows) +
                      " samples for one, by a batch sampler or shards that begin at batches alone",
                  "override begins_anywhere() and begin_pass_at() of the batch sampler, or use the "
                  "number of processes and the batch size of the checkpoint");
    }
  }
  if (plan_.shards_itself && reader.has("shards") &&
      reader.integer("shards") != plan_.num_processes) {
    throw Error(ErrorCode::kCheckpointMismatch,
                "the checkpoint was saved by " + std::to_string(reader.integer("shards")) +
                    " ranks, each with a shard of the dataset, and now there are " +
                    std::to_string(plan_.num_processes),
                "use as many processes, or load a checkpoint of the end of an epoch");
  }
  if (const auto& run = plan_.micro_batches) {
    // Of another rank, or of another number of them.
    const std::int64_t done = reader.integer("micro_batches");
    if (done % run->total != 0) {
      throw Error(ErrorCode::kCheckpointMismatch,
                  "the checkpoint was saved after " + std::to_string(done) +
                      " micro-batches of epoch " + std::to_string(epoch) +
                      ", which is no multiple of the " + std::to_string(run->total) +
                      " of a step now",
                  "use the gradient_accumulation_steps of the checkpoint");
    }
    position = {done / run->total * run->size(), 0};
  }
  if (const auto sampler = plan_.batch_sampler ? plan_.batch_sampler->sampler() : nullptr) {
    StateDict of_sampler;
    add_unprefixed(state.values, of_sampler.values);
    add_unprefixed(state.tensors, of_sampler.tensors);
    sampler->load_state_dict(of_sampler);
  }
  epoch_ = epoch;
  batches_consumed_ = position.batches;
  first_sample_ = position.first_sample;
  resumes_ = true;
}

std::optional<bool> DataLoaderBase::even_batches() const {
  const auto shard = std::dynamic_pointer_cast<BatchSamplerShard>(plan_.batch_sampler);
  return shard ? std::optional<bool>(shard->options().even_batches) : std::nullopt;
}

void DataLoaderBase::set_even_batches(bool even_batches) {
  if (const auto shard = std::dynamic_pointer_cast<BatchSamplerShard>(plan_.batch_sampler)) {
    shard->set_even_batches(even_batches);
  }
}

}  // namespace accel
