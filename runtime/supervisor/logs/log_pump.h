// LogPump: the thread that empties the workers' pipes, whatever the sinks do.
//
// Every source is in exactly one of these states, and one handler is under way for it:
//
//   ready --nothing there--> listening (its descriptor)   --readable--> ready
//         --kHeldByFile----> held (the stage's descriptor) --writable, or the sink stalled--> ready
//         --kHeldByConsole-> held (the console's on_space) --space, or the sink stalled-----> ready
//         --end, or close()-> finished
//
// Threads:  any thread; the pump has one of its own, which never waits for a file or a terminal.
#pragma once

#include <array>
#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>

#include <accel/result.h>

#include "runtime/supervisor/logs/log_sinks.h"
#include "runtime/supervisor/logs/log_source.h"
#include "runtime/supervisor/logs/writer_thread.h"

namespace accel::supervisor {

class LogPump : public std::enable_shared_from_this<LogPump> {
 public:
  // Throws  std::system_error, boost::system::system_error: no more threads or descriptors can be had.
  static std::shared_ptr<LogPump> start();
  LogPump();  // use start()

  // The sinks of the job, before the first add().
  void use_sinks(std::shared_ptr<FileSink> file,
                 std::vector<std::shared_ptr<ConsoleSink>> consoles);

  // Errors  kSpawnFailed: the kernel does not watch its descriptors.
  [[nodiscard]] Result<void> add(std::shared_ptr<LogSource> source);

  // Calls `done` on the pump's thread once what is in these sources now is taken: at their ends, or for one whose
  // pipe is kept open after `limit`. Such a one goes on.
  void drain(std::vector<std::shared_ptr<LogSource>> sources,
             std::chrono::milliseconds limit,
             std::function<void()> done);

  // A console has room again.
  void console_has_room();

  // Takes what is in all sources, ends them, then finishes the sinks; the thread ends. No add()
  // after.
  void close();
  bool wait_until(TimePoint deadline) const { return thread_.wait_until(deadline); }
  void when_done(std::function<void()> on_done) const { thread_.when_done(std::move(on_done)); }

  // Ends the thread now; what the sources still hold is lost.
  void abandon();

 private:
  struct Entry;
  using EntryPtr = std::shared_ptr<Entry>;

  void run();
  void serve(const EntryPtr& entry);
  void listen(const EntryPtr& entry);
  void hold_for_file(const EntryPtr& entry);
  void hold_for_console(const EntryPtr& entry);
  void finish(const EntryPtr& entry);
  void settle_after(const EntryPtr& entry, std::chrono::milliseconds limit);
  void settle(const EntryPtr& entry);
  void resume_held_by_console();
  void end_when_done();
  void finish_sinks();
  void watch_sinks();
  void arm_watch();

  WriterThread thread_;
  boost::asio::io_context io_{1};
  boost::asio::executor_work_guard<boost::asio::io_context::executor_type> work_;
  std::array<char, 64 * 1024> scratch_;

  // Of the pump's thread alone.
  std::vector<EntryPtr> entries_;
  std::vector<EntryPtr> held_by_console_;
  std::shared_ptr<FileSink> file_sink_;
  std::vector<std::shared_ptr<ConsoleSink>> console_sinks_;
  boost::asio::steady_timer watch_;
  std::optional<TimePoint> watch_due_;
  bool is_closing_ = false;
};

}  // namespace accel::supervisor
