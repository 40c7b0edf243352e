// CompiledCode: machine code of AOTInductor, loaded into this process and run as one operator.
//
// Loading executes: the initialisers of a shared library run with the rights of the process. So code is loaded only where the
// program asks for it (ExportedModelOptions::compiled, accel/compiled_model.h).
//
// The library is written into a folder of its own, which others cannot enter, below TMPDIR or /tmp, is opened, and the folder is
// removed before the constructor returns: a process that is killed later leaves nothing behind. (Code for GPUs reads its kernels
// later, and keeps the folder until its end.)
//
// run() is the operator accel::run_compiled. Parameters that are sharded or paged are so brought in for it, as for any other
// operator (interception/parameter_operators.h), all that it takes at one time.
//
// Threads:  run() may be called by many at once; they wait for each other.
// Source:   torch/csrc/inductor/aoti_runner/model_container_runner.h of LibTorch 2.11.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include <ATen/core/Tensor.h>

#include "libaccel/exported/compiled_package.h"

namespace torch::inductor {
class AOTIModelContainerRunner;
}

namespace accel::exported {

[[nodiscard]] MachineFeatures this_machine();

class CompiledCode {
 public:
  // Throws kUnsupported: this machine cannot run it, or the system does not load it; kFileIo, kDiskFull.
  CompiledCode(const CompiledPackage& package, const std::string& source);
  CompiledCode(const CompiledCode&) = delete;
  CompiledCode& operator=(const CompiledCode&) = delete;
  ~CompiledCode();

  [[nodiscard]] const std::string& device() const noexcept { return device_; }
  // read, written: all inputs together are in this order, first those that are read. inputs[i] is at order[i] of the code.
  // Tensors are contiguous. An output that is None is an undefined tensor.
  // Throws what the operator throws.
  [[nodiscard]] std::vector<at::Tensor> run(std::vector<at::Tensor> read,
                                            std::vector<at::Tensor> written,
                                            const std::vector<std::int64_t>& order) const;

  // Constants by name that have no value in the code.
  [[nodiscard]] std::vector<std::string> missing_constants() const;
  // Once. The code uses their memory from now on.
  void use_constants(const std::map<std::string, at::Tensor>& constants);
  // How its inputs and outputs hang together, as torch.utils._pytree writes it; empty: not known.
  [[nodiscard]] std::string outputs_tree() const;

 private:
  class Folder;
  void load(const std::filesystem::path& library, const std::string& source);

  std::string device_;
  std::unique_ptr<Folder> folder_;
  std::unordered_map<std::string, at::Tensor> constants_;  // the runner has their addresses
  std::unique_ptr<torch::inductor::AOTIModelContainerRunner> runner_;
};

}  // namespace accel::exported
