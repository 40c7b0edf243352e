#include "agent/jobs/job_folder.h"

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <filesystem>

#include <fcntl.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/sha.h>
#include <sys/stat.h>
#include <unistd.h>

#include "agent/access/ticket_book.h"
#include "agent/config/agent_config.h"
#include "runtime/open_folder.h"
#include "runtime/supervisor/kernel/sealed_file.h"
#include "runtime/supervisor/protocol/job_spec.h"

namespace accel::agent {
namespace {

constexpr supervisor::Seal kRecordSeal = {
    .magic = "accel-agent-job ", .version = 1, .kind = "record of accel-agent"};
constexpr supervisor::Seal kKeySeal = {
    .magic = "accel-agent-key ", .version = 1, .kind = "key of accel-agent"};
constexpr std::size_t kKeyBytes = 32;
constexpr std::size_t kMaxRecordBytes = 64 * 1024 * 1024;
constexpr std::string_view kRecordSuffix = ".job";
constexpr std::string_view kDamagedSuffix = ".damaged";
constexpr const char* kKeyName = "key";
constexpr char kUserEnd = '@';  // in no id

Result<UniqueFd> open_private_folder(const std::string& path) {
  if (::mkdir(path.c_str(), 0700) != 0 && errno != EEXIST)
    return Error(ErrorCode::kFileIo, "cannot create " + path + ": " + errno_text(errno));
  UniqueFd fd = open_folder(path);
  struct stat info {};
  if (!fd || ::fstat(fd.get(), &info) != 0)
    return Error(ErrorCode::kFileIo, "cannot open " + path + ": " + errno_text(errno));
  if (info.st_uid != ::geteuid() || (info.st_mode & 077) != 0) {
    return Error(ErrorCode::kFileIo,
                 path + " belongs to another user, or is open to others",
                 "chmod 700 " + path + ", and let the agent's user own it");
  }
  return fd;
}

Result<std::string> make_folder_key(int folder) {
  std::string key = random_bytes(kKeyBytes);
  if (auto written = supervisor::replace_file(folder, kKeyName, supervisor::seal(kKeySeal, key));
      !written) {
    return std::move(written).error();
  }
  return key;
}

Result<std::string> read_key(int folder) {
  const auto text = supervisor::read_plain_file(folder, kKeyName, 4096);
  if (!text) return text.error();
  auto key = supervisor::unseal(kKeySeal, *text, kKeyName);
  if (key && key->size() != kKeyBytes)
    return Error(ErrorCode::kShimState, "the key of the agent has another size");
  return key;
}

// "65534@train" -> 65534; std::nullopt for a name that is the id alone.
std::optional<uid_t> user_of_name(std::string_view name) {
  const std::size_t end = name.find(kUserEnd);
  uid_t user = 0;
  if (end == std::string_view::npos) return std::nullopt;
  const auto [rest, failure] = std::from_chars(name.data(), name.data() + end, user);
  if (failure != std::errc() || rest != name.data() + end) return std::nullopt;
  return user;
}

}  // namespace

std::string record_name(uid_t user, const std::string& job_id) {
  return user == ::geteuid() ? job_id : std::to_string(user) + kUserEnd + job_id;
}

std::string record_name(const v1::JobRecord& record) {
  return record.key().empty() ? record.job().job_id() : record.key();
}

Result<JobFolder> JobFolder::open(const std::string& path) {
  auto folder = open_private_folder(path);
  if (!folder) return std::move(folder).error();
  const bool is_first =
      ::faccessat(folder->get(), kKeyName, F_OK, AT_SYMLINK_NOFOLLOW) != 0 && errno == ENOENT;
  std::string complaint;
  auto key = is_first ? make_folder_key(folder->get()) : read_key(folder->get());
  if (!key && !is_first) {
    complaint = key.error().message() + "; it is made anew";
    key = make_folder_key(folder->get());
  }
  if (!key) return std::move(key).error();
  JobFolder made(*std::move(folder), path, *std::move(key));
  made.complaint_ = std::move(complaint);
  return made;
}

Result<void> JobFolder::write(const v1::JobRecord& record) const {
  return supervisor::replace_file(folder_.get(),
                                  record_name(record) + std::string(kRecordSuffix),
                                  supervisor::seal(kRecordSeal, record.SerializeAsString()));
}

void JobFolder::remove(const std::string& name) const {
  (void)::unlinkat(folder_.get(), (name + std::string(kRecordSuffix)).c_str(), 0);
}

Result<v1::JobRecord> JobFolder::read(const std::string& name) const {
  const auto text = supervisor::read_plain_file(folder_.get(), name, kMaxRecordBytes);
  if (!text) return text.error();
  const auto body = supervisor::unseal(kRecordSeal, *text, path_ + "/" + name);
  if (!body) return body.error();
  v1::JobRecord record;
  const bool is_of_its_name = record.ParseFromString(*body) &&
                              record_name(record) + std::string(kRecordSuffix) == name &&
                              is_valid_id(record.job().job_id());
  if (!is_of_its_name)
    return Error(ErrorCode::kShimState, path_ + "/" + name + " holds no record of its job");
  return record;
}

JobFolder::Contents JobFolder::read_all() const {
  Contents contents;
  std::error_code failure;
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(path_, failure)) {
    const std::string name = entry.path().filename().string();
    if (name.ends_with(kRecordSuffix)) names.push_back(name);
  }
  for (const std::string& name : names) {
    auto record = read(name);
    if (record) {
      contents.records.push_back(*std::move(record));
      continue;
    }
    const std::string stem = name.substr(0, name.size() - kRecordSuffix.size());
    const std::string aside = stem + std::string(kDamagedSuffix);
    (void)::renameat(folder_.get(), name.c_str(), folder_.get(), aside.c_str());
    const auto user = user_of_name(stem);
    const std::string job_id = user ? stem.substr(stem.find(kUserEnd) + 1) : stem;
    if (is_valid_id(job_id))
      contents.damaged.push_back({stem, job_id, user, std::move(record).error()});
  }
  std::sort(contents.records.begin(), contents.records.end(), [](const auto& a, const auto& b) {
    const auto& left = a.job().started();
    const auto& right = b.job().started();
    return std::pair(left.seconds(), left.nanos()) < std::pair(right.seconds(), right.nanos());
  });
  return contents;
}

std::string JobFolder::token_for(const std::string& name) const {
  return derive("shim of " + name);
}

std::string JobFolder::instance_for(const std::string& name) const {
  return derive("instance of " + name).substr(0, supervisor::JobSpec::kInstanceLength);
}

std::string JobFolder::derive(const std::string& text) const {
  std::string derived(SHA256_DIGEST_LENGTH, '\0');
  unsigned size = 0;
  ::HMAC(::EVP_sha256(),
         key_.data(),
         static_cast<int>(key_.size()),
         reinterpret_cast<const unsigned char*>(text.data()),
         text.size(),
         reinterpret_cast<unsigned char*>(derived.data()),
         &size);
  return to_hex(derived);
}

}  // namespace accel::agent
