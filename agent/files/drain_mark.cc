#include "agent/files/drain_mark.h"

#include <cerrno>

#include <fcntl.h>
#include <unistd.h>

#include "runtime/printable.h"
#include "runtime/supervisor/kernel/sealed_file.h"
#include "runtime/unique_fd.h"

namespace accel::agent {
namespace {

constexpr const char* kName = "drained";
constexpr supervisor::Seal kSeal = {
    .magic = "accel-agent-drained ", .version = 1, .kind = "mark of a drained node"};
constexpr std::size_t kMostBytes = 4096;

Result<UniqueFd> open_mark_folder(const std::string& path) {
  UniqueFd folder(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (folder) return folder;
  return Error(ErrorCode::kFileIo, "cannot open " + path + ": " + errno_text(errno));
}

// The name is durable with its folder, the content with the file.
Result<void> sync(int folder, const std::string& path) {
  const UniqueFd file(::openat(folder, kName, O_RDONLY | O_NOFOLLOW | O_CLOEXEC));
  if ((file && ::fsync(file.get()) != 0) || ::fsync(folder) != 0)
    return Error(ErrorCode::kFileIo,
                 "cannot sync " + path + "/" + kName + ": " + errno_text(errno));
  return {};
}

}  // namespace

std::optional<DrainMark::Found> DrainMark::read() const {
  const auto folder = open_mark_folder(folder_);
  if (!folder) return std::nullopt;  // the lock is in it: an agent that runs has it
  if (::faccessat(folder->get(), kName, F_OK, AT_SYMLINK_NOFOLLOW) != 0 && errno == ENOENT)
    return std::nullopt;
  const auto text = supervisor::read_plain_file(folder->get(), kName, kMostBytes);
  if (!text) return Found{.reason = {}, .complaint = text.error().message()};
  const auto reason = supervisor::unseal(kSeal, *text, folder_ + "/" + kName);
  if (!reason) return Found{.reason = {}, .complaint = reason.error().message()};
  return Found{.reason = printable(*reason), .complaint = {}};
}

Result<void> DrainMark::set(const std::string& reason) const {
  const auto folder = open_mark_folder(folder_);
  if (!folder) return folder.error();
  if (auto written =
          supervisor::replace_file(folder->get(), kName, supervisor::seal(kSeal, reason));
      !written)
    return written;
  return sync(folder->get(), folder_);
}

Result<void> DrainMark::remove() const {
  const auto folder = open_mark_folder(folder_);
  if (!folder) return folder.error();
  if (::unlinkat(folder->get(), kName, 0) != 0 && errno != ENOENT) {
    return Error(ErrorCode::kFileIo,
                 "cannot remove " + folder_ + "/" + kName + ": " + errno_text(errno));
  }
  return sync(folder->get(), folder_);
}

}  // namespace accel::agent
