#include "runtime/supervisor/owner/last_word.h"

#include <cerrno>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "runtime/open_folder.h"
#include "runtime/supervisor/kernel/sealed_file.h"
#include "runtime/supervisor/owner/shim_state.h"

namespace accel::supervisor {
namespace {

constexpr Seal kLastWordSeal = {
    .magic = "accel-shim-end ", .version = 1, .kind = "last word of accel-shim"};
constexpr std::size_t kMaxBytes = 64 * 1024 * 1024;  // the tails of 1024 workers

}  // namespace

std::string last_word_name(const std::string& job_id) {
  return job_id + ".end";
}

Result<void> write_last_word(const std::string& folder,
                             const std::string& job_id,
                             const HostEvent& event) {
  auto place = open_runtime_folder(folder);
  if (!place) return std::move(place).error();
  return replace_file(place->get(), last_word_name(job_id), seal(kLastWordSeal, encode(event)));
}

Result<std::optional<HostEvent>> read_last_word(const std::string& folder,
                                                const std::string& job_id,
                                                uid_t owner) {
  const UniqueFd place = open_folder(folder);
  const std::string name = last_word_name(job_id);
  struct stat info {};
  if (!place || ::fstat(place.get(), &info) != 0) {
    if (errno == ENOENT) return std::optional<HostEvent>();
    return Error(ErrorCode::kShimState, "cannot open " + folder + ": " + errno_text(errno));
  }
  if (info.st_uid != owner)
    return Error(ErrorCode::kShimState, folder + " belongs to uid " + std::to_string(info.st_uid));
  if (::fstatat(place.get(), name.c_str(), &info, AT_SYMLINK_NOFOLLOW) != 0 && errno == ENOENT)
    return std::optional<HostEvent>();
  const auto text = read_plain_file(place.get(), name, kMaxBytes);
  if (!text) return text.error();
  const auto body = unseal(kLastWordSeal, *text, name);
  if (!body) return body.error();
  auto event = decode_event(*body);
  if (!event) return std::move(event).error();
  if (!std::holds_alternative<JobOutcome>(*event) && !std::holds_alternative<Refused>(*event))
    return Error(ErrorCode::kProtocol, name + " does not say how the job ended");
  return std::optional<HostEvent>(*std::move(event));
}

void remove_last_word(const std::string& folder, const std::string& job_id) {
  const UniqueFd place = open_folder(folder);
  if (place) (void)::unlinkat(place.get(), last_word_name(job_id).c_str(), 0);
}

}  // namespace accel::supervisor
