// The batches of one rank, by arithmetic.
//
// HF Accelerate walks through all batches and collects what a rank shall see. The same result
// follows from numbers alone, because batches of a declared size B are full up to the last one.
// With L batches and N ranks:
//
//   whole batches   A round is N consecutive batches; it is complete when its last batch exists and
//   is
//                   full. Rank r sees batch r of every complete round. At most one round, the tail,
//                   is not complete; with even_batches it is read as one stream of elements,
//                       [ elements of the tail | elements of the first min(N, L) batches, over and
//                       over ]
//                   of which rank r takes the elements r * B ... (r + 1) * B - 1.
//                   Without a declared size the tail is completed by whole batches, from the first
//                   on.
//   parts           Rank r sees elements r * B/N ... (r + 1) * B/N - 1 of each batch. A last batch
//   that
//                   is short is continued with the first one, over and over.
//
// A sampler that declares B and yields a shorter batch before the last breaks the arithmetic; HF
// Accelerate loses data there without a word.

#include <algorithm>
#include <string>
#include <utility>

#include <accel/batch_samplers.h>
#include <accel/error.h>

namespace accel {
namespace {

Indices slice_of(const Indices& batch, std::int64_t begin, std::int64_t end) {
  const auto size = static_cast<std::int64_t>(batch.size());
  return {batch.begin() + std::min(begin, size), batch.begin() + std::min(end, size)};
}

// A pass over whole batches.
class WholeBatchShard {
 public:
  WholeBatchShard(BatchList inner,
                  std::optional<std::int64_t> batch_size,
                  BatchShardOptions options)
      : inner_(std::move(inner)),
        batch_size_(batch_size),
        options_(options),
        complete_rounds_(inner_.size() / options.num_processes),
        tail_(inner_.size() % options.num_processes) {
    const bool last_is_short = inner_.size() > 0 && batch_size_ && !is_full(inner_.size() - 1);
    if (tail_ == 0 && last_is_short) {
      --complete_rounds_;
      tail_ = options_.num_processes;
    }
  }

  [[nodiscard]] std::int64_t num_batches(bool drop_last) const {
    if (tail_ == 0 || drop_last) return complete_rounds_;
    const bool has_part_of_tail = options_.even_batches || options_.process_index < tail_;
    return complete_rounds_ + (has_part_of_tail ? 1 : 0);
  }

  // Of batches that vary: a batch is repeated whole.
  [[nodiscard]] std::int64_t num_samples(std::int64_t number) const {
    const std::int64_t own = number * options_.num_processes + options_.process_index;
    return own < inner_.size() ? static_cast<std::int64_t>(inner_[own].size()) : 0;
  }

  [[nodiscard]] Indices batch(std::int64_t number) const {
    const std::int64_t own = number * options_.num_processes + options_.process_index;
    const bool exists = own < inner_.size();
    if (number < complete_rounds_ || !options_.even_batches) return inner_[own];
    if (!batch_size_) {
      const std::int64_t first_batches = std::min(options_.num_processes, inner_.size());
      return exists ? inner_[own] : inner_[(options_.process_index - tail_) % first_batches];
    }
    if (exists && is_full(own)) return inner_[own];
    return padded_tail();
  }

 private:
  [[nodiscard]] bool is_full(std::int64_t number) const {
    return static_cast<std::int64_t>(inner_[number].size()) == *batch_size_;
  }

  [[nodiscard]] Indices elements(std::int64_t first_batch, std::int64_t end_batch) const {
    Indices all;
    for (std::int64_t number = first_batch; number < end_batch; ++number) {
      const Indices batch = inner_[number];
      all.insert(all.end(), batch.begin(), batch.end());
    }
    return all;
  }

  [[nodiscard]] Indices padded_tail() const {
    const Indices tail = elements(complete_rounds_ * options_.num_processes, inner_.size());
    const Indices beginning = elements(0, std::min(options_.num_processes, inner_.size()));
    Indices batch;
    for (std::int64_t i = 0; i < *batch_size_; ++i) {
      const auto position = static_cast<size_t>(options_.process_index * *batch_size_ + i);
      batch.push_back(position < tail.size()
                          ? tail[position]
                          : beginning[(position - tail.size()) % beginning.size()]);
    }
    return batch;
  }

