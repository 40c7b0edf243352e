// ExportModel: writes a torch::nn module as a file of torch.export, for Python, AOTInductor and ExportedModel.
//
//   Net net(options);
//   accel::export_model(net, std::make_tuple(x), "net.pt2");             // torch.export.load("net.pt2").module()(x)
//   accel::export_model(net, std::make_tuple(ids, mask), "net.pt2",
//                       {.input_names = {"ids", "mask"}, .output_names = {"logits"}});
//
// forward() runs once in train() and once in eval() on example inputs. Each operator that it calls becomes a node of the graph.
// Composite operators stay whole, so the file can be trained. The file has both graphs, `model` and `eval`, like files of
// `accel export`, and the weights once. Parameters and buffers have their dotted names; a tensor with two names stays one tensor. If
// forward() writes in place (the statistics of batch norm), the graph does so too.
//
// A trace contains operators, not C++ code: it has the example's branches, number of loop iterations, and sizes, except for the batch
// (ExportOptions::batch_axes). Operators that would silently give wrong results are errors: branches on values, results whose size
// depends on values, torch::autograd::Function, writes to parameters. Then the graph is compared with the module
// (ExportOptions::check).
// Tensors that are neither inputs nor registered become constants of the file (ExportReport::constants).
//
// Threads:  the calling thread; no other may use the module meanwhile. Buffers, the mode, gradients and random generators are
//           restored afterwards.
// Cost:     a forward for each graph, two forwards and backwards of the module and of the graph for each check, and twice the
//           bytes of the weights in memory if they are not on the CPU.
// Source:   torch/_export/serde/schema.py of torch 2.11; docs/guides/exported-models.md.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <accel/export.h>

namespace accel {

enum class ExportGraphs {
  kBoth,        // "model" as in train(), "eval" as in eval()
  kTraining,    // "model" as in train()
  kEvaluation,  // "model" as in eval()
};

enum class ExportWeights {
  kInside,  // in the file
  kBeside,  // in model.safetensors in its folder, which ExportedModel reads by itself; Python gets zeros from the file alone
};

struct ExportOptions {
  // Names of the inputs, in order: valid names of Python variables. Empty: "x" for one input, "x_0", "x_1" and so on for more.
  std::vector<std::string> input_names;
  // Names of the outputs, flat and in order; then Python gets a dict. Empty: a tensor for one output, a tuple for more. For
  // ExportedModel the output "loss" is the loss.
  std::vector<std::string> output_names;
  ExportGraphs graphs = ExportGraphs::kBoth;
  ExportWeights weights = ExportWeights::kInside;
  // Operators that read values although the result does not depend on them: "aten::equal" for torch::nn::MultiheadAttention, which
  // compares a query and a key of the same size, and computes the same in both cases.
  std::vector<std::string> decided_operators;
  // The batch axis of inputs, by the input's name. The size of this axis may change from call to call, and must be the same in all
  // named inputs. Other sizes are fixed. forward() is also traced at the sizes n + 1, 2n + 1 and 1, and every number must follow from
  // the batch size: a branch on the batch size is an error. If forward() throws for a batch of 1, or computes differently, the graph
  // is for 2 and more. Like Python's torch.export.Dim().
  std::map<std::string, std::int64_t> batch_axes;
  // Compares each graph with the module: outputs, gradients and buffers, on the example and on its values in reverse order.
  bool check = true;
};

struct ExportReport {
  std::size_t num_nodes = 0;  // of the graph "model"
  std::vector<std::string>
      constants;  // "lifted_tensor_0 float [3, 4]": tensors that no operator of "model" and no module has made
};

// Called with tensors of the shapes of `inputs`; its results are the graph's outputs. It may do more than the module's own forward,
// such as computing a loss, if the module has all parameters.
using ExportForward = std::function<std::vector<at::Tensor>(const std::vector<at::Tensor>& inputs)>;

// Errors  throws kUnsupported for operators that a graph cannot contain, with the operator and a remedy; kInvalidArgument for invalid
//         or duplicate names or a wrong number of them, for a module without memory, and for inputs that need not be traced;
//         kDiskFull, kFileIo; exceptions of forward(). An existing file is unchanged then.
// Requires: the module is not prepared with FSDP or ZeRO.
ACCEL_EXPORT ExportReport export_model(torch::nn::Module& module,
                                       const ExportForward& forward,
                                       const std::vector<at::Tensor>& inputs,
                                       const std::filesystem::path& path,
                                       const ExportOptions& options = {});

namespace detail {

// Flat, in order.
inline void append_outputs(std::vector<at::Tensor>& out, const at::Tensor& value) {
  out.push_back(value);
}
template <typename T>
void append_outputs(std::vector<at::Tensor>& out, const std::vector<T>& values);
template <typename T, std::size_t N>
void append_outputs(std::vector<at::Tensor>& out, const std::array<T, N>& values);
template <typename T>
void append_outputs(std::vector<at::Tensor>& out, const std::optional<T>& value);
template <typename A, typename B>
void append_outputs(std::vector<at::Tensor>& out, const std::pair<A, B>& values);
template <typename... T>
void append_outputs(std::vector<at::Tensor>& out, const std::tuple<T...>& values);

template <typename T>
void append_outputs(std::vector<at::Tensor>& out, const std::vector<T>& values) {
  for (const T& value : values) append_outputs(out, value);
}
template <typename T, std::size_t N>
void append_outputs(std::vector<at::Tensor>& out, const std::array<T, N>& values) {
  for (const T& value : values) append_outputs(out, value);
}
template <typename T>
void append_outputs(std::vector<at::Tensor>& out, const std::optional<T>& value) {
  if (value) append_outputs(out, *value);
}
template <typename A, typename B>
void append_outputs(std::vector<at::Tensor>& out, const std::pair<A, B>& values) {
  append_outputs(out, values.first);
  append_outputs(out, values.second);
}
template <typename... T>
void append_outputs(std::vector<at::Tensor>& out, const std::tuple<T...>& values) {
  std::apply([&](const T&... value) { (append_outputs(out, value), ...); }, values);
}

template <typename Model>
auto& exported_module(Model& model) {
  if constexpr (std::is_base_of_v<torch::nn::Module, Model>) {
    return model;
  } else {
    return *model;  // a ModuleHolder, a pointer
  }
}

}  // namespace detail

// A module, what TORCH_MODULE makes of one, or a pointer to one: its forward(inputs...), which returns tensors in tuples, pairs and
// vectors of any depth. inputs: tensors in order. For other arguments and results give a function, as above.
template <typename Model, typename... Inputs>
requires(std::is_convertible_v<const Inputs&, at::Tensor>&&...) ExportReport
    export_model(Model& model,
                 const std::tuple<Inputs...>& inputs,
                 const std::filesystem::path& path,
                 const ExportOptions& options = {}) {
  auto& module = detail::exported_module(model);
  const auto forward = [&module](const std::vector<at::Tensor>& values) {
    return [&]<std::size_t... I>(std::index_sequence<I...>) {
      std::vector<at::Tensor> outputs;
      detail::append_outputs(outputs, module.forward(values[I]...));
      return outputs;
    }
    (std::index_sequence_for<Inputs...>{});
  };
  std::vector<at::Tensor> values;
  detail::append_outputs(values, std::tuple<Inputs...>(inputs));
  return export_model(module, ExportForward(forward), values, path, options);
}

}  // namespace accel
