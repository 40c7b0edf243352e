#include "libaccel/engine/optim/state_file.h"

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <iterator>
#include <map>
#include <mutex>
#include <string>
#include <utility>

#include <ATen/EmptyTensor.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <sys/mman.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <accel/error.h>

#include "libaccel/tensors/alignment.h"
#include "runtime/page_size.h"

namespace accel {
namespace {

UniqueFd nameless_file(const std::filesystem::path& folder, const StateFileContent& content) {
  UniqueFd file(::open(folder.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0600));
  if (!file && (errno == EOPNOTSUPP || errno == EISDIR)) {  // a file system that has none
    std::string name = (folder / "accel-state-XXXXXX").string();
    file.reset(::mkostemp(name.data(), O_CLOEXEC));
    if (file) (void)::unlink(name.c_str());
  }
  if (file) return file;
  throw Error(ErrorCode::kFileIo,
              "cannot keep " + content.name + " in '" + folder.string() + "': " + errno_text(errno),
              "name a folder that exists and can be written to in " + content.folder_option);
}

// sync_file_range() of an overlay looks at pages that the files below it do not use.
bool is_overlay(int file) {
  struct statfs status {};
  return ::fstatfs(file, &status) == 0 && status.f_type == OVERLAYFS_SUPER_MAGIC;
}

// Bytes of a tensor up to where the next one begins.
std::size_t padded_bytes(const at::Tensor& tensor) {
  return rounded_up(tensor.nbytes(), kCacheLine);
}

// What copy_to_disk() has in memory at once.
constexpr std::int64_t kCopiedBytes = std::int64_t{16} << 20;

}  // namespace

class StateExtent {
 public:
  StateExtent(std::shared_ptr<const UniqueFd> file,
              std::size_t file_offset,
              std::size_t bytes,
              std::filesystem::path folder,
              StateFileContent content,
              bool needs_sync)
      : file_(std::move(file)),
        file_offset_(file_offset),
        bytes_(bytes),
        folder_(std::move(folder)),
        content_(std::move(content)),
        needs_sync_(needs_sync) {
    void* const mapped = ::mmap(nullptr,
                                bytes,
                                PROT_READ | PROT_WRITE,
                                MAP_SHARED,
                                file_->get(),
                                static_cast<off_t>(file_offset));
    if (mapped == MAP_FAILED) {
      throw Error(ErrorCode::kOutOfMemory,
                  "cannot map " + std::to_string(bytes) + " bytes of " + content_.name + ": " +
                      errno_text(errno));
    }
    begin_ = static_cast<std::byte*>(mapped);
  }
  ~StateExtent() { ::munmap(begin_, bytes_); }
  StateExtent(const StateExtent&) = delete;
  StateExtent& operator=(const StateExtent&) = delete;

  [[nodiscard]] std::byte* begin() const noexcept { return begin_; }
  [[nodiscard]] bool contains(const std::byte* begin, std::size_t bytes) const {
    return begin >= begin_ && begin + bytes <= begin_ + bytes_;
  }

  void ask(std::byte* begin, std::size_t bytes) const {
    const Pages pages = pages_of(begin, bytes);
    (void)::posix_fadvise(file_->get(), pages.offset, pages.length, POSIX_FADV_WILLNEED);
  }

  void fetch(std::byte* begin,
             std::size_t bytes,
             StateRange::Access access,
             std::byte* mapped) const {
    const Pages pages = pages_of(begin, bytes);
    ask(begin, bytes);  // for all of it, before the first page is waited for
    const int populate =
        access == StateRange::Access::kWrite ? MADV_POPULATE_WRITE : MADV_POPULATE_READ;
    std::byte* const used = mapped == nullptr ? pages.begin : mapped;
    while (::madvise(used, static_cast<std::size_t>(pages.length), populate) != 0) {
      if (errno == EINTR || errno == EAGAIN) continue;
      if (errno == EINVAL) return;  // a kernel before 5.14: pages come as they are used
      fail("read", errno == EFAULT ? EIO : errno);
    }
  }

  void write(std::byte* begin, std::size_t bytes, const std::byte* values) const {
    const auto offset = static_cast<off_t>(file_offset_) + (begin - begin_);
    for (std::size_t done = 0; done < bytes;) {
      const ssize_t written =
          ::pwrite(file_->get(), values + done, bytes - done, offset + static_cast<off_t>(done));
      if (written < 0 && errno == EINTR) continue;
      if (written < 0) fail("write", errno);
      done += static_cast<std::size_t>(written);
    }
    store(begin, bytes, nullptr);
  }

