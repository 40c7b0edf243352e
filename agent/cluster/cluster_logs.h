// ClusterLogs: the output of a job of many nodes, fetched from their agents and given to one client.
//
// Nodes come and go while it is followed: where the job stands is asked every now and then. What cannot be fetched is
// said in the stream.
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
#include "agent/logs/log_stream.h"
#include "runtime/clock.h"

namespace accel::agent {

class ClusterLogs : public std::enable_shared_from_this<ClusterLogs> {
 public:
  ClusterLogs(boost::asio::io_context& loop,
              ClusterClient& client,
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

  void take(const v1::Job& job);
  void open(const v1::JobNode& node, std::uint64_t generation);
  void look_later();
  void look();
  void on_end(const std::string& node, std::uint64_t generation, const grpc::Status& status);
  void pump();
  void say(const std::string& text);
  void close();
  [[nodiscard]] bool wants(const v1::JobNode& node) const;
  [[nodiscard]] std::size_t num_open() const;

  boost::asio::io_context& loop_;
  ClusterClient& client_;
  std::shared_ptr<LogStream> sink_;
  v1::PartLogsReq request_;
  boost::asio::steady_timer pause_;
  std::map<std::string, Source> sources_;  // by node
  std::deque<std::pair<v1::LogChunk, std::shared_ptr<ClusterClient::PartLogs>>> ready_;
  std::uint64_t generation_ = 0;  // of the job, when it was looked at last
  v1::Job last_;                  // as it was then
  std::uint64_t digest_ = 0;      // of that; 0: not known
  bool is_last_look_ = false;
  bool said_too_many_ = false;
  TimePoint give_up_at_{};  // after the last look: how long nodes may still send
  TimePoint heard_at_{};    // of the coordinator
};

}  // namespace accel::agent
