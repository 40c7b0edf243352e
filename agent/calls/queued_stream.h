// QueuedStream: the writing half of a stream reactor, driven from the supervisor's thread.
//
// gRPC allows one write in flight and calls back on threads of its own. Here messages wait in a bounded queue, each
// callback only posts to the loop, and the loop alone starts writes and ends the call. A reader that does not keep up
// loses the stream (RESOURCE_EXHAUSTED), never the agent's memory: messages and their bytes are both bounded.
//
//   open --finish(status)--> closing --queue empty--> finished --OnDone--> destroyed
//     '--the client goes, a write fails, the queue is full------^
//
// Threads:  everything on the loop but the On* callbacks. The object keeps itself alive until OnDone.
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <utility>

#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <grpcpp/grpcpp.h>

namespace accel::agent {

// Reactor: grpc::ServerWriteReactor<Message> or grpc::ServerBidiReactor<..., Message>.
template <typename Reactor, typename Message>
class QueuedStream : public Reactor,
                     public std::enable_shared_from_this<QueuedStream<Reactor, Message>> {
 public:
  static constexpr std::size_t kMaxQueuedBytes = 32 * 1024 * 1024;

  QueuedStream(boost::asio::io_context& loop, std::size_t max_queued)
      : loop_(loop), max_queued_(max_queued) {}

  // Call once, after the object is in a shared_ptr and before gRPC gets it.
  void live_until_done() { self_ = this->shared_from_this(); }

  // `over` is called on the loop when the call has ended, after on_closed().
  void call_when_over(std::function<void()> over) { over_ = std::move(over); }

  [[nodiscard]] bool is_open() const { return !status_; }
  [[nodiscard]] bool is_idle() const { return queue_.empty(); }

  void send(Message message) {
    if (status_) return;
    const std::size_t bytes = message.ByteSizeLong();
    if (queue_.size() >= max_queued_ || queued_bytes_ + bytes > kMaxQueuedBytes) {
      queue_.resize(is_writing_ ? 1 : 0);
      return finish(
          {grpc::StatusCode::RESOURCE_EXHAUSTED, "the reader of this stream is too slow"});
    }
    queued_bytes_ += bytes;
    queue_.push_back(std::move(message));
    advance();
  }

  void finish(grpc::Status status) {
    if (status_) return;
    status_ = std::move(status);
    advance();
  }

  void OnWriteDone(bool ok) final {
    post([ok](QueuedStream& self) {
      self.is_writing_ = false;
      self.queued_bytes_ -= self.queue_.front().ByteSizeLong();
      self.queue_.pop_front();
      if (!ok) self.cut();
      self.advance();
      if (self.is_open()) self.on_written();
    });
  }

  void OnCancel() final {
    post([](QueuedStream& self) {
      self.cut();
      self.advance();
    });
  }

  void OnDone() final {
    post([](QueuedStream& self) {
      self.is_done_ = true;
      self.on_closed();
      if (const auto over = std::exchange(self.over_, nullptr)) over();
      self.self_.reset();
    });
  }

 protected:
  // The last message was taken; another one may be sent.
  virtual void on_written() {}
  // Nothing can be sent any more. Comes once.
  virtual void on_closed() {}

  template <typename Work>
  void post(Work work) {
    boost::asio::post(loop_, [self = this->shared_from_this(), work = std::move(work)]() mutable {
      work(*self);
    });
  }

  [[nodiscard]] boost::asio::io_context& loop() { return loop_; }

 private:
  void cut() {
    queue_.resize(is_writing_ ? 1 : 0);
    if (!status_) status_ = grpc::Status::CANCELLED;
  }

  void advance() {
    if (is_done_ || is_finished_ || is_writing_) return;
    if (!queue_.empty()) {
      is_writing_ = true;
      this->StartWrite(&queue_.front());
    } else if (status_) {
      is_finished_ = true;
      this->Finish(*status_);
    }
  }

  boost::asio::io_context& loop_;
  std::size_t max_queued_;
  std::deque<Message> queue_;  // the front is in flight while is_writing_
  std::size_t queued_bytes_ = 0;
  bool is_writing_ = false;
  bool is_finished_ = false;
  bool is_done_ = false;
  std::optional<grpc::Status> status_;
  std::function<void()> over_;
  std::shared_ptr<QueuedStream> self_;
};

}  // namespace accel::agent
