#include "agent/calls/call_turns.h"

#include <cstddef>
#include <utility>

#include <boost/asio/post.hpp>

namespace accel::agent {

struct CallTurns::Line {
  Line(boost::asio::io_context& on, int most_each) : loop(on), calls(most_each) {}

  boost::asio::io_context& loop;
  FairQueue<Call> calls;
  bool is_posted = false;  // a turn waits on the loop
};

CallTurns::CallTurns(boost::asio::io_context& loop, int most_each)
    : line_(std::make_shared<Line>(loop, most_each)) {}

bool CallTurns::add(const std::string& caller, Call call) {
  if (line_->calls.num_waiting(caller) >= kMostWaiting) return false;
  line_->calls.push(caller, std::move(call));
  go_on(line_);
  return true;
}

// Behind all that the loop has to do already.
void CallTurns::go_on(const std::shared_ptr<Line>& line) {
  if (line->is_posted || line->calls.num_ready() == 0) return;
  line->is_posted = true;
  boost::asio::post(line->loop, [line] { run_one(line); });
}

void CallTurns::run_one(const std::shared_ptr<Line>& line) {
  line->is_posted = false;
  auto next = line->calls.take();
  if (!next) return;
  const Over over(nullptr, [weak = std::weak_ptr(line), caller = next->caller](std::nullptr_t) {
    const auto known = weak.lock();
    if (!known) return;
    known->calls.done(caller);
    go_on(known);
  });
  next->work(over);
  go_on(line);
}

}  // namespace accel::agent
