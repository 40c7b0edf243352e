// Parameters of ranks on several nodes, of which each node keeps the shards of its own ranks, and the others while they
// are used.
//
// The ranks of a node share one memory (remote/shard_cache.h) with room for all units. A PagedHome sees each operator on a
// parameter; the first one that needs a unit fetches the shards that the node lacks from the ranks that own
// them (remote/shard_server.h), and the unit is mapped, to be read, as on one node. Units leave under a budget of bytes,
// and the next one is fetched while operators work with this one.
//
// The order of a step (sharded_model.h) and the gate (gated_home.h) keep reads and writes of shards apart.
//
// All meet in three rounds: where everybody is; the memory of each node, and where each rank serves its shards; whether
// everybody has what it needs. One that has not is enough for all to give up.

#include <charconv>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <ATen/ops/from_blob.h>
#include <unistd.h>

#include <accel/error.h>

#include "libaccel/engine/homes/gated_home.h"
#include "libaccel/engine/homes/parameter_home.h"
#include "libaccel/engine/process/agreement.h"
#include "libaccel/engine/process/process_group.h"
#include "libaccel/engine/remote/own_address.h"
#include "libaccel/engine/remote/shard_cache.h"
#include "libaccel/engine/remote/shard_server.h"
#include "libaccel/engine/shm/memory/memory_offer.h"
#include "libaccel/engine/shm/memory/node_identity.h"
#include "libaccel/engine/shm/memory/peer_watch.h"
#include "runtime/unique_fd.h"

namespace accel::sharding {
namespace {

// What fills pages.
struct RemoteShards : PageAccess {
  std::unique_ptr<shm::ProcessWatch> peers;
  std::unique_ptr<ShardClient> client;
  std::unique_ptr<ShardCache> cache;
  std::unique_ptr<ShardServer> server;
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

class RemoteHome final : public GatedHome {
 public:
  RemoteHome(const std::vector<Unit>& units,
             const std::shared_ptr<RemoteShards>& shards,
             std::shared_ptr<ProcessGroup> group,
             const PagedHomeOptions& options)
      : GatedHome(units, shards, std::move(group), options, [shards](const auto&, auto) {
          return std::make_unique<SharedPages>(shards);
        }) {
    std::vector<at::Tensor> writable;
    for (std::size_t unit = 0; unit < units.size(); ++unit) {
      const std::int64_t numel = units[unit].numel();
      const auto keep = [shards](void*) {};  // as long as a view lives
      writable.push_back(
          at::from_blob(shards->cache->unit(unit).data(), {numel}, keep, units[unit].dtype));
    }
    set_writable(std::move(writable));
  }
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

}  // namespace

Result<std::unique_ptr<ParameterHome>> make_remote_home(const std::vector<Unit>& units,
                                                        std::shared_ptr<ProcessGroup> group,
                                                        const PagingLimits& limits) {
  auto shards = Meeting(units, *group).hold();
  if (!shards) return std::move(shards).error();
  const PagedHomeOptions options{.max_live_bytes = agreed_live_bytes(limits, units, *group),
                                 .units_ahead = limits.units_ahead,
                                 .at_end = PagedHomeOptions::AtEnd::kPages};
  return std::unique_ptr<ParameterHome>(
      std::make_unique<RemoteHome>(units, *shards, std::move(group), options));
}

}  // namespace accel::sharding
