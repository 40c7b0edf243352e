// GuardRange: addresses that belong to one unit for ever, and that name the parameter when code reads them too early.
//
//   inaccessible --commit() or map()--> accessible --decommit()--> inaccessible
//
// While inaccessible it takes no memory. Code that reaches past the dispatcher (data_ptr() of an evicted parameter, a
// kernel of the program's own) gets SIGSEGV there; a handler says on stderr which parameter it was and which operator
// the thread ran last, and hands the signal on to who handled it before, so the process ends as it would have. A system
// call on such addresses fails with EFAULT instead: pin parameters before I/O on them.
//
// An address is never given to another weight while the range lives, so a library that keeps something by a weight's
// address cannot take one for another.
//
// Threads:  commit(), map() and decommit() of one range from one thread at a time. The handler takes no lock.
// Cost:     commit() and decommit() are a system call each, and the kernel clears each page when it is first touched.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include <sys/types.h>

namespace accel::pager {

// What a range tells about itself: "parameter 'fc1.weight'" for addresses [offset, offset + bytes).
struct GuardLabel {
  std::size_t offset = 0;
  std::size_t bytes = 0;
  std::string name;
};

class GuardRange {
 public:
  // Reserves addresses, a multiple of the page size and at least one page, inaccessible. Installs the handler on first
  // use in the process. Throws kOutOfMemory with bytes and errno.
  GuardRange(std::size_t bytes, std::vector<GuardLabel> labels);
  ~GuardRange();
  GuardRange(const GuardRange&) = delete;
  GuardRange& operator=(const GuardRange&) = delete;

  // Private memory, zero, for the whole range. Throws kOutOfMemory.
  std::span<std::byte> commit();

  // Puts [file_offset, + bytes) of a memfd or file at `offset` of the range, shared with all who map it. All three are
  // multiples of the page size. Throws kOutOfMemory with the errno, kInvalidArgument.
  // kWeightFile: to be read alone, and page by page as it is used; the fault of a write says that the weight lies in a file.
  enum class Access { kRead, kReadWrite, kWeightFile };
  void map(int file, off_t file_offset, std::size_t offset, std::size_t bytes, Access access);

  // Another access to the first `bytes`, which were mapped and keep their pages. A multiple of the page size.
  // Throws kOutOfMemory with the errno.
  void set_access(std::size_t bytes, Access access);

  // Gives the memory back: reading is a fault again. Never fails on a range that was committed or mapped.
  void decommit();

  [[nodiscard]] std::byte* begin() const noexcept { return begin_; }
  // As asked for; what is reserved is rounded up to pages.
  [[nodiscard]] std::size_t bytes() const noexcept { return bytes_; }
  [[nodiscard]] std::size_t reserved_bytes() const noexcept { return reserved_; }

 private:
  void note_access(Access access);

  friend struct GuardFault;
  struct Entry;  // what the handler reads; lives as long as the process
  std::byte* begin_ = nullptr;
  std::size_t bytes_ = 0;
  std::size_t reserved_ = 0;
  Entry* entry_ = nullptr;
};

}  // namespace accel::pager
