// restart_probe: a worker that tells the benchmark when its first instruction ran.
//
// Sends "RANK GENERATION PID NANOSECONDS" (of CLOCK_MONOTONIC) to the datagram socket named by PROBE_SOCKET,
// then waits to be ended in generation 0, and ends with 0 in every other one.

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

int main() {
  timespec now{};
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  const char* path = std::getenv("PROBE_SOCKET");
  const char* rank = std::getenv("RANK");
  const char* generation = std::getenv("TORCHELASTIC_RESTART_COUNT");
  if (path == nullptr || rank == nullptr || generation == nullptr) return 64;
  char text[128];
  const int size = std::snprintf(text,
                                 sizeof text,
                                 "%s %s %d %lld",
                                 rank,
                                 generation,
                                 ::getpid(),
                                 static_cast<long long>(now.tv_sec) * 1'000'000'000 + now.tv_nsec);
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::strncpy(address.sun_path, path, sizeof address.sun_path - 1);
  const int fd = ::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  const auto* to = reinterpret_cast<const sockaddr*>(&address);
  if (::sendto(fd, text, static_cast<size_t>(size), 0, to, sizeof address) != size) return 65;
  if (std::strcmp(generation, "0") == 0) {
    while (true) ::pause();
  }
  return 0;
}