  void store(std::byte* begin, std::size_t bytes, std::byte* mapped) const {
    const Pages pages = pages_of(begin, bytes);
    if (!unmap(pages, mapped)) fail("write", errno);
    const int written =
        needs_sync_ ? ::msync(pages.begin, static_cast<std::size_t>(pages.length), MS_SYNC)
                    : ::sync_file_range(file_->get(),
                                        pages.offset,
                                        pages.length,
                                        SYNC_FILE_RANGE_WAIT_BEFORE | SYNC_FILE_RANGE_WRITE |
                                            SYNC_FILE_RANGE_WAIT_AFTER);
    if (written != 0) fail("write", errno);
    forget(pages);
  }

  void drop(std::byte* begin, std::size_t bytes, std::byte* mapped) const noexcept {
    const Pages pages = pages_of(begin, bytes);
    (void)unmap(pages, mapped);
    forget(pages);
  }

  [[nodiscard]] std::size_t resident_bytes() const {
    std::vector<unsigned char> pages(bytes_ / page_bytes());
    if (::mincore(begin_, bytes_, pages.data()) != 0) fail("look at", errno);
    return static_cast<std::size_t>(
               std::ranges::count_if(pages, [](unsigned char page) { return (page & 1U) != 0; })) *
           page_bytes();
  }

 private:
  struct Pages {
    std::byte* begin;
    off_t offset;  // in the file
    off_t length;
  };
  // Whole ones, at both ends.
  [[nodiscard]] Pages pages_of(std::byte* begin, std::size_t bytes) const {
    const std::size_t before = reinterpret_cast<std::uintptr_t>(begin) % page_bytes();
    std::byte* const first = begin - before;
    return {first,
            static_cast<off_t>(file_offset_) + (first - begin_),
            static_cast<off_t>(whole_pages(bytes + before))};
  }
  // The file's pages keep what was written; mappings let go of them.
  [[nodiscard]] static bool unmap(const Pages& pages, std::byte* mapped) noexcept {
    const auto length = static_cast<std::size_t>(pages.length);
    return (mapped == nullptr || ::madvise(mapped, length, MADV_DONTNEED) == 0) &&
           ::madvise(pages.begin, length, MADV_DONTNEED) == 0;
  }
  // The kernel keeps pages together, up to a huge page, and drops none of those that a range cuts.
  void forget(const Pages& pages) const noexcept {
    constexpr auto kAround = static_cast<off_t>(kHugePage);
    const off_t from = std::max<off_t>(0, pages.offset - kAround);
    const off_t end = pages.offset + pages.length + kAround;
    (void)::posix_fadvise(file_->get(), from, end - from, POSIX_FADV_DONTNEED);
  }

  std::shared_ptr<const UniqueFd> file_;
  std::size_t file_offset_;
  std::size_t bytes_;
  [[noreturn]] void fail(const char* what, int error_number) const {
    const bool is_full = error_number == ENOSPC || error_number == EDQUOT;
    throw Error(is_full ? ErrorCode::kDiskFull : ErrorCode::kFileIo,
                std::string("cannot ") + what + " " + content_.name + " in " + folder_.string() +
                    " on " + checkpoint::device_text(folder_) + ": " + errno_text(error_number),
                "begin again from the last checkpoint, with another " + content_.folder_option);
  }

  std::filesystem::path folder_;
  StateFileContent content_;
  bool needs_sync_;
  std::byte* begin_ = nullptr;
};

namespace {

// Those of all files: a tensor may be a view whose storage does not tell where its memory comes from.
class Extents {
 public:
  static Extents& instance() {
    static Extents& extents = *new Extents;  // tensors may outlive what a program's end destroys
    return extents;
  }

  void add(const std::shared_ptr<const StateExtent>& extent) {
    const std::lock_guard lock(mutex_);
    std::erase_if(by_begin_, [](const auto& entry) { return entry.second.expired(); });
    by_begin_.insert_or_assign(extent->begin(), extent);
  }
  [[nodiscard]] std::shared_ptr<const StateExtent> find(const std::byte* begin, std::size_t bytes) {
    const std::lock_guard lock(mutex_);
    auto next = by_begin_.upper_bound(begin);
    if (next == by_begin_.begin()) return nullptr;
    auto extent = std::prev(next)->second.lock();
    return extent != nullptr && extent->contains(begin, bytes) ? extent : nullptr;
  }

