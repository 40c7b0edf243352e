#include "tests/support/etcd_server.h"

#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <stdexcept>
#include <thread>

#include <fcntl.h>
#include <sys/statvfs.h>
#include <sys/wait.h>
#include <unistd.h>

#include "agent/etcd/etcd_client.h"

namespace accel::test {
namespace {

constexpr const char* kProgram = "/usr/bin/etcd";
constexpr std::chrono::seconds kPatience{60};
constexpr std::chrono::milliseconds kPause{50};

std::string loopback_at(const ReservedPort& port) {
  return "127.0.0.1:" + std::to_string(port.port());
}

// A container may have as little as 64 MB there; one etcd takes 123 MB.
bool has_room_in_memory() {
  constexpr std::uint64_t kRoom = 1 << 30;
  struct statvfs found {};
  return ::access("/dev/shm", W_OK) == 0 && ::statvfs("/dev/shm", &found) == 0 &&
         std::uint64_t{found.f_bavail} * found.f_frsize >= kRoom;
}

std::string make_folder() {
  std::string name = has_room_in_memory() ? "/dev/shm/accel-etcd-XXXXXX" : "/tmp/accel-etcd-XXXXXX";
  if (::mkdtemp(name.data()) == nullptr) throw std::runtime_error("cannot create " + name);
  return name;
}

}  // namespace

bool EtcdServer::is_installed() {
  return ::access(kProgram, X_OK) == 0;
}

EtcdServer::EtcdServer()
    : folder_(make_folder()), endpoint_(loopback_at(port_)), peer_(loopback_at(peer_port_)) {
  start();
}

EtcdServer::~EtcdServer() {
  kill();
  std::error_code ignored;
  std::filesystem::remove_all(folder_, ignored);
}

void EtcdServer::kill() {
  if (pid_ <= 0) return;
  ::kill(pid_, SIGKILL);
  ::waitpid(pid_, nullptr, 0);
  pid_ = -1;
}

void EtcdServer::suspend() {
  ::kill(pid_, SIGSTOP);
}

void EtcdServer::resume() {
  ::kill(pid_, SIGCONT);
}

void EtcdServer::start() {
  const std::string data = folder_ + "/data";
  const std::string client_url = "http://" + endpoint_;
  const std::string peer_url = "http://" + peer_;
  const std::string cluster = "default=" + peer_url;
  const std::string log = folder_ + "/log";
  pid_ = ::fork();
  if (pid_ == 0) {
    const int out = ::open(log.c_str(), O_WRONLY | O_CREAT | O_APPEND, 0600);
    ::dup2(out, 1);
    ::dup2(out, 2);
    ::execl(kProgram,
            "etcd",
            "--data-dir",
            data.c_str(),
            "--listen-client-urls",
            client_url.c_str(),
            "--advertise-client-urls",
            client_url.c_str(),
            "--listen-peer-urls",
            peer_url.c_str(),
            "--initial-advertise-peer-urls",
            peer_url.c_str(),
            "--initial-cluster",
            cluster.c_str(),
            static_cast<char*>(nullptr));
    ::_exit(127);
  }
  auto client = agent::EtcdClient::make({.endpoints = {endpoint_}, .tls = {}});
  etcdserverpb::RangeRequest request;
  request.set_key("/");
  const auto give_up_at = std::chrono::steady_clock::now() + kPatience;
  while (!(*client)->range(request)) {
    const bool has_ended = ::waitpid(pid_, nullptr, WNOHANG) == pid_;
    if (has_ended) pid_ = -1;
    if (has_ended || std::chrono::steady_clock::now() >= give_up_at) {
      kill();
      throw std::runtime_error("etcd does not answer at " + endpoint_);
    }
    std::this_thread::sleep_for(kPause);
  }
}

}  // namespace accel::test
