// FileSink, ConsoleSink: the pump's view of a writer, and its decision between waiting and
// dropping.
//
//   flowing --no room--> waiting (back-pressure) --2 s without movement--> dropping --it moves-->
//   flowing
//                        under Overflow::kDrop and kSample a sink without room drops at once
//
// Threads:  the pump's alone; nothing here waits.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "runtime/supervisor/lines/drop_ledger.h"
#include "runtime/supervisor/lines/line_merger.h"
#include "runtime/supervisor/lines/line_sampler.h"
#include "runtime/supervisor/logs/console_writer.h"
#include "runtime/supervisor/logs/file_writer.h"
#include "runtime/supervisor/protocol/job_spec.h"

namespace accel::supervisor {

struct SinkPolicy {
  Overflow overflow = Overflow::kBlock;
  std::chrono::milliseconds stall_limit{2'000};
};

// Tells waiting from dropping, and the user when dropping begins and ends.
class SinkPressure {
 public:
  SinkPressure(std::string sink, SinkPolicy policy, std::shared_ptr<NoticeBoard> notices);

  // progress  of the writer.
  [[nodiscard]] bool may_drop(std::uint64_t progress) const noexcept {
    return policy_.overflow != Overflow::kBlock || watch_.is_stalled_at(progress);
  }

  // Whether lines are picked out of what is dropped.
  [[nodiscard]] bool may_sample() const noexcept { return policy_.overflow == Overflow::kSample; }

  void drop(std::uint64_t bytes, TimePoint now);
  // Counts more of a loss that was told already.
  void drop_more(std::uint64_t bytes) noexcept { ledger_.drop(bytes); }
  // The sink has taken the marker for what a stream lost.
  void recovered(TimePoint now) { notices_->post_if(ledger_.end(now)); }

  // progress    of the writer; num_waiting  streams that wait for room in it.
  void observe(std::uint64_t progress, int num_waiting, TimePoint now);

  // Nothing comes any more.
  void finish() { notices_->post_if(ledger_.last_words()); }

 private:
  const SinkPolicy policy_;
  const std::shared_ptr<NoticeBoard> notices_;
  DropLedger ledger_;
  StallWatch watch_;
};

class FileSink {
 public:
  FileSink(std::shared_ptr<FileWriter> writer,
           SinkPolicy policy,
           std::shared_ptr<NoticeBoard> notices)
      : pressure("log files", policy, std::move(notices)), writer_(std::move(writer)) {}

  [[nodiscard]] bool may_drop() const noexcept { return pressure.may_drop(writer_->progress()); }
  void observe(TimePoint now) { pressure.observe(writer_->progress(), num_waiting, now); }

  SinkPressure pressure;
  int num_waiting = 0;  // streams held up by this sink

 private:
  std::shared_ptr<FileWriter> writer_;
};

class ConsoleSink {
 public:
  ConsoleSink(std::shared_ptr<ConsoleWriter> writer,
              std::string name,
              SinkPolicy policy,
              std::shared_ptr<NoticeBoard> notices)
      : pressure(std::move(name), policy, std::move(notices)), writer_(std::move(writer)) {}

  // Returns the stream's id here.
  LineMerger::StreamId add(std::string prefix, std::chrono::milliseconds patience);

  // False: wait for ConsoleWriter's on_space before the next feed().
  [[nodiscard]] bool can_take();

  // Shows the bytes, or drops them when there is no room.
  void feed(LineMerger::StreamId stream, std::string_view bytes, TimePoint now);
  // The stream's worker has written nothing more.
  void pause(LineMerger::StreamId stream, TimePoint now) { merger_.pause(stream, now); }
  void finish_stream(LineMerger::StreamId stream);

  // Shows unfinished lines that are due, and watches for a stall.
  void observe(TimePoint now);
  [[nodiscard]] std::optional<TimePoint> next_deadline() const { return merger_.next_deadline(); }

  // The last stream has ended.
  void finish();

  SinkPressure pressure;
  int num_waiting = 0;

 private:
  void show_marker();
  void resume(TimePoint now);
  void lose(std::size_t bytes, TimePoint now);
  bool sample(LineMerger::StreamId stream, std::string_view bytes, TimePoint now);

  std::shared_ptr<ConsoleWriter> writer_;
  LineMerger merger_;
  LineMerger::StreamId next_id_ = 0;
  std::uint64_t dropped_ = 0;  // since the last marker
  bool owes_marker_ = false;
  std::string ready_;                                     // scratch
  std::map<LineMerger::StreamId, LineSampler> samplers_;  // Overflow::kSample
};

}  // namespace accel::supervisor
