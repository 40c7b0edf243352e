// SaveContent: what one rank writes of a checkpoint, collected from the objects before a byte is written.
//
// Four kinds of file: texts, tensor files and files of torch.save() that one rank writes whole, and shared files
// (shared_file.h), which are in the content of every rank.
//
// Threads:  collected by the thread that trains; then by any one.
#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include <accel/checkpoint.h>

#include "libaccel/engine/checkpoint/files/copy_space.h"
#include "libaccel/engine/checkpoint/files/object_file.h"
#include "libaccel/engine/checkpoint/files/shared_file.h"
#include "libaccel/interception/state_staging.h"

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

  // Parameters of models and states of optimizers, those of them that steps and loads alone write to.
  struct StepState {
    std::string name;  // for messages
    at::Tensor values;
    at::Tensor parameter;  // undefined, or what `values` are a part of
  };
  std::vector<StepState> step_states;

  // Takes copies of all tensors: the objects may change afterwards. Lets go of the objects' own tensors, as the next one does.
  void copy_tensors(CopySpace& space);
  // The same, but for step_states: they are copied by who calls copy() of what is returned, or before they are written to.
  [[nodiscard]] std::unique_ptr<StateStaging> stage_tensors(CopySpace& space);

 private:
  [[nodiscard]] std::vector<at::Tensor*> tensors();
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
