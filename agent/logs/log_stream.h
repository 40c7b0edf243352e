// LogStream: what a job's workers wrote on this node, sent to one client.
//
// One chunk is in flight; the next is read, in the turn of the user whose files they are, when gRPC has taken it: a slow
// reader costs 64 KiB.
// The chunks may also come from elsewhere (ClusterLogs): then `on_idle` asks for the next one.
//
// Threads:  everything on the loop but the reading.
#pragma once

#include <functional>
#include <memory>

#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <grpcpp/grpcpp.h>

#include "agent/calls/queued_stream.h"
#include "agent/files/file_readers.h"
#include "agent/logs/log_reader.h"

namespace accel::agent {

class LogStream final : public QueuedStream<grpc::ServerWriteReactor<v1::LogChunk>, v1::LogChunk> {
 public:
  // Where the job stands, asked before each look at the files.
  struct Standing {
    int generation = 0;
    int first_rank = 0;         // global rank of local rank 0
    bool is_last_look = false;  // what is there now is all that is wanted
  };
  LogStream(boost::asio::io_context& loop, FileReaders& files);

  void begin(LogReader::Source source, std::function<Standing()> standing);

  // In place of begin(). Both are dropped when the stream is over.
  void feed(std::function<void()> on_idle, std::function<void()> on_over);

 private:
  void on_written() override;
  void on_closed() override;
  void look();
  void give(std::optional<v1::LogChunk> chunk, const Standing& standing);

  FileReaders& files_;
  boost::asio::steady_timer pause_;
  std::function<Standing()> standing_;
  std::function<void()> on_idle_;
  std::function<void()> on_over_;
  struct Reading;
  std::shared_ptr<Reading> reading_;  // with the thread that reads
};

}  // namespace accel::agent
