// OperatorsFile: where the address of those who may stop a job is, when the launcher's stderr is no terminal.
//
// A batch system keeps what a launcher prints in a file that others may read. This one is the user's alone. It lies in the temporary
// folder of the machine, not among the logs: their file system may not answer when the job has ended.
//
// Threads:  a value; reads and writes a file.
#pragma once

#include <memory>
#include <string>

#include <accel/env_contract.h>
#include <accel/result.h>

namespace accel::launcher {

class OperatorsFile {
 public:
  // "/tmp/accel_dashboard-4242-1f2e3d4c.url", of mode 0600; in TMPDIR of `environment`. `job_suffix` makes it unique. Errors  kFileIo.
  [[nodiscard]] static Result<std::unique_ptr<OperatorsFile>> write(const EnvMap& environment,
                                                                    const std::string& job_suffix,
                                                                    const std::string& address);
  ~OperatorsFile();  // removes it
  OperatorsFile(const OperatorsFile&) = delete;
  OperatorsFile& operator=(const OperatorsFile&) = delete;

  [[nodiscard]] const std::string& path() const noexcept { return path_; }

 private:
  explicit OperatorsFile(std::string path);

  const std::string path_;
};

}  // namespace accel::launcher
