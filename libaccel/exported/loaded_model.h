// LoadedModel: an exported model between its file and its module: graphs, tensors and where they are.
//
// Threads:  run() may be called by many at once; all else alone.
#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <ATen/core/ivalue.h>
#include <torch/nn/module.h>

#include <accel/exported_model.h>

#include "libaccel/exported/compiled_graph.h"
#include "libaccel/exported/graph.h"
#include "libaccel/exported/hooked_calls.h"
#include "libaccel/exported/input_check.h"
#include "libaccel/exported/module_tree.h"
#include "libaccel/exported/program.h"
#include "libaccel/exported/stored_tensors.h"

namespace accel::exported {

// One graph of the file, bound to the model's tensors.
class BoundGraph {
 public:
  BoundGraph(ExportedGraph graph, std::string source);

  // Where its parameters, buffers and constants are. Throws kCheckpointIncomplete naming one that is nowhere.
  void bind(const std::map<std::string, TensorPlace>& places, const TensorsByName& constants);
  // Machine code to run in its place. Before bind(). Throws kUnsupported: it cannot stand for this graph.
  void use_code(const CompiledPackage& package, CompiledUse use);
  // nullptr: none.
  [[nodiscard]] const CompiledGraph* code() const noexcept { return code_.get(); }
  // Has the hook run in all calls of its module, in place of another one. Throws kUnsupported (hooked_calls.h).
  void check_hook(const ModuleCalls& calls, const std::string& path) const {
    hooked_.refuse_overlap(calls.ranges, path);
  }
  void set_hook(const ModuleCalls& calls,
                const std::shared_ptr<const HookedModule>& module,
                const std::shared_ptr<ModelHook>& hook);
  void drop_hooks(const std::function<bool(const std::string& path)>& is_dropped) {
    hooked_.drop(is_dropped);
  }
  [[nodiscard]] bool has_hooks() const noexcept { return !hooked_.empty(); }
  // Constants are no part of the module: they follow it when it moves.
  void move_constants(const at::TensorOptions& options, bool non_blocking);

  [[nodiscard]] const ExportedGraph& source() const noexcept { return graph_; }
  [[nodiscard]] const Program& program() const noexcept { return program_; }
  [[nodiscard]] Program& program() noexcept { return program_; }
  [[nodiscard]] std::vector<std::string> input_names() const;
  [[nodiscard]] std::vector<std::string> output_names() const;
  // -1: no number. Throws kInvalidArgument for a name that no input has.
  [[nodiscard]] std::vector<std::int64_t> input_sizes(const std::string& name) const;
  // std::nullopt: no tensor. Throws the same.
  [[nodiscard]] std::optional<at::ScalarType> input_dtype(const std::string& name) const;
  [[nodiscard]] std::int64_t index_limit(const std::string& name) const;
  // What a range of nodes takes from the caller, then what it takes from nodes before it.
  [[nodiscard]] std::vector<std::size_t> values_into(std::size_t begin, std::size_t end) const;

  // A parameter, buffer or constant. Throws std::out_of_range for a name that the graph does not take.
  [[nodiscard]] const at::Tensor& stored(const std::string& name) const;

  // By name to by order. Throws kInvalidArgument.
  [[nodiscard]] std::vector<c10::IValue> in_order(const ExportedInputs& inputs) const;
  [[nodiscard]] ExportedOutputs run(std::vector<c10::IValue> inputs) const;
  // Throws kInvalidArgument for inputs that the graph does not take.
  void check(const std::vector<c10::IValue>& inputs) const;
  // A run in parts: inputs and tensors before the first node, those of `instead` in the place of the module's of their names.
  // Requires: check() of the inputs.
  [[nodiscard]] Frame frame_of(const std::vector<c10::IValue>& inputs,
                               const TensorsByName& instead) const;
  // What the graph returns, after its last node. Writes what outputs write.
  [[nodiscard]] ExportedOutputs results_of(const Frame& frame,
                                           const std::vector<c10::IValue>& inputs,
                                           const TensorsByName& instead) const;
  [[nodiscard]] std::vector<c10::IValue> run_range(std::size_t begin,
                                                   std::size_t end,
                                                   const std::vector<std::size_t>& ids,
                                                   std::vector<c10::IValue> values,
                                                   const std::vector<std::size_t>& results) const;

