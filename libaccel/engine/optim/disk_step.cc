#include "libaccel/engine/optim/disk_step.h"

#include <algorithm>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <optional>
#include <thread>
#include <typeinfo>
#include <utility>

#include <ATen/core/grad_mode.h>
#include <c10/util/Type.h>
#include <torch/optim/optimizer.h>

#include <accel/error.h>
#include <accel/lomo.h>
#include <accel/train_eval.h>

#include "libaccel/engine/optim/step_memory.h"
#include "libaccel/tensors/alignment.h"
#include "libaccel/tensors/optimizer_traits.h"

namespace accel {
namespace {

using torch::optim::Optimizer;

const OptimizerTraits& checked_traits(const Optimizer& optimizer) {
  const OptimizerTraits* const traits = traits_of(optimizer);
  const char* fault = nullptr;
  if (traits == nullptr) {
    fault = "its states are not known";
  } else if (!has_state_by_parameter(*traits)) {
    fault = "its steps need all parameters at once";
  } else if (dynamic_cast<const TrainEval*>(&optimizer) != nullptr) {
    fault = "its states are read by train() and eval() too";
  } else if (dynamic_cast<const BackwardOptimizer*>(&optimizer) != nullptr) {
    fault = "it steps in the backward and has none";
  }
  if (fault == nullptr) return *traits;
  throw Error(ErrorCode::kUnsupported,
              "the states of an optimizer of type " + c10::demangle(typeid(optimizer).name()) +
                  " cannot be kept on disk: " + fault,
              "leave offload_optimizer out, or use SGD, Adam, AdamW, RMSprop, Adagrad, Lion or "
              "Muon");
}

bool lies_at(const at::Tensor& place, const at::Tensor& tensor) {
  return place.defined() && tensor.defined() && place.const_data_ptr() == tensor.const_data_ptr();
}

// Whether values of `tensor` may lie there without a change.
bool can_hold(const at::Tensor& place, const at::Tensor& tensor) {
  return place.defined() && tensor.defined() && place.sizes() == tensor.sizes() &&
         place.scalar_type() == tensor.scalar_type();
}

// Reads ahead of the step and writes behind it.
class Pipeline {
 public:
  Pipeline(std::vector<std::vector<BucketRange>> buckets, std::size_t depth)
      : buckets_(std::move(buckets)),
        depth_(depth),
        reader_([this] { run(&Pipeline::read); }),
        writer_([this] { run(&Pipeline::write); }) {}
  ~Pipeline() {
    {
      const std::lock_guard lock(mutex_);
      is_stopping_ = true;
    }
    join();
  }
  Pipeline(const Pipeline&) = delete;
  Pipeline& operator=(const Pipeline&) = delete;

  // The next bucket is in memory. Throws what a thread met.
  void next() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return num_read_ > num_stepped_ || error_; });
    if (error_) throw Error(*error_);
  }
  void was_stepped() {
    const std::lock_guard lock(mutex_);
    ++num_stepped_;
    changed_.notify_all();
  }
  // All is on the disk.
  void finish() {
    join();
    if (error_) throw Error(*error_);
  }

 private:
  void run(void (Pipeline::*work)()) {
    try {
      (this->*work)();
    } catch (const Error& error) {
      const std::lock_guard lock(mutex_);
      error_ = error;
      changed_.notify_all();
    }
  }

  void read() {
    for (const std::vector<BucketRange>& bucket : buckets_) {
      if (!wait([&] { return num_read_ < num_written_ + depth_; })) return;
      for (const BucketRange& range : bucket) range.bytes.fetch(range.access);
      count(num_read_);
    }
  }
  void write() {
    for (const std::vector<BucketRange>& bucket : buckets_) {
      if (!wait([&] { return num_written_ < num_stepped_; })) return;
      for (const BucketRange& range : bucket) {
        if (range.access == StateRange::Access::kWrite) {
          range.bytes.store();
        } else {
          range.bytes.drop();
        }
      }
      count(num_written_);
    }
  }

  // Whether it came, and not the end.
  template <typename Condition>
  bool wait(Condition condition) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return condition() || is_stopping_ || error_; });
    return !is_stopping_ && !error_;
  }
  void count(std::size_t& number) {
    const std::lock_guard lock(mutex_);
    ++number;
    changed_.notify_all();
  }
  void join() {
    changed_.notify_all();
    for (std::thread* const thread : {&reader_, &writer_})
      if (thread->joinable()) thread->join();
  }

  const std::vector<std::vector<BucketRange>> buckets_;
  const std::size_t depth_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::size_t num_read_ = 0;
  std::size_t num_stepped_ = 0;
  std::size_t num_written_ = 0;
  std::optional<Error> error_;
  bool is_stopping_ = false;
  std::thread reader_;  // last: they use the rest
  std::thread writer_;
};

}  // namespace

