#include "runtime/supervisor/logs/console_writer.h"

#include <algorithm>
#include <cerrno>
#include <utility>

#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <accel/error.h>

#include "runtime/write_all.h"

namespace accel::supervisor {
namespace {

using std::chrono::steady_clock;

// A regular file takes any size at once. A pipe or a terminal blocks until the last byte has gone,
// and the owner's descriptor cannot be made non-blocking (the flag is shared with the user's
// shell): short pieces show a slow reader as moving when it takes 8 KiB/s.
std::size_t piece_for(int fd) {
  struct stat info = {};
  const bool is_file = ::fstat(fd, &info) == 0 && S_ISREG(info.st_mode);
  return is_file ? ConsoleWriter::kCapacity : 16 * 1024;
}

// Nothing that is written later can arrive.
bool is_final(int error) {
  return error == EPIPE || error == EIO || error == EBADF;
}

}  // namespace

std::shared_ptr<ConsoleWriter> ConsoleWriter::start(Options options) {
  auto writer = std::make_shared<ConsoleWriter>(std::move(options));
  writer->thread_.start("accel-console", [writer] { writer->run(); });
  return writer;
}

ConsoleWriter::ConsoleWriter(Options options)
    : options_(std::move(options)),
      is_terminal_(::isatty(options_.fd) == 1),
      piece_(piece_for(options_.fd)),
      ledger_(options_.name) {}

bool ConsoleWriter::has_room() {
  const std::lock_guard lock(mutex_);
  wants_space_ = pending_.size() >= kCapacity;
  return !wants_space_;
}

void ConsoleWriter::push(std::string& lines) {
  if (lines.empty()) return;
  {
    const std::lock_guard lock(mutex_);
    if (pending_.empty()) {
      pending_.swap(lines);
    } else {
      pending_ += lines;
    }
  }
  lines.clear();
  pushed_.notify_one();
}

void ConsoleWriter::show_status(std::string text,
                                bool despite_returns,
                                std::function<void()> on_done) {
  {
    const std::lock_guard lock(mutex_);
    if (!is_finished_) new_status_ = {std::move(text), despite_returns};
    if (on_done) status_done_.push_back(std::move(on_done));
  }
  pushed_.notify_one();
}

void ConsoleWriter::forget_status() {
  const std::lock_guard lock(mutex_);
  status_done_.clear();
}

void ConsoleWriter::finish() {
  {
    const std::lock_guard lock(mutex_);
    is_finished_ = true;
    new_status_.reset();  // the line goes
  }
  pushed_.notify_one();
}

std::size_t ConsoleWriter::backlog() const {
  const std::lock_guard lock(mutex_);
  return pending_.size() + in_flight_;
}

void ConsoleWriter::run() {
  std::string batch;
  while (take_batch(batch)) {
    if (!batch.empty()) write_batch(batch);
    update_status();
  }
  status_.set("", false);
  update_status();
  options_.notices->post_if(ledger_.last_words());
}

bool ConsoleWriter::take_batch(std::string& batch) {
  batch.clear();
  bool gave_room = false;
  {
    std::unique_lock lock(mutex_);
    in_flight_ = 0;
    pushed_.wait(lock, [this] { return !pending_.empty() || is_finished_ || new_status_; });
    if (pending_.empty() && is_finished_) return false;
    batch.swap(pending_);
    in_flight_ = batch.size();
    gave_room = std::exchange(wants_space_, false);
  }
  if (gave_room && options_.on_space) options_.on_space();
  return true;
}

void ConsoleWriter::write_batch(std::string_view batch) {
  if (is_dead_ || !ledger_.should_retry(steady_clock::now())) {
    lose(batch.size());
    return;
  }
  int error = 0;
  std::string_view erase = status_.erase();
  (void)accel::write_all(options_.fd, erase);  // what goes wrong, the output meets too
  status_.note_output(batch);
  if (ledger_.is_dropping()) {
    const std::string marker = drop_marker(ledger_.dropped(), at_line_start_);
    std::string_view rest = marker;
    if (write_all(rest, error)) options_.notices->post_if(ledger_.end(steady_clock::now()));
  }
  if (error == 0 && write_all(batch, error)) return;
  is_dead_ = is_final(error);
  const std::string reason =
      errno_text(error) + (is_dead_ ? "; what the ranks still write there is dropped"
                                    : "; output is dropped until it can be written again");
  options_.notices->post_if(ledger_.begin(reason, steady_clock::now()));
  lose(batch.size());
}

// Leaves in `bytes` what was not written.
bool ConsoleWriter::write_all(std::string_view& bytes, int& error) {
  while (!bytes.empty()) {
    const ssize_t written = ::write(options_.fd, bytes.data(), std::min(bytes.size(), piece_));
    if (written > 0) {
      at_line_start_ = bytes[static_cast<std::size_t>(written) - 1] == '\n';
      progress_ += static_cast<std::uint64_t>(written);
      bytes.remove_prefix(static_cast<std::size_t>(written));
    } else if (written < 0 && errno == EAGAIN) {
      // Somebody made the owner's descriptor non-blocking.
      pollfd waiting{.fd = options_.fd, .events = POLLOUT, .revents = 0};
      ::poll(&waiting, 1, -1);
    } else if (written < 0 && errno != EINTR) {
      error = errno;
      return false;
    }
  }
  return true;
}

// A terminal that takes nothing now (Ctrl-S) gets no new line. The owner waits for an erased one, to write below it: a busy
// terminal has some time for that.
void ConsoleWriter::update_status() {
  constexpr int kMillisecondsToErase = 1000;
  std::optional<StatusRequest> request;
  std::size_t num_asked = 0;
  {
    const std::lock_guard lock(mutex_);
    request = std::exchange(new_status_, std::nullopt);
    num_asked = status_done_.size();
  }
  if (request) status_.set(std::move(request->text), request->despite_returns);
  const std::string bytes = status_.update(at_line_start_);
  const int patience = bytes == StatusLine::kErase ? kMillisecondsToErase : 0;
  pollfd room{.fd = options_.fd, .events = POLLOUT, .revents = 0};
  const bool can_write = is_terminal_ && !is_dead_ && !bytes.empty() &&
                         ::poll(&room, 1, patience) == 1 && (room.revents & POLLOUT) != 0;
  if (can_write &&
      ::write(options_.fd, bytes.data(), bytes.size()) == static_cast<ssize_t>(bytes.size()))
    status_.drew(at_line_start_);
  const std::lock_guard lock(mutex_);  // forget_status() waits for those that are under way
  num_asked = std::min(num_asked, status_done_.size());
  for (std::size_t i = 0; i < num_asked; ++i) status_done_[i]();
  status_done_.erase(status_done_.begin(),
                     status_done_.begin() + static_cast<std::ptrdiff_t>(num_asked));
}

void ConsoleWriter::lose(std::size_t bytes) {
  ledger_.drop(bytes);
  progress_ += bytes;
}

}  // namespace accel::supervisor
