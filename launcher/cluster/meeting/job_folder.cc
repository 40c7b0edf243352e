#include "launcher/cluster/meeting/job_folder.h"

#include <filesystem>
#include <fstream>
#include <thread>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "agent/access/ticket_book.h"
#include "agent/tls/tls_authority.h"
#include "runtime/clock.h"
#include "runtime/unique_fd.h"

namespace accel::cluster {
namespace {

constexpr std::size_t kTokenBytes = 32;
constexpr std::chrono::milliseconds kLookAgain{100};

Error file_error(const std::string& what, const std::string& path) {
  return Error(ErrorCode::kFileIo,
               "cannot " + what + " " + path + ": " + errno_text(errno),
               "give --rdzv_dir a folder that every node sees and that you may write");
}

Result<void> write_private(const std::string& path, const std::string& content) {
  const UniqueFd file(::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
  if (!file) return file_error("make", path);
  const auto written = ::write(file.get(), content.data(), content.size());
  if (written != static_cast<ssize_t>(content.size()) || ::fsync(file.get()) != 0)
    return file_error("write", path);
  return {};
}

// Only a folder that nobody else can have filled is believed.
Result<void> check_owner(const std::string& path) {
  struct stat info {};
  if (::lstat(path.c_str(), &info) != 0) return file_error("look at", path);
  if (S_ISDIR(info.st_mode) && info.st_uid == ::geteuid() && (info.st_mode & 0077) == 0) return {};
  return Error(ErrorCode::kAuthentication,
               path + " is not a folder of this user alone",
               "give --rdzv_dir a folder in which only you can make one");
}

}  // namespace

Result<JobFolder> JobFolder::make(const std::string& path) {
  if (::mkdir(path.c_str(), 0700) != 0) return file_error("make", path);
  JobFolder folder(path, true);
  // A default ACL or a strange file system may have given more.
  if (auto checked = check_owner(path); !checked) return std::move(checked).error();
  const std::string token = agent::to_hex(agent::random_bytes(kTokenBytes)) + "\n";
  if (auto written = write_private(folder.token_file(), token); !written)
    return std::move(written).error();
  agent::TlsRequest authority;
  authority.folder = path;
  if (auto made = agent::issue_certificate(authority); !made) return std::move(made).error();
  return folder;
}

Result<JobFolder> JobFolder::find(const std::string& path,
                                  std::chrono::seconds limit,
                                  const std::stop_token& stop) {
  const TimePoint end = SteadyClock().now() + limit;
  const std::string last = path + "/endpoints";
  while (::access(last.c_str(), R_OK) != 0) {
    if (stop.stop_requested() || SteadyClock().now() >= end) {
      return Error(ErrorCode::kRendezvousTimeout,
                   "the folder of the job, " + path + ", did not appear within " +
                       std::to_string(limit.count()) + " s",
                   "give --rdzv_dir a folder that every node sees; see whether the first node's "
                   "launcher runs");
    }
    std::this_thread::sleep_for(kLookAgain);
  }
  if (auto checked = check_owner(path); !checked) return std::move(checked).error();
  return JobFolder(path, false);
}

JobFolder::~JobFolder() {
  std::error_code ignored;
  if (is_ours_ && !path_.empty()) std::filesystem::remove_all(path_, ignored);
}

JobFolder::JobFolder(JobFolder&& other) noexcept
    : path_(std::exchange(other.path_, "")), is_ours_(other.is_ours_) {}

JobFolder& JobFolder::operator=(JobFolder&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(is_ours_, other.is_ours_);
  return *this;
}

Result<void> JobFolder::publish(const std::vector<std::string>& endpoints) const {
  std::string text;
  for (const std::string& endpoint : endpoints) text += endpoint + "\n";
  const std::string fresh = path_ + "/endpoints.new";
  if (auto written = write_private(fresh, text); !written) return std::move(written).error();
  if (::rename(fresh.c_str(), (path_ + "/endpoints").c_str()) != 0)
    return file_error("rename", fresh);
  return {};
}

std::vector<std::string> JobFolder::endpoints() const {
  std::ifstream file(path_ + "/endpoints");
  std::vector<std::string> lines;
  for (std::string line; std::getline(file, line);) {
    if (!line.empty()) lines.push_back(line);
  }
  return lines;
}

Result<std::string> JobFolder::certificate(const std::string& node_id) const {
  agent::TlsRequest request;
  request.folder = path_;
  request.role = "launcher";
  request.name = node_id;
  return agent::issue_certificate(request);
}

}  // namespace accel::cluster
