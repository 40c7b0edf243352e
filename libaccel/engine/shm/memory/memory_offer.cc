#include "libaccel/engine/shm/memory/memory_offer.h"

#include <cerrno>
#include <sstream>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "libaccel/engine/shm/memory/file_offer.h"
#include "libaccel/engine/shm/memory/peer_watch.h"
#include "runtime/printable.h"

namespace accel::shm {

Result<MemoryOffer> offer_memory(int memory) {
  struct stat info {};
  if (::fstat(memory, &info) != 0)
    return Error(ErrorCode::kInternal, "no memory to offer: " + errno_text(errno));
  return MemoryOffer{.pid = ::getpid(),
                     .start_time = start_time_of(::getpid()),
                     .descriptor = memory,
                     .device = info.st_dev,
                     .inode = info.st_ino};
}

namespace {

enum class OfferedSize { kSealed, kAny };

Result<UniqueFd> open_offered(const MemoryOffer& offer, OfferedSize size) {
  const std::string path =
      "/proc/" + std::to_string(offer.pid) + "/fd/" + std::to_string(offer.descriptor);
  const std::string process = "process " + std::to_string(offer.pid);
  const auto refused = [&](const std::string& why) {
    return Error(ErrorCode::kUnsupported, "what " + process + " offers is " + why);
  };
  // Looked at before it is opened: to open a pipe or a device has effects.
  const UniqueFd location(::open(path.c_str(), O_PATH | O_CLOEXEC));
  struct stat info {};
  if (!location || ::fstat(location.get(), &info) != 0) {
    const bool is_gone = errno == ENOENT || errno == ESRCH;
    return Error(is_gone ? ErrorCode::kPeerLost : ErrorCode::kUnsupported,
                 "the memory that " + process + " offers cannot be opened: " + errno_text(errno));
  }
  if (info.st_dev != offer.device || info.st_ino != offer.inode ||
      start_time_of(offer.pid) != offer.start_time) {
    return Error(ErrorCode::kPeerLost, process + " does not hold the memory any more");
  }
  if (!S_ISREG(info.st_mode)) return refused("no memory");
  if (info.st_uid != ::geteuid()) return refused("memory of user " + std::to_string(info.st_uid));
  const std::string itself = "/proc/self/fd/" + std::to_string(location.get());
  UniqueFd memory(::open(itself.c_str(), O_RDWR | O_CLOEXEC | O_NOCTTY));
  if (!memory) {
    return Error(ErrorCode::kUnsupported,
                 "the memory that " + process + " offers cannot be opened: " + errno_text(errno));
  }
  if (size == OfferedSize::kAny) return memory;
  constexpr int kFixedSize = F_SEAL_SHRINK | F_SEAL_GROW;
  const int seals = ::fcntl(memory.get(), F_GET_SEALS);
  if (seals < 0 || (seals & kFixedSize) != kFixedSize)
    return refused("no memory whose size is sealed");
  return memory;
}

}  // namespace

Result<UniqueFd> open_offer(const MemoryOffer& offer) {
  return open_offered(offer, OfferedSize::kSealed);
}

Result<UniqueFd> open_file_offer(const MemoryOffer& offer) {
  return open_offered(offer, OfferedSize::kAny);
}

std::string to_text(const MemoryOffer& offer) {
  std::ostringstream text;
  text << offer.pid << ' ' << offer.start_time << ' ' << offer.descriptor << ' ' << offer.device
       << ' ' << offer.inode;
  return text.str();
}

Result<MemoryOffer> parse_memory_offer(const std::string& text) {
  MemoryOffer offer;
  std::istringstream fields(text);
  fields >> offer.pid >> offer.start_time >> offer.descriptor >> offer.device >> offer.inode;
  if (fields.fail() || !(fields >> std::ws).eof() || offer.pid <= 0 || offer.descriptor < 0)
    return Error(ErrorCode::kInvalidArgument, "'" + printable(text) + "' offers no memory");
  return offer;
}

}  // namespace accel::shm
