// CallTurns: the calls of many callers on one event loop, one at a time and the callers in turn.
//
// Between two calls the loop does whatever else has come: beats, timers, the word of shims. So a flood of one caller's calls
// delays others by one call, and the loop's own work by one call, however many there are.
//
// Threads:  everything on the loop.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>

#include <boost/asio/io_context.hpp>

#include "agent/access/fair_queue.h"

namespace accel::agent {

class CallTurns {
 public:
  static constexpr std::size_t kMostWaiting =
      4096;  // of one caller, who may have given up most of them

  // The call is under way until `over` is gone, and every copy of it.
  using Over = std::shared_ptr<void>;
  using Call = std::function<void(Over over)>;

  // most_each: calls of one caller under way at a time.
  CallTurns(boost::asio::io_context& loop, int most_each);

  // False: so many of this caller wait that one more may not.
  [[nodiscard]] bool add(const std::string& caller, Call call);

 private:
  struct Line;
  static void go_on(const std::shared_ptr<Line>& line);
  static void run_one(const std::shared_ptr<Line>& line);

  std::shared_ptr<Line> line_;  // with the calls that are under way
};

}  // namespace accel::agent
