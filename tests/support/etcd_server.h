// EtcdServer: a real etcd of one member on loopback, to be killed and started again on the same data.
#pragma once

#include <string>

#include <sys/types.h>

#include "tests/support/reserved_port.h"

namespace accel::test {

class EtcdServer {
 public:
  // Starts it and waits until it answers.
  EtcdServer();
  ~EtcdServer();
  EtcdServer(const EtcdServer&) = delete;
  EtcdServer& operator=(const EtcdServer&) = delete;

  // Whether this machine has the program (Debian's etcd-server).
  [[nodiscard]] static bool is_installed();

  void kill();
  void start();
  void suspend();  // it does not answer until resume()
  void resume();
  [[nodiscard]] const std::string& endpoint() const { return endpoint_; }

 private:
  // In memory where there is room: what it syncs waits for no disk, which others may keep busy for minutes.
  std::string folder_;
  const ReservedPort port_;
  const ReservedPort peer_port_;
  std::string endpoint_;
  std::string peer_;
  pid_t pid_ = -1;
};

}  // namespace accel::test