 private:
  std::mutex mutex_;
  std::map<const std::byte*, std::weak_ptr<const StateExtent>> by_begin_;
};

}  // namespace

std::optional<StateRange> StateRange::of(const at::Tensor& tensor) {
  if (!tensor.defined() || tensor.numel() == 0 || !tensor.has_storage() || !tensor.is_cpu())
    return std::nullopt;
  StateRange range;
  range.begin_ = static_cast<std::byte*>(const_cast<void*>(tensor.const_data_ptr()));  // NOLINT
  range.bytes_ = tensor.nbytes();
  range.extent_ = Extents::instance().find(range.begin_, range.bytes_);
  if (range.extent_ == nullptr) return std::nullopt;
  return range;
}

void StateRange::fetch(Access access, std::byte* mapped) const {
  extent_->fetch(begin_, bytes_, access, mapped);
}

void StateRange::ask() const {
  extent_->ask(begin_, bytes_);
}

void StateRange::write(const std::byte* values) const {
  extent_->write(begin_, bytes_, values);
}

void StateRange::store(std::byte* mapped) const {
  extent_->store(begin_, bytes_, mapped);
}

void StateRange::drop(std::byte* mapped) const noexcept {
  extent_->drop(begin_, bytes_, mapped);
}

bool StateRange::append(const StateRange& next) {
  if (next.extent_ != extent_ || next.begin_ != begin_ + rounded_up(bytes_, kCacheLine))
    return false;
  bytes_ = static_cast<std::size_t>(next.begin_ + next.bytes_ - begin_);
  return true;
}

StateFile::StateFile(std::filesystem::path folder,
                     StateFileContent content,
                     checkpoint::FileSystem& file_system)
    : folder_(std::move(folder)),
      content_(std::move(content)),
      file_system_(file_system),
      file_(std::make_shared<const UniqueFd>(nameless_file(folder_, content_))),
      needs_sync_(is_overlay(file_->get())) {}

StateFile::StateFile(UniqueFd file, std::filesystem::path folder, StateFileContent content)
    : folder_(std::move(folder)),
      content_(std::move(content)),
      file_system_(checkpoint::real_file_system()),
      file_(std::make_shared<const UniqueFd>(std::move(file))),
      needs_sync_(is_overlay(file_->get())) {}

std::vector<at::Tensor> StateFile::make(std::span<const at::Tensor> like) {
  std::size_t wanted = 0;
  for (const at::Tensor& tensor : like) wanted += padded_bytes(tensor);
  std::shared_ptr<const StateExtent> extent;
  if (wanted > 0) {
    wanted = whole_pages(wanted);
    reserve(bytes_ + wanted);
    extent =
        std::make_shared<const StateExtent>(file_, bytes_, wanted, folder_, content_, needs_sync_);
    Extents::instance().add(extent);
    extents_.push_back(extent);
    bytes_ += wanted;
  }
  std::vector<at::Tensor> made;
  std::byte* next = extent == nullptr ? nullptr : extent->begin();
  for (const at::Tensor& tensor : like) {
    const std::size_t bytes = padded_bytes(tensor);
    auto owner = std::make_unique<std::shared_ptr<const StateExtent>>(extent);
    auto storage = c10::make_intrusive<c10::StorageImpl>(
        c10::StorageImpl::use_byte_size_t(),
        bytes,
        at::DataPtr(
            next,
            owner.release(),
            [](void* held) { delete static_cast<std::shared_ptr<const StateExtent>*>(held); },
            at::kCPU),
        /*allocator=*/nullptr,
        /*resizable=*/false);
    made.push_back(at::detail::make_tensor<c10::TensorImpl>(
        std::move(storage), c10::DispatchKeySet(c10::DispatchKey::CPU), tensor.dtype()));
    made.back().unsafeGetTensorImpl()->set_sizes_and_strides(tensor.sizes(), tensor.strides());
    if (next != nullptr) next += bytes;
  }
  return made;
}

void StateFile::reserve(std::size_t bytes) const {
  try {
    file_system_.reserve(file_->get(), bytes, folder_ / content_.name);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kDiskFull) throw;
    throw Error(ErrorCode::kDiskFull,
                error.message(),
                "make room, name a folder of a larger disk in " + content_.folder_option +
                    ", or divide the work over more ranks");
  }
}

std::size_t StateFile::resident_bytes() const {
  std::size_t resident = 0;
  for (const auto& extent : extents_) resident += extent->resident_bytes();
  return resident;
}

at::Tensor flat_part(const at::Tensor& tensor, std::int64_t begin, std::int64_t numel) {
  return tensor.detach().as_strided({numel}, {1}, tensor.storage_offset() + begin);
}

void copy_to_disk(const at::Tensor& place, const at::Tensor& values) {
  const bool is_by_parts = place.strides() == values.strides() &&
                           place.is_non_overlapping_and_dense() && place.sizes() == values.sizes();
  if (!is_by_parts) place.detach().copy_(values);
  const std::int64_t most = kCopiedBytes / static_cast<std::int64_t>(place.element_size());
  for (std::int64_t begin = 0; begin < place.numel(); begin += most) {
    const std::int64_t numel = std::min(most, place.numel() - begin);
    const at::Tensor part = flat_part(place, begin, numel);
    if (is_by_parts) part.copy_(flat_part(values, begin, numel));
    if (const auto range = StateRange::of(part)) range->store();
  }
}

}  // namespace accel
