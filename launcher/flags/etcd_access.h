// EtcdAccess: how launchers of a job on several machines reach the etcd that says which of them is machine 0.
//
// Threads:  a plain value.
#pragma once

#include <string>

namespace accel::launcher {

struct EtcdAccess {
  std::string endpoint;     // "HOST:PORT"
  std::string authority;    // a file, as the others; empty: without TLS
  std::string certificate;  // of this client; empty: etcd asks for none
  std::string key;
  std::string own_address;  // by which others reach this machine; empty: that which leads to etcd
};

}  // namespace accel::launcher
