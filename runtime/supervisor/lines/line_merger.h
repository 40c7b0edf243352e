// LineMerger: many streams into one console, so that whole lines are never mixed.
//
// Bytes are not changed, only their order between streams. A line goes out when its newline has
// come. An unfinished line (a prompt, a progress bar) goes out once its worker has paused for
// `patience`, but not while another stream's unfinished line is the last thing on the console; then
// it waits for its own newline, for that line to end, or for its stream to end. A line longer than
// kMaxLine goes out in pieces.
//
// Threads:  one thread. Pure: the time is passed in, output is appended to a string.
// Cost:     up to max_line for each stream with an unfinished line.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "runtime/clock.h"

namespace accel::supervisor {

class LineMerger {
 public:
  using StreamId = int;
  static constexpr std::size_t kMaxLine = 64 * 1024;

  // prefix    put before each line, "" for none.
  // patience  how long a worker must have paused in the middle of a line.
  void add(StreamId stream, std::string prefix, std::chrono::milliseconds patience);

  // Appends to `out` what may be shown now. The stream is not paused.
  void feed(StreamId stream, std::string_view bytes, std::string& out);

  // The worker has written nothing since the last feed(). (That alone is a pause: time in which
  // nobody took what it wrote is none.)
  void pause(StreamId stream, TimePoint now);

  // Shows the unfinished lines whose pause is long enough. Call at next_deadline().
  void flush_waiting(TimePoint now, std::string& out);
  [[nodiscard]] std::optional<TimePoint> next_deadline() const;

  // The stream has ended: shows its unfinished line, and forgets the stream.
  void finish(StreamId stream, std::string& out);

  // Throws bytes of this stream away, and with them the rest of a line that they tear: what was not
  // shown of it yet, and what will come of it (up to kMaxLine). Returns how much was lost now.
  std::size_t drop(StreamId stream, std::string_view bytes);

  // Throws away what was not shown of the current line. The next byte of the stream begins a line. Returns how much was
  // lost.
  std::size_t drop_line(StreamId stream);

  // How many bytes of torn lines feed() has left out since the last call.
  [[nodiscard]] std::size_t take_skipped();

  // A line of our own; starts on a new row.
  void note(std::string_view line, std::string& out);

 private:
  struct Source {
    std::string prefix;
    std::chrono::milliseconds patience{0};
    std::string unfinished;                 // not shown yet
    std::optional<TimePoint> paused_since;  // the worker wrote nothing after it
    bool mid_line = false;                  // the beginning of the current line was shown already
    std::size_t may_skip = 0;               // bytes of a line that lost its beginning
  };

  void show(StreamId id, Source& source, std::string_view text, std::string& out);
  void show_unfinished(StreamId id, Source& source, std::string& out);
  [[nodiscard]] bool may_show_unfinished(StreamId id) const;

  std::map<StreamId, Source> sources_;
  std::optional<StreamId> open_line_;  // whose unfinished line is the last thing on the console
  std::size_t skipped_ = 0;
};

}  // namespace accel::supervisor
