// An export: names are checked, then forward() is traced in each mode, its graph compared with the module, and all is written.
// Nothing is written before everything has gone well.

#include <algorithm>
#include <iterator>
#include <set>

#include <ATen/core/grad_mode.h>

#include <accel/checkpoint_names.h>
#include <accel/error.h>
#include <accel/export_model.h>

#include "libaccel/exporting/archive_writer.h"
#include "libaccel/exporting/dynamic_batch.h"
#include "libaccel/exporting/module_calls.h"
#include "libaccel/exporting/module_state.h"
#include "libaccel/exporting/module_tensors.h"
#include "libaccel/exporting/operator_trace.h"
#include "libaccel/exporting/trace_check.h"
#include "libaccel/exporting/value_names.h"
#include "libaccel/interception/parameter_operators.h"
#include "runtime/printable.h"

namespace accel {
namespace {

using exporting::ModuleTensor;
using exporting::NamedTensors;
using exporting::TracedGraph;

[[noreturn]] void refuse_export(const std::string& what, const std::string& remedy) {
  throw Error(ErrorCode::kInvalidArgument, what, remedy);
}

// "x", or "x_0" and so on, where there are none.
std::vector<std::string> names_or(const std::vector<std::string>& names,
                                  std::size_t count,
                                  const std::string& otherwise) {
  if (!names.empty()) return names;
  if (count == 1) return {otherwise};
  std::vector<std::string> made;
  for (std::size_t i = 0; i < count; ++i) made.push_back(otherwise + "_" + std::to_string(i));
  return made;
}

void check_value_names(const std::vector<std::string>& names,
                       std::size_t count,
                       const std::string& of_what) {
  if (names.size() != count)
    refuse_export("there are " + std::to_string(names.size()) + " names for " +
                      std::to_string(count) + " " + of_what,
                  "give a name for each, or none");
  std::set<std::string> seen;
  for (const std::string& name : names)
    if (!seen.insert(name).second)
      refuse_export("two " + of_what + " are called " + printable(name),
                    "give them names that differ");
}

void check_inputs(const std::vector<at::Tensor>& inputs, const std::vector<std::string>& names) {
  check_value_names(names, inputs.size(), "inputs");
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    if (!exporting::is_python_name(names[i]))
      refuse_export(
          "an input is called " + printable(names[i]) + ", as no variable in Python can be",
          "use letters, digits and _");
    if (!inputs[i].defined())
      refuse_export("the input " + names[i] + " is not defined",
                    "leave it out, and have the forward that is exported do without it");
  }
}

void check_tensors(const std::vector<ModuleTensor>& tensors) {
  for (const ModuleTensor& item : tensors) {
    if (item.tensor.is_meta())
      refuse_export(item.name + " has no memory",
                    "load weights into the module before it is exported");
    if (interception::owner_of(*item.tensor.unsafeGetTensorImpl()) != nullptr)
      refuse_export(
          item.name + " is divided between ranks, or paged",
          "export the module before prepare(); weights of a checkpoint go into the file by "
          "ExportedModelOptions::weights of who reads it");
    if (!item.tensor.has_storage())
      refuse_export(item.name + " is no dense tensor",
                    "export a module whose parameters are dense");
  }
}

// What an export works with.
struct Subject {
  torch::nn::Module& module;
  const ExportForward& forward;
  const std::vector<at::Tensor>& inputs;
  std::vector<std::string> input_names;
  const ExportOptions& options;
  std::vector<ModuleTensor> tensors;
  std::int64_t batch = 0;  // its size in the example; 0: it stays so
};

// Throws for axes that no input has, and for batches that differ.
std::int64_t batch_of(const Subject& subject) {
  std::int64_t batch = 0;
  for (const auto& [name, axis] : subject.options.batch_axes) {
    const auto found = std::ranges::find(subject.input_names, name);
    if (found == subject.input_names.end())
      refuse_export(
          "ExportOptions::batch_axes names the input " + printable(name) + ", which there is not",
          "name inputs by ExportOptions::input_names");
    const at::Tensor& input =
        subject.inputs[static_cast<std::size_t>(found - subject.input_names.begin())];
    if (axis < 0 || axis >= input.dim())
      refuse_export("the input " + name + " has no axis " + std::to_string(axis),
                    "count axes from 0");
    const std::int64_t size = input.size(axis);
    if (size < 2 || (batch != 0 && size != batch))
      refuse_export("the batch is " + std::to_string(size) + " in the input " + name +
                        (batch == 0 ? "" : " and " + std::to_string(batch) + " in others"),
                    "give an example with one batch of 2 or more");
    batch = size;
  }
  return batch;
}

NamedTensors named(const std::vector<std::string>& names, const std::vector<at::Tensor>& tensors) {
  NamedTensors pairs;
  for (std::size_t i = 0; i < tensors.size(); ++i) pairs.emplace_back(names[i], tensors[i]);
  return pairs;
}

TracedGraph traced(const Subject& subject, const std::vector<at::Tensor>& example) {
  const at::AutoGradMode with_gradients(true);
  const std::vector<at::Tensor> inputs = exporting::fresh(example);
  const auto& decided = subject.options.decided_operators;
  exporting::OperatorTrace trace(
      subject.tensors, named(subject.input_names, inputs), {decided.begin(), decided.end()});
  std::vector<at::Tensor> outputs;
  {
    const interception::ThreadHandler handler(trace);
    outputs = subject.forward(inputs);
  }
  if (outputs.empty())
    refuse_export("the forward of " + subject.module.name() + " returns no tensor",
                  "return what is to be computed");
  const auto names = names_or(subject.options.output_names, outputs.size(), "output");
  check_value_names(names, outputs.size(), "outputs");
  TracedGraph graph = trace.finish(named(names, outputs));
  exporting::add_module_calls(graph.exported, exporting::parts_of(subject.module));
  return graph;
}

// The example with a batch of another size.
std::vector<at::Tensor> inputs_of(const Subject& subject, std::int64_t batch) {
  std::vector<at::Tensor> inputs = subject.inputs;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    const auto axis = subject.options.batch_axes.find(subject.input_names[i]);
    if (axis != subject.options.batch_axes.end())
      inputs[i] = exporting::with_batch(inputs[i], axis->second, batch);
  }
  return inputs;
}