  BatchList inner_;
  std::optional<std::int64_t> batch_size_;
  BatchShardOptions options_;
  std::int64_t complete_rounds_;
  std::int64_t tail_;  // batches of the round that is not complete
};

// A pass over parts of every batch.
class PartShard {
 public:
  PartShard(BatchList inner, std::int64_t batch_size, BatchShardOptions options)
      : inner_(std::move(inner)),
        batch_size_(batch_size),
        even_batches_(options.even_batches),
        begin_(batch_size / options.num_processes * options.process_index),
        end_(begin_ + batch_size / options.num_processes) {}

  [[nodiscard]] std::int64_t num_batches(bool drop_last) const {
    const std::int64_t all = inner_.size();
    const std::int64_t last = all == 0 ? batch_size_ : size_of(inner_[all - 1]);
    if (last == batch_size_) return all;
    const bool has_part_of_last = !drop_last && (even_batches_ || last > begin_);
    return all - (has_part_of_last ? 0 : 1);
  }

  [[nodiscard]] Indices batch(std::int64_t number) const {
    Indices whole = inner_[number];
    if (even_batches_ && size_of(whole) < batch_size_) {
      const Indices beginning = inner_[0];
      for (size_t i = 0; size_of(whole) < batch_size_; ++i) {
        whole.push_back(beginning[i % beginning.size()]);
      }
    }
    return slice_of(whole, begin_, end_);
  }

 private:
  static std::int64_t size_of(const Indices& batch) {
    return static_cast<std::int64_t>(batch.size());
  }

