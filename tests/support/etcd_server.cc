#include "tests/support/etcd_server.h"

#include <csignal>
#include <cstdlib>
#include <stdexcept>
#include <thread>

#include <arpa/inet.h>
#include <fcntl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "agent/etcd/etcd_client.h"

namespace accel::test {
namespace {

constexpr const char* kProgram = "/usr/bin/etcd";

std::string free_address() {
  const int probe = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  ::bind(probe, reinterpret_cast<sockaddr*>(&address), size);
  ::getsockname(probe, reinterpret_cast<sockaddr*>(&address), &size);
  ::close(probe);
  return "127.0.0.1:" + std::to_string(ntohs(address.sin_port));
}

}  // namespace

bool EtcdServer::is_installed() {
  return ::access(kProgram, X_OK) == 0;
}

EtcdServer::EtcdServer() : endpoint_(free_address()), peer_(free_address()) {
  start();
}

EtcdServer::~EtcdServer() {
  kill();
}

void EtcdServer::kill() {
  if (pid_ <= 0) return;
  ::kill(pid_, SIGKILL);
  ::waitpid(pid_, nullptr, 0);
  pid_ = -1;
}

void EtcdServer::start() {
  const std::string data = folder_.file("data");
  const std::string client_url = "http://" + endpoint_;
  const std::string peer_url = "http://" + peer_;
  const std::string cluster = "default=" + peer_url;
  const std::string log = folder_.file("log");
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
  for (int i = 0; i < 60; ++i) {
    if ((*client)->range(request)) return;
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
  }
  throw std::runtime_error("etcd does not answer at " + endpoint_);
}

}  // namespace accel::test
