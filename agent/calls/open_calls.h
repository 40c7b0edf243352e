// OpenCalls: the calls of a client that gRPC's threads still have.
//
// A loop ends while calls are under way: an agent leaves, and the coordinator has not answered. Its threads would hand their
// calls to a loop that is gone. So a client has its open calls as a member, and its end cancels them and waits for the last
// of these threads.
//
// Threads:  begin() and the end on the loop's; end() on gRPC's.
#pragma once

#include <condition_variable>
#include <mutex>
#include <set>
#include <utility>

#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <grpcpp/client_context.h>

namespace accel::agent {

class OpenCalls {
 public:
  explicit OpenCalls(boost::asio::io_context& loop) : loop_(loop) {}
  // Everything that was begun has been posted, and may be run or dropped with the loop.
  ~OpenCalls() {
    std::unique_lock lock(mutex_);
    for (grpc::ClientContext* context : contexts_) context->TryCancel();
    changed_.wait(lock, [this] { return contexts_.empty(); });
  }
  OpenCalls(const OpenCalls&) = delete;
  OpenCalls& operator=(const OpenCalls&) = delete;

  // `context` is there until the end() of it.
  void begin(grpc::ClientContext& context) {
    const std::lock_guard lock(mutex_);
    contexts_.insert(&context);
  }

  // The last that a thread of gRPC's has to do with a call: `work` goes to the loop and has the whole of it. So no such thread
  // is the last to let go of a channel, whose end waits for them.
  template <typename Work>
  void end(grpc::ClientContext& context, Work work) {
    const std::lock_guard lock(mutex_);
    contexts_.erase(&context);
    boost::asio::post(loop_, std::move(work));
    if (contexts_.empty()) changed_.notify_all();
  }

 private:
  boost::asio::io_context& loop_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::set<grpc::ClientContext*> contexts_;
};

}  // namespace accel::agent
