// FileKeeper: memory for in-memory checkpoints that outlives a process, as the supervisor's does: files, mapped.
#pragma once

#include <filesystem>
#include <string>

#include <fcntl.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <accel/error.h>

#include "libaccel/engine/checkpoint/memory/node_memory.h"
#include "runtime/unique_fd.h"

namespace accel::test {

class FileKeeper final : public checkpoint::MemoryKeeper {
 public:
  explicit FileKeeper(std::filesystem::path folder) : folder_(std::move(folder)) {}

  std::uint64_t free = std::uint64_t{1} << 40;
  std::vector<CgroupRoom> limits;

  Result<std::span<std::byte>> get(const std::string& name, std::size_t bytes) override {
    const UniqueFd file(::open((folder_ / name).c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
    if (!file || ::flock(file.get(), LOCK_EX) != 0) return failed(name);
    struct stat status {};
    if (::fstat(file.get(), &status) != 0) return failed(name);
    if (status.st_size == 0 && ::ftruncate(file.get(), static_cast<off_t>(bytes)) != 0)
      return failed(name);
    if (status.st_size != 0 && static_cast<std::size_t>(status.st_size) != bytes)
      return Error(ErrorCode::kInvalidArgument, name + " has another size");
    void* data = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file.get(), 0);
    if (data == MAP_FAILED) return failed(name);
    ::flock(file.get(), LOCK_UN);  // the mapping would hold it
    return std::span(static_cast<std::byte*>(data), bytes);
  }
  void unmap(std::span<std::byte> memory) override { ::munmap(memory.data(), memory.size()); }
  void drop(const std::string& name) override { std::filesystem::remove(folder_ / name); }
  std::uint64_t free_bytes() const override { return free; }
  std::vector<CgroupRoom> rooms() const override { return limits; }

 private:
  static Error failed(const std::string& name) {
    return {ErrorCode::kFileIo, name + ": " + errno_text(errno)};
  }

  std::filesystem::path folder_;
};

}  // namespace accel::test
