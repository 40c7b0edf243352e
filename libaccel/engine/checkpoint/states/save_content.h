// SaveContent: what one rank writes of a checkpoint, collected from the objects before a byte is written.
//
// Four kinds of file: texts, tensor files and files of torch.save() that one rank writes whole, and shared files
// (shared_file.h), which are in the content of every rank.
//
// Threads:  collected by the thread that trains; then by any one.
#pragma once

#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include <accel/checkpoint.h>

#include "libaccel/engine/checkpoint/files/copy_space.h"
#include "libaccel/engine/checkpoint/files/object_file.h"
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
  std::vector<std::pair<std::string, ObjectFile>> objects;  // by file name
  std::vector<SharedFile> shared;                           // the same ones on every rank

  // Takes copies of all tensors: the objects may change afterwards.
  void copy_tensors(CopySpace& space);
};

// The names and tensors of models, as hooks get them.
[[nodiscard]] std::vector<ModelWeights> weights_of(const std::vector<torch::nn::Module*>& models);

struct ContentRequest {
  int rank = 0;
  bool is_leader = false;  // this rank writes what is the same on all ranks
  SaveStateOptions files = {};
};

// `weights`: what is saved of models. Errors  throws kUnsupported, and what the objects throw. Requires: nothing is divided where
// files of torch.save() are asked for.
[[nodiscard]] SaveContent collect_content(const CheckpointObjects& objects,
                                          const std::vector<ModelWeights>& weights,
                                          const ContentRequest& request);

}  // namespace accel::checkpoint
