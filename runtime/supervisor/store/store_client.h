// StoreClient: one connection to a store, for launchers that agree on a job through it.
//
// Works in exchanges: some keys are written, others read, and one answer comes for all of it. What is
// written is seen by the reads of the same exchange. One exchange is under way at a time.
//
// Threads:  the one that runs the io_context; handlers never run inside a call.
// Cost:     one descriptor; one round trip for each exchange.
// Source:   store_protocol.h; tests/unit/supervisor/store_client_test.cc.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <boost/asio/io_context.hpp>
#include <boost/system/error_code.hpp>

#include <accel/result.h>

#include "runtime/supervisor/kernel/tcp_table.h"

namespace accel::supervisor {

// Carried out in the order of the members.
struct StoreExchange {
  // Becomes `desired` when it is `expected`; an empty `expected` also stands for an absent key.
  struct Swap {
    std::string key;
    std::string expected;
    std::string desired;
  };

  std::vector<Swap> swaps;
  std::vector<std::pair<std::string, std::string>> sets;
  std::optional<std::string> counter;  // a key that is raised by 1
  std::vector<std::string> reads;
};

struct StoreAnswer {
  std::vector<std::string> swapped;  // for each swap the value afterwards
  std::int64_t count = 0;            // of the counter afterwards
  std::vector<std::string> values;   // for each read; empty when absent
};

// The requests of `exchange`, without VALIDATE.
[[nodiscard]] std::string encode(const StoreExchange& exchange);

// Cuts the bytes of a store into the answer of one exchange.
class StoreAnswerParser {
 public:
  // Of one value. What launchers tell one another is far below; a foreign store may send anything.
  static constexpr std::uint64_t kMaxValueBytes = 1 << 20;

  explicit StoreAnswerParser(const StoreExchange& exchange);

  // The answer once it is whole. Errors  kProtocol: a value above the limit, or bytes after the answer.
  [[nodiscard]] Result<std::optional<StoreAnswer>> feed(std::string_view bytes);

 private:
  [[nodiscard]] Result<bool> take_blob(std::vector<std::string>& out);

  std::size_t num_swaps_;
  bool has_counter_;
  std::size_t num_values_;
  std::string buffer_;
  std::size_t start_ = 0;
  StoreAnswer answer_;
};

class StoreClient {
 public:
  explicit StoreClient(boost::asio::io_context& context);
  ~StoreClient();
  StoreClient(const StoreClient&) = delete;
  StoreClient& operator=(const StoreClient&) = delete;

  // `done` gets the error of socket() or connect(), none once it is connected. There is no time limit: close() ends it.
  using ConnectHandler = std::function<void(const boost::system::error_code&)>;
  void connect(const TcpEndpoint& store, ConnectHandler done);

  // Requires: connected, and no exchange under way.
  // Errors  kStoreUnreachable: the connection ended; kProtocol. It is closed then.
  void exchange(const StoreExchange& wanted, std::function<void(Result<StoreAnswer>)> done);

  // No handler is called any more.
  void close();

  // This end of the connection.
  [[nodiscard]] TcpEndpoint local_endpoint() const;

 private:
  class Connection;
  boost::asio::io_context& context_;
  std::shared_ptr<Connection> connection_;  // shared with its handlers
};

}  // namespace accel::supervisor
