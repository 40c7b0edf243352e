// JobFolder: where the launchers of one SLURM job find what they need to trust one another.
//
//   FOLDER/           mode 0700, of the job's user, on a file system that all nodes see
//     ca.pem, ca-key.pem, launcher-<id>/   the job's own certificate authority (agent/tls/tls_authority.h)
//     token                                random, mode 0600
//     endpoints                            one ADDR:PORT a line, in the order to try them; written last: the others wait for it
//
// Whoever can read it can join the job and pose as its nodes: nobody but its user (and root) can. Made for one job by
// the launcher that hosts the coordinator, and removed by it at the end.
//
// Threads:  any one; every call may wait for the file system.
// Source:   docs/admin/security.md, "Inside SLURM".
#pragma once

#include <chrono>
#include <stop_token>
#include <string>
#include <vector>

#include <accel/result.h>

namespace accel::cluster {

class JobFolder {
 public:
  // Errors  kFileIo: it exists, or cannot be made; the remedy names --rdzv_dir. kTls.
  [[nodiscard]] static Result<JobFolder> make(const std::string& path);

  // Waits until it is complete. Errors  kRendezvousTimeout; kAuthentication: others may enter it, or it is not ours.
  [[nodiscard]] static Result<JobFolder> find(const std::string& path,
                                              std::chrono::seconds limit,
                                              const std::stop_token& stop);
  ~JobFolder();
  JobFolder(JobFolder&& other) noexcept;
  JobFolder& operator=(JobFolder&& other) noexcept;

  // Lets the others in. Errors  kFileIo.
  [[nodiscard]] Result<void> publish(const std::vector<std::string>& endpoints) const;

  // What the host published.
  [[nodiscard]] std::vector<std::string> endpoints() const;

  // A certificate for that node, made now. Gives its folder. Errors  kTls, kFileIo, kInvalidArgument.
  [[nodiscard]] Result<std::string> certificate(const std::string& node_id) const;

  [[nodiscard]] std::string token_file() const { return path_ + "/token"; }

 private:
  JobFolder(std::string path, bool is_ours) : path_(std::move(path)), is_ours_(is_ours) {}

  std::string path_;
  bool is_ours_ = false;
};

}  // namespace accel::cluster
