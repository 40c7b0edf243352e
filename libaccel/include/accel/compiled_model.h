// CompiledModel: a package of AOTInductor, as a torch::nn module for evaluation.
//
//   accel::CompiledModel net("net.pt2");                  // torch._inductor.aoti_compile_and_package(program, package_path="net.pt2")
//   auto model = accelerator.prepare(net);
//   const torch::NoGradGuard no_grad;
//   const at::Tensor logits = model(input_ids)["logits"];
//
// A package is a program: making a CompiledModel runs machine code of the file with the rights of the process. Load only files from
// people whose programs you would run. A file of `accel export --compile` is one for ExportedModel
// (ExportedModelOptions::compiled), which also trains, compares the code with its graph and checks each input.
//
// The package contains its weights, but the module has no parameters. So it can neither be trained nor sharded, and train() is refused.
// A package compiled with aot_inductor.package_constants_in_so=False takes its weights from CompiledModelOptions::weights. A package
// has the names and the number of its inputs, but not their shapes. The code checks shapes only with AOTI_RUNTIME_CHECK_INPUTS=1. The
// first CompiledModel of a process sets this variable if it is not set (docs/reference/process-effects.md).
//
// Threads:  any number may run forwards at once; they wait for each other.
// Source:   torch/csrc/inductor/aoti_runner of torch 2.11; tests/peer/compiled_models.py.
#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

#include <accel/export.h>
#include <accel/exported_model.h>

namespace accel {

namespace exported {
class CompiledCode;
}

struct CompiledModelOptions {
  // A safetensors file with the constants that the package lacks, by their names in Python. Empty: it has all.
  std::filesystem::path weights;
  // Selects the code in a package with several.
  std::string model = "model";
};

// The module behind a CompiledModel.
class ACCEL_EXPORT CompiledModelImpl : public torch::nn::Module {
 public:
  // Errors  throws kCheckpointIncomplete: not such a package, or damaged; kUnsupported: compiled for another machine or LibTorch, or
  // code that takes the tensors of a graph (`accel export`); kSafetensorsMismatch naming constants without a value or with another
  // dtype; kInvalidArgument: no model of that name; kFileIo, kDiskFull.
  explicit CompiledModelImpl(const std::filesystem::path& path,
                             const CompiledModelOptions& options = {});
  ~CompiledModelImpl() override;

  // inputs: in Python's order, flat. Outputs have no gradient. An output without a name has its position as the name: "0", "1".
  // Errors  throws kUnsupported: autograd records and an input requires a gradient; kInvalidArgument with the last line of the code's
  // message: another number of inputs, a shape that the code was not compiled for.
  ExportedOutputs forward(std::vector<at::Tensor> inputs);
  template <typename... Args>
  requires(std::is_convertible_v<Args, at::Tensor>&&...) ExportedOutputs forward(Args&&... args) {
    return forward(std::vector<at::Tensor>{at::Tensor(std::forward<Args>(args))...});
  }

  // Throws kUnsupported for true.
  void train(bool on = true) override;

 private:
  std::string source_;
  std::vector<std::string> outputs_;
  std::unique_ptr<exported::CompiledCode> code_;
};

// Like TORCH_MODULE, except for the call; see accel/exported_model.h.
class CompiledModel : public torch::nn::ModuleHolder<CompiledModelImpl> {
 public:
  using torch::nn::ModuleHolder<CompiledModelImpl>::ModuleHolder;
  explicit CompiledModel(const std::filesystem::path& path,
                         const CompiledModelOptions& options = {})
      : torch::nn::ModuleHolder<CompiledModelImpl>(
            std::make_shared<CompiledModelImpl>(path, options)) {}

  template <typename... Args>
  ExportedOutputs operator()(Args&&... args) {
    return (*this)->forward(std::forward<Args>(args)...);
  }
};

}  // namespace accel
