// What tests/peer/data_sharding.py drives: reads a list of cases as JSON from stdin and writes what
// libaccel yields for each as JSON to stdout.
//
// The kinds of cases: "batches" (BatchSamplerShard), "iterable" (IterableDatasetShard), "loader"
// (prepare_data_loader over several epochs), "skip" (skip_first_batches).

#include <cstdint>
#include <iostream>
#include <memory>
#include <string>
#include <vector>

#include <ATen/CPUGeneratorImpl.h>
#include <nlohmann/json.hpp>

#include <accel/batch_samplers.h>
#include <accel/dataloader.h>
#include <accel/error.h>
#include <accel/iterable_shard.h>
#include <accel/random.h>
#include <accel/state.h>

namespace {

using accel::Indices;
using nlohmann::json;

class FixedBatches : public accel::BatchSamplerBase {
 public:
  FixedBatches(std::vector<Indices> batches, bool drop_last)
      : batches_(std::move(batches)), drop_last_(drop_last) {}
  [[nodiscard]] accel::BatchList begin_pass() override { return accel::BatchList(batches_); }
  [[nodiscard]] std::int64_t size() const override { return std::ssize(batches_); }
  [[nodiscard]] bool drop_last() const override { return drop_last_; }

 private:
  std::vector<Indices> batches_;
  bool drop_last_;
};

struct Numbers {
  std::int64_t length;
  [[nodiscard]] std::int64_t get(std::size_t index) const {
    return static_cast<std::int64_t>(index);
  }
  [[nodiscard]] std::size_t size() const { return static_cast<std::size_t>(length); }
};

Indices range(std::int64_t size) {
  Indices numbers;
  for (std::int64_t i = 0; i < size; ++i) numbers.push_back(i);
  return numbers;
}

json numbers_of(const at::Tensor& batch) {
  return Indices(batch.const_data_ptr<std::int64_t>(),
                 batch.const_data_ptr<std::int64_t>() + batch.numel());
}

json batches_of(const json& spec, std::int64_t rank) {
  std::shared_ptr<accel::BatchSamplerBase> inner;
  if (spec.contains("batches")) {
    inner = std::make_shared<FixedBatches>(spec["batches"].get<std::vector<Indices>>(),
                                           spec["drop_last"].get<bool>());
  } else {
    inner = std::make_shared<accel::BatchSampler>(
        std::make_shared<accel::SequentialSampler>(spec["size"].get<std::int64_t>()),
        spec["batch_size"].get<std::int64_t>(),
        spec["drop_last"].get<bool>());
  }
  accel::BatchSamplerShard shard(inner,
                                 {.num_processes = spec["num_processes"],
                                  .process_index = rank,
                                  .split_batches = spec["split_batches"],
                                  .even_batches = spec["even_batches"]});
  const accel::BatchList list = shard.begin_pass();
  json batches = json::array();
  for (std::int64_t number = 0; number < list.size(); ++number) batches.push_back(list[number]);
  return {{"batches", batches}, {"length", shard.size()}};
}

json elements_of(const json& spec, std::int64_t rank) {
  accel::IterableDatasetShard<Indices> shard(range(spec["size"]),
                                             {.batch_size = spec["batch_size"],
                                              .drop_last = spec["drop_last"],
                                              .num_processes = spec["num_processes"],
                                              .process_index = rank,
                                              .split_batches = spec["split_batches"]});
  json elements = json::array();
  shard.for_each([&](std::int64_t element) { elements.push_back(element); });
  return {{"elements", elements}, {"length", shard.size()}};
}

accel::DataLoader<at::Tensor> make_loader(const json& spec) {
  accel::DataLoaderOptions options{.batch_size = spec["batch_size"],
                                   .shuffle = spec["shuffle"],
                                   .drop_last = spec["drop_last"],
                                   .num_workers = spec["num_workers"]};
  const Numbers numbers{spec["size"]};
  if (spec["generator_seed"].is_number()) {
    options.generator = at::detail::createCPUGenerator(spec["generator_seed"].get<std::uint64_t>());
  }
  if (spec["num_samples"].is_number()) {
    options.shuffle = false;
    options.sampler = std::make_shared<accel::RandomSampler>(
        numbers.length,
        accel::RandomSamplerOptions{.replacement = spec["replacement"],
                                    .num_samples = spec["num_samples"].get<std::int64_t>(),
                                    .generator = options.generator});
  }
  return accel::DataLoader(numbers, options);
}

json pass_of(const accel::DataLoader<at::Tensor>& loader) {
  const accel::GradientState state;
  json batches = json::array();
  json ends = json::array();
  for (const at::Tensor& batch : loader) {
    batches.push_back(numbers_of(batch));
    ends.push_back(state.end_of_dataloader());
  }
  return {{"batches", batches}, {"ends", ends}};
}

json epochs_of(const json& spec, std::int64_t rank) {
  accel::set_seed(spec["seed"].get<std::uint64_t>());
  const auto loader = make_loader(spec);
  accel::ShardOptions options{.num_processes = spec["num_processes"],
                              .process_index = rank,
                              .split_batches = spec["split_batches"],
                              .even_batches = spec["even_batches"],
                              .use_seedable_sampler = spec["use_seedable_sampler"]};
  if (spec["data_seed"].is_number()) options.data_seed = spec["data_seed"].get<std::int64_t>();
  const auto shard = accel::prepare_data_loader(loader, options);
  json epochs = json::array();
  for (int epoch = 0; epoch < spec["num_epochs"]; ++epoch) epochs.push_back(pass_of(shard));
  return {{"epochs", epochs},
          {"length", *shard.size()},
          {"total_batch_size", *shard.total_batch_size()},
          {"remainder", shard->remainder()}};
}

json rest_of(const json& spec, std::int64_t /*rank*/) {
  const accel::DataLoader loader(
      Numbers{spec["size"]}, {.batch_size = spec["batch_size"], .drop_last = spec["drop_last"]});
  const auto rest = accel::skip_first_batches(loader, spec["skip"].get<std::int64_t>());
  const std::int64_t length = *rest.size();  // of this epoch; the next one is whole
  return {{"batches", pass_of(rest)["batches"]}, {"length", length}};
}

json answer(const json& spec) {
  json ranks = json::array();
  for (std::int64_t rank = 0; rank < spec["num_processes"]; ++rank) {
    try {
      const std::string kind = spec["kind"];
      ranks.push_back(kind == "batches"    ? batches_of(spec, rank)
                      : kind == "iterable" ? elements_of(spec, rank)
                      : kind == "loader"   ? epochs_of(spec, rank)
                                           : rest_of(spec, rank));
    } catch (const accel::Error& error) {
      ranks.push_back({{"refused", accel::error_info(error.code()).id}});
    }
  }
  return ranks;
}

}  // namespace

int main() {
  const accel::PartialState state({.cpu = true});
  json answers = json::array();
  for (const json& spec : json::parse(std::cin)) answers.push_back(answer(spec));
  std::cout << answers << "\n";
}
