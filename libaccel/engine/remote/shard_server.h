// ShardServer: gives this rank's shards to ranks of other nodes, one at a time, when they ask. ShardClient asks.
//
// One-sided: a thread of the server's own answers, so ranks need not use the same units in the same order, or at the same
// time. Who reads a shard while its owner writes it gets a mixture: callers keep the two apart (homes/remote_home.cc).
//
//   client -> server   "accel shards 1\n" (16 bytes with a zero), the token (16 bytes)             once
//                      the unit (4 bytes, little-endian)                                            each time
//   server -> client   the bytes of the shard (8 bytes, little-endian), the shard
//
// A server ends a connection that greets wrongly, or not within 10 s, or asks for what there is not; one that is idle
// may stay. It holds at most `max_connections`, and refuses further ones.
//
// Threads:  ShardServer: construction and destruction. ShardClient: any; a rank is asked by one of them at a time.
// Errors    see there.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include <accel/result.h>

#include "libaccel/engine/remote/wanted_shard.h"
#include "runtime/unique_fd.h"

namespace accel::sharding {

using ShardToken = std::array<char, 16>;

// Of the kernel's random bytes. Throws kInternal.
[[nodiscard]] ShardToken make_shard_token();
// 32 hexadecimal digits. Errors  kInvalidArgument.
[[nodiscard]] std::string to_text(const ShardToken& token);
[[nodiscard]] Result<ShardToken> parse_shard_token(std::string_view text);

class ShardServer {
 public:
  struct Options {
    ShardToken token{};
    std::size_t num_units = 0;
    // The bytes of a unit's own shard; called by the server's thread, valid as long as the server.
    std::function<std::span<const std::byte>(std::size_t unit)> shard_of;
    int max_connections = 1024;
    std::chrono::milliseconds greeting_limit{10'000};
  };

  // Listens on `address` (numeric; empty: all addresses of both families) and any free port. Errors  kInternal with errno.
  [[nodiscard]] static Result<std::unique_ptr<ShardServer>> listen(const std::string& address,
                                                                   Options options);
  ~ShardServer();
  ShardServer(const ShardServer&) = delete;
  ShardServer& operator=(const ShardServer&) = delete;

  [[nodiscard]] int port() const noexcept;

 private:
  struct Host;
  explicit ShardServer(std::unique_ptr<Host> host);
  std::unique_ptr<Host> host_;
  std::thread thread_;
};

struct ShardEndpoint {
  std::string address;  // numeric
  int port = 0;
};

class ShardClient {
 public:
  struct Options {
    ShardToken token{};
    std::vector<ShardEndpoint> endpoints;  // by rank; those never asked may be empty
    // Without a byte. A machine that is gone without a word is found by keepalive in 20 s.
    std::chrono::milliseconds silence_limit{300'000};
  };
  explicit ShardClient(Options options);
  ~ShardClient();

  // Fills each `into` with its rank's shard of the unit, and calls arrived(place in `wanted`) after each, as they come. All
  // are asked before the first answer is read: the owners send at the same time. `wanted` ascends by rank, each rank once. Throws
  // kPeerLost naming the rank that cannot be reached, ends or is silent; kShapeMismatch when a shard has another length.
  void fetch(std::size_t unit,
             std::span<const WantedShard> wanted,
             const std::function<void(std::size_t)>& arrived);

 private:
  struct Line {
    std::mutex mutex;
    UniqueFd connection;
  };
  [[nodiscard]] UniqueFd connect(int rank) const;
  [[nodiscard]] UniqueFd ask(int rank, std::size_t unit);

  Options options_;
  std::vector<std::unique_ptr<Line>> lines_;
};

}  // namespace accel::sharding
