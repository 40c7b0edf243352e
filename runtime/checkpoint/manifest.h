// Manifest: accel_checkpoint.json, the file that makes a folder a checkpoint.
//
// It is written when every other file is on the device, and lists them with their sizes and hashes.
// A folder is a checkpoint when its manifest is there, matches its own digest, and names files of
// the sizes it says; everything else is an incomplete one.
//
// Threads:  pure functions, but for read_manifest() and check_sizes().
// Source:   docs/reference/checkpoint_format.md.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include <accel/result.h>

#include "runtime/checkpoint/file_ranges.h"
#include "runtime/checkpoint/hashed_file.h"

namespace accel::checkpoint {

inline constexpr std::string_view kManifestName = "accel_checkpoint.json";
// The newest that is read. Written is 2 for a checkpoint with ranges, which readers of version 1 do not know, else 1.
inline constexpr int kFormatVersion = 2;
[[nodiscard]] constexpr int version_to_write(bool has_ranges) {
  return has_ranges ? 2 : 1;
}

// Of a folder that HF Accelerate saved, which does not tell how many loaders there were.
inline constexpr std::int64_t kUnknownCount = -1;

// How many of each kind were saved; a load must bring as many.
struct ObjectCounts {
  std::int64_t models = 0;
  std::int64_t optimizers = 0;
  std::int64_t schedulers = 0;
  std::int64_t loaders = 0;
  std::int64_t custom = 0;
  bool has_scaler = false;
};

struct Manifest {
  int version = version_to_write(false);
  int world_size = 1;
  std::int64_t step = 0;
  std::int64_t generation = 0;
  std::int64_t iteration = 0;
  ObjectCounts objects;
  std::map<std::string, FileDigest> files;  // by name within the folder
  // Of files that several ranks wrote: sorted, without holes. Their FileDigest has no hash.
  std::map<std::string, std::vector<FileRange>> ranges;
  std::string digest;  // of its text; known once it was parsed
};

// Who writes it, for people: no reader looks at it.
struct WriterVersions {
  std::string_view accel;
  std::string_view torch;
};
[[nodiscard]] std::string encode_manifest(const Manifest& manifest, const WriterVersions& writer);

// Errors  kCheckpointVersion for a newer format (its other fields are not looked at),
//         kCheckpointIncomplete for everything else that is wrong with it.
[[nodiscard]] Result<Manifest> parse_manifest(std::string_view text);

// Reads and parses folder/accel_checkpoint.json. Errors as parse_manifest; both name the folder.
[[nodiscard]] Result<Manifest> read_manifest(const std::filesystem::path& folder);

// Compares the size of every file with the manifest.
// Errors  kCheckpointIncomplete: names the files that are missing or of another size, with both
// sizes.
[[nodiscard]] Result<void> check_sizes(const std::filesystem::path& folder,
                                       const Manifest& manifest);

// "00ff...": 16 digits.
[[nodiscard]] std::string hash_text(std::uint64_t hash);

}  // namespace accel::checkpoint
