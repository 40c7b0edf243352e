#include "agent/main/dashboard_logs.h"

#include <string>
#include <utility>

namespace accel::agent {

using supervisor::LogTail;

DashboardLogs::DashboardLogs(boost::asio::io_context& loop,
                             FileReaders& files,
                             std::chrono::milliseconds patience)
    : loop_(loop), files_(files), patience_(patience) {}

void DashboardLogs::read(uid_t owner,
                         std::function<LogTail()> read,
                         std::function<void(LogTail)> done) {
  const std::string late = "the file system of this output does not answer: nothing came within " +
                           std::to_string(patience_.count()) + " ms";
  auto answer = TimedAnswer<LogTail>::begin(
      loop_, patience_, [late] { return LogTail{.notice = late}; }, std::move(done));
  const bool is_first = !waiting_.contains(owner);
  waiting_[owner].push_back({std::move(read), std::move(answer)});
  if (is_first) begin_next(owner);
}

// None is under way.
void DashboardLogs::begin_next(uid_t owner) {
  auto& wishes = waiting_[owner];
  while (!wishes.empty() && wishes.front().answer->is_over()) wishes.pop_front();
  if (wishes.empty()) {
    waiting_.erase(owner);
    return;
  }
  Wish next = std::move(wishes.front());
  wishes.pop_front();
  const auto tail = std::make_shared<LogTail>();
  files_.add(
      owner,
      [tail, read = std::move(next.read)] { *tail = read(); },
      [this, owner, tail, answer = std::move(next.answer)] {
        answer->give(std::move(*tail));
        begin_next(owner);
      });
}

}  // namespace accel::agent
