#include "launcher/log_folder.h"

#include <cerrno>
#include <filesystem>
#include <system_error>

#include <sys/stat.h>

namespace accel::launcher {

std::string private_log_folder(const EnvMap& environment, const std::string& job_suffix) {
  const auto tmp = environment.find("TMPDIR");
  const bool is_said = tmp != environment.end() && !tmp->second.empty();
  const std::string folder = (is_said ? tmp->second : "/tmp") + "/accel_logs-" + job_suffix;
  std::error_code failure;  // the folder of the launch is gone: making the other one will say so
  const auto whole = std::filesystem::absolute(folder, failure);  // workers may go elsewhere
  return failure ? folder : whole.lexically_normal().string();
}

Result<void> make_private_log_folder(const std::string& folder, Program program) {
  if (::mkdir(folder.c_str(), 0700) == 0) return {};
  return Error(ErrorCode::kLogUnwritable,
               "cannot make the folder " + folder + " for log files: " + errno_text(errno),
               "name a folder with " + spelled("log_dir", program) +
                   ", or set TMPDIR to one that you may write");
}

}  // namespace accel::launcher
