#include "launcher/watch/operators_file.h"

#include <utility>

#include <unistd.h>

#include "runtime/supervisor/dashboard/dashboard_url.h"
#include "runtime/user_folders.h"

namespace accel::launcher {

OperatorsFile::OperatorsFile(std::string path) : path_(std::move(path)) {}

OperatorsFile::~OperatorsFile() {
  ::unlink(path_.c_str());
}

Result<std::unique_ptr<OperatorsFile>> OperatorsFile::write(const EnvMap& environment,
                                                            const std::string& job_suffix,
                                                            const std::string& address) {
  const std::string path =
      temporary_folder(environment) + "/accel_dashboard-" + job_suffix + ".url";
  if (auto written = supervisor::write_dashboard_url(path, address); !written)
    return std::move(written).error();
  return std::unique_ptr<OperatorsFile>(new OperatorsFile(path));
}

}  // namespace accel::launcher
