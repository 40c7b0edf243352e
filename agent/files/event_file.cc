#include "agent/files/event_file.h"

#include <cerrno>
#include <cstdio>
#include <utility>

#include <fcntl.h>
#include <pthread.h>
#include <sys/stat.h>
#include <unistd.h>

namespace accel::agent {
namespace {

class RealEventDisk final : public EventDisk {
 public:
  Result<UniqueFd> open(const std::string& path) override {
    UniqueFd fd(::open(
        path.c_str(), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0600));
    struct stat info {};
    if (!fd || ::fstat(fd.get(), &info) != 0)
      return Error(ErrorCode::kFileIo, "cannot open " + path + ": " + errno_text(errno));
    if (!S_ISREG(info.st_mode)) return Error(ErrorCode::kFileIo, path + " is not a regular file");
    if (::fchmod(fd.get(), 0600) != 0)
      return Error(ErrorCode::kFileIo, "cannot set the mode of " + path + ": " + errno_text(errno));
    return fd;
  }
  std::size_t size_of(int fd) override {
    struct stat info {};
    return ::fstat(fd, &info) == 0 ? static_cast<std::size_t>(info.st_size) : 0;
  }
  Result<std::size_t> write(int fd, std::string_view bytes) override {
    ssize_t written = -1;
    do {
      written = ::write(fd, bytes.data(), bytes.size());
    } while (written < 0 && errno == EINTR);
    if (written >= 0) return static_cast<std::size_t>(written);
    const bool is_full = errno == ENOSPC || errno == EDQUOT;
    return Error(is_full ? ErrorCode::kDiskFull : ErrorCode::kFileIo, errno_text(errno));
  }
  Result<void> truncate(int fd, std::size_t bytes) override {
    if (::ftruncate(fd, static_cast<off_t>(bytes)) == 0) return {};
    return Error(ErrorCode::kFileIo, errno_text(errno));
  }
  Result<void> rename(const std::string& from, const std::string& to) override {
    if (::rename(from.c_str(), to.c_str()) == 0) return {};
    return Error(ErrorCode::kFileIo, errno_text(errno));
  }
};

}  // namespace

EventDisk& real_event_disk() {
  static RealEventDisk disk;
  return disk;
}

Result<std::unique_ptr<EventFile>> EventFile::open(Options options) {
  if (options.disk == nullptr) options.disk = &real_event_disk();
  auto file = options.disk->open(options.path);
  if (!file) return std::move(file).error();
  return std::unique_ptr<EventFile>(new EventFile(std::move(options), *std::move(file)));
}

EventFile::EventFile(Options options, UniqueFd file)
    : options_(std::move(options)),
      disk_(*options_.disk),
      file_(std::move(file)),
      size_(disk_.size_of(file_.get())),
      thread_([this] { run(); }) {
  ::pthread_setname_np(thread_.native_handle(), "accel-events");
}

EventFile::~EventFile() {
  {
    const std::lock_guard lock(mutex_);
    is_closing_ = true;
  }
  wake_.notify_all();
  thread_.join();
}

void EventFile::add(std::string line) {
  const std::lock_guard lock(mutex_);
  if (queue_.size() >= options_.most_queued) {
    ++num_dropped_;
    return;
  }
  queue_.push_back(std::move(line));
  wake_.notify_all();
}

std::uint64_t EventFile::num_dropped() const {
  const std::lock_guard lock(mutex_);
  return num_dropped_;
}

void EventFile::run() {
  std::unique_lock lock(mutex_);
  while (true) {
    wake_.wait(lock, [this] { return is_closing_ || !queue_.empty(); });
    if (queue_.empty()) return;
    std::string text;
    const std::uint64_t num_dropped = num_dropped_;
    if (num_dropped > num_told_) {
      text = R"({"event":"dropped","count":)" + std::to_string(num_dropped - num_told_) + "}\n";
    }
    text += queue_.front() + '\n';
    queue_.pop_front();
    lock.unlock();
    const auto written = write(text);
    const bool is_news = !written && !std::exchange(is_in_trouble_, !written);
    if (is_news && options_.on_trouble)
      options_.on_trouble("events cannot be written to " + options_.path + ": " +
                          written.error().message());
    lock.lock();
    if (written) {
      is_in_trouble_ = false;
      num_told_ = num_dropped;
    } else {
      ++num_dropped_;
    }
  }
}

// All of it, or nothing.
Result<void> EventFile::write(std::string_view text) {
  if (size_ > 0 && size_ + text.size() > options_.most_bytes) {
    if (auto rotated = rotate(); !rotated) return rotated;
  }
  std::size_t done = 0;
  while (done < text.size()) {
    const auto written = disk_.write(file_.get(), text.substr(done));
    if (!written || *written == 0) {
      if (done > 0 && !disk_.truncate(file_.get(), size_)) size_ += done;
      return written ? Error(ErrorCode::kDiskFull, "nothing more fits") : written.error();
    }
    done += *written;
  }
  size_ += done;
  return {};
}

Result<void> EventFile::rotate() {
  if (auto renamed = disk_.rename(options_.path, options_.path + ".1"); !renamed) return renamed;
  auto fresh = disk_.open(options_.path);
  if (!fresh) return std::move(fresh).error();
  file_ = *std::move(fresh);
  size_ = disk_.size_of(file_.get());
  return {};
}

}  // namespace accel::agent
