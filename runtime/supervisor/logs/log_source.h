// LogSource: the pump's end of one stream of one worker; moves bytes to its tail, file and console.
//
// Pages for the file go from pipe to pipe without a copy: tee(2) doubles what also has to be read
// here (for the tail and the console), splice(2) moves what only the file wants. Of a flood that
// only the file wants, everything but the newest 64 KiB is spliced past.
//
// Threads:  the pump's; tail() any thread. Nothing here waits.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "runtime/supervisor/lines/line_sampler.h"
#include "runtime/supervisor/lines/tail_ring.h"
#include "runtime/supervisor/logs/file_writer.h"
#include "runtime/supervisor/logs/log_sinks.h"
#include "runtime/unique_fd.h"

namespace accel::supervisor {

class LogSource {
 public:
  enum class Kind { kPipe, kPseudoTerminal };
  enum class Moved { kSome, kNothing, kHeldByFile, kHeldByConsole, kEnd };

  // `fd` is non-blocking: the read end of a pipe or the master of a pseudo terminal.
  LogSource(Kind kind, UniqueFd fd) : kind_(kind), fd_(std::move(fd)) {}

  // Before start(). `stage_write` is the non-blocking write end of `stage`'s pipe.
  void send_to_file(std::shared_ptr<FileSink> sink,
                    std::shared_ptr<FileStage> stage,
                    UniqueFd stage_write);
  // patience  see LineMerger.
  void send_to_console(std::shared_ptr<ConsoleSink> sink,
                       std::string prefix,
                       std::chrono::milliseconds patience);

  // Joins its sinks. On the pump's thread, before the first move().
  void start();

  // Moves one portion. `scratch` is lent for the call; its size limits what is copied.
  // kHeldBy...: that sink has no room and may not drop.
  Moved move(std::span<char> scratch, TimePoint now);

  // How much move() took since the last call of this.
  std::size_t take_moved_bytes() { return std::exchange(moved_, 0); }

  // No move() comes after this: closes the stream and its way to the file.
  void finish();

  [[nodiscard]] Kind kind() const noexcept { return kind_; }
  [[nodiscard]] int fd() const noexcept { return fd_.get(); }
  [[nodiscard]] int stage_fd() const noexcept { return stage_write_.get(); }
  [[nodiscard]] FileSink* file_sink() const noexcept { return file_sink_.get(); }
  [[nodiscard]] ConsoleSink* console_sink() const noexcept { return console_sink_.get(); }
  [[nodiscard]] const TailRing& tail() const noexcept { return tail_; }

 private:
  enum class Staging { kNone, kDone, kDropped, kHeld };

  bool splice_past(std::size_t available);
  Staging stage(std::size_t& limit, TimePoint now);
  Staging stage_bytes(std::string_view bytes, TimePoint now);
  Moved move_unsent(TimePoint now);
  bool write_marker(TimePoint now);
  void lose_for_file(std::string_view bytes, TimePoint now);
  void drop_for_file(std::size_t bytes, TimePoint now);
  bool write_line(std::string_view line);

  const Kind kind_;
  UniqueFd fd_;
  TailRing tail_;
  bool at_line_start_ = true;  // whether the file's last line is known to be complete
  std::size_t moved_ = 0;

  std::shared_ptr<FileSink> file_sink_;
  std::shared_ptr<FileStage> stage_;
  UniqueFd stage_write_;
  std::string unsent_;                  // read from a terminal, no room in the stage yet
  std::uint64_t dropped_ = 0;           // for the file, since the last marker
  std::optional<LineSampler> sampler_;  // Overflow::kSample

  std::shared_ptr<ConsoleSink> console_sink_;
  std::string prefix_;
  std::chrono::milliseconds patience_{0};
  LineMerger::StreamId console_stream_ = 0;
};

}  // namespace accel::supervisor
