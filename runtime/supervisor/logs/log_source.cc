#include "runtime/supervisor/logs/log_source.h"

#include <algorithm>
#include <cerrno>
#include <utility>

#include <fcntl.h>
#include <sys/ioctl.h>
#include <unistd.h>

namespace accel::supervisor {
namespace {

std::size_t available_in(int fd) {
  int bytes = 0;
  return ::ioctl(fd, FIONREAD, &bytes) == 0 && bytes > 0 ? static_cast<std::size_t>(bytes) : 0;
}

}  // namespace

void LogSource::send_to_file(std::shared_ptr<FileSink> sink,
                             std::shared_ptr<FileStage> stage,
                             UniqueFd stage_write) {
  file_sink_ = std::move(sink);
  stage_ = std::move(stage);
  stage_write_ = std::move(stage_write);
  if (file_sink_->pressure.may_sample()) sampler_.emplace();
}

void LogSource::send_to_console(std::shared_ptr<ConsoleSink> sink,
                                std::string prefix,
                                std::chrono::milliseconds patience) {
  console_sink_ = std::move(sink);
  prefix_ = std::move(prefix);
  patience_ = patience;
}

void LogSource::start() {
  if (console_sink_) console_stream_ = console_sink_->add(prefix_, patience_);
}

LogSource::Moved LogSource::move(std::span<char> scratch, TimePoint now) {
  if (!unsent_.empty()) return move_unsent(now);
  if (console_sink_ && !console_sink_->can_take()) return Moved::kHeldByConsole;

  std::size_t limit = scratch.size();
  Staging staging = Staging::kNone;
  if (sampler_) drop_for_file(sampler_->end_if_over(now), now);
  if (sampler_ && sampler_->is_active()) {
    staging = Staging::kDropped;
  } else if (stage_write_ && kind_ == Kind::kPipe) {
    const std::size_t available = available_in(fd());
    if (available > 0) {
      if (!console_sink_ && splice_past(available)) return Moved::kSome;
      staging = stage(limit, now);
      if (staging == Staging::kHeld) return Moved::kHeldByFile;
    }
  }
  const ssize_t got = ::read(fd(), scratch.data(), limit);
  // A pseudo terminal whose other side was closed by all answers EIO.
  if (got == 0 || (got < 0 && errno == EIO)) return Moved::kEnd;
  if (got < 0) {
    if (console_sink_) console_sink_->pause(console_stream_, now);
    return Moved::kNothing;
  }

  const std::string_view bytes(scratch.data(), static_cast<std::size_t>(got));
  moved_ += bytes.size();
  tail_.append(bytes);
  if (stage_write_ && staging == Staging::kNone) staging = stage_bytes(bytes, now);
  if (staging == Staging::kDropped) lose_for_file(bytes, now);
  if (staging == Staging::kDone) at_line_start_ = bytes.back() == '\n';
  if (console_sink_) console_sink_->feed(console_stream_, bytes, now);
  return Moved::kSome;
}

// Moves all but the newest TailRing::kCapacity bytes straight to the stage.
bool LogSource::splice_past(std::size_t available) {
  if (available < 2 * TailRing::kCapacity || dropped_ > 0) return false;
  const ssize_t moved = ::splice(fd(),
                                 nullptr,
                                 stage_write_.get(),
                                 nullptr,
                                 available - TailRing::kCapacity,
                                 SPLICE_F_MOVE | SPLICE_F_NONBLOCK);
  if (moved <= 0) return false;
  moved_ += static_cast<std::size_t>(moved);
  tail_.forget();
  at_line_start_ = false;
  return true;
}

// Doubles what the pipe holds into the stage; `limit` becomes what was doubled.
// Requires: the pipe holds something, so that EAGAIN speaks of the stage.
LogSource::Staging LogSource::stage(std::size_t& limit, TimePoint now) {
  if (dropped_ == 0 || write_marker(now)) {
    const ssize_t doubled = ::tee(fd(), stage_write_.get(), limit, SPLICE_F_NONBLOCK);
    if (doubled > 0) {
      limit = static_cast<std::size_t>(doubled);
      return Staging::kDone;
    }
  }
  return file_sink_->may_drop() ? Staging::kDropped : Staging::kHeld;
}

// For bytes that a terminal gave, which can neither be teed nor put back.
LogSource::Staging LogSource::stage_bytes(std::string_view bytes, TimePoint now) {
  if (dropped_ > 0 && !write_marker(now)) return Staging::kDropped;
  const ssize_t written = ::write(stage_write_.get(), bytes.data(), bytes.size());
  const std::size_t taken = written > 0 ? static_cast<std::size_t>(written) : 0;
  if (taken < bytes.size()) {
    unsent_ = bytes.substr(taken);
    if (file_sink_->may_drop()) {
      lose_for_file(std::exchange(unsent_, {}), now);
    }
  }
  return Staging::kDone;
}

LogSource::Moved LogSource::move_unsent(TimePoint now) {
  const std::string bytes = std::exchange(unsent_, {});
  if (stage_bytes(bytes, now) == Staging::kDropped) lose_for_file(bytes, now);
  return unsent_.empty() ? Moved::kSome : Moved::kHeldByFile;
}

// A write of less than PIPE_BUF to a non-blocking pipe is all or nothing.
bool LogSource::write_marker(TimePoint now) {
  const std::string marker = drop_marker(dropped_, at_line_start_);
  if (::write(stage_write_.get(), marker.data(), marker.size()) < 0) return false;
  dropped_ = 0;
  file_sink_->pressure.recovered(now);
  return true;
}

// The stage has no room for these bytes: they go, or all but some lines of them.
void LogSource::lose_for_file(std::string_view bytes, TimePoint now) {
  if (!sampler_) return drop_for_file(bytes.size(), now);
  sampler_->begin(now);
  sampler_->feed(
      bytes,
      [this](std::string_view line) { return write_line(line); },
      [this, now](std::size_t lost) { drop_for_file(lost, now); });
}

// With the marker before it, or not at all: together they are less than PIPE_BUF.
bool LogSource::write_line(std::string_view line) {
  std::string text = dropped_ > 0 ? drop_marker(dropped_, at_line_start_) : "";
  text += line;
  if (::write(stage_write_.get(), text.data(), text.size()) < 0) return false;
  dropped_ = 0;
  at_line_start_ = true;
  return true;
}

void LogSource::drop_for_file(std::size_t bytes, TimePoint now) {
  if (bytes == 0) return;
  dropped_ += bytes;
  file_sink_->pressure.drop(bytes, now);
}

void LogSource::finish() {
  if (console_sink_) console_sink_->finish_stream(console_stream_);
  if (stage_) {
    if (!unsent_.empty()) dropped_ += unsent_.size();
    if (sampler_) dropped_ += sampler_->end();
    stage_->dropped_at_end = dropped_;
    stage_write_.reset();
  }
  fd_.reset();
}

}  // namespace accel::supervisor
