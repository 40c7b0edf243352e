#include "runtime/supervisor/log_pump.h"

#include <algorithm>
#include <utility>

#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/post.hpp>

namespace accel::supervisor {
namespace {

namespace asio = boost::asio;
using asio::posix::stream_descriptor;
using boost::system::error_code;
using std::chrono::milliseconds;
using std::chrono::steady_clock;

// How often held sources are looked at.
constexpr milliseconds kWatchEvery{100};

// A pipe never holds more; a descendant that goes on writing gets no longer.
constexpr std::size_t kMostAfterCut = 1024 * 1024;

}  // namespace

// Watches the source's descriptors without owning them.
struct LogPump::Entry {
  Entry(std::shared_ptr<LogSource> its_source, asio::io_context& io)
      : source(std::move(its_source)), readable(io, source->fd()), cut_timer(io) {
    if (source->stage_fd() >= 0) stage_writable.emplace(io, source->stage_fd());
  }

  std::shared_ptr<LogSource> source;
  stream_descriptor readable;
  std::optional<stream_descriptor> stage_writable;
  asio::steady_timer cut_timer;
  std::optional<std::size_t> may_still_take;  // set once the end is forced
  std::vector<std::shared_ptr<void>> on_end;  // released at the end
  bool is_finished = false;
};

std::shared_ptr<LogPump> LogPump::start() {
  auto pump = std::make_shared<LogPump>();
  pump->thread_.start("accel-logpump", [pump] { pump->run(); });
  return pump;
}

LogPump::LogPump() : work_(asio::make_work_guard(io_)), watch_(io_) {}

void LogPump::run() {
  io_.run();
  // After abandon() some are left. An entry only watches descriptors that its source owns.
  for (const EntryPtr& entry : entries_) {
    entry->is_finished = true;
    entry->readable.release();
    if (entry->stage_writable) entry->stage_writable->release();
    entry->source->finish();
    entry->on_end.clear();
  }
  entries_.clear();
  held_by_console_.clear();
  finish_sinks();
}

void LogPump::use_sinks(std::shared_ptr<FileSink> file,
                        std::vector<std::shared_ptr<ConsoleSink>> consoles) {
  asio::post(io_, [this, file = std::move(file), consoles = std::move(consoles)] {
    file_sink_ = file;
    console_sinks_ = consoles;
  });
}

void LogPump::add(std::shared_ptr<LogSource> source) {
  asio::post(io_, [this, source = std::move(source)] {
    source->start();
    const auto entry = std::make_shared<Entry>(source, io_);
    entries_.push_back(entry);
    serve(entry);  // not a reference into entries_: a stream that is over is erased there
  });
}

void LogPump::cut(std::vector<std::shared_ptr<LogSource>> sources,
                  milliseconds limit,
                  std::function<void()> done) {
  // Whoever lets go of the token last calls `done`.
  std::shared_ptr<void> token(nullptr, [done = std::move(done)](void*) {
    if (done) done();
  });
  asio::post(io_, [this, sources = std::move(sources), limit, token = std::move(token)] {
    for (const EntryPtr& entry : entries_) {
      if (std::find(sources.begin(), sources.end(), entry->source) == sources.end()) continue;
      entry->on_end.push_back(token);
      end_after(entry, limit);
    }
  });
}

void LogPump::console_has_room() {
  asio::post(io_, [this] { resume_held_by_console(); });
}

void LogPump::close() {
  asio::post(io_, [this] {
    is_closing_ = true;
    for (const EntryPtr& entry : entries_) end_after(entry, milliseconds(0));
    end_when_done();
  });
}

void LogPump::abandon() {
  io_.stop();
}

void LogPump::serve(const EntryPtr& entry) {
  if (entry->is_finished) return;
  const LogSource::Moved moved = entry->source->move(scratch_, steady_clock::now());
  if (entry->may_still_take) {
    const std::size_t taken = entry->source->take_moved_bytes();
    const bool is_over = moved == LogSource::Moved::kNothing || taken >= *entry->may_still_take;
    if (is_over) return finish(entry);
    *entry->may_still_take -= taken;
  }
  switch (moved) {
    case LogSource::Moved::kSome:  // let the other streams have their turn
      asio::post(io_, [this, entry] { serve(entry); });
      break;
    case LogSource::Moved::kNothing:
      listen(entry);
      break;
    case LogSource::Moved::kHeldByFile:
      hold_for_file(entry);
      break;
    case LogSource::Moved::kHeldByConsole:
      hold_for_console(entry);
      break;
    case LogSource::Moved::kEnd:
      finish(entry);
      break;
  }
  arm_watch();
}

// An error means that the end is forced (end_after): serve() sees that.
void LogPump::listen(const EntryPtr& entry) {
  entry->readable.async_wait(stream_descriptor::wait_read,
                             [this, entry](const error_code&) { serve(entry); });
}

// An error means that the sink has stalled (watch_sinks): serve() will drop.
void LogPump::hold_for_file(const EntryPtr& entry) {
  ++entry->source->file_sink()->num_waiting;
  entry->stage_writable->async_wait(stream_descriptor::wait_write,
                                    [this, entry](const error_code&) {
                                      --entry->source->file_sink()->num_waiting;
                                      serve(entry);
                                    });
}

void LogPump::hold_for_console(const EntryPtr& entry) {
  ++entry->source->console_sink()->num_waiting;
  held_by_console_.push_back(entry);
}

void LogPump::resume_held_by_console() {
  for (const EntryPtr& entry : std::exchange(held_by_console_, {})) {
    --entry->source->console_sink()->num_waiting;
    serve(entry);
  }
}

void LogPump::finish(const EntryPtr& entry) {
  entry->is_finished = true;
  entry->cut_timer.cancel();
  entry->readable.release();
  if (entry->stage_writable) entry->stage_writable->release();
  entry->source->finish();
  std::erase(entries_, entry);
  entry->on_end.clear();
  end_when_done();
}

void LogPump::end_after(const EntryPtr& entry, milliseconds limit) {
  entry->cut_timer.expires_after(limit);
  entry->cut_timer.async_wait([entry](const error_code& error) {
    if (error || entry->is_finished) return;
    entry->source->take_moved_bytes();
    entry->may_still_take = kMostAfterCut;
    entry->readable.cancel();  // when it listens it has taken everything; otherwise serve() goes on
  });
}

void LogPump::end_when_done() {
  if (!is_closing_ || !entries_.empty()) return;
  watch_.cancel();
  work_.reset();
}

void LogPump::finish_sinks() {
  if (file_sink_) file_sink_->pressure.finish();
  for (const auto& console : console_sinks_) console->finish();
  file_sink_.reset();
  console_sinks_.clear();
}

void LogPump::watch_sinks() {
  const TimePoint now = steady_clock::now();
  if (file_sink_) {
    file_sink_->observe(now);
    if (file_sink_->num_waiting > 0 && file_sink_->may_drop()) {
      for (const EntryPtr& entry : entries_) {
        if (entry->stage_writable) entry->stage_writable->cancel();
      }
    }
  }
  for (const auto& console : console_sinks_) console->observe(now);
  resume_held_by_console();
}

// One timer for unfinished lines and for held sources; it does not run while there are neither.
void LogPump::arm_watch() {
  std::optional<TimePoint> due;
  const auto want = [&due](TimePoint at) { due = due ? std::min(*due, at) : at; };
  bool is_held = file_sink_ && file_sink_->num_waiting > 0;
  for (const auto& console : console_sinks_) {
    if (const auto deadline = console->next_deadline()) want(*deadline);
    is_held = is_held || console->num_waiting > 0;
  }
  if (is_held) want(steady_clock::now() + kWatchEvery);
  if (!due || (watch_due_ && *watch_due_ <= *due)) return;

  watch_due_ = due;
  watch_.expires_at(*due);
  watch_.async_wait([this](const error_code& error) {
    if (error) return;
    watch_due_.reset();
    watch_sinks();
    arm_watch();
  });
}

}  // namespace accel::supervisor
