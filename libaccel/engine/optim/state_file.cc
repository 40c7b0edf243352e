#include "libaccel/engine/optim/state_file.h"

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstdlib>
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

// Whole pages, at both ends.
StateRange pages_of(const StateRange& range) {
  const std::size_t before = reinterpret_cast<std::uintptr_t>(range.begin) % page_bytes();
  return {range.begin - before, whole_pages(range.bytes + before)};
}

// Bytes of a tensor up to where the next one begins.
std::size_t padded_bytes(const at::Tensor& tensor) {
  return rounded_up(tensor.nbytes(), kCacheLine);
}

}  // namespace

struct StateFile::Extent {
  Extent(std::shared_ptr<const UniqueFd> of, std::size_t offset, std::size_t length)
      : file(std::move(of)), file_offset(offset), bytes(length) {
    void* const mapped = ::mmap(nullptr,
                                bytes,
                                PROT_READ | PROT_WRITE,
                                MAP_SHARED,
                                file->get(),
                                static_cast<off_t>(file_offset));
    if (mapped == MAP_FAILED) {
      throw Error(ErrorCode::kOutOfMemory,
                  "cannot map " + std::to_string(bytes) + " bytes of a file: " + errno_text(errno));
    }
    begin = static_cast<std::byte*>(mapped);
  }
  ~Extent() { ::munmap(begin, bytes); }
  Extent(const Extent&) = delete;
  Extent& operator=(const Extent&) = delete;

  [[nodiscard]] bool contains(const StateRange& range) const {
    return range.begin >= begin && range.begin + range.bytes <= begin + bytes;
  }

  std::shared_ptr<const UniqueFd> file;
  std::size_t file_offset;
  std::size_t bytes;
  std::byte* begin = nullptr;
};

StateFile::StateFile(std::filesystem::path folder,
                     StateFileContent content,
                     checkpoint::FileSystem& file_system)
    : folder_(std::move(folder)),
      content_(std::move(content)),
      file_system_(file_system),
      file_(std::make_shared<const UniqueFd>(nameless_file(folder_, content_))),
      needs_sync_(is_overlay(file_->get())) {}

void StateFile::fail(const char* what, int error_number) const {
  const bool is_full = error_number == ENOSPC || error_number == EDQUOT;
  throw Error(is_full ? ErrorCode::kDiskFull : ErrorCode::kFileIo,
              std::string("cannot ") + what + " " + content_.name + " in " + folder_.string() +
                  " on " + checkpoint::device_text(folder_) + ": " + errno_text(error_number),
              "begin again from the last checkpoint, with another " + content_.folder_option);
}

std::vector<at::Tensor> StateFile::make(std::span<const at::Tensor> like) {
  std::size_t wanted = 0;
  for (const at::Tensor& tensor : like) wanted += padded_bytes(tensor);
  std::shared_ptr<const Extent> extent;
  if (wanted > 0) {
    wanted = whole_pages(wanted);
    reserve(bytes_ + wanted);
    extent = std::make_shared<const Extent>(file_, bytes_, wanted);
    extents_.push_back(extent);
    bytes_ += wanted;
  }
  std::vector<at::Tensor> made;
  std::byte* next = extent == nullptr ? nullptr : extent->begin;
  for (const at::Tensor& tensor : like) {
    const std::size_t bytes = padded_bytes(tensor);
    auto owner = std::make_unique<std::shared_ptr<const Extent>>(extent);
    auto storage = c10::make_intrusive<c10::StorageImpl>(
        c10::StorageImpl::use_byte_size_t(),
        bytes,
        at::DataPtr(
            next,
            owner.release(),
            [](void* held) { delete static_cast<std::shared_ptr<const Extent>*>(held); },
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

bool StateFile::has(const StateRange& range) const {
  return std::ranges::any_of(extents_, [&](const auto& extent) { return extent->contains(range); });
}

const StateFile::Extent& StateFile::extent_of(const StateRange& range) const {
  const auto found =
      std::ranges::find_if(extents_, [&](const auto& extent) { return extent->contains(range); });
  if (found != extents_.end()) return **found;
  throw Error(ErrorCode::kInternal, "a range of " + content_.name + " lies in no file");
}

void StateFile::fetch(const StateRange& range) const {
  if (range.bytes == 0) return;
  const Extent& extent = extent_of(range);
  const StateRange pages = pages_of(range);
  // All of it is asked for before the first page is waited for.
  (void)::posix_fadvise(file_->get(),
                        static_cast<off_t>(extent.file_offset) + (pages.begin - extent.begin),
                        static_cast<off_t>(pages.bytes),
                        POSIX_FADV_WILLNEED);
  while (::madvise(pages.begin, pages.bytes, MADV_POPULATE_WRITE) != 0) {
    if (errno == EINTR || errno == EAGAIN) continue;
    if (errno == EINVAL) return;  // a kernel before 5.14: pages come as they are used
    fail("read", errno == EFAULT ? EIO : errno);
  }
}

void StateFile::store(const StateRange& range) const {
  if (range.bytes == 0) return;
  const Extent& extent = extent_of(range);
  const StateRange pages = pages_of(range);
  const off_t offset = static_cast<off_t>(extent.file_offset) + (pages.begin - extent.begin);
  const auto length = static_cast<off_t>(pages.bytes);
  // The file's pages keep what was written; the mapping lets go of them.
  if (::madvise(pages.begin, pages.bytes, MADV_DONTNEED) != 0) fail("write", errno);
  const int written = needs_sync_
                          ? ::msync(pages.begin, pages.bytes, MS_SYNC)
                          : ::sync_file_range(file_->get(),
                                              offset,
                                              length,
                                              SYNC_FILE_RANGE_WAIT_BEFORE | SYNC_FILE_RANGE_WRITE |
                                                  SYNC_FILE_RANGE_WAIT_AFTER);
  if (written != 0) fail("write", errno);
  // The kernel keeps pages together, up to a huge page, and drops none of those that a range cuts.
  constexpr auto kAround = static_cast<off_t>(kHugePage);
  const off_t from = std::max<off_t>(0, offset - kAround);
  (void)::posix_fadvise(file_->get(), from, offset + length + kAround - from, POSIX_FADV_DONTNEED);
}

std::size_t StateFile::resident_bytes() const {
  std::size_t resident = 0;
  for (const auto& extent : extents_) {
    std::vector<unsigned char> pages(extent->bytes / page_bytes());
    if (::mincore(extent->begin, extent->bytes, pages.data()) != 0) fail("look at", errno);
    resident += static_cast<std::size_t>(std::ranges::count_if(
                    pages, [](unsigned char page) { return (page & 1U) != 0; })) *
                page_bytes();
  }
  return resident;
}

}  // namespace accel
