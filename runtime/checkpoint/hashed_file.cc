// Files that are hashed while they are written or read.

#include "runtime/checkpoint/hashed_file.h"

#include <algorithm>
#include <cerrno>
#include <utility>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include <accel/error.h>

#include "runtime/checkpoint/xxh3.h"

namespace accel::checkpoint {
namespace {

constexpr size_t kGatherBytes = 1 << 20;
constexpr size_t kWriteBytes = 4 << 20;

[[noreturn]] void fail_to(const std::string& what, const std::filesystem::path& path) {
  throw Error(ErrorCode::kFileIo,
              "cannot " + what + " " + path.string() + ": " + errno_text(errno));
}

}  // namespace

struct RunningHash::State {
  XXH3_state_t xxh3;
};

RunningHash::RunningHash() : state_(std::make_unique<State>()) {
  XXH3_64bits_reset(&state_->xxh3);
}

RunningHash::~RunningHash() = default;

void RunningHash::update(std::span<const std::byte> bytes) {
  xxh3_functions().update(&state_->xxh3, bytes.data(), bytes.size());
  bytes_ += bytes.size();
}

FileDigest RunningHash::digest() const {
  return {bytes_, XXH3_64bits_digest(&state_->xxh3)};
}

std::uint64_t xxh3(std::span<const std::byte> bytes) {
  return xxh3_functions().hash(bytes.data(), bytes.size());
}

OutputFile::OutputFile(FileSystem& file_system, std::filesystem::path path)
    : file_system_(file_system), path_(std::move(path)), fd_(file_system.create_file(path_)) {
  gathered_.reserve(kGatherBytes);
}

void OutputFile::append(std::span<const std::byte> bytes) {
  // Large ones in pieces: the device begins with the first while the next is copied.
  while (bytes.size() >= kGatherBytes) {
    const std::span piece = bytes.first(std::min(bytes.size(), kWriteBytes));
    flush();
    hash_.update(piece);
    write(piece);
    bytes = bytes.subspan(piece.size());
  }
  hash_.update(bytes);
  if (gathered_.size() + bytes.size() > kGatherBytes) flush();
  gathered_.insert(gathered_.end(), bytes.begin(), bytes.end());
}

void OutputFile::write(std::span<const std::byte> bytes) {
  file_system_.write(fd_.get(), bytes, path_);
  file_system_.start_write_out(fd_.get(), written_, bytes.size());
  written_ += bytes.size();
}

void OutputFile::flush() {
  if (!gathered_.empty()) write(gathered_);
  gathered_.clear();
}

FileDigest OutputFile::finish() {
  UnsyncedFiles unsynced;
  const FileDigest digest = finish(unsynced);
  unsynced.sync(file_system_);
  return digest;
}

FileDigest OutputFile::finish(UnsyncedFiles& unsynced) {
  flush();
  unsynced.add(std::move(fd_), path_);
  return hash_.digest();
}

InputFile::InputFile(std::filesystem::path path)
    : path_(std::move(path)), fd_(::open(path_.c_str(), O_RDONLY | O_CLOEXEC)) {
  if (!fd_) fail_to("open", path_);
  struct stat status {};
  if (::fstat(fd_.get(), &status) != 0) fail_to("stat", path_);
  size_ = static_cast<std::uint64_t>(status.st_size);
}

void InputFile::read(std::span<std::byte> out) {
  while (!out.empty()) {
    // In pieces that are hashed while they are in the cache.
    const ssize_t n = ::read(fd_.get(), out.data(), std::min(out.size(), kCachedBytes));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) fail_to("read", path_);
    if (n == 0) {
      throw Error(ErrorCode::kFileIo, path_.string() + " became shorter while it was read");
    }
    hash_.update(out.first(static_cast<size_t>(n)));
    out = out.subspan(static_cast<size_t>(n));
  }
}

FileDigest InputFile::digest_of_rest() {
  std::vector<std::byte> piece(kGatherBytes);
  for (std::uint64_t left = size_ - digest().bytes; left > 0;) {
    const size_t bytes = std::min<std::uint64_t>(left, piece.size());
    read(std::span(piece).first(bytes));
    left -= bytes;
  }
  return digest();
}

TextFile read_text_file(const std::filesystem::path& path, std::uint64_t limit) {
  InputFile file(path);
  if (file.size() > limit) {
    throw Error(ErrorCode::kFileIo,
                path.string() + " has " + std::to_string(file.size()) + " bytes; at most " +
                    std::to_string(limit) + " are read");
  }
  std::string text(file.size(), '\0');
  file.read(std::as_writable_bytes(std::span(text)));
  return {std::move(text), file.digest()};
}

FileDigest write_text_file(FileSystem& file_system,
                           const std::filesystem::path& path,
                           std::string_view text) {
  OutputFile file(file_system, path);
  file.append(text);
  return file.finish();
}

FileDigest write_text_file(FileSystem& file_system,
                           const std::filesystem::path& path,
                           std::string_view text,
                           UnsyncedFiles& unsynced) {
  OutputFile file(file_system, path);
  file.append(text);
  return file.finish(unsynced);
}

}  // namespace accel::checkpoint
