// How a fault finds its parameter: ranges are entries of a list that only grows (entries are used again, never freed),
// so the handler walks it without a lock, on whatever thread and in whatever state the fault came. It uses write(2) and
// nothing that allocates. The label list of an entry is in place before its addresses are, and stays until the next use.
//
// The signal goes on afterwards to who had it before (runtime/memory_faults.h).

#include "libaccel/engine/pager/guard_memory.h"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdint>
#include <cstring>
#include <mutex>
#include <string_view>
#include <utility>

#include <sys/mman.h>
#include <unistd.h>

#include <accel/error.h>

#include "libaccel/interception/parameter_operators.h"
#include "libaccel/tensors/alignment.h"
#include "runtime/memory_faults.h"
#include "runtime/page_size.h"

namespace accel::pager {
namespace {

// Why what is mapped may only be read.
enum class ReadOnly : std::uint8_t { kNo, kShared, kFile };

int protection_of(GuardRange::Access access) {
  return access == GuardRange::Access::kReadWrite ? PROT_READ | PROT_WRITE : PROT_READ;
}

}  // namespace

struct GuardRange::Entry {
  std::atomic<std::uintptr_t> begin{0};  // 0: not in use
  std::size_t bytes = 0;
  std::atomic<ReadOnly> read_only{ReadOnly::kNo};
  std::vector<GuardLabel> labels;
  Entry* next = nullptr;  // in the list of all
};

namespace {

// Large ranges lie on huge pages, when the kernel has any: filling 64 MiB takes it 32 faults instead of 16,384.
constexpr std::size_t kHugeFrom = 2 * kHugePage;

void* reserve(std::size_t bytes) {
  const std::size_t slack = bytes < kHugeFrom ? 0 : kHugePage;
  void* memory =
      ::mmap(nullptr, bytes + slack, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED || slack == 0) return memory;
  auto* const begin = static_cast<std::byte*>(memory);
  const std::size_t before =
      (kHugePage - reinterpret_cast<std::uintptr_t>(begin) % kHugePage) % kHugePage;
  if (before > 0) ::munmap(begin, before);
  if (before < slack) ::munmap(begin + before + bytes, slack - before);
  return begin + before;
}

// Text for write(2), cut at its end.
class Line {
 public:
  void add(std::string_view text) noexcept {
    const std::size_t fits = std::min(text.size(), sizeof text_ - used_);
    std::memcpy(text_ + used_, text.data(), fits);
    used_ += fits;
  }
  void add_number(std::size_t value) noexcept {
    char digits[24];
    std::size_t at = sizeof digits;
    do digits[--at] = static_cast<char>('0' + value % 10);
    while ((value /= 10) != 0);
    add({digits + at, sizeof digits - at});
  }
  void print() const noexcept {
    std::size_t done = 0;
    while (done < used_) {
      const ssize_t wrote = ::write(STDERR_FILENO, text_ + done, used_ - done);
      if (wrote < 0 && errno == EINTR) continue;
      if (wrote <= 0) return;
      done += static_cast<std::size_t>(wrote);
    }
  }

 private:
  char text_[1024];
  std::size_t used_ = 0;
};

// What to do about it, by ReadOnly.
constexpr std::string_view kRemedies[] = {
    "use the parameter through an operator, or hold it with accel::with_params(model, {its name}) "
    "around code that takes its data_ptr()",
    "change it before prepare(), by the prepared optimizer's step, or by load_state()",
    "leave disk out of the device map of a model that is to be changed"};

void tell(const GuardLabel* label, std::size_t offset, ReadOnly read_only) noexcept {
  Line line;
  const bool is_readable = read_only != ReadOnly::kNo;
  line.add(is_readable ? "accel: error [pager.read_only]: " : "accel: error [pager.evicted]: ");
  if (label != nullptr) {
    line.add("parameter '");
    line.add(label->name);
    line.add(is_readable ? "' was written to at byte " : "' was touched at byte ");
    line.add_number(offset - label->offset);
    line.add(" of ");
    line.add_number(label->bytes);
    line.add(read_only == ReadOnly::kShared ? ", which the ranks of this node share\n"
             : read_only == ReadOnly::kFile ? ", which lies in a file\n"
                                            : " while it was evicted\n");
  } else {
    line.add("memory behind a paged parameter was touched\n");
  }
  if (const char* const operation = interception::last_operator()) {
    line.add("  while     the last operator on this thread was ");
    line.add(operation);
    line.add("\n");
  }
  line.add("  try       ");
  line.add(kRemedies[static_cast<std::size_t>(read_only)]);
  line.add("\n");
  line.add(read_only == ReadOnly::kFile ? "  more      docs/guides/offload.md\n"
                                        : "  more      docs/guides/sharding.md\n");
  line.print();
}

std::mutex g_mutex;  // of what follows; the handler takes it never
std::vector<void*> g_free_entries;
std::atomic<void*> g_entries{nullptr};

}  // namespace

// Sees Entry, which is private to GuardRange.
struct GuardFault {
  // Says what it knows, and mends nothing.
  static bool handle(const siginfo_t& info) noexcept {
    const auto address = reinterpret_cast<std::uintptr_t>(info.si_addr);
    for (auto* entry = static_cast<GuardRange::Entry*>(g_entries.load(std::memory_order_acquire));
         entry != nullptr;
         entry = entry->next) {
      const std::uintptr_t begin = entry->begin.load(std::memory_order_acquire);
      if (begin == 0 || address < begin || address >= begin + entry->bytes) continue;
      const GuardLabel* found = nullptr;
      for (const GuardLabel& label : entry->labels)
        if (address - begin >= label.offset && address - begin < label.offset + label.bytes)
          found = &label;
      tell(found, address - begin, entry->read_only.load(std::memory_order_relaxed));
      break;
    }
    return false;
  }