struct DiskStep::Slice {
  std::size_t group = 0;
  at::Tensor parameter;
  std::int64_t begin = 0;  // of a part
  std::int64_t numel = 0;
  bool is_whole = true;
  bool is_last = true;
  bool has_stepped = false;  // there was a state before this step
  std::size_t bytes = 0;     // of state
  at::Tensor shown;          // to the optimizer
};

// While it lives, the groups have what it shows, and the states of parts go with it.
class DiskStep::Groups {
 public:
  explicit Groups(Optimizer& optimizer) : optimizer_(optimizer) {
    for (auto& group : optimizer.param_groups())
      parameters_.push_back(std::exchange(group.params(), {}));
  }
  ~Groups() {
    clear();
    for (std::size_t g = 0; g < parameters_.size(); ++g)
      optimizer_.param_groups()[g].params() = std::move(parameters_[g]);
  }
  Groups(const Groups&) = delete;
  Groups& operator=(const Groups&) = delete;

  void show(const Slice& slice) {
    optimizer_.param_groups()[slice.group].params().push_back(slice.shown);
    if (!slice.is_whole) parts_.emplace(slice.shown.unsafeGetTensorImpl(), slice);
  }
  void clear() noexcept {
    for (auto& group : optimizer_.param_groups()) group.params().clear();
    for (const auto& [key, slice] : parts_) optimizer_.state().erase(key);
    parts_.clear();
  }
  // The parameter that it is a part of.
  [[nodiscard]] const at::Tensor& parameter_of(const at::Tensor& shown) const {
    const auto found = parts_.find(shown.unsafeGetTensorImpl());
    return found == parts_.end() ? shown : found->second.parameter;
  }

 private:
  Optimizer& optimizer_;
  std::vector<std::vector<at::Tensor>> parameters_;
  std::unordered_map<void*, Slice> parts_;
};

DiskStep::DiskStep(Optimizer& optimizer,
                   std::filesystem::path folder,
                   DiskBuffers buffers,
                   checkpoint::FileSystem& file_system)
    : optimizer_(optimizer),
      traits_(checked_traits(optimizer)),
      buffers_(buffers),
      file_(std::move(folder), {}, file_system) {
  if (buffers.num_buffers >= 2 && buffers.bucket_bytes > 0) return;
  throw Error(ErrorCode::kInvalidArgument,
              "an optimizer on disk has " + std::to_string(buffers.num_buffers) + " buffers of " +
                  std::to_string(buffers.bucket_bytes) +
                  " bytes, expected at least 2 that are not empty");
}

SpeculativeStep& DiskStep::step_in_backward() {
  if (speculation_ == nullptr)
    speculation_ =
        std::make_unique<SpeculativeStep>(optimizer_, traits_, file_, kept_, buffers_.bucket_bytes);
  return *speculation_;
}

void DiskStep::make(std::span<const StateField> wanted) {
  const std::size_t num_fields = OptimizerStateView(traits_, *traits_.make_state()).tensors.size();
  std::vector<at::Tensor> like;
  std::vector<StateField> missing;
  for (const StateField& field : wanted) {
    if (!field.parameter.is_non_overlapping_and_dense() || place_of(field).defined()) continue;
    like.push_back(field.parameter);
    missing.push_back(field);
  }
  const std::vector<at::Tensor> made = file_.make(like);
  for (std::size_t i = 0; i < made.size(); ++i) {
    StatesOnDisk& kept = kept_[missing[i].parameter.unsafeGetTensorImpl()];
    kept.parameter = missing[i].parameter;
    kept.fields.resize(num_fields);
    kept.fields[missing[i].field] = made[i];
  }
}

at::Tensor DiskStep::place_of(const StateField& wanted) const {
  const auto kept = kept_.find(wanted.parameter.unsafeGetTensorImpl());
  return kept == kept_.end() ? at::Tensor() : kept->second.fields[wanted.field];
}