// Whether the graph holds for batches of 1, too; a module may refuse them, as batch norm does.
bool adds_single(const Subject& subject,
                 const exporting::ModuleStateScope& scope,
                 std::vector<exporting::SizedTrace>& traces) {
  scope.state().restore();
  try {
    auto with_single = traces;
    with_single.push_back({1, traced(subject, inputs_of(subject, 1))});
    (void)exporting::with_dynamic_batch(with_single, subject.options.batch_axes, 1);
    traces = std::move(with_single);
    return true;
  } catch (const std::exception&) {
    return false;
  }
}

TracedGraph traced_at_sizes(const Subject& subject, const exporting::ModuleStateScope& scope) {
  std::vector<exporting::SizedTrace> traces;
  traces.push_back({subject.batch, traced(subject, subject.inputs)});
  if (subject.batch == 0) return std::move(traces.front().traced);
  for (const std::int64_t batch : {subject.batch + 1, 2 * subject.batch + 1}) {
    scope.state().restore();
    traces.push_back({batch, traced(subject, inputs_of(subject, batch))});
  }
  const std::int64_t least = adds_single(subject, scope, traces) ? 1 : 2;
  return exporting::with_dynamic_batch(std::move(traces), subject.options.batch_axes, least);
}

TracedGraph traced_in_mode(const Subject& subject, exporting::ModuleStateScope& scope, bool on) {
  scope.set_training(on);
  try {
    TracedGraph graph = traced_at_sizes(subject, scope);
    if (subject.options.check) {
      exporting::check_trace(graph, subject.tensors, subject.forward, subject.inputs);
      if (subject.batch != 0)
        exporting::check_trace(
            graph, subject.tensors, subject.forward, inputs_of(subject, 2 * subject.batch + 1));
    }
    scope.state().restore();
    return graph;
  } catch (Error& error) {
    throw std::move(error).while_doing(std::string("tracing forward() in ") +
                                       (on ? "train()" : "eval()"));
  }
}

std::vector<std::string> constants_of(const TracedGraph& graph) {
  std::vector<std::string> texts;
  for (const auto& [name, tensor] : graph.constants) {
    std::string sizes;
    for (const std::int64_t size : tensor.sizes())
      sizes += (sizes.empty() ? "" : ", ") + std::to_string(size);
    texts.push_back(name + " " + c10::toString(tensor.scalar_type()) + " [" + sizes + "]");
  }
  return texts;
}

exporting::OutputForm form_of(const ExportOptions& options, const TracedGraph& graph) {
  if (!options.output_names.empty()) return exporting::OutputForm::kDict;
  return graph.exported.outputs.size() == 1 ? exporting::OutputForm::kTensor
                                            : exporting::OutputForm::kTuple;
}

}  // namespace

ExportReport export_model(torch::nn::Module& module,
                          const ExportForward& forward,
                          const std::vector<at::Tensor>& inputs,
                          const std::filesystem::path& path,
                          const ExportOptions& options) {
  try {
    Subject subject{.module = module,
                    .forward = forward,
                    .inputs = inputs,
                    .input_names = names_or(options.input_names, inputs.size(), "x"),
                    .options = options,
                    .tensors = exporting::tensors_of(module)};
    check_inputs(inputs, subject.input_names);
    check_tensors(subject.tensors);
    subject.batch = batch_of(subject);
    exporting::ArchiveContent content;
    {
      exporting::ModuleStateScope scope(module, subject.tensors);
      content.graphs.emplace_back(
          "model", traced_in_mode(subject, scope, options.graphs != ExportGraphs::kEvaluation));
      if (options.graphs == ExportGraphs::kBoth)
        content.graphs.emplace_back("eval", traced_in_mode(subject, scope, false));
    }
    const TracedGraph& graph = content.graphs.front().second;
    content.tensors = subject.tensors;
    content.example_inputs = inputs;
    content.form = form_of(options, graph);
    content.has_values = options.weights == ExportWeights::kInside;
    if (!content.has_values)
      exporting::write_weights(subject.tensors, path.parent_path() / kSafeWeightsName);
    exporting::write_archive(content, path);
    return {.num_nodes = graph.exported.graph.nodes.size(), .constants = constants_of(graph)};
  } catch (Error& error) {
    throw std::move(error).while_doing("exporting " + module.name() + " to " +
                                       printable(path.string()));
  }
}

}  // namespace accel
