#include "runtime/supervisor/kernel/private_folder.h"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <ctime>
#include <filesystem>
#include <optional>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "runtime/open_folder.h"

namespace accel::supervisor {
namespace {

namespace fs = std::filesystem;

constexpr const char* kOwner = ".owner";
constexpr const char* kNewOwner = ".owner-new";  // not locked yet
constexpr std::chrono::minutes kMakingTakes(1);  // at most; as a rule far below a millisecond

// Nobody sees it under its name before it is locked.
UniqueFd make_owner_file(const std::string& folder) {
  const std::string unlocked = folder + "/" + kNewOwner;
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

// The file is ours, and nobody holds it.
bool is_free(int file) {
  return is_ours(file, S_IFREG) && ::flock(file, LOCK_EX | LOCK_NB) == 0;
}

bool is_older(int file, std::chrono::seconds age) {
  struct stat info = {};
  return ::fstat(file, &info) == 0 && ::time(nullptr) - info.st_mtime >= age.count();
}

UniqueFd open_in(int folder, const char* name) {
  return UniqueFd(::openat(folder, name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
}

// A maker that lives holds kOwner; one that was killed before it did has left kNewOwner.
bool is_abandoned(int folder) {
  if (const UniqueFd owner = open_in(folder, kOwner)) return is_free(owner.get());
  const UniqueFd unlocked = open_in(folder, kNewOwner);
  return unlocked && is_older(unlocked.get(), kMakingTakes) && is_free(unlocked.get());
}

bool is_name_of_ours(const std::string& name) {
  return name == kOwner || name == kNewOwner ||
         (name.starts_with("error_") && name.ends_with(".json"));
}

// What is in it; std::nullopt when not all of it is ours, or it cannot be read.
std::optional<std::vector<std::string>> names_of_ours(const fs::path& path) {
  std::vector<std::string> names;
  std::error_code failure;
  for (fs::directory_iterator entry(path, failure), end; !failure && entry != end;
       entry.increment(failure)) {
    names.push_back(entry->path().filename().string());
    if (!is_name_of_ours(names.back())) return std::nullopt;
  }
  if (failure) return std::nullopt;
  return names;
}

void remove_if_abandoned(const fs::path& path) {
  const UniqueFd folder = open_folder(path);
  if (!folder || !is_ours(folder.get(), S_IFDIR) || !is_abandoned(folder.get())) return;
  const auto names = names_of_ours(path);
  if (!names) return;
  for (const std::string& name : *names) ::unlinkat(folder.get(), name.c_str(), 0);
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
  if (::rmdir(path.c_str()) == 0) return;  // empty: also where no descriptor is left
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
