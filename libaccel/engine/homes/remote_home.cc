// Parameters of ranks on several nodes, of which each node keeps the shards of its own ranks, and the others while they
// are used.
//
// The ranks of a node share one memory (remote/shard_cache.h) with room for all units. A PagedHome sees each operator on a
// parameter; the first one that needs a unit fetches the shards that the node lacks from the ranks that own
// them (remote/shard_server.h), and the unit is mapped, to be read, as on one node. Units leave under a budget of bytes,
// and the next one is fetched while operators work with this one.
//
// The order of a step (sharded_model.h) keeps reads and writes of shards apart: before_write() closes the gate, so that
// nothing is fetched ahead any more, gives all units back and waits for the other ranks to have done the same; publish()
// waits until all shards are written, and opens it. After it a rank has no unit until its program uses one, which
// also wakes the thread that fetches ahead.
//
// All meet in three rounds: where everybody is; the memory of each node, and where each rank serves its shards; whether
// everybody has what it needs. One that has not is enough for all to give up.

#include <algorithm>
#include <atomic>
#include <charconv>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <ATen/ops/empty_strided.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/full.h>
#include <unistd.h>

#include <accel/env_contract.h>
#include <accel/error.h>
#include <accel/types.h>

#include "libaccel/engine/construction/tensor_memory.h"
#include "libaccel/engine/homes/page_budget.h"
#include "libaccel/engine/homes/paged_home.h"
#include "libaccel/engine/homes/parameter_home.h"
#include "libaccel/engine/process/agreement.h"
#include "libaccel/engine/process/process_group.h"
#include "libaccel/engine/remote/own_address.h"
#include "libaccel/engine/remote/shard_cache.h"
#include "libaccel/engine/remote/shard_server.h"
#include "libaccel/engine/remote/write_gate.h"
#include "libaccel/engine/shm/memory/memory_offer.h"
#include "libaccel/engine/shm/memory/node_identity.h"
#include "libaccel/engine/shm/memory/peer_watch.h"
#include "runtime/unique_fd.h"

namespace accel::sharding {
namespace {

// What fills pages. Outlives the home: views of parameters may.
struct RemoteShards {
  std::unique_ptr<shm::ProcessWatch> peers;
  std::unique_ptr<ShardClient> client;
  std::unique_ptr<ShardCache> cache;
  std::unique_ptr<ShardServer> server;
  WriteGate gate;
  std::atomic<pager::GuardRange::Access> access = pager::GuardRange::Access::kRead;
  std::shared_ptr<pager::WritePermit> permit = make_shared_permit();  // given with kReadWrite
};

class SharedPages final : public pager::PageSource {
 public:
  explicit SharedPages(std::shared_ptr<RemoteShards> shards) : shards_(std::move(shards)) {}

  void fill(std::size_t unit, pager::GuardRange& range) override {
    const WriteGate::Pass pass(shards_->gate);
    ShardCache& cache = *shards_->cache;
    cache.acquire(unit);
    try {
      range.map(cache.memory(), cache.offset_of(unit), 0, cache.unit(unit).size(), shards_->access);
    } catch (...) {
      cache.release(unit);
      throw;
    }
  }
  // What was written is in the memory already.
  void release(std::size_t unit, pager::GuardRange&, std::span<const std::size_t>) override {
    shards_->cache->release(unit);
  }
  [[nodiscard]] const pager::WritePermit* write_permit() const noexcept override {
    return shards_->permit.get();
  }

 private:
  std::shared_ptr<RemoteShards> shards_;
};

class RemoteHome final : public ParameterHome {
 public:
  RemoteHome(const std::vector<Unit>& units,
             const std::shared_ptr<RemoteShards>& shards,
             std::shared_ptr<ProcessGroup> group,
             const PagedHomeOptions& options)
      : units_(units),
        shards_(shards),
        group_(std::move(group)),
        pages_(units, options, [shards](const auto&, auto) {
          return std::make_unique<SharedPages>(shards);
        }) {
    for (std::size_t unit = 0; unit < units_.size(); ++unit) {
      const std::int64_t numel = units_[unit].numel();
      const auto keep = [shards](void*) {};  // as long as a view lives
      writable_.push_back(
          at::from_blob(shards->cache->unit(unit).data(), {numel}, keep, units_[unit].dtype));
    }
  }

  ~RemoteHome() override { open_gate(); }

  void take_in(std::vector<NamedParameter>& parameters) override {
    for (const Unit& unit : units_) {
      for (const Slot& slot : unit.slots) {
        // Their values are in the shards by now. What still refers to the memory of before (Gloo's threads, for a moment)
        // keeps that.
        const at::Tensor& parameter = parameters[slot.parameter].tensor;
        const at::TensorOptions like =
            parameter.options().dtype(unit.dtype).device(at::kCPU).requires_grad(false);
        construction::give_memory(parameter,
                                  at::empty_strided(parameter.sizes(), parameter.strides(), like));
      }
    }
    pages_.take_in(parameters);
  }

