// LogReader: reads what the workers of a job wrote, generation after generation.
//
// The files belong to the job's user, and the agent may be root: so every name is resolved below the user's own log
// folder without following a link, and only a plain file that belongs to that user and has no second name is read.
//
// Threads:  any one at a time; reading may block.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include <sys/types.h>

#include "accel/v1/control.pb.h"
#include "runtime/unique_fd.h"

namespace accel::agent {

class LogReader {
 public:
  static constexpr std::size_t kChunkBytes = 64 * 1024;

  struct Source {
    std::string folder;  // of the user: LogLayout's log_dir
    std::string job_id;
    uid_t owner = 0;
    std::vector<int> local_ranks;
    bool out = true;
    bool err = true;
    std::uint64_t from = 0;  // bytes to skip of each file of the first generation read
    int first_generation = 0;
    std::vector<v1::LogPlace> resume = {};  // where single streams go on instead
  };
  explicit LogReader(Source source);

  // The next bytes of any of the streams, in turn; std::nullopt when all that is there was given. Files of a generation
  // before `generation` are read to their end first.
  [[nodiscard]] std::optional<v1::LogChunk> next(int generation);

 private:
  struct Cursor {
    int local_rank = 0;
    bool is_err = false;
    int generation = 0;
    std::uint64_t offset = 0;
    UniqueFd file;
  };

  std::optional<v1::LogChunk> read(Cursor& cursor);
  UniqueFd open(const Cursor& cursor) const;

  Source source_;
  std::vector<Cursor> cursors_;
  std::size_t turn_ = 0;
};

}  // namespace accel::agent
