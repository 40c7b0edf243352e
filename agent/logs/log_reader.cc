#include "agent/logs/log_reader.h"

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <limits>
#include <memory>
#include <utility>

#include <dirent.h>
#include <fcntl.h>
#include <linux/openat2.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "runtime/supervisor/logs/log_layout.h"

namespace accel::agent {

namespace {

using supervisor::LogLayout;
using supervisor::Stream;

constexpr std::uint64_t kMaxGeneration = 1'000'000'000;
constexpr int kMostAttempts = 8;       // while files are rotated under the reader
constexpr int kMostEntries = 100'000;  // of a folder that is looked through

UniqueFd open_beneath(int folder, const std::string& path, unsigned flags) {
  open_how how{};
  how.flags = flags;
  how.resolve = RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS | RESOLVE_NO_MAGICLINKS;
  return UniqueFd(static_cast<int>(::syscall(SYS_openat2, folder, path.c_str(), &how, sizeof how)));
}

std::uint64_t size_of(int file) {
  struct stat info {};
  return ::fstat(file, &info) == 0 ? static_cast<std::uint64_t>(info.st_size) : 0;
}

// Whether this open file is what has this name now.
bool is_at(int file, int folder, const std::string& name) {
  struct stat ours {};
  struct stat named {};
  return ::fstat(file, &ours) == 0 &&
         ::fstatat(folder, name.c_str(), &named, AT_SYMLINK_NOFOLLOW) == 0 &&
         ours.st_dev == named.st_dev && ours.st_ino == named.st_ino;
}

// Where the rotated files of `name` begin, in order.
std::vector<std::uint64_t> rotated_starts(int folder, const std::string& name) {
  std::vector<std::uint64_t> starts;
  UniqueFd own(
      ::openat(folder, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC));  // with a position of its own
  const std::unique_ptr<DIR, int (*)(DIR*)> entries(::fdopendir(own.get()), ::closedir);
  if (!entries) return starts;
  (void)own.release();  // closedir() closes it
  for (int i = 0; i < kMostEntries; ++i) {
    const dirent* entry = ::readdir(entries.get());
    if (entry == nullptr) break;
    if (const auto start = supervisor::start_of_rotated(name, entry->d_name))
      starts.push_back(*start);
  }
  std::sort(starts.begin(), starts.end());
  return starts;
}

// What is there from `position` on, at most a chunk.
std::string read_at(int file, std::uint64_t position) {
  std::string data(LogReader::kChunkBytes, '\0');
  ssize_t got = 0;
  do {
    got = ::pread(file, data.data(), data.size(), static_cast<off_t>(position));
  } while (got < 0 && errno == EINTR);
  data.resize(got > 0 ? static_cast<std::size_t>(got) : 0);
  return data;
}

}  // namespace

std::vector<int> local_ranks(const google::protobuf::RepeatedField<std::uint32_t>& wanted,
                             int first,
                             int count) {
  std::vector<bool> is_wanted(static_cast<std::size_t>(count), wanted.empty());
  for (const std::uint32_t rank : wanted) {
    const std::int64_t local = static_cast<std::int64_t>(rank) - first;
    if (local >= 0 && local < count) is_wanted[static_cast<std::size_t>(local)] = true;
  }
  std::vector<int> ranks;
  for (int rank = 0; rank < count; ++rank) {
    if (is_wanted[static_cast<std::size_t>(rank)]) ranks.push_back(rank);
  }
  return ranks;
}

LogReader::LogReader(Source source) : source_(std::move(source)) {
  // The last one counts of several for a stream.
  std::map<std::pair<std::uint32_t, bool>, const v1::LogPlace*> places;
  for (const v1::LogPlace& place : source_.resume)
    places[{place.rank(), place.stream() == v1::STREAM_ERR}] = &place;
  for (const int rank : source_.local_ranks) {
    for (const bool is_err : {false, true}) {
      if (!(is_err ? source_.err : source_.out)) continue;
      Cursor cursor;
      cursor.local_rank = rank;
      cursor.is_err = is_err;
      cursor.generation = source_.first_generation;
      cursor.offset = source_.from;
      const auto place = places.find({static_cast<std::uint32_t>(rank), is_err});
      if (place != places.end()) {
        cursor.generation =
            static_cast<int>(std::min<std::uint64_t>(place->second->generation(), kMaxGeneration));
        cursor.offset =
            std::min<std::uint64_t>(place->second->offset(), std::numeric_limits<off_t>::max());
      }
      cursors_.push_back(std::move(cursor));
    }
  }
}

std::string LogReader::path_of(const Cursor& cursor) const {
  return LogLayout("", source_.job_id)
      .stream_file(
          cursor.local_rank, cursor.generation, cursor.is_err ? Stream::kErr : Stream::kOut)
      .string();
}

UniqueFd LogReader::open_folder(const Cursor& cursor) const {
  const UniqueFd top(::open(source_.folder.c_str(), O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  return open_beneath(top.get(),
                      std::filesystem::path(path_of(cursor)).parent_path(),
                      O_RDONLY | O_DIRECTORY | O_CLOEXEC);
}

UniqueFd LogReader::open_file(int folder, const std::string& name) const {
  UniqueFd file = open_beneath(folder, name, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
  struct stat info {};
  if (!file || ::fstat(file.get(), &info) != 0) return {};
  const bool is_trusted =
      S_ISREG(info.st_mode) && info.st_uid == source_.owner && info.st_nlink == 1;
  return is_trusted ? std::move(file) : UniqueFd();
}

UniqueFd LogReader::open_newest() const {
  if (cursors_.empty()) return {};
  const UniqueFd folder = open_folder(cursors_.front());
  if (!folder) return {};
  return open_file(folder.get(), std::filesystem::path(path_of(cursors_.front())).filename());
}

void LogReader::take(Cursor& cursor, UniqueFd file, std::uint64_t start, bool is_full) {
  if (cursor.offset < start) {
    cursor.dropped += start - cursor.offset;
    cursor.offset = start;
  }
  cursor.file = std::move(file);
  cursor.start = start;
  cursor.is_full = is_full;
}

// Opens the file that has the cursor's next byte, or the first one behind it when that is gone.
bool LogReader::find_file(Cursor& cursor) const {
  const std::string name = std::filesystem::path(path_of(cursor)).filename();
  const UniqueFd folder = open_folder(cursor);
  if (!folder) return false;
  for (int attempt = 0; attempt < kMostAttempts; ++attempt) {
    UniqueFd newest = open_file(folder.get(), name);
    const std::vector<std::uint64_t> starts = rotated_starts(folder.get(), name);
    // Rotated since it was opened: is it in the list?
    if (newest && !is_at(newest.get(), folder.get(), name)) continue;

    std::uint64_t end = 0;  // of the files before, in the stream
    for (const std::uint64_t start : starts) {
      UniqueFd file = open_file(folder.get(), supervisor::rotated_name(name, start));
      end = start + size_of(file.get());
      if (!file || cursor.offset >= end) continue;  // without: deleted since, or not to be trusted
      take(cursor, std::move(file), start, /*is_full=*/true);
      return true;
    }
    if (!newest) return false;
    // Deleted by somebody and made anew: it goes on where the deleted one began.
    const bool is_anew = cursor.file && !cursor.is_full && cursor.start == end &&
                         !is_at(cursor.file.get(), folder.get(), name);
    if (is_anew) cursor.offset = end;
    take(cursor, std::move(newest), end, /*is_full=*/false);
    return true;
  }
  return false;
}

// Whether the open file has no more to come. Asked before reading: what is read then is all of it.
bool LogReader::is_left_behind(const Cursor& cursor) const {
  if (!cursor.file || cursor.is_full) return true;
  return !is_at(cursor.file.get(), AT_FDCWD, source_.folder + "/" + path_of(cursor));
}

std::optional<v1::LogChunk> LogReader::read(Cursor& cursor) {
  for (int attempt = 0; attempt < kMostAttempts; ++attempt) {
    const bool is_left = is_left_behind(cursor);
    std::string data = cursor.file ? read_at(cursor.file.get(), cursor.offset - cursor.start) : "";
    if (!data.empty()) return make_chunk(cursor, std::move(data));
    if (!is_left || !find_file(cursor)) return std::nullopt;
    if (cursor.dropped > 0) return make_chunk(cursor, "");
  }
  return std::nullopt;
}

v1::LogChunk LogReader::make_chunk(Cursor& cursor, std::string data) {
  v1::LogChunk chunk;
  chunk.set_rank(static_cast<std::uint32_t>(cursor.local_rank));
  chunk.set_stream(cursor.is_err ? v1::STREAM_ERR : v1::STREAM_OUT);
  chunk.set_offset(cursor.offset);
  chunk.set_dropped(std::exchange(cursor.dropped, 0));
  chunk.set_generation(static_cast<std::uint64_t>(cursor.generation));
  cursor.offset += data.size();
  chunk.set_data(std::move(data));
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
      cursor.dropped = 0;
      chunk = read(cursor);
    }
    if (chunk) return chunk;
  }
  return std::nullopt;
}

}  // namespace accel::agent
