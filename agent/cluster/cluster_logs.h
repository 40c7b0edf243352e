// ClusterLogs: the output of a job of many nodes, fetched from their agents and given to one client.
//
// Nodes come and go while it is followed, as the job's view says. What cannot be fetched is said in the stream.
//
// Threads:  everything on the loop. The object lives as long as its sink.
#pragma once

#include <deque>
#include <map>
#include <memory>
#include <string>

#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>

#include "agent/cluster/cluster_client.h"
#include "agent/cluster/cluster_watch.h"
#include "agent/logs/log_stream.h"

namespace accel::agent {

class ClusterLogs : public std::enable_shared_from_this<ClusterLogs> {
 public:
  ClusterLogs(boost::asio::io_context& loop,
              ClusterClient& client,
              ClusterWatch& watch,
              std::shared_ptr<LogStream> sink,
              v1::PartLogsReq request);

  // Call once.
  void begin(const v1::Job& job);

 private:
  struct Source {
    std::shared_ptr<ClusterClient::PartLogs> logs;  // gone when it is over
    std::uint64_t over_in = 0;                      // generation in which it ended, or broke
    std::uint64_t shown = 0;                        // highest generation of which output came
  };

  void follow();
  void take(v1::Job job);
  void open_missing();
  void open(const v1::JobNode& node, std::uint64_t generation);
  void say_farewell();
  void give_up_later(const Error& why);
  void on_end(const std::string& node, std::uint64_t generation, const grpc::Status& status);
  void pump();
  void say(const std::string& text);
  void close();
  [[nodiscard]] bool wants(const v1::JobNode& node) const;
  [[nodiscard]] std::size_t num_open() const;

  boost::asio::io_context& loop_;
  ClusterClient& client_;
  ClusterWatch& watch_;
  ClusterWatch::Following following_;
  std::shared_ptr<LogStream> sink_;
  v1::PartLogsReq request_;
  boost::asio::steady_timer limit_;  // of the nodes' last output, or of a coordinator's silence
  std::map<std::string, Source> sources_;  // by node
  std::deque<std::pair<v1::LogChunk, std::shared_ptr<ClusterClient::PartLogs>>> ready_;
  v1::Job job_;                // as it was told last
  bool is_last_look_ = false;  // nothing more is opened for it
  bool said_too_many_ = false;
  bool is_unheard_ = false;  // the coordinator does not answer
};

}  // namespace accel::agent
