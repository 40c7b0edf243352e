// ExportedModel: a model that torch.export.save() wrote, as a torch::nn module: trained without Python.
//
//   accel::ExportedModel net("llama.pt2");                              // its weights are in the file
//   accel::ExportedModel net("llama.pt2", {.weights = "model.safetensors"});
//   auto [model, optimizer] = accelerator.prepare(net, adamw);
//   accelerator.backward(model(input_ids, labels));                     // by order, or
//   model(accel::ExportedInputs{{"input_ids", ids}, {"labels", labels}})["loss"]
//
// The file holds a graph of LibTorch's operators, which is run node by node: autograd, autocast and random numbers are those of
// any other module. Parameters and buffers have the names that they have in Python, in submodules of the same paths, whose
// name() is the Python class: policies that name classes or paths (accel/fsdp.h) find them. They are looked up in each forward,
// so what sharding or a checkpoint does to them counts. Nothing of the file is unpickled, and nothing of it is executed but the
// machine code of `accel export --compile`, where ExportedModelOptions::compiled asks for it.
//
// Made within init_empty_weights() it has no memory for parameters; load_checkpoint_and_dispatch() then takes them from the .pt2
// file, by a device map of their names in Python (accel/offload.h).
//
// train() and eval() choose between two graphs of the file, "model" and "eval". With one graph they switch the dropout and the
// batch norm of a graph that was exported in training mode.
//
// Threads:  any number may run forwards at once, as far as the operators write no buffer; train(), eval() and to() alone.
// Cost:     below 1 us for each node of the graph beyond its operator. A value is freed after its last use.
// Source:   torch/_export/serde/schema.py and torch/export/pt2_archive of torch 2.11; docs/guides/exported-models.md.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <initializer_list>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

#include <accel/export.h>
#include <accel/non_persistent_buffers.h>

namespace accel {

class ModelHook;

namespace exported {
class LoadedModel;
}

// Whether the machine code is run that `accel export --compile` has put into the file, of eval() or of a step of train(). Such a
// file is a program: load code of those alone whose programs you would run. The code uses the module's own parameters and buffers
// as they are at each call.
//
// It is run outside of autocast, on the CPU and with the dtypes of the graph: for eval() where autograd records nothing
// (torch::NoGradGuard), for train() where it records. Its first results are compared with those of the graph, which is run once beside
// it: each output and gradient has to be within the square root of its dtype's epsilon, half of the digits, of the largest value of
// the tensor; so code that was compiled wrongly is not used.
enum class CompiledUse {
  kNever,
  kWherePossible,  // else the graph is run operator by operator, and a warning says once why
  kRequired,  // all code of the file, or kUnsupported is thrown, by the constructor or by the forward
};

struct ExportedModelOptions {
  // A safetensors file with the values, in place of those in the archive: one graph serves many checkpoints. It may lack buffers
  // that Python does not save, and one of two names of a tied parameter. Empty: the archive's; where that was written without
  // values, those of model.safetensors in its folder.
  std::filesystem::path weights;
  // Which graph of an archive with several is run in training; "eval" is the one that eval() takes.
  std::string model = "model";
  CompiledUse compiled = CompiledUse::kNever;
};

// Inputs by name. A tensor that is not defined stands for None, as does a name that is left out.
struct ExportedInputs {
  ExportedInputs(std::initializer_list<std::pair<std::string, c10::IValue>> values)
      : values(values) {}
  explicit ExportedInputs(std::vector<std::pair<std::string, c10::IValue>> values)
      : values(std::move(values)) {}
  // The same with replace(tensor) in place of each tensor.
  template <typename Replace>
  [[nodiscard]] ExportedInputs with_tensors(const Replace& replace) const {
    ExportedInputs others(values);
    for (auto& [name, value] : others.values)
      if (value.isTensor()) value = replace(value.toTensor());
    return others;
  }
  std::vector<std::pair<std::string, c10::IValue>> values;
};

// The outputs, flat, in Python's order. A name is the path of keys that leads to the output ("loss", "past.0"); where none do,
// it is the name of the node. None is an undefined tensor, a number one without dimensions.
struct ACCEL_EXPORT ExportedOutputs {
  std::vector<std::string> names;
  std::vector<at::Tensor> tensors;

