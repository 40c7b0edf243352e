#include "tests/support/driven_job.h"

#include <chrono>

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>

namespace accel::test {

DrivenJob::DrivenJob(const supervisor::JobSpec& spec) {
  auto host = supervisor::start_shim(spec, {.shim_path = build_path("bin/accel-shim")});
  if (!host) throw std::runtime_error(host.error().render());
  host_ = *std::move(host);
}

supervisor::HostEvent DrivenJob::next() {
  const auto give_up = std::chrono::steady_clock::now() + kPatience;
  while (std::chrono::steady_clock::now() < give_up) {
    auto event = host_->next_event();
    if (!event) throw std::runtime_error(event.error().render());
    if (*event) {
      events_.push_back(**event);
      return **event;
    }
    pollfd fd = {host_->event_fd(), POLLIN, 0};
    (void)::poll(&fd, 1, 1000);
  }
  throw std::runtime_error("the shim did not say what the test waits for");
}

bool can_connect(const std::string& address, int port) {
  const UniqueFd socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in where{};
  where.sin_family = AF_INET;
  where.sin_port = htons(static_cast<std::uint16_t>(port));
  if (::inet_pton(AF_INET, address.c_str(), &where.sin_addr) != 1) return false;
  if (::connect(socket.get(), reinterpret_cast<const sockaddr*>(&where), sizeof where) != 0) {
    return false;
  }
  // One that is refused by its address or user is closed at once; one that is served stays quiet.
  pollfd readable = {socket.get(), POLLIN, 0};
  return ::poll(&readable, 1, 200) == 0;
}

}  // namespace accel::test
