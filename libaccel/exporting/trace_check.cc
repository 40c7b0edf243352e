#include "libaccel/exporting/trace_check.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <utility>

#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/autograd.h>

#include <accel/error.h>

#include "libaccel/exported/loaded_model.h"
#include "libaccel/exporting/module_state.h"

namespace accel::exporting {
namespace {

// The same operators in the same order give the same bits, but for kernels of GPUs that add in any order: there the last digits
// of single precision, times some hundred terms.
constexpr double kTraceTolerance = 1e-5;

struct Results {
  std::vector<std::pair<std::string, at::Tensor>> tensors;
};

// A number that depends on each element in its own way.
at::Tensor weighted_sum(const std::vector<at::Tensor>& outputs) {
  at::Tensor sum;
  for (const at::Tensor& output : outputs) {
    if (!output.defined() || !output.requires_grad() || output.is_complex()) continue;
    const at::Tensor weights =
        at::arange(output.numel(), output.options().dtype(at::kFloat).requires_grad(false)).cos();
    const at::Tensor part = (output.flatten() * weights).sum().to(at::kDouble);
    sum = sum.defined() ? sum + part : part;
  }
  return sum;
}

Results results_of(const Forward& forward,
                   const std::vector<ModuleTensor>& tensors,
                   const std::vector<std::string>& output_names,
                   const std::vector<at::Tensor>& inputs) {
  const std::vector<at::Tensor> outputs = forward(fresh(inputs));
  Results results;
  for (std::size_t i = 0; i < outputs.size() && i < output_names.size(); ++i)
    results.tensors.emplace_back("output " + output_names[i], outputs[i].detach());
  std::vector<at::Tensor> parameters;
  std::vector<std::string> names;
  for (const ModuleTensor& item : tensors) {
    if (!item.is_parameter)
      results.tensors.emplace_back("buffer " + item.name, item.tensor.clone());
    if (!item.is_parameter || !item.tensor.requires_grad()) continue;
    parameters.push_back(item.tensor);
    names.push_back("the gradient of " + item.name);
  }
  const at::Tensor sum = weighted_sum(outputs);
  if (!sum.defined() || parameters.empty()) return results;
  const auto gradients = torch::autograd::grad({sum},
                                               parameters,
                                               /*grad_outputs=*/{},
                                               /*retain_graph=*/std::nullopt,
                                               /*create_graph=*/false,
                                               /*allow_unused=*/true);
  for (std::size_t i = 0; i < gradients.size(); ++i)
    results.tensors.emplace_back(names[i], gradients[i]);
  return results;
}

// How far two are apart in units of the larger one's largest element; NaN is as good as NaN.
double difference(const at::Tensor& left, const at::Tensor& right) {
  if (left.defined() != right.defined() || !left.defined())
    return left.defined() == right.defined() ? 0.0 : INFINITY;
  if (left.sizes() != right.sizes() || left.scalar_type() != right.scalar_type()) return INFINITY;
  if (left.numel() == 0) return 0.0;
  const auto wide = left.is_complex() ? at::kComplexDouble : at::kDouble;
  const at::Tensor a = left.to(wide);
  const at::Tensor b = right.to(wide);
  const at::Tensor is_same = at::logical_or(a.eq(b), at::logical_and(a.isnan(), b.isnan()));
  if (is_same.all().item<bool>()) return 0.0;
  const double largest = (a - b).abs().masked_fill(is_same, 0.0).max().item<double>();
  const double scale = std::max(1.0, a.abs().nan_to_num(0.0, 0.0, 0.0).max().item<double>());
  return std::isnan(largest) ? INFINITY : largest / scale;
}

void compare(const Results& module, const Results& graph, const std::string& on_what) {
  for (std::size_t i = 0; i < module.tensors.size(); ++i) {
    const double apart =
        difference(module.tensors[i].second,
                   i < graph.tensors.size() ? graph.tensors[i].second : at::Tensor());
    if (apart <= kTraceTolerance) continue;
    throw Error(ErrorCode::kUnsupported,
                "the graph does not compute what the module computes: " + module.tensors[i].first +
                    " differs by " + std::to_string(apart) + " of its largest value, on " + on_what,
                "compute in forward() by operators of LibTorch alone: what code does with the "
                "memory of tensors "
                "(data_ptr(), accessor()), in other threads, and by decisions on values is no part "
                "of a graph");
  }
}

// "turned": in reverse order; integers stay within their range so.
std::vector<at::Tensor> reversed(const std::vector<at::Tensor>& inputs) {
  std::vector<at::Tensor> turned;
  for (const at::Tensor& input : inputs)
    turned.push_back(
        input.detach().flatten().flip(0).view(input.sizes()).requires_grad_(input.requires_grad()));
  return turned;
}

}  // namespace

void check_trace(const TracedGraph& traced,
                 const std::vector<ModuleTensor>& tensors,
                 const Forward& forward,
                 const std::vector<at::Tensor>& inputs) {
  exported::BoundGraph bound(traced.exported, "the traced graph");
  std::map<std::string, exported::TensorPlace> places;
  for (const ModuleTensor& item : tensors) places[item.name] = {.buffer = item.tensor};
  bound.bind(places, {traced.constants.begin(), traced.constants.end()});
  const Forward graph = [&](const std::vector<at::Tensor>& values) {
    return bound.run({values.begin(), values.end()}).tensors;
  };
  const VolatileState state(tensors);
  const at::AutoGradMode with_gradients(true);
  const auto run = [&](const Forward& subject, const std::vector<at::Tensor>& on) {
    state.restore();
    return results_of(subject, tensors, bound.output_names(), on);
  };
  compare(run(forward, inputs), run(graph, inputs), "the example inputs");
  const std::vector<at::Tensor> others = reversed(inputs);
  std::optional<Results> expected;
  try {
    expected = run(forward, others);
  } catch (const std::exception&) {
    return;  // values that the module does not take
  }
  compare(*expected, run(graph, others), "the example inputs in reverse order");
}

}  // namespace accel::exporting