  // Throws kInvalidArgument naming the outputs that there are.
  [[nodiscard]] const at::Tensor& operator[](std::string_view name) const;
  [[nodiscard]] const at::Tensor& operator[](std::size_t index) const { return tensors.at(index); }
  // The only output, or the one that is called "loss". Throws kInvalidArgument when there is neither.
  operator const at::Tensor&() const;  // NOLINT(google-explicit-constructor)

  // For nested data (accel/nested.h).
  static constexpr auto fields() {
    return std::make_tuple(&ExportedOutputs::names, &ExportedOutputs::tensors);
  }
};

// A part of a graph that can be run alone: what one call of a submodule does. Borrows the model.
class ACCEL_EXPORT ExportedRegion {
 public:
  // The values that come from before it, and those that are used after it, by the names of their nodes.
  [[nodiscard]] std::vector<std::string> inputs() const;
  [[nodiscard]] std::vector<std::string> outputs() const;
  [[nodiscard]] std::size_t num_nodes() const noexcept { return end_ - begin_; }
  // Parameters and buffers are the model's. Throws kInvalidArgument for another number of inputs, and what operators throw.
  [[nodiscard]] std::vector<c10::IValue> operator()(std::vector<c10::IValue> inputs) const;

 private:
  friend class ExportedModelImpl;
  ExportedRegion(const exported::LoadedModel& model,
                 bool is_training,
                 std::size_t begin,
                 std::size_t end);

  const exported::LoadedModel* model_;
  bool is_training_;
  std::size_t begin_;  // nodes
  std::size_t end_;
  std::vector<std::size_t> inputs_;  // values
  std::vector<std::size_t> outputs_;
};

// The module behind an ExportedModel.
class ACCEL_EXPORT ExportedModelImpl : public torch::nn::Module, public NonPersistentBuffers {
 public:
  // Errors  throws kCheckpointIncomplete: it is no archive of torch.export.save(), or is damaged; kCheckpointVersion: another
  // version of the format; kUnsupported: an operator that neither LibTorch nor register_operator() knows, a pickled constant, a
  // graph that cannot be trained; kSafetensorsMismatch: weights that are missing or have other shapes, all by name; kFileIo.
  explicit ExportedModelImpl(const std::filesystem::path& path,
                             const ExportedModelOptions& options = {});
  ~ExportedModelImpl() override;

  // Errors  throws kInvalidArgument naming the input, for one that is missing, unknown or of another shape than the graph takes;
  // what operators throw, with the node and its line in Python.
  ExportedOutputs forward(const ExportedInputs& inputs);
  // In the order of input_names().
  template <typename... Args>
  requires(std::is_constructible_v<c10::IValue, Args>&&...) ExportedOutputs
      forward(Args&&... args) {
    return run({c10::IValue(std::forward<Args>(args))...});
  }

  [[nodiscard]] std::vector<std::string> input_names() const;
  [[nodiscard]] std::vector<std::string> output_names() const;
  // The sizes that the graph takes for an input; -1: any, or one that follows from others. Empty for what is no tensor. Throws
  // kInvalidArgument for a name that no input has.
  [[nodiscard]] std::vector<std::int64_t> input_sizes(const std::string& name) const;
  // The dtype that it was exported with; std::nullopt for what is no tensor. Throws the same. Models that were moved to another dtype,
  // and those under autocast, may take others of its kind.
  [[nodiscard]] std::optional<at::ScalarType> input_dtype(const std::string& name) const;
  // The rows of the table (aten.embedding) that an input of whole numbers is looked up in: what it holds is below. -1: none is known.
  // Throws as input_sizes().
  [[nodiscard]] std::int64_t index_limit(const std::string& name) const;

  // Why the mode that the model is in does not run machine code, as far as is known: no call has been compared before the first
  // one. Empty: it does.
  [[nodiscard]] std::string why_not_compiled() const;

