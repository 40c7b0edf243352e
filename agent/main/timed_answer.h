// TimedAnswer: an answer that somebody waits for, and what is said instead when it does not come in time.
//
// Threads:  on the loop.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <utility>

#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>

namespace accel::agent {

template <typename Answer>
class TimedAnswer : public std::enable_shared_from_this<TimedAnswer<Answer>> {
 public:
  using Done = std::function<void(Answer)>;

  // Calls `done` once: with what give() is given, or after `patience` with what `late` says. The loop keeps it until then.
  static std::shared_ptr<TimedAnswer> begin(boost::asio::io_context& loop,
                                            std::chrono::milliseconds patience,
                                            std::function<Answer()> late,
                                            Done done) {
    const auto made = std::make_shared<TimedAnswer>(loop, std::move(done));
    made->limit_.expires_after(patience);
    made->limit_.async_wait([made, late = std::move(late)](const boost::system::error_code& error) {
      if (!error && !made->is_over()) made->give(late());
    });
    return made;
  }
  TimedAnswer(boost::asio::io_context& loop, Done done) : limit_(loop), done_(std::move(done)) {}

  // Nothing when it is over.
  void give(Answer answer) {
    const auto done = std::exchange(done_, nullptr);
    if (!done) return;
    limit_.cancel();
    done(std::move(answer));
  }
  [[nodiscard]] bool is_over() const { return !done_; }

 private:
  boost::asio::steady_timer limit_;
  Done done_;  // empty: it is over
};

}  // namespace accel::agent
