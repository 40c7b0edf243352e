// ClusterWatch: tells each change of jobs of many nodes, by asking the coordinator again and again.
//
// Threads:  everything on the loop. The object lives until close().
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>

#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>

#include "agent/cluster/cluster_client.h"

namespace accel::agent {

class ClusterWatch : public std::enable_shared_from_this<ClusterWatch> {
 public:
  struct Handlers {
    std::function<void(v1::Job)> on_job;  // first each as it is, then as it is after a change
    std::function<void(const Error&)>
        on_error;  // the coordinator does not answer, or not so; said once
  };
  // request  names the job, or none for all of them.
  ClusterWatch(boost::asio::io_context& loop,
               ClusterClient& client,
               v1::JobsReq request,
               Handlers handlers);

  // Call once.
  void begin() { ask(); }
  // Nothing is told any more.
  void close();

 private:
  void ask();
  void take(const Result<v1::JobList>& list);

  boost::asio::steady_timer pause_;
  ClusterClient& client_;
  v1::JobsReq request_;
  Handlers handlers_;
  std::map<std::string, std::string> told_;  // by uuid: the job, serialized
  std::string last_error_;
  bool is_closed_ = false;
};

}  // namespace accel::agent