void DiskStep::make_places() {
  std::vector<StateField> wanted;
  for (auto& group : optimizer_.param_groups()) {
    const std::vector<bool> is_made = traits_.makes_tensors(group.options());
    for (const at::Tensor& parameter : group.params()) {
      if (!parameter.grad().defined()) continue;
      for (std::size_t f = 0; f < is_made.size(); ++f)
        if (is_made[f]) wanted.push_back({parameter, f});
    }
  }
  make(wanted);
}

void DiskStep::take_in() {
  for (auto& [key, kept] : kept_) {
    const auto state = optimizer_.state().find(kept.parameter.unsafeGetTensorImpl());
    if (state == optimizer_.state().end()) continue;
    const OptimizerStateView view(traits_, *state->second);
    for (std::size_t f = 0; f < kept.fields.size(); ++f) {
      const at::Tensor& place = kept.fields[f];
      at::Tensor& present = *view.tensors[f];
      if (!can_hold(place, present) || lies_at(place, present)) continue;
      copy_to_disk(place, present);
      present = place;
    }
  }
}

// But for its states.
std::size_t DiskStep::disk_bytes_of_element(const at::Tensor& parameter) {
  std::size_t bytes = 0;
  for (const at::Tensor& tensor : {parameter, parameter.grad()})
    if (StateRange::of(tensor)) bytes += tensor.element_size();
  return bytes;
}

std::vector<DiskStep::Slice> DiskStep::slices_of(std::size_t group,
                                                 const at::Tensor& parameter) const {
  Slice whole{.group = group, .parameter = parameter, .numel = parameter.numel()};
  const auto state = optimizer_.state().find(parameter.unsafeGetTensorImpl());
  whole.has_stepped = state != optimizer_.state().end();
  const auto found = kept_.find(parameter.unsafeGetTensorImpl());
  std::size_t bytes_of_element = 0;
  bool is_in_file = true;
  for (std::size_t f = 0; found != kept_.end() && f < found->second.fields.size(); ++f) {
    const at::Tensor& place = found->second.fields[f];
    if (place.defined()) bytes_of_element += place.element_size();
    if (!whole.has_stepped) continue;
    const at::Tensor& present = *OptimizerStateView(traits_, *state->second).tensors[f];
    is_in_file = is_in_file && (!present.defined() || lies_at(place, present));
  }
  bytes_of_element += disk_bytes_of_element(parameter);
  whole.bytes = static_cast<std::size_t>(whole.numel) * bytes_of_element;
  const at::Tensor& gradient = parameter.grad();
  const bool can_be_cut =
      is_element_wise(traits_) && is_in_file && gradient.layout() == at::kStrided &&
      parameter.is_non_overlapping_and_dense() && gradient.strides() == parameter.strides();
  if (whole.bytes <= buffers_.bucket_bytes || !can_be_cut) return {whole};
  const std::int64_t most = std::max<std::int64_t>(
      1, static_cast<std::int64_t>(buffers_.bucket_bytes / bytes_of_element) / kPartElements);
  std::vector<Slice> parts;
  for (std::int64_t begin = 0; begin < whole.numel; begin += most * kPartElements) {
    Slice part = whole;
    part.is_whole = false;
    part.begin = begin;
    part.numel = std::min(most * kPartElements, whole.numel - begin);
    part.is_last = begin + part.numel == whole.numel;
    part.bytes = static_cast<std::size_t>(part.numel) * bytes_of_element;
    parts.push_back(std::move(part));
  }
  return parts;
}

std::vector<DiskStep::Bucket> DiskStep::buckets() const {
  std::vector<Bucket> buckets;
  std::size_t bytes = 0;  // of the last one
  for (std::size_t g = 0; g < optimizer_.param_groups().size(); ++g) {
    for (const at::Tensor& parameter : optimizer_.param_groups()[g].params()) {
      if (!parameter.grad().defined()) continue;
      for (Slice& slice : slices_of(g, parameter)) {
        if (buckets.empty() || bytes + slice.bytes > buffers_.bucket_bytes) {
          buckets.emplace_back();
          bytes = 0;
        }
        bytes += slice.bytes;
        buckets.back().push_back(std::move(slice));
      }
    }
  }
  return buckets;
}

