// How a page that is gone does not end the process: mappings stand in a fixed table, which the handler of SIGBUS walks without a
// lock. From the page of the fault on it puts pages of zeros over the mapping, and notes it there.

#include "runtime/checkpoint/mapped_file.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <utility>

#include <fcntl.h>
#include <sys/mman.h>

#include <accel/error.h>

#include "runtime/memory_faults.h"
#include "runtime/page_size.h"

#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ 22  // Linux 5.14; older headers
#endif

namespace accel::checkpoint {

struct MappedFile::Watched {
  std::atomic<bool> is_taken{false};
  std::atomic<std::uintptr_t> begin{0};  // 0: nothing to watch
  std::atomic<std::uintptr_t> end{0};
  std::atomic<bool> lacks_pages{false};
};

namespace {

constexpr std::uint64_t kAhead = 16 << 20;
constexpr std::size_t kMostFiles = 256;  // mapped at a time; more are read

constinit std::array<MappedFile::Watched, kMostFiles> g_watched{};

bool fill_with_zeros(const siginfo_t& info) noexcept {
  const auto address = reinterpret_cast<std::uintptr_t>(info.si_addr);
  for (MappedFile::Watched& watched : g_watched) {
    const std::uintptr_t begin = watched.begin.load();
    const std::uintptr_t end = watched.end.load();
    if (begin == 0 || address < begin || address >= end) continue;
    watched.lacks_pages.store(true);
    const std::uintptr_t page = address / page_bytes() * page_bytes();
    return ::mmap(reinterpret_cast<void*>(page),  // NOLINT: of our mapping
                  end - page,
                  PROT_READ,
                  MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED,
                  -1,
                  0) != MAP_FAILED;
  }
  return false;
}

bool is_watched_for() {
  static const bool is_added = [] {
    (void)page_bytes();  // the handler finds it known
    add_fault_handler(SIGBUS, &fill_with_zeros, FaultRole::kMends);
    return true;
  }();
  return is_added && are_faults_seen_first(SIGBUS);
}

// A fault in a thread that blocks its signal ends the process, whatever handler there is.
bool blocks_faults() noexcept {
  sigset_t blocked;
  return ::pthread_sigmask(SIG_SETMASK, nullptr, &blocked) != 0 ||
         ::sigismember(&blocked, SIGBUS) == 1;
}

MappedFile::Watched* take_place() noexcept {
  for (MappedFile::Watched& watched : g_watched) {
    bool is_taken = false;
    if (watched.is_taken.compare_exchange_strong(is_taken, true)) return &watched;
  }
  return nullptr;
}

int populate(const std::byte* begin, std::size_t bytes) {
  void* const pages = const_cast<std::byte*>(begin);  // NOLINT: madvise() changes nothing there
  while (::madvise(pages, bytes, MADV_POPULATE_READ) != 0) {
    if (errno != EINTR && errno != EAGAIN) return errno;
  }
  return 0;
}

struct stat status_of(int fd, const std::filesystem::path& path) {
  struct stat status {};
  if (::fstat(fd, &status) != 0)
    throw Error(ErrorCode::kFileIo, "cannot stat " + path.string() + ": " + errno_text(errno));
  return status;
}

[[noreturn]] void fail_changed(const std::filesystem::path& path, const std::string& what) {
  throw Error(ErrorCode::kCheckpointIncomplete,
              path.string() + " was " + what + " while it was loaded",
              "load again when nothing writes to the checkpoint any more");
}

std::string cut_short(std::uint64_t from, std::int64_t to) {
  return "changed from " + std::to_string(from) + " to " + std::to_string(to) + " bytes";
}

}  // namespace

MappedFile::MappedFile(std::filesystem::path path,
                       UniqueFd fd,
                       const struct stat& status,
                       const std::byte* begin,
                       Watched* watched) noexcept
    : path_(std::move(path)),
      fd_(std::move(fd)),
      status_(status),
      begin_(begin),
      size_(static_cast<std::size_t>(status.st_size)),
      watched_(watched) {}

std::shared_ptr<const MappedFile> MappedFile::map(const InputFile& file,
                                                  const std::filesystem::path& path) {
  if (file.size() == 0 || blocks_faults() || !is_watched_for()) return nullptr;
  UniqueFd fd(::fcntl(file.fd(), F_DUPFD_CLOEXEC, 0));
  if (!fd) return nullptr;
  const struct stat status = status_of(fd.get(), path);
  if (std::cmp_not_equal(status.st_size, file.size()))
    fail_changed(path, cut_short(file.size(), status.st_size));
  Watched* const watched = take_place();
  if (watched == nullptr) return nullptr;
  void* const mapping = ::mmap(nullptr, file.size(), PROT_READ, MAP_SHARED, fd.get(), 0);
  if (mapping == MAP_FAILED) {
    watched->is_taken.store(false);
    return nullptr;
  }
  const auto begin = reinterpret_cast<std::uintptr_t>(mapping);
  watched->lacks_pages.store(false);
  watched->end.store(begin + whole_pages(file.size()));
  watched->begin.store(begin);
  std::shared_ptr<const MappedFile> mapped(
      new MappedFile(path, std::move(fd), status, static_cast<const std::byte*>(mapping), watched));
  if (populate(mapped->begin_, 1) == EINVAL) return nullptr;
  return mapped;
}

MappedFile::~MappedFile() {
  watched_->begin.store(0);
  ::munmap(const_cast<std::byte*>(begin_), size_);  // NOLINT: nothing is written
  watched_->is_taken.store(false);
}

void MappedFile::read_ahead(std::uint64_t offset, std::uint64_t bytes) const {
  if (offset > size_ || bytes > size_ - offset) {
    throw Error(ErrorCode::kCheckpointIncomplete,
                path_.string() + " has " + std::to_string(size_) + " bytes, and ends before byte " +
                    std::to_string(offset + bytes));
  }
  const std::uint64_t begin = offset / page_bytes() * page_bytes();
  advise(begin, offset + bytes);
  const int error = populate(begin_ + begin, offset + bytes - begin);
  if (error != 0 || watched_->lacks_pages.load()) verify_unchanged();
  if (error != 0) {
    throw Error(ErrorCode::kFileIo, "cannot read " + path_.string() + ": " + errno_text(error));
  }
}

// The device works on what comes next while [begin, end) is looked at. It is told of each byte once, since that costs a look at each
// page; of threads that go through the file at different places the one further behind tells again.
void MappedFile::advise(std::uint64_t begin, std::uint64_t end) const {
  const std::uint64_t advised = advised_end_.load(std::memory_order_relaxed);
  const bool goes_on = begin <= advised && advised <= end + kAhead;
  const std::uint64_t from = goes_on ? advised : begin;
  const std::uint64_t to = whole_pages(std::min<std::uint64_t>(size_, end + kAhead));
  const bool is_little = to < whole_pages(size_) && to < from + kAhead / 2;
  if (to <= from || (goes_on && is_little)) return;
  (void)::madvise(const_cast<std::byte*>(begin_) + from,
                  to - from,
                  MADV_WILLNEED);  // NOLINT: nothing is written
  advised_end_.store(to, std::memory_order_relaxed);
}

void MappedFile::verify_unchanged() const {
  const struct stat now = status_of(fd_.get(), path_);
  if (now.st_size != status_.st_size) fail_changed(path_, cut_short(size_, now.st_size));
  if (now.st_mtim.tv_sec != status_.st_mtim.tv_sec ||
      now.st_mtim.tv_nsec != status_.st_mtim.tv_nsec)
    fail_changed(path_, "written to");
  if (watched_->lacks_pages.load())
    throw Error(ErrorCode::kFileIo,
                "cannot read " + path_.string() + ": its device did not give all of it");
}

}  // namespace accel::checkpoint
