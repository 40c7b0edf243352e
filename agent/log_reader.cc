#include "agent/log_reader.h"

#include <algorithm>
#include <cerrno>
#include <limits>

#include <fcntl.h>
#include <linux/openat2.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "runtime/supervisor/log_layout.h"

namespace accel::agent {

constexpr std::uint64_t kMaxGeneration = 1'000'000'000;

using supervisor::LogLayout;
using supervisor::Stream;

LogReader::LogReader(Source source) : source_(std::move(source)) {
  for (const int rank : source_.local_ranks) {
    for (const bool is_err : {false, true}) {
      if (!(is_err ? source_.err : source_.out)) continue;
      Cursor cursor;
      cursor.local_rank = rank;
      cursor.is_err = is_err;
      cursor.generation = source_.first_generation;
      cursor.offset = source_.from;
      for (const v1::LogPlace& place : source_.resume) {
        if (static_cast<int>(place.rank()) != rank || (place.stream() == v1::STREAM_ERR) != is_err)
          continue;
        cursor.generation =
            static_cast<int>(std::min<std::uint64_t>(place.generation(), kMaxGeneration));
        cursor.offset = std::min<std::uint64_t>(place.offset(), std::numeric_limits<off_t>::max());
      }
      cursors_.push_back(std::move(cursor));
    }
  }
}

UniqueFd LogReader::open(const Cursor& cursor) const {
  const UniqueFd folder(
      ::open(source_.folder.c_str(), O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  const std::string path =
      LogLayout("", source_.job_id)
          .stream_file(
              cursor.local_rank, cursor.generation, cursor.is_err ? Stream::kErr : Stream::kOut)
          .string();
  open_how how{};
  how.flags = O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY;
  how.resolve = RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS | RESOLVE_NO_MAGICLINKS;
  UniqueFd file(
      static_cast<int>(::syscall(SYS_openat2, folder.get(), path.c_str(), &how, sizeof how)));
  struct stat info {};
  if (!file || ::fstat(file.get(), &info) != 0) return {};
  const bool is_trusted =
      S_ISREG(info.st_mode) && info.st_uid == source_.owner && info.st_nlink == 1;
  return is_trusted ? std::move(file) : UniqueFd();
}

std::optional<v1::LogChunk> LogReader::read(Cursor& cursor) {
  if (!cursor.file) cursor.file = open(cursor);
  if (!cursor.file) return std::nullopt;
  std::string data(kChunkBytes, '\0');
  ssize_t got = 0;
  do {
    got = ::pread(cursor.file.get(), data.data(), data.size(), static_cast<off_t>(cursor.offset));
  } while (got < 0 && errno == EINTR);
  if (got <= 0) return std::nullopt;
  data.resize(static_cast<std::size_t>(got));
  v1::LogChunk chunk;
  chunk.set_rank(static_cast<std::uint32_t>(cursor.local_rank));
  chunk.set_stream(cursor.is_err ? v1::STREAM_ERR : v1::STREAM_OUT);
  chunk.set_offset(cursor.offset);
  chunk.set_generation(static_cast<std::uint64_t>(cursor.generation));
  chunk.set_data(std::move(data));
  cursor.offset += static_cast<std::uint64_t>(got);
  return chunk;
}

std::optional<v1::LogChunk> LogReader::next(int generation) {
  for (std::size_t tried = 0; tried < cursors_.size(); ++tried) {
    Cursor& cursor = cursors_[turn_];
    turn_ = (turn_ + 1) % cursors_.size();
    auto chunk = read(cursor);
    while (!chunk && cursor.generation < generation) {
      ++cursor.generation;
      cursor.offset = 0;
      cursor.file.reset();
      chunk = read(cursor);
    }
    if (chunk) return chunk;
  }
  return std::nullopt;
}

}  // namespace accel::agent
