#include "launcher/workers/log_folder.h"

#include <cerrno>

#include <sys/stat.h>

#include "runtime/user_folders.h"

namespace accel::launcher {

std::string private_log_folder(const EnvMap& environment, const std::string& job_suffix) {
  return temporary_folder(environment) + "/accel_logs-" + job_suffix;
}

Result<void> make_private_log_folder(const std::string& folder, Program program) {
  if (::mkdir(folder.c_str(), 0700) == 0) return {};
  return Error(ErrorCode::kLogUnwritable,
               "cannot make the folder " + folder + " for log files: " + errno_text(errno),
               "name a folder with " + spelled("log_dir", program) +
                   ", or set TMPDIR to one that you may write");
}

}  // namespace accel::launcher
