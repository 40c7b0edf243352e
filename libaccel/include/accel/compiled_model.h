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
// The package has its weights in it, as no parameters of the module: it is neither trained nor sharded, and train() is refused. One
// that was compiled with aot_inductor.package_constants_in_so=False takes them from CompiledModelOptions::weights. What a package
// says of its inputs are names and their number: of shapes the code knows nothing unless it checks them, which the first
// CompiledModel of a process asks for (it sets AOTI_RUNTIME_CHECK_INPUTS=1 where that is not set; docs/reference/process-effects.md).
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
  // A safetensors file with the constants that the package leaves out, by their names in Python. Empty: it leaves out none.
  std::filesystem::path weights;
  // Which code of a package with several.
  std::string model = "model";
};

// The module behind a CompiledModel.
class ACCEL_EXPORT CompiledModelImpl : public torch::nn::Module {
 public:
  // Errors  throws kCheckpointIncomplete: it is no such package, or is damaged; kUnsupported: it was compiled for another machine or
  // LibTorch, or takes the tensors of a graph (`accel export`); kSafetensorsMismatch naming constants that have no value or
  // another dtype; kInvalidArgument: there is no model of that name; kFileIo, kDiskFull.
  explicit CompiledModelImpl(const std::filesystem::path& path,
                             const CompiledModelOptions& options = {});
  ~CompiledModelImpl() override;

  // inputs: in Python's order, flat. Outputs derive nothing. One without a name of its own is called by its place, "0", "1".
  // Errors  throws kUnsupported: autograd records and an input requires a gradient; kInvalidArgument with the last line of what the
  // code threw: another number of inputs, a shape that it was not compiled for.
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

// What TORCH_MODULE makes, but for the call, as in accel/exported_model.h.
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