  [[nodiscard]] const at::Tensor& writable(std::size_t unit) const override {
    return writable_.at(unit);
  }
  [[nodiscard]] bool is_shared() const noexcept override { return true; }
  [[nodiscard]] bool is_paged() const noexcept override { return true; }

  void before_write() override {
    close_gate();
    try {
      refuse_holders(pages_.give_all_back(), "waiting for the ends of all backwards");
    } catch (...) {
      open_gate();
      throw;
    }
  }

  void publish(std::span<const std::size_t>) override {
    group_->barrier("waiting for the steps of all optimizers");
    pages_.end_step();
    open_gate();
  }
  void abandon_write() noexcept override { open_gate(); }

  void begin_load() override {
    change_access(pager::GuardRange::Access::kReadWrite, [this](bool is_free) {
      refuse_holders(is_free, "waiting for all ranks to begin to load");
    });
  }
  // By this rank alone: it may be on its way out of an error.
  void end_load() override {
    change_access(pager::GuardRange::Access::kRead, [](bool is_free) {
      if (!is_free) throw in_use("this rank");
    });
  }

 private:
  // What is fetched ahead ends first: it would be refused at the gate, and waited for by who gives units back.
  void close_gate() {
    pages_.pause_prefetch();
    shards_->gate.close();
  }
  void open_gate() noexcept {
    shards_->gate.open();
    pages_.resume_prefetch();
  }

  static Error in_use(const std::string& by) {
    return Error(ErrorCode::kUnsupported,
                 "parameters are in use by " + by + " while they are to be written",
                 "let go of what with_params() holds, and let no other thread use the model during "
                 "optimizer.step() and load_state()");
  }

  // Waits for all ranks, as a barrier does. Throws the same on all when one still has parameters.
  void refuse_holders(bool is_free, const char* operation) {
    at::Tensor holder = at::full({1}, is_free ? -1 : group_->rank(), at::kInt);
    group_->all_reduce_(holder, Reduction::kMax, operation);
    const int rank = holder.item<int>();
    if (rank >= 0) throw in_use("rank " + std::to_string(rank));
  }

  template <typename Check>
  void change_access(pager::GuardRange::Access access, const Check& check) {
    close_gate();
    try {
      check(pages_.give_all_back());
    } catch (...) {
      open_gate();
      throw;
    }
    shards_->access = access;
    if (access == pager::GuardRange::Access::kReadWrite) {
      shards_->permit->give();
    } else {
      shards_->permit->withdraw();
    }
    open_gate();
  }

  std::vector<Unit> units_;
  std::shared_ptr<RemoteShards> shards_;
  std::shared_ptr<ProcessGroup> group_;
  PagedHome pages_;
  std::vector<at::Tensor> writable_;
};

// ---- how the ranks meet

// Words parted by one blank, of which the last may hold more.
std::vector<std::string> words_of(std::string_view text, std::size_t count) {
  std::vector<std::string> words;
  while (words.size() + 1 < count) {
    const std::size_t end = text.find(' ');
    words.emplace_back(text.substr(0, end));
    text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
  }
  words.emplace_back(text);
  return words;
}

template <typename Number>
Number parsed(const std::string& text) {
  Number number{};
  std::from_chars(text.data(), text.data() + text.size(), number);
  return number;
}

// Round 1: "<node> <pid> <start time> <token, of rank 0 alone>". Who cannot tell its node is alone on it.
struct RankPlace {
  std::string node;
  shm::ProcessWatch::Process process;
};

std::string place_text(int rank, const ShardToken& token) {
  const auto node = shm::read_node_identity();
  return (node ? to_text(*node) : "alone-" + std::to_string(rank)) + " " +
         std::to_string(::getpid()) + " " + std::to_string(shm::start_time_of(::getpid())) + " " +
         (rank == 0 ? to_text(token) : "");
}

RankPlace place_of(const std::string& said) {
  const std::vector<std::string> words = words_of(said, 4);
  return {words[0], {parsed<pid_t>(words[1]), parsed<std::uint64_t>(words[2])}};
}

// Round 2: "<address> <port> <offer of memory, of the first rank of a node>", or why it refuses.
class Meeting {
 public:
  Meeting(const std::vector<Unit>& units, ProcessGroup& group) : group_(group) {
    shape_.world_size = group.size();
    shape_.rank = group.rank();
    for (const Unit& unit : units) shape_.shard_bytes.push_back(unit.bytes_of(unit.shard_numel));
  }

  // Errors, the same on all ranks  kUnsupported.
  Result<std::shared_ptr<RemoteShards>> hold() {
    meet();
    const auto said = tell_all(serve());
    if (!said) return failed(said.error());
    const auto outcomes = tell_all(join(*said));
    if (!outcomes) return failed(outcomes.error());
    return shards_;
  }

