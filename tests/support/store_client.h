// StoreClient: a blocking client of the store, for tests: what it sends can be right or wrong.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/supervisor/store/store_protocol.h"
#include "runtime/unique_fd.h"

namespace accel::test {

using supervisor::StoreCommand;

// The bytes of one request: a code alone, with a number, with blobs, with a count and keys.
[[nodiscard]] std::string store_request(StoreCommand command);
[[nodiscard]] std::string store_request(StoreCommand command, std::uint32_t number);
[[nodiscard]] std::string store_request(StoreCommand command,
                                        std::initializer_list<std::string_view> blobs);
[[nodiscard]] std::string store_keys_request(StoreCommand command,
                                             const std::vector<std::string>& keys);
[[nodiscard]] std::string store_add(std::string_view key, std::int64_t delta);
[[nodiscard]] std::string store_hello();  // VALIDATE

class StoreClient {
 public:
  // Connects to 127.0.0.1 without sending anything.
  explicit StoreClient(std::uint16_t port);

  // As every well-behaved client begins.
  [[nodiscard]] static StoreClient validated(std::uint16_t port);

  // False when the server has closed the connection.
  bool send(std::string_view bytes);

  // Waits up to 30 s for exactly n bytes; fewer when the server closed before.
  [[nodiscard]] std::string receive(std::size_t n);
  [[nodiscard]] std::uint8_t receive_u8();
  [[nodiscard]] std::int64_t receive_i64();
  [[nodiscard]] std::string receive_blob();

  // Waits up to 30 s for the end of the connection.
  [[nodiscard]] bool is_closed_by_server();

  [[nodiscard]] int fd() const { return socket_.get(); }
  void close() { socket_.reset(); }

 private:
  UniqueFd socket_;
};

}  // namespace accel::test