  // One call of the submodule at this path ("model.layers.0"); "model.layers.0@1" is its second one. Throws kInvalidArgument
  // when no node belongs to it.
  [[nodiscard]] ExportedRegion region(const std::string& path) const;
  // The whole graph, cut at the calls of these submodules: each has one region, and so has what lies between them. Run in order,
  // with the outputs of one among the inputs of others, they are the whole. Throws also when two of them overlap.
  [[nodiscard]] std::vector<ExportedRegion> regions(const std::vector<std::string>& paths) const;

  // What add_hook_to_module() and remove_hook_from_module() do (accel/model_hooks.h).
  void add_hook(const std::string& path, std::shared_ptr<ModelHook> hook, bool append);
  void remove_hook(const std::string& path, bool recurse);

  // Throws kUnsupported where the graph was exported in the other mode and has nothing to switch.
  void train(bool on = true) override;
  // Devices that the graph names become the new one.
  void to(at::Device device, at::ScalarType dtype, bool non_blocking = false) override;
  void to(at::ScalarType dtype, bool non_blocking = false) override;
  void to(at::Device device, bool non_blocking = false) override;

  // As in Python; submodules answer for their own buffers.
  [[nodiscard]] bool is_persistent_buffer(const std::string& name) const override;

 private:
  friend class ExportedCalls;  // accel/exported_calls.h
  explicit ExportedModelImpl(std::unique_ptr<exported::LoadedModel> model);
  ExportedOutputs run(std::vector<c10::IValue> inputs);

  std::unique_ptr<exported::LoadedModel> model_;
};

// What TORCH_MODULE makes, but for the call: its own needs a forward() that is no template.
class ExportedModel : public torch::nn::ModuleHolder<ExportedModelImpl> {
 public:
  using torch::nn::ModuleHolder<ExportedModelImpl>::ModuleHolder;
  explicit ExportedModel(const std::filesystem::path& path,
                         const ExportedModelOptions& options = {})
      : torch::nn::ModuleHolder<ExportedModelImpl>(
            std::make_shared<ExportedModelImpl>(path, options)) {}

  ExportedOutputs operator()(const ExportedInputs& inputs) { return (*this)->forward(inputs); }
  template <typename... Args>
  requires(std::is_constructible_v<c10::IValue, Args>&&...) ExportedOutputs operator()(
      Args&&... args) {
    return (*this)->forward(std::forward<Args>(args)...);
  }
};

// An operator as graphs call it: its arguments in the order of its schema, its results.
using ExportedOperator = std::function<std::vector<c10::IValue>(std::vector<c10::IValue>)>;

// Makes an operator known to the graphs that are loaded from now on; a later one of the same name takes its place.
// schema: the name, or with it arguments and results as Python's torch.library has them, "ns::name(Tensor x, int n=1) -> Tensor":
// then arguments that the file leaves out get their defaults; with the name alone they come as they stand in the file.
// Operators that the program registers with LibTorch itself (TORCH_LIBRARY) need none of this.
// Throws kInvalidArgument for what is no schema. Threads:  any.
ACCEL_EXPORT void register_operator(const std::string& schema, ExportedOperator function);

// A function of tensors and numbers: register_operator("ns::twice", +[](const at::Tensor& x) { return x * 2; }).
template <typename Result, typename... Args>
void register_operator(const std::string& schema, Result (*function)(Args...)) {
  register_operator(schema, ExportedOperator([function](std::vector<c10::IValue> values) {
                      TORCH_CHECK(values.size() == sizeof...(Args),
                                  "expected ",
                                  sizeof...(Args),
                                  " arguments, got ",
                                  values.size());
                      return [&]<std::size_t... I>(std::index_sequence<I...>) {
                        return std::vector<c10::IValue>{
                            c10::IValue(function(values[I].to<std::remove_cvref_t<Args>>()...))};
                      }
                      (std::index_sequence_for<Args...>{});
                    }));
}

}  // namespace accel
