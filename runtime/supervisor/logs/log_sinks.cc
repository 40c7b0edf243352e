#include "runtime/supervisor/logs/log_sinks.h"

#include <utility>

namespace accel::supervisor {

SinkPressure::SinkPressure(std::string sink,
                           SinkPolicy policy,
                           std::shared_ptr<NoticeBoard> notices)
    : policy_(policy),
      notices_(std::move(notices)),
      ledger_(std::move(sink)),
      watch_(policy.stall_limit) {}

void SinkPressure::drop(std::uint64_t bytes, TimePoint now) {
  if (!ledger_.is_dropping()) {
    const std::string reason =
        watch_.is_stalled()
            ? "took nothing for " + std::to_string(policy_.stall_limit.count()) + " ms"
            : "does not keep up";
    const char* const what = may_sample() ? "; only some lines are kept until it does"
                                          : "; output is dropped until it does";
    notices_->post_if(ledger_.begin(reason + what, now));
  }
  ledger_.drop(bytes);
}

void SinkPressure::observe(std::uint64_t progress, int num_waiting, TimePoint now) {
  watch_.observe(progress, num_waiting > 0, now);
}

LineMerger::StreamId ConsoleSink::add(std::string prefix, std::chrono::milliseconds patience) {
  merger_.add(next_id_, std::move(prefix), patience);
  return next_id_++;
}

bool ConsoleSink::can_take() {
  return writer_->has_room() || pressure.may_drop(writer_->progress());
}

void ConsoleSink::feed(LineMerger::StreamId stream, std::string_view bytes, TimePoint now) {
  if (pressure.may_sample() && sample(stream, bytes, now)) return;
  if (!writer_->has_room()) return lose(merger_.drop(stream, bytes), now);
  resume(now);
  merger_.feed(stream, bytes, ready_);
  // The rests of lines that lost their beginning are counted, but not marked one by one.
  if (const std::size_t skipped = merger_.take_skipped(); skipped > 0) {
    dropped_ += skipped;
    pressure.drop_more(skipped);
  }
  writer_->push(ready_);
}

void ConsoleSink::lose(std::size_t bytes, TimePoint now) {
  if (bytes == 0) return;
  dropped_ += bytes;
  owes_marker_ = true;
  pressure.drop(bytes, now);
}

void ConsoleSink::resume(TimePoint now) {
  if (!std::exchange(owes_marker_, false)) return;
  show_marker();
  pressure.recovered(now);
}

// Whether the bytes were sampled.
bool ConsoleSink::sample(LineMerger::StreamId stream, std::string_view bytes, TimePoint now) {
  LineSampler& sampler = samplers_[stream];
  const bool was_active = sampler.is_active();
  lose(sampler.end_if_over(now), now);
  if (was_active && !sampler.is_active() && sampler.is_mid_line()) merger_.drop(stream, "");
  if (!writer_->has_room() && !sampler.is_active()) {
    sampler.begin(now);
    lose(merger_.drop_line(stream), now);
  }
  if (!sampler.is_active()) return false;
  const auto offer = [&](std::string_view line) {
    if (!writer_->has_room()) return false;
    if (std::exchange(owes_marker_, false)) show_marker();
    merger_.feed(stream, line, ready_);
    writer_->push(ready_);
    return true;
  };
  sampler.feed(bytes, offer, [&](std::size_t lost) { lose(lost, now); });
  return true;
}

void ConsoleSink::show_marker() {
  std::string marker = drop_marker(std::exchange(dropped_, 0), true);
  marker.pop_back();
  merger_.note(marker, ready_);
}

void ConsoleSink::finish_stream(LineMerger::StreamId stream) {
  if (const auto sampler = samplers_.find(stream); sampler != samplers_.end()) {
    const std::size_t lost = sampler->second.end();
    dropped_ += lost;
    pressure.drop_more(lost);
    samplers_.erase(sampler);
  }
  merger_.finish(stream, ready_);
  writer_->push(ready_);
}

void ConsoleSink::observe(TimePoint now) {
  merger_.flush_waiting(now, ready_);
  writer_->push(ready_);
  pressure.observe(writer_->progress(), num_waiting, now);
}

void ConsoleSink::finish() {
  if (dropped_ > 0) show_marker();
  writer_->push(ready_);
  pressure.finish();
  writer_->finish();
}

}  // namespace accel::supervisor
