// What the threads that write a checkpoint in the background ask of the store, with many ranks.
//
//   save_rounds RANKS SECONDS REPORT_BYTES     prints "rounds requests bytes requests_per_second bytes_per_second"
//
// Each rank is a thread with a connection of its own to a TCPStore of this process, which counts. They go through the two rounds
// of a save in the background: all report what they wrote, of which the last rank does so SECONDS after the others, and then the
// leader has committed. The last two numbers are of that wait.

#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "libaccel/engine/checkpoint/ranks/store_ranks.h"
#include "libaccel/engine/shm/memory/node_identity.h"

namespace {

constexpr int kRanksOfNode = 8;  // as far as they know

using Bytes = std::vector<std::uint8_t>;

struct Counts {
  std::atomic<std::uint64_t> requests = 0;
  std::atomic<std::uint64_t> bytes = 0;  // of keys and values
};

// A store that counts what goes to another one.
class CountingStore final : public c10d::Store {
 public:
  CountingStore(c10::intrusive_ptr<c10d::Store> store, Counts& counts)
      : store_(std::move(store)), counts_(counts) {}

  c10::intrusive_ptr<Store> clone() override {
    return c10::make_intrusive<CountingStore>(store_->clone(), counts_);
  }
  void set(const std::string& key, const Bytes& value) override {
    count(key.size() + value.size());
    store_->set(key, value);
  }
  Bytes get(const std::string& key) override {
    Bytes value = store_->get(key);
    count(key.size() + value.size());
    return value;
  }
  std::vector<Bytes> multiGet(const std::vector<std::string>& keys) override {
    std::vector<Bytes> values = store_->multiGet(keys);
    std::size_t size = size_of(keys);
    for (const Bytes& value : values) size += value.size();
    count(size);
    return values;
  }
  bool check(const std::vector<std::string>& keys) override {
    count(size_of(keys));
    return store_->check(keys);
  }
  std::int64_t add(const std::string& key, std::int64_t value) override {
    count(key.size() + sizeof value);
    return store_->add(key, value);
  }
  bool deleteKey(const std::string& key) override {
    count(key.size());
    return store_->deleteKey(key);
  }
  std::int64_t getNumKeys() override { return store_->getNumKeys(); }
  void wait(const std::vector<std::string>& keys) override { store_->wait(keys); }
  void wait(const std::vector<std::string>& keys, const std::chrono::milliseconds& limit) override {
    store_->wait(keys, limit);
  }
  bool hasExtendedApi() const override { return store_->hasExtendedApi(); }

 private:
  static std::size_t size_of(const std::vector<std::string>& keys) {
    std::size_t size = 0;
    for (const std::string& key : keys) size += key.size();
    return size;
  }
  void count(std::size_t num_bytes) {
    ++counts_.requests;
    counts_.bytes += num_bytes;
  }

  c10::intrusive_ptr<c10d::Store> store_;
  Counts& counts_;
};

void save(int rank,
          int num_ranks,
          std::chrono::seconds delay,
          std::size_t report_bytes,
          const c10::intrusive_ptr<c10d::Store>& store) {
  const auto ranks = [&] {
    static std::mutex environment;
    const std::scoped_lock lock(environment);
    const std::string node = std::to_string(rank / kRanksOfNode);
    ::setenv(accel::shm::kTestNodeVariable, node.c_str(), 1);
    return accel::checkpoint::store_ranks(
        {.rank = rank, .size = num_ranks, .local_rank = rank % kRanksOfNode},
        store,
        "save",
        std::chrono::hours(1),
        {});
  }();
  if (rank == num_ranks - 1) std::this_thread::sleep_for(delay);
  const auto judge = [](const std::vector<std::string>&) { return std::string(); };
  (void)ranks->decide(std::string(report_bytes, 'r'), judge);
  (void)ranks->decide("committed", judge);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 4) return 2;
  const int num_ranks = std::atoi(argv[1]);
  const std::chrono::seconds delay(std::atoi(argv[2]));
  const auto report_bytes = static_cast<std::size_t>(std::atoi(argv[3]));
  Counts counts;
  c10d::TCPStoreOptions options;
  options.isServer = true;
  options.waitWorkers = false;
  options.port = 0;
  const auto server = c10::make_intrusive<c10d::TCPStore>("127.0.0.1", options);
  std::vector<std::jthread> threads;
  for (int rank = 0; rank < num_ranks; ++rank) {
    threads.emplace_back([&, rank] {
      c10d::TCPStoreOptions of_client;
      of_client.port = server->getPort();
      const auto client = c10::make_intrusive<c10d::TCPStore>("127.0.0.1", of_client);
      save(
          rank, num_ranks, delay, report_bytes, c10::make_intrusive<CountingStore>(client, counts));
    });
  }
  // From the second after all have begun to the second before the last one reports.
  std::this_thread::sleep_for(std::chrono::seconds(1));
  const std::uint64_t requests_before = counts.requests;
  const std::uint64_t bytes_before = counts.bytes;
  std::this_thread::sleep_for(delay - std::chrono::seconds(2));
  const auto seconds = static_cast<double>(delay.count() - 2);
  const double request_rate = static_cast<double>(counts.requests - requests_before) / seconds;
  const double byte_rate = static_cast<double>(counts.bytes - bytes_before) / seconds;
  threads.clear();
  std::printf("2 %llu %llu %.0f %.0f\n",
              static_cast<unsigned long long>(counts.requests),
              static_cast<unsigned long long>(counts.bytes),
              request_rate,
              byte_rate);
  return 0;
}
