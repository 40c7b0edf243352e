// DataLoader: batches of a dataset, for one process or for one rank of several.
//
//   accel::DataLoader loader(dataset, {.batch_size = 32, .shuffle = true});
//   for (auto& [images, labels] : loader) ...            // one pass
//
// The dataset has size() and get(i), like the datasets of torch::data, or is an iterable with begin()
// and end(). A DataLoader is a handle, like a torch::nn module holder: copies share one loader.
// Accelerator::prepare() returns a DataLoader of the same type, which yields the batches of this
// rank.
//
// A pass reads one batch ahead, so it knows whether the batch that it yields is the last;
// GradientState needs that. The epoch advances by itself when a pass was read to its end. A
// loader can be saved at any batch and resumes after it: with a map-style dataset by skipping
// indices, with an iterable one by reading.
//
// Threads:  one thread iterates. num_workers threads call the dataset's get() and the collate function,
//           which must be thread-safe; random numbers drawn in them are then not repeatable. An
//           iterable dataset is read ahead by one thread, for any num_workers.
// Cost:     one batch ahead; with workers num_workers * prefetch_factor more.
// Errors    an exception while a batch is read ahead is thrown in place of that batch, after the batches before it.
// Source:   the order: batch_samplers.h, iterable_shard.h; rank 0 reading for all: batch_dispatch.h.
#pragma once

#include <cstddef>
#include <cstdint>
#include <exception>
#include <iterator>
#include <memory>
#include <optional>
#include <utility>

#include <accel/batch.h>
#include <accel/detail/batch_dispatch.h>
#include <accel/detail/batch_reader.h>
#include <accel/detail/batch_stream.h>
#include <accel/detail/dataloader_base.h>
#include <accel/detail/step_span.h>

namespace accel {

namespace detail {

// One loader: the plan, the position in it, and the reader.
template <typename Batch>
class LoaderOf : public DataLoaderBase {
 public:
  LoaderOf(LoaderPlan plan,
           std::shared_ptr<const BatchReader<Batch>> reader,
           BatchSlicer<Batch> slicer = {})
      : DataLoaderBase(std::move(plan)), reader_(std::move(reader)), slicer_(std::move(slicer)) {}

  [[nodiscard]] const std::shared_ptr<const BatchReader<Batch>>& reader() const { return reader_; }

  // One pass. It makes the loader the active one, until it ends in any way.
  class Pass {
   public:
    Pass(std::shared_ptr<LoaderOf> loader, std::int64_t skip_batches)
        : loader_(std::move(loader)), start_(loader_->begin_pass(skip_batches)), active_{*this} {
      {
        const StepSpan span(StepPart::kInput);
        if (loader_->reader()->begin_epoch) loader_->reader()->begin_epoch(start_.epoch);
        stream_ = loader_->open_stream(start_);
        ahead_ = stream_->next();
      }
      advance();
    }
    Pass(const Pass&) = delete;
    Pass& operator=(const Pass&) = delete;

    [[nodiscard]] bool is_over() const { return !current_.has_value(); }
    Batch& current() { return *current_; }

    void advance() {
      if (current_) loader_->reach_boundary();
      current_.reset();
      if (failure_) std::rethrow_exception(failure_);
      if (!ahead_) {
        stream_.reset();
        loader_->end_pass(start_.number, /*read_to_end=*/true);
        return;
      }
      const StepSpan span(StepPart::kInput);
      Batch batch = *std::move(ahead_);
      const LoaderPlan& plan = loader_->plan();
      if (plan.pin_memory) batch = accel::pin_memory(batch);
      if (plan.device) {
        batch = send_to_device(batch, *plan.device, {.non_blocking = plan.non_blocking});
      }
      read_ahead();
      const bool is_last = !ahead_ && !failure_;
      loader_->count_batch(start_.number, is_last, is_last ? stream_->rows_of_last() : -1);
      current_ = std::move(batch);
    }

   private:
    // The current batch is complete, even if reading the next one fails.
    void read_ahead() {
      ahead_.reset();
      try {
        ahead_ = stream_->next();
      } catch (...) {
        failure_ = std::current_exception();
      }
    }

    // Ends the pass when it is left early, also by an exception inside the constructor.
    struct Active {
      Pass& pass;
      ~Active() { pass.loader_->end_pass(pass.start_.number, /*read_to_end=*/false); }
    };

