#include "libaccel/engine/checkpoint/files/checkpoint_source.h"

#include <utility>

#include <accel/error.h>
#include <accel/result.h>

namespace accel::checkpoint {

FolderSource::FolderSource(std::filesystem::path folder)
    : folder_(std::move(folder)), manifest_(or_throw(read_manifest(folder_))) {
  or_throw(check_sizes(folder_, manifest_));
}

bool FolderSource::has(const std::string& file) const {
  return manifest_.files.contains(file);
}

LoadedParts FolderSource::parts(const std::string& file,
                                const PartsWanted& wanted,
                                LoadedMemory memory) {
  const FileDigest expected = expected_digest(file);
  if (const auto ranges = manifest_.ranges.find(file); ranges != manifest_.ranges.end())
    return read_ranged_file(folder_ / file, ranges->second, wanted, memory);
  HashedParts read;
  try {
    read = read_hashed_file(folder_ / file, wanted, memory);
  } catch (const Error& error) {
    // Its size is right, so its content is not what was saved.
    if (error.code() != ErrorCode::kSafetensorsHeader) throw;
    throw Error(ErrorCode::kCheckpointIncomplete,
                (folder_ / file).string() + " is damaged: " + error.message());
  }
  verify(file, expected, read.digest);
  return std::move(read.loaded);
}

void FolderSource::check(const std::string& file) const {
  const FileDigest expected = expected_digest(file);
  verify(file, expected, InputFile(folder_ / file).digest_of_rest());
}

std::string FolderSource::text(const std::string& file) {
  const FileDigest expected = expected_digest(file);
  TextFile read = read_text_file(folder_ / file);
  verify(file, expected, read.digest);
  return std::move(read.text);
}

FileDigest FolderSource::expected_digest(const std::string& file) const {
  const auto found = manifest_.files.find(file);
  if (found != manifest_.files.end()) return found->second;
  throw Error(ErrorCode::kCheckpointMismatch, folder_.string() + " was saved without " + file);
}

void FolderSource::verify(const std::string& file,
                          const FileDigest& expected,
                          const FileDigest& found) const {
  if (found == expected) return;
  throw Error(ErrorCode::kCheckpointIncomplete,
              (folder_ / file).string() + " is damaged: its XXH3 hash is " + hash_text(found.xxh3) +
                  ", the manifest says " + hash_text(expected.xxh3));
}

}  // namespace accel::checkpoint
