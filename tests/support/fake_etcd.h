// FakeEtcd: a member of etcd in this process, on loopback. What it answers is its children's.
#pragma once

#include <chrono>
#include <memory>
#include <string>

#include <grpcpp/grpcpp.h>

#include "etcd/rpc.grpc.pb.h"

namespace accel::test {

class FakeEtcd : public etcdserverpb::KV::Service, public etcdserverpb::Lease::Service {
 public:
  // Calls may come at once.
  FakeEtcd() {
    grpc::ServerBuilder builder;
    int port = 0;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
    builder.RegisterService(static_cast<etcdserverpb::KV::Service*>(this));
    builder.RegisterService(static_cast<etcdserverpb::Lease::Service*>(this));
    server_ = builder.BuildAndStart();
    endpoint_ = "127.0.0.1:" + std::to_string(port);
  }
  // Requires shut_down() of a child whose answers need its members.
  ~FakeEtcd() override { shut_down(); }

  [[nodiscard]] const std::string& endpoint() const { return endpoint_; }

 protected:
  // Cancels what still runs, and waits for it.
  void shut_down() { server_->Shutdown(std::chrono::system_clock::now()); }

 private:
  std::string endpoint_;
  std::unique_ptr<grpc::Server> server_;
};

}  // namespace accel::test
