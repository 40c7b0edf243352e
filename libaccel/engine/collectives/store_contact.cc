// One try: look the name up, connect, greet. Everything that time can mend (a name that is not known
// yet, nobody listening, a server that goes away) leads to another try, after a pause that doubles
// from 10 ms to 500 ms. A wrong answer is final: somebody else has the port.

#include "libaccel/engine/collectives/store_contact.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <memory>
#include <optional>
#include <thread>

#include <fcntl.h>
#include <netdb.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

namespace accel {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

constexpr milliseconds kFirstPause{10};
constexpr milliseconds kLongestPause{500};
// Of one address, so that one which swallows packets does not keep the next from being tried.
constexpr milliseconds kLongestConnect{10'000};

// VALIDATE with its magic, PING with a number that comes back; packed, little-endian.
constexpr std::uint32_t kNonce = 0x6C656363;
constexpr std::array<unsigned char, 10> kGreeting = {
    0, 0xCE, 0xF7, 0x85, 0x3C, 13, 0x63, 0x63, 0x65, 0x6C};

struct Attempt {
  UniqueFd connection;  // answered, when it holds one
  std::string failure;  // what the try met
  bool is_final = false;
};

Attempt failed(std::string failure) {
  return {.failure = std::move(failure)};
}

milliseconds left_until(steady_clock::time_point deadline) {
  return std::max(milliseconds(0),
                  std::chrono::duration_cast<milliseconds>(deadline - steady_clock::now()));
}

// Whether the socket became ready; errno is ETIMEDOUT when it did not in time.
bool wait_for(int fd, short events, steady_clock::time_point deadline) {
  pollfd ready{fd, events, 0};
  while (true) {
    const int count = ::poll(&ready, 1, static_cast<int>(left_until(deadline).count()));
    if (count > 0) return true;
    if (count == 0) errno = ETIMEDOUT;
    if (count == 0 || errno != EINTR) return false;
  }
}

Attempt connect_to(const addrinfo& address, steady_clock::time_point deadline) {
  UniqueFd fd(::socket(address.ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd) return failed(errno_text(errno));
  if (::connect(fd.get(), address.ai_addr, address.ai_addrlen) != 0 && errno != EINPROGRESS) {
    return failed(errno_text(errno));
  }
  if (!wait_for(fd.get(), POLLOUT, std::min(deadline, steady_clock::now() + kLongestConnect))) {
    return failed(errno_text(errno));
  }
  int error = 0;
  socklen_t size = sizeof error;
  ::getsockopt(fd.get(), SOL_SOCKET, SO_ERROR, &error, &size);
  if (error != 0) return failed(errno_text(error));
  return {.connection = std::move(fd)};
}

// The answer to the greeting, cut short when the other side ends the connection.
Attempt greet(UniqueFd fd, steady_clock::time_point deadline) {
  if (::send(fd.get(), kGreeting.data(), kGreeting.size(), MSG_NOSIGNAL) !=
      static_cast<ssize_t>(kGreeting.size())) {
    return failed(errno_text(errno));
  }
  std::array<char, sizeof kNonce> answer{};
  std::size_t have = 0;
  while (have < answer.size()) {
    if (!wait_for(fd.get(), POLLIN, deadline)) {
      return failed("something listens there and does not answer");
    }
    const ssize_t got = ::recv(fd.get(), answer.data() + have, answer.size() - have, 0);
    if (got < 0 && (errno == EINTR || errno == EAGAIN)) continue;
    if (got < 0) return failed(errno_text(errno));
    if (got == 0) return failed("it ended the connection");
    have += static_cast<std::size_t>(got);
  }
  std::uint32_t number = 0;
  std::memcpy(&number, answer.data(), sizeof number);
  if (number != kNonce) {
    return {.failure = "what listens there is no key-value store of c10d", .is_final = true};
  }
  return {.connection = std::move(fd)};
}

Attempt try_once(const std::string& host, int port, steady_clock::time_point deadline) {
  const addrinfo hints{.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM};
  addrinfo* found = nullptr;
  const int status = ::getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found);
  if (status != 0) return failed(std::string("the name is not known: ") + ::gai_strerror(status));
  const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> addresses(found, ::freeaddrinfo);
  Attempt attempt = failed("the name has no address");
  for (const addrinfo* address = found; address != nullptr; address = address->ai_next) {
    attempt = connect_to(*address, deadline);
    if (attempt.connection) attempt = greet(std::move(attempt.connection), deadline);
    if (attempt.connection || attempt.is_final) break;
  }
  return attempt;
}

std::string seconds_since(steady_clock::time_point start) {
  std::array<char, 32> text{};
  const std::chrono::duration<double> waited = steady_clock::now() - start;
  std::snprintf(text.data(), text.size(), "%.1f s", waited.count());
  return text.data();
}

}  // namespace

UniqueFd contact_store(const std::string& host, int port, milliseconds timeout) {
  const steady_clock::time_point start = steady_clock::now();
  const steady_clock::time_point deadline = start + timeout;
  milliseconds pause = kFirstPause;
  while (true) {
    Attempt attempt = try_once(host, port, deadline);
    if (attempt.connection) return std::move(attempt.connection);
    if (attempt.is_final || left_until(deadline) <= pause) {
      throw Error(ErrorCode::kStoreUnreachable,
                  "the store at " + host + ":" + std::to_string(port) + " did not answer, waited " +
                      seconds_since(start) + ": " + attempt.failure);
    }
    std::this_thread::sleep_for(pause);
    pause = std::min(pause * 2, kLongestPause);
  }
}

}  // namespace accel
