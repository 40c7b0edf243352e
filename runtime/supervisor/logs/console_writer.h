// ConsoleWriter: the thread that writes to one console (the owner's stdout or stderr), and its
// buffer.
//
// A console that fails (its reader is gone, its disk is full) loses output but stops nobody: bytes
// are counted as dropped, once a second one more attempt is made, and a marker comes first when it
// works. After EPIPE and EIO (a closed pipe, a terminal that hung up) no attempt can work and none
// is made.
//
// On a terminal it also keeps a StatusLine below the output, whose bytes count neither as backlog nor as progress.
//
// Threads:  push(), has_room() and finish() from one thread; show_status(), progress() and wait_until() from any.
// Cost:     2 * kCapacity bytes at most, plus one push.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/supervisor/lines/drop_ledger.h"
#include "runtime/supervisor/lines/notice_board.h"
#include "runtime/supervisor/logs/status_line.h"
#include "runtime/supervisor/logs/writer_thread.h"

namespace accel::supervisor {

class ConsoleWriter {
 public:
  static constexpr std::size_t kCapacity = 256 * 1024;

  struct Options {
    int fd = 1;        // borrowed
    std::string name;  // "stdout", for notices
    std::shared_ptr<NoticeBoard> notices;
    std::function<void()> on_space;  // after has_room() said no; on the writer's thread
  };

  static std::shared_ptr<ConsoleWriter> start(Options options);
  explicit ConsoleWriter(Options options);  // use start()

  // Whether less than kCapacity bytes wait. After "no", on_space is called once there is room.
  [[nodiscard]] bool has_room();

  // Takes `lines` over and leaves it empty. More than kCapacity is not refused.
  void push(std::string& lines);

  // See StatusLine; nothing where the console is no terminal. `on_done` is called once the terminal shows it, or cannot take it now: on
  // the writer's thread, which it must not hold up; not after forget_status(), and perhaps not after finish(), which erases the line.
  void show_status(std::string text, bool despite_returns, std::function<void()> on_done);

  void forget_status();

  // Grows with every byte that was written or given up.
  [[nodiscard]] std::uint64_t progress() const noexcept { return progress_.load(); }

  // No push() comes after this; the thread ends when all is written.
  void finish();
  bool wait_until(TimePoint deadline) const { return thread_.wait_until(deadline); }
  void when_done(std::function<void()> on_done) const { thread_.when_done(std::move(on_done)); }

  // Bytes that were not written yet.
  [[nodiscard]] std::size_t backlog() const;

 private:
  void run();
  bool take_batch(std::string& batch);
  void write_batch(std::string_view batch);
  bool write_all(std::string_view& bytes, int& error);
  void lose(std::size_t bytes);
  void update_status();

  const Options options_;
  const bool is_terminal_;
  const std::size_t piece_;  // bytes of one write(), small enough to see a slow reader move
  WriterThread thread_;

  mutable std::mutex mutex_;
  std::condition_variable pushed_;
  std::string pending_;
  std::size_t in_flight_ = 0;
  bool wants_space_ = false;
  bool is_finished_ = false;
  struct StatusRequest {
    std::string text;
    bool despite_returns = false;
  };
  std::optional<StatusRequest> new_status_;
  std::vector<std::function<void()>> status_done_;

  std::atomic<std::uint64_t> progress_{0};
  // Of the writer's thread alone.
  StatusLine status_;
  DropLedger ledger_;
  bool is_dead_ = false;
  bool at_line_start_ = true;
};

}  // namespace accel::supervisor
