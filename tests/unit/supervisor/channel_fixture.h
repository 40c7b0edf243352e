// ChannelServerTest: both sides of the worker channel in one process.
#pragma once

#include <atomic>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include <boost/asio/io_context.hpp>
#include <gtest/gtest.h>

#include "runtime/supervisor/watch/channel_server.h"

namespace accel::supervisor {

class ChannelServerTest : public ::testing::Test {
 protected:
  ChannelServerTest() {
    options_.job_id = "job";
    options_.on_report = [this](int, const std::string& text) { reports_.push_back(text); };
    options_.on_violation = [this](int rank, const Error& error) {
      violations_.push_back("rank " + std::to_string(rank) + ": " + error.message());
    };
  }

  ChannelServer& server() {
    if (!server_) server_.emplace(context_, options_);
    return *server_;
  }

  // A worker's side, as the worker opens it: the descriptors become its own.
  WorkerChannel connect(int rank = 0, int generation = 0) {
    ChannelEnds ends = std::move(server().open(rank, generation)).value();
    const std::string value = ends.env_value;
    (void)ends.memory.release();
    (void)ends.socket.release();
    return *std::move(WorkerChannel::open([&](std::string_view) { return value; })).value();
  }

  // Lets the server handle all that is there.
  void run() {
    context_.restart();
    context_.poll();
  }

  // The worker asks in a thread of its own while the server runs here.
  template <typename F>
  auto ask(F question) {
    decltype(question()) answer = Error(ErrorCode::kInternal, "no answer");
    std::atomic<bool> is_done = false;
    std::jthread worker([&] {
      answer = question();
      is_done = true;
    });
    while (!is_done) {
      run();
      std::this_thread::yield();
    }
    worker.join();
    return answer;
  }

  boost::asio::io_context context_;
  ChannelOptions options_;
  std::vector<std::string> reports_;
  std::vector<std::string> violations_;
  std::optional<ChannelServer> server_;
};

}  // namespace accel::supervisor
