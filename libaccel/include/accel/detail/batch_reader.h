// BatchReader: how a DataLoader gets its batches from a dataset; it erases the dataset's
// type.
//
// Threads:  several threads may call read() at once if the dataset and the collate function
//           are thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <type_traits>
#include <utility>
#include <vector>

#include <accel/collate.h>
#include <accel/detail/batch_stream.h>
#include <accel/detail/dataloader_base.h>
#include <accel/iterable_shard.h>

namespace accel {

// A dataset whose elements have indices.
template <typename D>
concept MapDataset = requires(D& dataset, std::size_t index) {
  dataset.get(index);
  dataset.size();
};

// A dataset that can only be read in order.
template <typename D>
concept IterableDataset = !MapDataset<D> && requires(D & dataset) {
  *dataset.begin();
  dataset.begin() != dataset.end();
};

namespace detail {

template <typename D>
struct ElementOf;
template <MapDataset D>
struct ElementOf<D> {
  using type = std::decay_t<decltype(std::declval<D&>().get(std::size_t{}))>;
};
template <IterableDataset D>
struct ElementOf<D> {
  using type = std::decay_t<decltype(*std::declval<D&>().begin())>;
};

template <typename D>
using DefaultBatchOf = decltype(default_collate(std::vector<typename ElementOf<D>::type>{}));
template <typename D, typename C>
using BatchOf = std::decay_t<std::invoke_result_t<C&, std::vector<typename ElementOf<D>::type>>>;

struct DefaultCollate {
  template <typename T>
  auto operator()(std::vector<T> elements) const {
    return default_collate(std::move(elements));
  }
};

// size() of a torch dataset is optional, for other datasets it is a number.
template <typename D>
std::optional<std::int64_t> size_of_dataset(const D& dataset) {
  if constexpr (requires { dataset.size().has_value(); }) {
    const auto size = dataset.size();
    return size ? std::optional<std::int64_t>(static_cast<std::int64_t>(*size)) : std::nullopt;
  } else if constexpr (requires { dataset.size(); }) {
    return static_cast<std::int64_t>(dataset.size());
  } else {
    return std::nullopt;
  }
}

// How batches are read, without the type of the dataset.
template <typename Batch>
struct BatchReader {
  // For a map-style dataset.
  std::function<Batch(const Indices&)> read;
  // For an iterable dataset, from an element of the sequence that all ranks read.
  std::function<std::unique_ptr<BatchStream<Batch>>(
      const LoaderPlan&, std::int64_t epoch, std::int64_t first_element)>
      open;
  // For a map-style dataset with set_epoch(): called before a pass.
  std::function<void(std::int64_t epoch)> begin_epoch;
};

// The number of shards that an iterable dataset can give to ranks; not set when it cannot be divided.
template <typename D>
std::optional<std::int64_t> shards_of_dataset(const D& dataset) {
  if constexpr (!IterableDataset<D> || !HasShard<D>) {
    return std::nullopt;
  } else if constexpr (requires { dataset.num_shards(); }) {
    return static_cast<std::int64_t>(dataset.num_shards());
  } else {
    return std::numeric_limits<std::int64_t>::max();
  }
}

template <typename Batch, typename Dataset, typename Collate>
BatchReader<Batch> make_reader(Dataset dataset, Collate collate) {
  using Element = typename ElementOf<Dataset>::type;
  auto shared = std::make_shared<Dataset>(std::move(dataset));
  BatchReader<Batch> reader;
  if constexpr (MapDataset<Dataset>) {
    reader.read = [shared, collate](const Indices& indices) mutable -> Batch {
      std::vector<Element> elements;
      elements.reserve(indices.size());
      for (const std::int64_t index : indices) {
        elements.push_back(shared->get(static_cast<std::size_t>(index)));
      }
      return collate(std::move(elements));
    };
    if constexpr (HasSetEpoch<Dataset>)
      reader.begin_epoch = [shared](std::int64_t epoch) { shared->set_epoch(epoch); };
  } else {
    reader.open = [shared, collate](
                      const LoaderPlan& plan,
                      std::int64_t epoch,
                      std::int64_t first_element) -> std::unique_ptr<BatchStream<Batch>> {
      if (plan.iterable_is_sharded()) {
        using Stream = IterableStream<Batch, Dataset, ShardBuffer<Element>, Collate>;
        return std::make_unique<Stream>(
            shared, epoch, first_element, ShardBuffer<Element>(plan.iterable_shard()), collate);
      }
      std::shared_ptr<Dataset> own = shared;
      if constexpr (HasShard<Dataset>) {
        if (plan.shards_itself)
          own = std::make_shared<Dataset>(shared->shard(plan.num_processes, plan.process_index));
      }
      using Stream = IterableStream<Batch, Dataset, PlainGroups<Element>, Collate>;
      return std::make_unique<Stream>(
          std::move(own),
          epoch,
          first_element,
          PlainGroups<Element>(plan.iterable_batch_size, plan.drop_last),
          collate);
    };
  }
  return reader;
}

}  // namespace detail
}  // namespace accel