 private:
  struct TensorInput {
    ValueId value = kNoValue;
    std::string name;
    std::optional<TensorPlace> place;
    at::Tensor constant;
  };
  void load_tensors(Frame& frame, const TensorsByName& instead = {}) const;
  void run_nodes(Frame& frame, std::size_t begin, std::size_t end) const;
  // What the graph returns to its caller, each once.
  [[nodiscard]] std::vector<std::size_t> user_outputs() const;
  // instead: tensors that take the place of the module's, by name.
  [[nodiscard]] ExportedOutputs interpret(std::vector<c10::IValue> inputs,
                                          const TensorsByName& instead = {}) const;
  void write_back(const Frame& frame,
                  const std::vector<c10::IValue>& inputs,
                  const TensorsByName& instead) const;
  [[nodiscard]] const InputSpec& user_input(const std::string& name) const;
  // -1: any. Empty for what is no tensor that the graph takes.
  [[nodiscard]] std::vector<std::int64_t> sizes_of(ValueId input) const;
  [[nodiscard]] c10::IValue output_value(std::size_t output, const Frame& frame) const;

  ExportedGraph graph_;
  Program program_;
  std::vector<ValueId> user_values_;
  std::optional<InputCheck> check_;
  std::vector<TensorInput> tensors_;
  std::map<std::string, TensorPlace> places_;  // by name, of what outputs write
  std::string source_;
  std::unique_ptr<CompiledGraph> code_;
  HookedCalls hooked_;
};

class LoadedModel {
 public:
  LoadedModel(const std::filesystem::path& path, const ExportedModelOptions& options);

  [[nodiscard]] std::string class_name() const;
  // Registers submodules, parameters and buffers. Called once.
  void attach(torch::nn::Module& root);

  [[nodiscard]] const BoundGraph& graph(bool is_training) const {
    return !is_training && evaluation_ ? *evaluation_ : *training_;
  }
  // Of a buffer of the root.
  [[nodiscard]] bool is_persistent_buffer(const std::string& name) const;
  // As add_hook_to_module().
  void add_hook(torch::nn::Module& root,
                const std::string& path,
                std::shared_ptr<ModelHook> hook,
                bool append);
  void remove_hooks(const std::string& path, bool recurse);
  // Of the graph that the mode runs.
  [[nodiscard]] std::string why_not_compiled(bool is_training) const;
  // Whether the module is in training when it is loaded.
  [[nodiscard]] bool starts_in_training() const;
  // Throws kUnsupported.
  void set_training(bool on);
  void move_to(std::optional<at::Device> device,
               std::optional<at::ScalarType> dtype,
               bool non_blocking);

 private:
  struct Hooked {
    std::shared_ptr<const HookedModule> module;
    std::shared_ptr<ModelHook> hook;
  };
  [[nodiscard]] std::string source() const { return path_.filename().string(); }
  void load_tensors(const Archive& archive, const ExportedModelOptions& options);
  void load_code(const Archive& archive, const ExportedModelOptions& options);
  [[nodiscard]] std::string load_code_of(BoundGraph& graph,
                                         const Archive& archive,
                                         const std::string& model,
                                         CompiledUse use);

  std::filesystem::path path_;
  std::unique_ptr<BoundGraph> training_;
  std::unique_ptr<BoundGraph> evaluation_;
  TensorsByName tensors_;               // until attach()
  TensorsByName evaluation_constants_;  // the same
  std::map<std::string, bool> requires_grad_;
  std::map<std::string, Hooked> hooks_;  // by path
  bool needs_code_ = false;
  std::string no_training_code_;  // why there is none
  std::string no_evaluation_code_;
  c10::DeviceType home_ = c10::DeviceType::CPU;  // where the model was when it was exported
};

}  // namespace accel::exported