    std::shared_ptr<LoaderOf> loader_;  // shared: a pass outlives a temporary handle
    PassStart start_;
    Active active_;
    std::unique_ptr<BatchStream<Batch>> stream_;
    std::optional<Batch> ahead_;
    std::exception_ptr failure_;  // in place of the batch ahead
    std::optional<Batch> current_;
  };

 private:
  std::unique_ptr<BatchStream<Batch>> open_stream(const PassStart& start) {
    if (!plan().dispatch_batches) return open_local_stream(start, start.first_batch);
    if constexpr (Sendable<Batch>) {
      std::unique_ptr<BatchStream<Batch>> local;
      if (plan().process_index == 0) local = open_local_stream(start, 0);
      return std::make_unique<DispatchStream<Batch>>(
          std::move(local), plan(), start.first_batch, slicer_);
    } else {
      throw_cannot_send();
    }
  }

  std::unique_ptr<BatchStream<Batch>> open_local_stream(const PassStart& start,
                                                        std::int64_t first) {
    const int workers = plan().num_workers;
    const int prefetch = plan().prefetch_factor;
    if (start.batches && workers == 0) {
      return std::make_unique<DirectStream<Batch>>(*start.batches, first, reader_->read);
    }
    if (start.batches) {
      if (plan().persistent_workers && pool_ == nullptr)
        pool_ = std::make_shared<WorkerPool>(workers);
      return std::make_unique<WorkerStream<Batch>>(
          *start.batches, first, reader_->read, workers, prefetch, pool_);
    }
    std::unique_ptr<BatchStream<Batch>> stream =
        reader_->open(plan(), start.epoch, start.first_sample);
    for (std::int64_t skipped = 0; skipped < first && stream->next(); ++skipped) {
    }
    if (workers > 0) {
      stream = std::make_unique<StreamReadAhead<Batch>>(std::move(stream), workers * prefetch);
    }
    return stream;
  }

  std::shared_ptr<const BatchReader<Batch>> reader_;  // shared with the loader it was prepared from
  BatchSlicer<Batch> slicer_;                         // of dispatched batches; may be empty
  std::shared_ptr<WorkerPool> pool_;  // of persistent workers, from the first pass on
};

}  // namespace detail

template <typename Batch>
class DataLoader {
 public:
  using batch_type = Batch;

  // Errors  kInvalidArgument for options that exclude each other.
  template <typename Dataset>
  requires(MapDataset<Dataset> ||
           IterableDataset<Dataset>) explicit DataLoader(Dataset dataset,
                                                         const DataLoaderOptions& options = {})
      : DataLoader(std::move(dataset), options, detail::DefaultCollate{}) {}

  // collate: takes a std::vector of elements and returns a batch.
  template <typename Dataset, typename Collate>
  requires(MapDataset<Dataset> || IterableDataset<Dataset>)
      DataLoader(Dataset dataset, const DataLoaderOptions& options, Collate collate) {
    const std::optional<std::int64_t> size = detail::size_of_dataset(dataset);
    LoaderPlan plan = MapDataset<Dataset> ? plan_of_map_dataset(size, options)
                                          : plan_of_iterable_dataset(size, options);
    plan.num_shards = detail::shards_of_dataset(dataset);
    auto reader = detail::make_reader<Batch>(std::move(dataset), std::move(collate));
    loader_ = std::make_shared<detail::LoaderOf<Batch>>(
        std::move(plan), std::make_shared<const detail::BatchReader<Batch>>(std::move(reader)));
  }

  // The iterator of one pass, for range-based loops.
  class Iterator {
   public:
    using iterator_category = std::input_iterator_tag;
    using value_type = Batch;
    using difference_type = std::ptrdiff_t;
    using pointer = Batch*;
    using reference = Batch&;

    explicit Iterator(std::shared_ptr<typename detail::LoaderOf<Batch>::Pass> pass)
        : pass_(std::move(pass)) {}
    Batch& operator*() const { return pass_->current(); }
    Batch* operator->() const { return &pass_->current(); }
    Iterator& operator++() {
      pass_->advance();
      return *this;
    }
    void operator++(int) { pass_->advance(); }
    bool operator==(std::default_sentinel_t /*end*/) const { return pass_->is_over(); }

   private:
    std::shared_ptr<typename detail::LoaderOf<Batch>::Pass>
        pass_;  // shared by the iterator's copies
  };

  // Begins a pass; it ends when the last copy of the iterator is gone.
  [[nodiscard]] Iterator begin() const {
    return Iterator(
        std::make_shared<typename detail::LoaderOf<Batch>::Pass>(loader_, skip_in_this_epoch()));
  }
  [[nodiscard]] std::default_sentinel_t end() const { return {}; }

