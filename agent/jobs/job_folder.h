// JobFolder: the records of this node's jobs, for the agent that comes after this one.
//
//   <state_dir>/jobs/key          32 random bytes: what the tokens of shims are made of
//   <state_dir>/jobs/<name>.job     one sealed JobRecord (supervisor/sealed_file.h)
//   <state_dir>/jobs/<name>.damaged a record that could not be read, kept to be looked at
//
// <name> is "<uid>@<id>", or "<id>" of the agent's own user: ids are a user's own.
//
// All of it is the agent's alone (0700, 0600). The token that a shim wants from its next owner, and the instance that its
// processes carry, are derived from the key and that name, so that a job whose record is damaged can be taken over
// all the same, and its processes told from those of another user's, or another agent's, job of the same id.
//
// Threads:  the one that runs the io_context. Small local files, not synced (see sealed_file.h).
#pragma once

#include <optional>
#include <string>
#include <vector>

#include <sys/types.h>

#include <accel/result.h>

#include "accel/v1/record.pb.h"
#include "runtime/unique_fd.h"

namespace accel::agent {

// The name of a job of this user.
[[nodiscard]] std::string record_name(uid_t user, const std::string& job_id);
// The name of a job that has a record. Builds before this one knew ids alone.
[[nodiscard]] std::string record_name(const v1::JobRecord& record);

class JobFolder {
 public:
  // Makes folder and key when they are missing. Errors  kFileIo, kShimState.
  [[nodiscard]] static Result<JobFolder> open(const std::string& path);

  // What was wrong with the key, which was then made anew: jobs that run now cannot be taken over. Empty: nothing.
  [[nodiscard]] const std::string& complaint() const { return complaint_; }

  // Replaces the record of its job. Errors  kShimState.
  [[nodiscard]] Result<void> write(const v1::JobRecord& record) const;
  void remove(const std::string& name) const;

  struct Damaged {
    std::string name;
    std::string job_id;
    std::optional<uid_t> user;  // of its name
    Error error;
  };
  struct Contents {
    std::vector<v1::JobRecord> records;  // by the time of their start
    std::vector<Damaged> damaged;        // now renamed
  };
  [[nodiscard]] Contents read_all() const;

  // What the shim of this job wants to hear from a new owner; 64 hexadecimal digits.
  [[nodiscard]] std::string token_for(const std::string& name) const;

  // ACCEL_JOB_INSTANCE of what this job starts; 32 hexadecimal digits.
  [[nodiscard]] std::string instance_for(const std::string& name) const;

 private:
  [[nodiscard]] std::string derive(const std::string& text) const;

  JobFolder(UniqueFd folder, std::string path, std::string key)
      : folder_(std::move(folder)), path_(std::move(path)), key_(std::move(key)) {}

  [[nodiscard]] Result<v1::JobRecord> read(const std::string& name) const;

  UniqueFd folder_;
  std::string path_;
  std::string key_;
  std::string complaint_;
};

}  // namespace accel::agent