 private:
  Result<std::vector<std::string>> tell_all(const Result<std::string>& own) {
    return gather_results(own, kHomeTextBytes, group_, "meeting the ranks that hold parameters");
  }

  static Error failed(const Error& why) {
    return Error(ErrorCode::kUnsupported,
                 "the ranks cannot hold parameters for each other: " + why.message());
  }

  void meet() {
    const ShardToken own = make_shard_token();
    const std::vector<std::string> said = or_throw(tell_all(place_text(group_.rank(), own)));
    const auto token = parse_shard_token(words_of(said[0], 4)[3]);
    if (!token) throw token.error();
    token_ = *token;
    std::vector<RankPlace> places;
    for (const std::string& text : said) places.push_back(place_of(text));
    const std::string& node = places[static_cast<std::size_t>(group_.rank())].node;
    std::vector<shm::ProcessWatch::Process> processes;
    for (int rank = 0; rank < group_.size(); ++rank) {
      if (places[static_cast<std::size_t>(rank)].node != node) continue;
      shape_.node_ranks.push_back(rank);
      processes.push_back(places[static_cast<std::size_t>(rank)].process);
    }
    shards_->peers = std::make_unique<shm::ProcessWatch>(processes);
  }

  Result<std::string> serve() {
    const auto address = own_address(group_.store_host(), group_.store_port());
    if (!address) return address.error();
    auto server = ShardServer::listen(
        *address,
        {.token = token_,
         .num_units = shape_.shard_bytes.size(),
         // Asked for when all have met, so the cache is there.
         .shard_of = [shards = shards_.get(), rank = shape_.rank](std::size_t unit)
             -> std::span<const std::byte> { return shards->cache->shard(unit, rank); }});
    if (!server) return server.error();
    shards_->server = *std::move(server);
    std::string said = *address + " " + std::to_string(shards_->server->port()) + " ";
    if (shape_.rank != shape_.node_ranks.front()) return said;
    auto memory =
        make_parameter_memory(static_cast<std::int64_t>(ShardCache::memory_bytes(shape_)));
    if (!memory) return memory.error();
    memory_ = *std::move(memory);
    const auto offer = shm::offer_memory(memory_.get());
    if (!offer) return offer.error();
    return said + to_text(*offer);
  }

  Result<std::string> join(const std::vector<std::string>& said) {
    std::vector<ShardEndpoint> endpoints;
    for (const std::string& text : said) {
      const std::vector<std::string> words = words_of(text, 3);
      endpoints.push_back({words[0], parsed<int>(words[1])});
    }
    shards_->client = std::make_unique<ShardClient>(
        ShardClient::Options{.token = token_, .endpoints = std::move(endpoints)});
    if (!memory_) {
      const std::string& leader = said[static_cast<std::size_t>(shape_.node_ranks.front())];
      const auto offer = shm::parse_memory_offer(words_of(leader, 3)[2]);
      if (!offer) return offer.error();
      auto opened = shm::open_offer(*offer);
      if (!opened) return std::move(opened).error();
      memory_ = *std::move(opened);
    }
    auto cache = ShardCache::open(
        shape_,
        std::move(memory_),
        *shards_->peers,
        [client = shards_->client.get()](std::size_t unit,
                                         std::span<const WantedShard> wanted,
                                         const std::function<void(std::size_t)>& arrived) {
          client->fetch(unit, wanted, arrived);
        });
    if (!cache) return std::move(cache).error();
    shards_->cache = *std::move(cache);
    return std::string();
  }

  ProcessGroup& group_;
  CacheShape shape_;
  ShardToken token_{};
  UniqueFd memory_;
  std::shared_ptr<RemoteShards> shards_ = std::make_shared<RemoteShards>();
};

// The budgets of ranks may differ, their units do not.
std::uint64_t agreed_budget(const PagingLimits& limits,
                            const ShardCache& cache,
                            std::size_t num_units,
                            ProcessGroup& group) {
  std::size_t largest = 0;
  for (std::size_t unit = 0; unit < num_units; ++unit)
    largest = std::max(largest, cache.unit(unit).size());
  std::uint64_t bytes = 0;
  jointly([&] { bytes = live_bytes(limits, largest, process_env()); },
          &group,
          "asking whether every rank may hold the largest unit");
  return bytes;
}

}  // namespace

Result<std::unique_ptr<ParameterHome>> make_remote_home(const std::vector<Unit>& units,
                                                        std::shared_ptr<ProcessGroup> group,
                                                        const PagingLimits& limits) {
  auto shards = Meeting(units, *group).hold();
  if (!shards) return std::move(shards).error();
  const PagedHomeOptions options{
      .max_live_bytes = agreed_budget(limits, *(*shards)->cache, units.size(), *group),
      .units_ahead = limits.units_ahead,
      .at_end = PagedHomeOptions::AtEnd::kPages};
  return std::unique_ptr<ParameterHome>(
      std::make_unique<RemoteHome>(units, *shards, std::move(group), options));
}

}  // namespace accel::sharding