  // The number of batches in one pass of this rank; not set when the dataset does not know its
  // size.
  [[nodiscard]] std::optional<std::int64_t> size() const {
    const std::optional<std::int64_t> all = loader_->plan().num_batches();
    return all ? std::optional(std::max<std::int64_t>(0, *all - skip_in_this_epoch())) : all;
  }
  [[nodiscard]] std::optional<std::int64_t> total_batch_size() const {
    return loader_->plan().total_batch_size();
  }
  // The number of elements in one pass, over all ranks.
  [[nodiscard]] std::optional<std::int64_t> total_dataset_length() const {
    return loader_->plan().num_elements();
  }
  [[nodiscard]] std::int64_t epoch() const { return loader_->epoch(); }
  void set_epoch(std::int64_t epoch) { loader_->set_epoch(epoch); }

  // The loader behind the handle: position, state, plan.
  DataLoaderBase* operator->() const { return loader_.get(); }
  [[nodiscard]] std::shared_ptr<DataLoaderBase> ptr() const { return loader_; }

 private:
  template <typename B>
  friend DataLoader<B> prepare_data_loader(const DataLoader<B>& loader,
                                           const ShardOptions& options,
                                           const BatchSlicer<B>& slice_fn_for_dispatch);
  template <typename B>
  friend DataLoader<B> skip_first_batches(const DataLoader<B>& loader, std::int64_t num_batches);

  explicit DataLoader(std::shared_ptr<detail::LoaderOf<Batch>> loader)
      : loader_(std::move(loader)) {}

  [[nodiscard]] std::int64_t skip_in_this_epoch() const {
    return loader_->epoch() == skip_epoch_ ? skip_batches_ : 0;
  }

  std::shared_ptr<detail::LoaderOf<Batch>> loader_;  // shared by the handle's copies
  std::int64_t skip_batches_ = 0;
  std::int64_t skip_epoch_ = -1;
};

template <typename Dataset>
explicit DataLoader(Dataset) -> DataLoader<detail::DefaultBatchOf<Dataset>>;
template <typename Dataset>
DataLoader(Dataset, DataLoaderOptions) -> DataLoader<detail::DefaultBatchOf<Dataset>>;
template <typename Dataset, typename Collate>
DataLoader(Dataset, DataLoaderOptions, Collate) -> DataLoader<detail::BatchOf<Dataset, Collate>>;

// A loader of the batches of one rank; `loader` does not change. A prepared loader is returned
// unchanged. slice_fn_for_dispatch: divides batches that rank 0 reads for all ranks; otherwise it is not called.
//
// Errors  kDataSharding when split_batches is set and the batch size is not divisible by the number of ranks.
template <typename Batch>
[[nodiscard]] DataLoader<Batch> prepare_data_loader(
    const DataLoader<Batch>& loader,
    const ShardOptions& options,
    const BatchSlicer<Batch>& slice_fn_for_dispatch) {
  if (loader->is_prepared()) return loader;
  return DataLoader<Batch>(std::make_shared<detail::LoaderOf<Batch>>(
      shard_plan(loader->plan(), options), loader.loader_->reader(), slice_fn_for_dispatch));
}
template <typename Batch>
[[nodiscard]] DataLoader<Batch> prepare_data_loader(const DataLoader<Batch>& loader,
                                                    const ShardOptions& options = {}) {
  return prepare_data_loader(loader, options, BatchSlicer<Batch>());
}

// The sampler that orders the elements of a loader, prepared or not; null for an iterable dataset, and for a batch sampler
// without a sampler.
template <typename Batch>
[[nodiscard]] std::shared_ptr<Sampler> get_sampler(const DataLoader<Batch>& loader) {
  const auto& batches = loader->plan().batch_sampler;
  return batches ? batches->sampler() : nullptr;
}

// The same loader, but its passes of the current epoch skip the first num_batches. Later
// epochs are whole. A loader that was loaded from a checkpoint resumes by itself and needs no
// skipping.
//
// Errors  kInvalidArgument when num_batches is negative.
template <typename Batch>
[[nodiscard]] DataLoader<Batch> skip_first_batches(const DataLoader<Batch>& loader,
                                                   std::int64_t num_batches) {
  check_skip(num_batches);
  DataLoader<Batch> rest = loader;
  rest.skip_batches_ = num_batches;
  rest.skip_epoch_ = loader->epoch();
  return rest;
}

}  // namespace accel