std::vector<BucketRange> DiskStep::ranges_of(const Bucket& bucket) const {
  std::vector<BucketRange> ranges;
  const auto add = [&ranges](const at::Tensor& tensor, const Slice& slice, auto access) {
    if (!tensor.defined() || slice.numel == 0 || !tensor.is_non_overlapping_and_dense()) return;
    const auto next = StateRange::of(flat_part(tensor, slice.begin, slice.numel));
    const bool may_follow = !ranges.empty() && ranges.back().access == access;
    if (!next || (may_follow && ranges.back().bytes.append(*next))) return;
    ranges.push_back({*next, access});
  };
  for (const Slice& slice : bucket) {
    if (const auto kept = kept_.find(slice.parameter.unsafeGetTensorImpl()); kept != kept_.end())
      for (const at::Tensor& place : kept->second.fields)
        add(place, slice, StateRange::Access::kWrite);
  }
  for (const Slice& slice : bucket) add(slice.parameter, slice, StateRange::Access::kWrite);
  for (const Slice& slice : bucket) add(slice.parameter.grad(), slice, StateRange::Access::kRead);
  return ranges;
}

void DiskStep::show(Slice& slice, Groups& groups) {
  slice.shown = slice.parameter;
  if (!slice.is_whole) {
    slice.shown = flat_part(slice.parameter, slice.begin, slice.numel);
    slice.shown.mutable_grad() = flat_part(slice.parameter.grad(), slice.begin, slice.numel);
  }
  groups.show(slice);
  if (slice.is_whole || !slice.has_stepped) return;
  auto state = optimizer_.state().at(slice.parameter.unsafeGetTensorImpl())->clone();
  for (at::Tensor* const field : OptimizerStateView(traits_, *state).tensors)
    if (field->defined()) *field = flat_part(*field, slice.begin, slice.numel);
  optimizer_.state()[slice.shown.unsafeGetTensorImpl()] = std::move(state);
}

// Steps may have made tensors of their own: the first one does.
void DiskStep::keep(const Slice& slice) {
  auto& states = optimizer_.state();
  const auto shown = states.find(slice.shown.unsafeGetTensorImpl());
  const auto kept = kept_.find(slice.parameter.unsafeGetTensorImpl());
  if (shown == states.end() || kept == kept_.end()) return;
  const std::vector<at::Tensor>& places = kept->second.fields;
  const OptimizerStateView view(traits_, *shown->second);
  for (std::size_t f = 0; f < places.size(); ++f) {
    at::Tensor& present = *view.tensors[f];
    if (!present.defined()) continue;
    if (slice.is_whole) {
      if (!can_hold(places[f], present) || lies_at(places[f], present)) continue;
      places[f].copy_(present);
      present = places[f];
      continue;
    }
    if (!places[f].defined())
      throw Error(ErrorCode::kInternal, "a step has made a state that nobody expects");
    const at::Tensor place = flat_part(places[f], slice.begin, slice.numel);
    if (!lies_at(place, present)) place.copy_(present);
  }
  if (slice.is_whole || !slice.is_last) return;
  auto& whole = states[slice.parameter.unsafeGetTensorImpl()];
  auto& part = *states.at(slice.shown.unsafeGetTensorImpl());
  if (whole == nullptr) whole = part.clone();
  const OptimizerStateView of_whole(traits_, *whole);
  const OptimizerStateView of_part(traits_, part);
  for (std::size_t f = 0; f < places.size(); ++f)
    if (of_part.tensors[f]->defined()) *of_whole.tensors[f] = places[f];
  for (std::size_t n = 0; n < of_whole.numbers.size(); ++n)
    *of_whole.numbers[n] = *of_part.numbers[n];
}

void DiskStep::step(const Step& step, const IsPadded& is_padded, const WasStepped& was_stepped) {
  const at::NoGradGuard no_grad;
  const StepMemory memory;
  if (speculation_ != nullptr && speculation_->is_right()) {
    speculation_->commit(was_stepped);
    return;
  }
  if (speculation_ != nullptr) speculation_->drop();
  make_places();
  take_in();
  std::vector<Bucket> all = buckets();
  num_buckets_ = all.size();
  std::vector<std::vector<BucketRange>> ranges;
  for (const Bucket& bucket : all) ranges.push_back(ranges_of(bucket));
  Groups groups(optimizer_);
  Pipeline pipeline(std::move(ranges), buffers_.num_buffers);
  for (Bucket& bucket : all) {
    pipeline.next();
    for (Slice& slice : bucket) show(slice, groups);
    step([&](const at::Tensor& shown) { return is_padded(groups.parameter_of(shown)); });
    for (const Slice& slice : bucket) {
      keep(slice);
      if (was_stepped) was_stepped(slice.parameter, slice.begin, slice.numel);
    }
    groups.clear();
    bucket.clear();
    pipeline.was_stepped();
  }
  pipeline.finish();
}

}  // namespace accel
