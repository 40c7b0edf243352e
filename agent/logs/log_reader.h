// LogReader: reads what the workers of a job wrote, generation after generation.
//
// The files belong to the job's user, and the agent may be root: so every name is resolved below the user's own log
// folder without following a link, and only a plain file that belongs to that user and has no second name is read.
//
// Offsets count the bytes of a stream, over all files that it was rotated into. A place whose file is gone already is
// told by a chunk that has no data but `dropped`, and reading goes on with the oldest byte that is left.
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

// Of the ranks that a request names (none: all), those from `first` on, of `count`, as local ranks: each once, in order.
[[nodiscard]] std::vector<int> local_ranks(
    const google::protobuf::RepeatedField<std::uint32_t>& wanted, int first, int count);

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
    std::uint64_t from = 0;  // bytes to skip of each stream of the first generation read
    int first_generation = 0;
    std::vector<v1::LogPlace> resume = {};  // where single streams go on instead
  };
  explicit LogReader(Source source);

  // The next bytes of any of the streams, in turn; std::nullopt when all that is there was given. Files of a generation
  // before `generation` are read to their end first.
  [[nodiscard]] std::optional<v1::LogChunk> next(int generation);

  // The file that the first stream of the source goes on in; empty: there is none that may be read.
  [[nodiscard]] UniqueFd open_newest() const;

 private:
  struct Cursor {
    int local_rank = 0;
    bool is_err = false;
    int generation = 0;
    std::uint64_t offset = 0;
    UniqueFd file;
    std::uint64_t start = 0;    // of the file, in the stream
    bool is_full = false;       // a rotated one: nothing more comes into it
    std::uint64_t dropped = 0;  // gone before `offset`, and not told yet
  };

  std::optional<v1::LogChunk> read(Cursor& cursor);
  static v1::LogChunk make_chunk(Cursor& cursor, std::string data);
  [[nodiscard]] std::string path_of(const Cursor& cursor) const;
  bool find_file(Cursor& cursor) const;
  static void take(Cursor& cursor, UniqueFd file, std::uint64_t start, bool is_full);
  [[nodiscard]] bool is_left_behind(const Cursor& cursor) const;
  [[nodiscard]] UniqueFd open_folder(const Cursor& cursor) const;
  [[nodiscard]] UniqueFd open_file(int folder, const std::string& name) const;

  Source source_;
  std::vector<Cursor> cursors_;
  std::size_t turn_ = 0;
};

}  // namespace accel::agent
