#include "runtime/supervisor/private_folder.h"

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <system_error>
#include <utility>

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

namespace accel::supervisor {
namespace {

namespace fs = std::filesystem;

constexpr const char* kOwner = ".owner";

// Nobody sees it under its name before it is locked.
UniqueFd make_owner_file(const std::string& folder) {
  const std::string unlocked = folder + "/.owner-new";
  UniqueFd file(
      ::open(unlocked.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600));
  const bool is_held = file && ::flock(file.get(), LOCK_EX | LOCK_NB) == 0 &&
                       ::rename(unlocked.c_str(), (folder + "/" + kOwner).c_str()) == 0;
  if (!is_held) file.reset();
  return file;
}

bool is_ours(int fd, mode_t kind) {
  struct stat info = {};
  return ::fstat(fd, &info) == 0 && (info.st_mode & S_IFMT) == kind && info.st_uid == ::geteuid();
}

bool is_abandoned(int folder) {
  const UniqueFd owner(::openat(folder, kOwner, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
  return owner && is_ours(owner.get(), S_IFREG) && ::flock(owner.get(), LOCK_EX | LOCK_NB) == 0;
}

void remove_if_abandoned(const fs::path& path) {
  const UniqueFd folder(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW));
  if (!folder || !is_ours(folder.get(), S_IFDIR) || !is_abandoned(folder.get())) return;
  std::error_code failure;
  for (fs::directory_iterator entry(path, failure), end; !failure && entry != end;
       entry.increment(failure)) {
    const std::string name = entry->path().filename().string();
    if (name.starts_with("error_") && name.ends_with(".json"))
      ::unlinkat(folder.get(), name.c_str(), 0);
  }
  ::unlinkat(folder.get(), kOwner, 0);
  ::rmdir(path.c_str());
}

}  // namespace

Result<PrivateFolder> PrivateFolder::create(const std::string& path) {
  if (::mkdir(path.c_str(), 0700) == 0) return PrivateFolder(path, make_owner_file(path));
  return Error(ErrorCode::kFileIo,
               "cannot make the private folder " + path + ": " + errno_text(errno));
}

PrivateFolder::PrivateFolder(PrivateFolder&& other) noexcept
    : path_(std::exchange(other.path_, {})), owner_(std::move(other.owner_)) {}

PrivateFolder::~PrivateFolder() {
  remove_private_folder(path_);
}

// remove_all() opens each folder without following links and removes by descriptor.
void remove_private_folder(const std::string& path) {
  struct stat info = {};
  if (path.empty() || ::lstat(path.c_str(), &info) != 0) return;
  if (!S_ISDIR(info.st_mode) || info.st_uid != ::geteuid()) return;
  std::error_code ignored;  // what is left is in a folder that only its user can enter
  std::filesystem::remove_all(path, ignored);
}

void remove_abandoned_folders(const std::string& parent) {
  std::error_code failure;
  for (fs::directory_iterator entry(parent, failure), end; !failure && entry != end;
       entry.increment(failure)) {
    if (entry->path().filename().string().starts_with("accel-")) remove_if_abandoned(entry->path());
  }
}

std::string read_own_file(const std::string& path, std::size_t limit) {
  const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
  struct stat info = {};
  if (!fd || ::fstat(fd.get(), &info) != 0) return {};
  if (!S_ISREG(info.st_mode) || info.st_uid != ::geteuid()) return {};
  std::string content(std::min(limit, static_cast<std::size_t>(info.st_size)), '\0');
  std::size_t size = 0;
  while (size < content.size()) {
    const ssize_t got = ::read(fd.get(), content.data() + size, content.size() - size);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) break;
    size += static_cast<std::size_t>(got);
  }
  content.resize(size);
  return content;
}

}  // namespace accel::supervisor