  static void install() {
    static const bool is_installed = [] {
      add_fault_handler(SIGSEGV, &handle, FaultRole::kTells);
      return true;
    }();
    (void)is_installed;
  }

  static GuardRange::Entry* publish(std::uintptr_t begin,
                                    std::size_t bytes,
                                    std::vector<GuardLabel> labels) {
    const std::lock_guard lock(g_mutex);
    GuardRange::Entry* entry = nullptr;
    const bool is_new = g_free_entries.empty();
    if (is_new) {
      entry = new GuardRange::Entry;  // NOLINT: the handler may look at it until the process ends
    } else {
      entry = static_cast<GuardRange::Entry*>(g_free_entries.back());
      g_free_entries.pop_back();
    }
    entry->bytes = bytes;
    entry->labels = std::move(labels);
    entry->begin.store(begin, std::memory_order_release);
    if (is_new) {
      entry->next = static_cast<GuardRange::Entry*>(g_entries.load());
      g_entries.store(entry, std::memory_order_release);
    }
    return entry;
  }

  static void withdraw(GuardRange::Entry* entry) {
    const std::lock_guard lock(g_mutex);
    entry->begin.store(0, std::memory_order_release);
    g_free_entries.push_back(entry);
  }
};

GuardRange::GuardRange(std::size_t bytes, std::vector<GuardLabel> labels)
    : bytes_(bytes), reserved_(std::max(whole_pages(bytes), page_bytes())) {
  GuardFault::install();
  void* memory = reserve(reserved_);
  if (memory == MAP_FAILED)
    throw Error(ErrorCode::kOutOfMemory,
                "cannot reserve addresses for " + std::to_string(reserved_) +
                    " bytes of parameters: " + errno_text(errno),
                "raise the limit on address space (`ulimit -v`)");
  begin_ = static_cast<std::byte*>(memory);
  entry_ =
      GuardFault::publish(reinterpret_cast<std::uintptr_t>(begin_), reserved_, std::move(labels));
}

GuardRange::~GuardRange() {
  GuardFault::withdraw(entry_);
  ::munmap(begin_, reserved_);
}

std::span<std::byte> GuardRange::commit() {
  if (::mprotect(begin_, reserved_, PROT_READ | PROT_WRITE) != 0)
    throw Error(ErrorCode::kOutOfMemory,
                "cannot take " + std::to_string(reserved_) +
                    " bytes of memory for parameters: " + errno_text(errno),
                "lower max_live_bytes, or give the process more memory");
  // Advice alone: without it the range is as good. To be given again, since decommit() maps anew.
  if (reserved_ >= kHugeFrom) (void)::madvise(begin_, reserved_, MADV_HUGEPAGE);
  return {begin_, bytes_};
}

void GuardRange::map(
    int file, off_t file_offset, std::size_t offset, std::size_t bytes, Access access) {
  if (offset % page_bytes() != 0 || bytes % page_bytes() != 0 || offset + bytes > reserved_)
    throw Error(ErrorCode::kInvalidArgument,
                "cannot map " + std::to_string(bytes) + " bytes at " + std::to_string(offset) +
                    " of a unit of " + std::to_string(reserved_) + " bytes: pages have " +
                    std::to_string(page_bytes()) + " bytes");
  const int filling = access == Access::kWeightFile ? 0 : MAP_POPULATE;
  void* mapped = ::mmap(begin_ + offset,
                        bytes,
                        protection_of(access),
                        MAP_SHARED | MAP_FIXED | filling,
                        file,
                        file_offset);
  if (mapped == MAP_FAILED)
    throw Error(ErrorCode::kOutOfMemory,
                "cannot map " + std::to_string(bytes) +
                    " bytes of a shard of parameters: " + errno_text(errno));
  note_access(access);
}

void GuardRange::set_access(std::size_t bytes, Access access) {
  if (::mprotect(begin_, bytes, protection_of(access)) != 0)
    throw Error(ErrorCode::kOutOfMemory,
                "cannot change the access to " + std::to_string(bytes) +
                    " bytes of parameters: " + errno_text(errno));
  note_access(access);
}

void GuardRange::note_access(Access access) {
  entry_->read_only.store(access == Access::kRead         ? ReadOnly::kShared
                          : access == Access::kWeightFile ? ReadOnly::kFile
                                                          : ReadOnly::kNo,
                          std::memory_order_relaxed);
}

void GuardRange::decommit() {
  entry_->read_only.store(ReadOnly::kNo, std::memory_order_relaxed);
  // One call for what was committed and what was mapped: other pages, without access, take the place of all.
  (void)::mmap(
      begin_, reserved_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
}

}  // namespace accel::pager
