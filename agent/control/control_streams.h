// ControlStreams: the streams of the Control service that say what happens; private to it.
//
// Threads:  everything on the loop.
#pragma once

#include <deque>
#include <memory>
#include <optional>
#include <string>

#include <boost/asio/steady_timer.hpp>

#include "agent/calls/queued_stream.h"
#include "agent/cluster/cluster_watch.h"
#include "agent/control/control_service.h"
#include "agent/jobs/diagnosis.h"

namespace accel::agent {

class ControlService::Watcher final
    : public QueuedStream<grpc::ServerWriteReactor<v1::Event>, v1::Event> {
 public:
  static constexpr std::size_t kMaxQueued = 1024;

  Watcher(ControlService& service, boost::asio::io_context& loop)
      : QueuedStream(loop, kMaxQueued), service_(service) {}

  Caller caller;
  std::string job;                        // uuid; empty: all
  std::deque<std::string> to_begin_with;  // uuids of jobs that are not told yet
  ClusterWatch::Following cluster;        // jobs of many nodes, where it watches some
  std::optional<boost::asio::steady_timer>
      pause;  // until the coordinator is asked again for the job

 private:
  void on_written() override { service_.give_first(*this); }
  void on_closed() override {
    cluster.reset();
    if (pause) pause->cancel();
    service_.watchers_.erase(std::static_pointer_cast<Watcher>(shared_from_this()));
  }
  ControlService& service_;
};

class ControlService::DiagnoseStream final
    : public QueuedStream<grpc::ServerWriteReactor<v1::DiagChunk>, v1::DiagChunk> {
 public:
  static constexpr std::size_t kMaxQueued = 65'536;  // 48 nodes with 1024 workers each

  explicit DiagnoseStream(boost::asio::io_context& loop) : QueuedStream(loop, kMaxQueued) {}

  std::shared_ptr<Diagnosis> here;  // of this node; empty: the chunks come from elsewhere

 private:
  void on_written() override {
    if (here && is_idle()) here->next();
  }
  void on_closed() override { here.reset(); }
};

}  // namespace accel::agent
