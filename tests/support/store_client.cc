#include "tests/support/store_client.h"

#include <cstring>

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>

namespace accel::test {

using namespace supervisor;

namespace {

constexpr int kPatienceMs = 30'000;

std::string code_of(StoreCommand command) {
  return std::string(1, static_cast<char>(command));
}

}  // namespace

std::string store_request(StoreCommand command) {
  return code_of(command);
}

std::string store_request(StoreCommand command, std::uint32_t number) {
  std::string out = code_of(command);
  append_u32(out, number);
  return out;
}

std::string store_request(StoreCommand command, std::initializer_list<std::string_view> blobs) {
  std::string out = code_of(command);
  for (const std::string_view blob : blobs) append_blob(out, blob);
  return out;
}

std::string store_keys_request(StoreCommand command, const std::vector<std::string>& keys) {
  std::string out = code_of(command);
  append_u64(out, keys.size());
  for (const std::string& key : keys) append_blob(out, key);
  return out;
}

std::string store_add(std::string_view key, std::int64_t delta) {
  std::string out = store_request(StoreCommand::kAdd, {key});
  append_i64(out, delta);
  return out;
}

std::string store_hello() {
  return store_request(StoreCommand::kValidate, kStoreMagic);
}

StoreClient::StoreClient(std::uint16_t port)
    : socket_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (::connect(socket_.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)) != 0) {
    socket_.reset();
  }
}

StoreClient StoreClient::validated(std::uint16_t port) {
  StoreClient client(port);
  client.send(store_hello());
  return client;
}

bool StoreClient::send(std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t put = ::send(socket_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (put < 0) return false;
    bytes.remove_prefix(static_cast<std::size_t>(put));
  }
  return true;
}

std::string StoreClient::receive(std::size_t n) {
  std::string out(n, '\0');
  std::size_t have = 0;
  while (have < n) {
    pollfd ready{socket_.get(), POLLIN, 0};
    if (::poll(&ready, 1, kPatienceMs) <= 0) break;
    const ssize_t got = ::recv(socket_.get(), out.data() + have, n - have, 0);
    if (got <= 0) break;
    have += static_cast<std::size_t>(got);
  }
  out.resize(have);
  return out;
}

std::uint8_t StoreClient::receive_u8() {
  const std::string bytes = receive(1);
  return bytes.empty() ? 0xFF : static_cast<std::uint8_t>(bytes[0]);
}

std::int64_t StoreClient::receive_i64() {
  const std::string bytes = receive(sizeof(std::int64_t));
  std::int64_t value = INT64_MIN;
  if (bytes.size() == sizeof(value)) std::memcpy(&value, bytes.data(), sizeof(value));
  return value;
}

std::string StoreClient::receive_blob() {
  const std::int64_t length = receive_i64();
  return length < 0 ? std::string("(nothing came)") : receive(static_cast<std::size_t>(length));
}

bool StoreClient::is_closed_by_server() {
  std::string rest(64 << 10, '\0');
  while (true) {
    pollfd ready{socket_.get(), POLLIN, 0};
    if (::poll(&ready, 1, kPatienceMs) <= 0) return false;
    if (::recv(socket_.get(), rest.data(), rest.size(), 0) <= 0) return true;
  }
}

}  // namespace accel::test