  BatchList inner_;
  std::int64_t batch_size_;
  bool even_batches_;
  std::int64_t begin_;  // of this rank's part
  std::int64_t end_;
};

}  // namespace

void check_skip(std::int64_t num_batches) {
  if (num_batches >= 0) return;
  throw Error(
      ErrorCode::kInvalidArgument,
      "the number of batches to skip must not be negative, got " + std::to_string(num_batches));
}

void check_rank(std::int64_t process_index, std::int64_t num_processes) {
  if (num_processes >= 1 && process_index >= 0 && process_index < num_processes) return;
  throw Error(ErrorCode::kInvalidArgument,
              "process_index " + std::to_string(process_index) + " is not one of " +
                  std::to_string(num_processes) + " processes");
}

void check_batch_size_divides(std::optional<std::int64_t> batch_size, std::int64_t num_processes) {
  if (!batch_size) {
    throw Error(ErrorCode::kDataSharding,
                "split_batches needs batches of one size, but this batch sampler has no batch_size",
                "set split_batches = false, or return the size from batch_size()");
  }
  if (*batch_size % num_processes == 0) return;
  const std::int64_t below = *batch_size / num_processes * num_processes;
  std::string sizes = std::to_string(below + num_processes);
  if (below > 0) sizes = std::to_string(below) + " or " + sizes;
  throw Error(ErrorCode::kDataSharding,
              "with split_batches the batch size (" + std::to_string(*batch_size) +
                  ") must be a round multiple of the number of processes (" +
                  std::to_string(num_processes) + ")",
              "set batch_size to " + sizes + ", or split_batches = false");
}

BatchList::BatchList(std::vector<Indices> batches)
    : size_(static_cast<std::int64_t>(batches.size())) {
  batch_ = [list = std::make_shared<const std::vector<Indices>>(std::move(batches))](
               std::int64_t number) { return (*list)[static_cast<size_t>(number)]; };
}

BatchSampler::BatchSampler(std::shared_ptr<Sampler> sampler,
                           std::int64_t batch_size,
                           bool drop_last)
    : sampler_(std::move(sampler)), batch_size_(batch_size), drop_last_(drop_last) {
  if (!sampler_)
    throw Error(ErrorCode::kInvalidArgument, "a batch sampler needs a sampler, got null");
  if (batch_size_ <= 0) {
    throw Error(ErrorCode::kInvalidArgument,
                "batch_size must be positive, got " + std::to_string(batch_size_));
  }
}

BatchList BatchSampler::batches_from(std::int64_t first_element) {
  const IndexOrder order = sampler_->begin_pass();
  const std::int64_t rest = std::max<std::int64_t>(0, order.size() - first_element);
  const std::int64_t whole = rest / batch_size_;
  const bool has_rest = !drop_last_ && rest % batch_size_ != 0;
  return {whole + (has_rest ? 1 : 0),
          [order, first_element, batch_size = batch_size_](std::int64_t number) {
            const std::int64_t begin = first_element + number * batch_size;
            const std::int64_t end = std::min(begin + batch_size, order.size());
            Indices batch(static_cast<size_t>(end - begin));
            for (std::int64_t i = begin; i < end; ++i)
              batch[static_cast<size_t>(i - begin)] = order[i];
            return batch;
          }};
}

std::int64_t BatchSampler::size() const {
  const std::int64_t elements = sampler_->size();
  return drop_last_ ? elements / batch_size_ : (elements + batch_size_ - 1) / batch_size_;
}

BatchSamplerShard::BatchSamplerShard(std::shared_ptr<BatchSamplerBase> batches,
                                     BatchShardOptions options)
    : batches_(std::move(batches)), options_(options) {
  if (!batches_)
    throw Error(ErrorCode::kInvalidArgument, "a shard needs a batch sampler, got null");
  check_rank(options_.process_index, options_.num_processes);
  if (options_.split_batches) {
    check_batch_size_divides(batches_->batch_size(), options_.num_processes);
  }
}

BatchList BatchSamplerShard::shard_of(BatchList all) const {
  if (options_.split_batches) {
    PartShard parts(std::move(all), *batches_->batch_size(), options_);
    const std::int64_t num_batches = parts.num_batches(drop_last());
    return {num_batches,
            [parts = std::move(parts)](std::int64_t number) { return parts.batch(number); }};
  }
  const auto whole =
      std::make_shared<const WholeBatchShard>(std::move(all), batches_->batch_size(), options_);
  std::function<std::int64_t(std::int64_t)> num_samples;
  if (!batches_->batch_size())
    num_samples = [whole](std::int64_t number) { return whole->num_samples(number); };
  return {whole->num_batches(drop_last()),
          [whole](std::int64_t number) { return whole->batch(number); },
          std::move(num_samples)};
}

std::int64_t BatchSamplerShard::size() const {
  const std::int64_t all = batches_->size();
  if (options_.split_batches) return all;
  const std::int64_t rounds = all / options_.num_processes;
  const std::int64_t rest = all % options_.num_processes;
  if (rest == 0 || drop_last()) return rounds;
  return rounds + (options_.even_batches || options_.process_index < rest ? 1 : 0);
}

std::optional<std::int64_t> BatchSamplerShard::batch_size() const {
  const std::optional<std::int64_t> whole = batches_->batch_size();
  return whole && options_.split_batches ? *whole / options_.num_processes : whole;
}

SkipBatchSampler::SkipBatchSampler(std::shared_ptr<BatchSamplerBase> batches,
                                   std::int64_t num_batches)
    : batches_(std::move(batches)), num_batches_(num_batches) {
  if (!batches_)
    throw Error(ErrorCode::kInvalidArgument, "skipping needs a batch sampler, got null");
  check_skip(num_batches_);
}

BatchList SkipBatchSampler::begin_pass() {
  const BatchList all = batches_->begin_pass();
  return {std::max<std::int64_t>(0, all.size() - num_batches_),
          [all, skip = num_batches_](std::int64_t number) { return all[number + skip]; }};
}

std::int64_t SkipBatchSampler::size() const {
  return std::max<std::int64_t>(0, batches_->size() - num_batches_);
}

}  // namespace accel
