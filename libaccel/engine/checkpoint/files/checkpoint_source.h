// CheckpointSource: where a load takes a checkpoint's files from: a folder, or memory (memory_image.h).
//
// Threads:  one at a time.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "libaccel/engine/checkpoint/files/shared_file.h"
#include "runtime/checkpoint/manifest.h"

namespace accel::checkpoint {

class CheckpointSource {
 public:
  virtual ~CheckpointSource() = default;

  // What messages call it; name() / file for one of its files.
  [[nodiscard]] virtual const std::filesystem::path& name() const noexcept = 0;
  [[nodiscard]] virtual const Manifest& manifest() const noexcept = 0;
  [[nodiscard]] virtual bool has(const std::string& file) const = 0;
  // What is read has been verified. Errors of both  kCheckpointMismatch when it was saved without that file,
  // kCheckpointIncomplete when it is damaged, kFileIo.
  [[nodiscard]] virtual std::string text(const std::string& file) = 0;
  // memory: kMapped where the caller copies what it keeps; a source may give memory of its own all the same.
  [[nodiscard]] virtual LoadedParts parts(const std::string& file,
                                          const PartsWanted& wanted,
                                          LoadedMemory memory) = 0;
  // What the user should know of it: whole sentences without a newline.
  [[nodiscard]] virtual std::vector<std::string> notices() const { return {}; }
};

class FolderSource final : public CheckpointSource {
 public:
  // Reads the manifest and compares the sizes of all files with it. Errors as read_manifest(), check_sizes().
  explicit FolderSource(std::filesystem::path folder);

  [[nodiscard]] const std::filesystem::path& name() const noexcept override { return folder_; }
  [[nodiscard]] const Manifest& manifest() const noexcept override { return manifest_; }
  [[nodiscard]] bool has(const std::string& file) const override;
  // Reads a file that is in no format of ours and compares it with the manifest. Errors as text().
  void check(const std::string& file) const;
  [[nodiscard]] std::string text(const std::string& file) override;
  [[nodiscard]] LoadedParts parts(const std::string& file,
                                  const PartsWanted& wanted,
                                  LoadedMemory memory) override;

 private:
  [[nodiscard]] FileDigest expected_digest(const std::string& file) const;
  void verify(const std::string& file, const FileDigest& expected, const FileDigest& found) const;

  std::filesystem::path folder_;
  Manifest manifest_;
};

}  // namespace accel::checkpoint
