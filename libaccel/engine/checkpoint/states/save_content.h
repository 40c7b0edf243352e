// SaveContent: what one rank writes of a checkpoint, collected from the objects before a byte is written.
//
// Three kinds of file: texts and tensor files that one rank writes whole, and shared files (shared_file.h), which are in
// the content of every rank.
//
// Threads:  collected by the thread that trains; then by any one.
#pragma once

#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include <accel/checkpoint.h>

#include "libaccel/engine/checkpoint/files/copy_space.h"
#include "libaccel/engine/checkpoint/files/shared_file.h"

namespace accel::checkpoint {

struct SaveContent {
  struct TensorFile {
    std::string name;
    safetensors::TensorMap tensors;
    safetensors::Metadata metadata;
  };
  std::vector<std::pair<std::string, std::string>> texts;  // by file name
  std::vector<TensorFile> files;
  std::vector<SharedFile> shared;  // the same ones on every rank

  // Takes copies of all tensors: the objects may change afterwards.
  void copy_tensors(CopySpace& space);
};

// is_leader: this rank writes what is the same on all ranks. Errors  throws kUnsupported, and what the objects throw.
[[nodiscard]] SaveContent collect_content(const CheckpointObjects& objects,
                                          int rank,
                                          bool is_leader);

}  // namespace accel::checkpoint
