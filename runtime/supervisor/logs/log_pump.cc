#include "runtime/supervisor/logs/log_pump.h"

#include <algorithm>
#include <utility>

#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/post.hpp>

#include "runtime/supervisor/kernel/exhausted.h"

namespace accel::supervisor {
namespace {

namespace asio = boost::asio;
using asio::posix::stream_descriptor;
using boost::system::error_code;
using std::chrono::milliseconds;
using std::chrono::steady_clock;

// How often held sources are looked at.
constexpr milliseconds kWatchEvery{100};

// What was in a pipe is taken once it is empty, or after so much: no pipe holds more, and a descendant may write on for ever.
constexpr std::size_t kMostToSettle = 1024 * 1024;

}  // namespace

// Watches the source's descriptors without owning them.
struct LogPump::Entry {
  Entry(std::shared_ptr<LogSource> its_source, asio::io_context& io)
      : source(std::move(its_source)), readable(io), settle_timer(io) {
    if (source->stage_fd() >= 0) stage_writable.emplace(io);
  }

  error_code watch() {
    error_code error;
    readable.assign(source->fd(), error);
    if (error || !stage_writable) return error;
    stage_writable->assign(source->stage_fd(), error);
    if (error) readable.release();
    return error;
  }

  std::shared_ptr<LogSource> source;
  stream_descriptor readable;
  std::optional<stream_descriptor> stage_writable;
  asio::steady_timer settle_timer;
  std::optional<std::size_t> to_settle;  // while nobody waits for the end of the stream any more
  std::vector<std::shared_ptr<void>>
      on_settled;  // released when what was in it is taken, or at its end
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
    entry->on_settled.clear();
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

Result<void> LogPump::add(std::shared_ptr<LogSource> source) {
  const auto entry = std::make_shared<Entry>(std::move(source), io_);
  if (const error_code error = entry->watch())
    return exhausted_error("cannot read the output of a worker", error.value());
  asio::post(io_, [this, entry] {
    entry->source->start();
    entries_.push_back(entry);
    serve(entry);  // not a reference into entries_: a stream that is over is erased there
  });
  return {};
}

void LogPump::drain(std::vector<std::shared_ptr<LogSource>> sources,
                    milliseconds limit,
                    std::function<void()> done) {
  // Whoever lets go of the token last calls `done`.
  std::shared_ptr<void> token(nullptr, [done = std::move(done)](void*) {
    if (done) done();
  });
  asio::post(io_, [this, sources = std::move(sources), limit, token = std::move(token)] {
    for (const EntryPtr& entry : entries_) {
      if (std::find(sources.begin(), sources.end(), entry->source) == sources.end()) continue;
      entry->on_settled.push_back(token);
      settle_after(entry, limit);
    }
  });
}

void LogPump::console_has_room() {
  asio::post(io_, [this] { resume_held_by_console(); });
}

void LogPump::close() {
  asio::post(io_, [this] {
    is_closing_ = true;
    for (const EntryPtr& entry : entries_) settle_after(entry, milliseconds(0));
    end_when_done();
  });
}

void LogPump::abandon() {
  io_.stop();
}

void LogPump::serve(const EntryPtr& entry) {
  if (entry->is_finished) return;
  const LogSource::Moved moved = entry->source->move(scratch_, steady_clock::now());
  if (entry->to_settle) {
    const std::size_t taken = entry->source->take_moved_bytes();
    const bool is_settled = moved == LogSource::Moved::kNothing || taken >= *entry->to_settle;
    if (is_settled && is_closing_) return finish(entry);
    if (is_settled) {
      settle(entry);
    } else {
      *entry->to_settle -= taken;
    }
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

// An error means that the end of the stream is not waited for (settle_after): serve() sees that.
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
  entry->settle_timer.cancel();
  entry->readable.release();
  if (entry->stage_writable) entry->stage_writable->release();
  entry->source->finish();
  std::erase(entries_, entry);
  entry->on_settled.clear();
  end_when_done();
}

void LogPump::settle_after(const EntryPtr& entry, milliseconds limit) {
  entry->settle_timer.expires_after(limit);
  entry->settle_timer.async_wait([entry](const error_code& error) {
    if (error || entry->is_finished) return;
    entry->source->take_moved_bytes();
    entry->to_settle = kMostToSettle;
    entry->readable.cancel();  // when it listens it has taken everything; otherwise serve() goes on
  });
}

// The worker's own output is taken. What its descendants write comes as before.
void LogPump::settle(const EntryPtr& entry) {
  entry->to_settle.reset();
  entry->on_settled.clear();
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
