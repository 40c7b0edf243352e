#include "libaccel/exported/compiled_graph.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/utils.h>

#include <accel/error.h>

#include "runtime/printable.h"
#include "runtime/text/joined.h"

namespace accel::exported {

namespace {

// From the loss to the gradients that the code has computed with it.
struct CompiledBackward : torch::autograd::Node {
  std::vector<at::Tensor> gradients;

  torch::autograd::variable_list apply(torch::autograd::variable_list&& of_outputs) override {
    TORCH_CHECK(!gradients.empty(), "a backward has used up the gradients of this compiled step");
    torch::autograd::variable_list results = std::move(gradients);
    gradients.clear();
    const double scale = of_outputs[0].item<double>();
    if (scale != 1.0)
      for (at::Tensor& gradient : results) gradient.mul_(scale);
    return results;
  }
  void release_variables() override { gradients.clear(); }
};

}  // namespace

CompiledGraph::CompiledGraph(const CompiledPackage& package,
                             const ExportedGraph& graph,
                             std::string source,
                             CompiledUse use)
    : source_(std::move(source)),
      use_(use),
      code_(package, source_),
      inputs_(package, graph, source_),
      results_(package.outputs()) {
  std::size_t num_outputs = 0;
  for (const OutputSpec& output : graph.outputs) {
    if (output.kind == OutputSpec::Kind::kUser)
      ++num_outputs;
    else
      throw code_cannot(source_, "its graph returns new values of " + printable(output.target));
  }
  for (const auto& [kind, name] : results_)
    (kind == "gradient" ? gradients_ : kind == "buffer" ? buffers_ : outputs_).push_back(name);
  if (outputs_.size() != num_outputs || (!gradients_.empty() && num_outputs != 1))
    throw code_cannot(source_,
                      "it has " + std::to_string(outputs_.size()) + " outputs, its graph " +
                          std::to_string(num_outputs));
  for (std::size_t i = 0, next = 0; i < graph.outputs.size(); ++i)
    outputs_[next++] = graph.outputs[i].target;
}

void CompiledGraph::bind(const std::map<std::string, TensorPlace>& places,
                         const TensorsByName& constants) {
  inputs_.bind(places, constants);
  for (const auto& names : {gradients_, buffers_})
    for (const std::string& name : names) places_[name] = places.at(name);
}

std::string CompiledGraph::fault() const {
  const std::lock_guard lock(first_);
  return fault_;
}

std::string CompiledGraph::fault_of_call(const std::vector<c10::IValue>& users) const {
  if (!at::GradMode::is_enabled()) return "";
  for (const c10::IValue& user : users)
    if (user.isTensor() && user.toTensor().requires_grad()) return "an input requires a gradient";
  for (const CompiledInputs::Input& input : inputs_.list()) {
    if (!input.place || !input.place->tensor().requires_grad()) continue;
    const std::string name = "'" + printable(input.name) + "'";
    if (gradients_.empty())
      return "autograd records, as " + name +
             " requires a gradient; evaluate within torch::NoGradGuard";
    if (std::ranges::find(gradients_, input.name) == gradients_.end())
      return name + " requires a gradient, and did not when it was compiled";
  }
  return "";
}

CompiledGraph::Results CompiledGraph::call(CompiledArguments arguments) const {
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> found =
      code_.run(std::move(arguments.read), std::move(arguments.written), arguments.order);
  if (found.size() != results_.size())
    throw Error(ErrorCode::kCheckpointIncomplete,
                "the compiled code of " + printable(source_) + " returns " +
                    std::to_string(found.size()) + " values, expected " +
                    std::to_string(results_.size()),
                "export the model again");
  Results results;
  for (std::size_t i = 0; i < found.size(); ++i) {
    const std::string& kind = results_[i].first;
    (kind == "gradient" ? results.gradients
     : kind == "buffer" ? results.buffers
                        : results.outputs)
        .push_back(std::move(found[i]));
  }
  return results;
}

void CompiledGraph::write_buffers(const Results& results) const {
  const at::NoGradGuard no_grad;
  for (std::size_t i = 0; i < buffers_.size(); ++i)
    places_.at(buffers_[i]).tensor().copy_(results.buffers[i]);
}

std::vector<at::Tensor> CompiledGraph::with_derivatives(Results results) const {
  if (gradients_.empty()) return std::move(results.outputs);
  std::vector<at::Tensor> parameters;
  for (const std::string& name : gradients_) parameters.push_back(places_.at(name).tensor());
  const std::shared_ptr<CompiledBackward> node(new CompiledBackward, torch::autograd::deleteNode);
  node->set_next_edges(torch::autograd::collect_next_edges(parameters));
  node->gradients = std::move(results.gradients);
  torch::autograd::set_history(results.outputs.front(), node);
  return std::move(results.outputs);
}

std::string CompiledGraph::difference_in_evaluation(const Results& results,
                                                    const std::vector<at::Tensor>& expected) const {
  for (std::size_t i = 0; i < expected.size(); ++i) {
    const std::string difference = difference_of(results.outputs[i], expected[i]);
    if (!difference.empty())
      return "its output '" + printable(outputs_[i]) + "' " + difference + ", by the graph";
  }
  return "";
}

// The interpreter gets parameters of its own, so that no hook of the module's sees this backward.
//
// A gradient may be zero but for roundings (that of a key's bias): each is a sum of terms as large as those of the largest gradient,
// some thousand of them, so it is off by as many units of their last place.
std::string CompiledGraph::difference_in_training(const Results& results,
                                                  const Interpreter& interpret) const {
  TensorsByName instead;
  std::vector<at::Tensor> leaves;
  for (const std::string& name : gradients_) {
    leaves.push_back(places_.at(name).tensor().detach().requires_grad_());
    instead.emplace(name, leaves.back());
  }
  const at::AutoGradMode grad(true);
  const std::vector<at::Tensor> outputs = interpret(instead);
  std::string difference = difference_in_evaluation(results, outputs);
  if (!difference.empty()) return difference;
  const auto expected = torch::autograd::grad(
      {outputs.front()}, leaves, {}, std::nullopt, false, /*allow_unused=*/true);
  double largest = 0.0;
  for (const at::Tensor& gradient : expected)
    if (gradient.defined() && gradient.numel() > 0)
      largest = std::max(largest, gradient.abs().max().item<double>());
  const double slack = 1024 * std::numeric_limits<float>::epsilon() * largest;
  std::vector<std::string> wrong;
  for (std::size_t i = 0; i < leaves.size(); ++i) {
    const at::Tensor gradient = expected[i].defined() ? expected[i] : at::zeros_like(leaves[i]);
    if (!difference_of(results.gradients[i], gradient, slack).empty())
      wrong.push_back(gradients_[i]);
  }
  return wrong.empty()
             ? ""
             : "its gradients of " + printable(joined(wrong, ", ")) + " are not those of the graph";
}

// Buffers may be written: the code gets copies, and what the interpreter makes of them stays.
std::optional<std::vector<at::Tensor>> CompiledGraph::compare_first(
    CompiledArguments arguments, const Interpreter& interpret) const {
  const std::vector<at::Tensor> buffers = arguments.written;
  for (at::Tensor& buffer : arguments.written) buffer = buffer.detach().clone();
  const std::vector<at::Tensor> before = arguments.written;  // code for training returns new values
  Results results = call(std::move(arguments));
  std::vector<at::Tensor> expected;
  if (gradients_.empty()) {
    expected = interpret({});
    fault_ = difference_in_evaluation(results, expected);
  } else {
    fault_ = difference_in_training(results, interpret);
  }
  state_ = fault_.empty() ? State::kGood : State::kBad;
  if (fault_.empty())
    return gradients_.empty() ? std::move(expected) : with_derivatives(std::move(results));
  refuse(fault_);
  if (gradients_.empty()) return expected;
  const at::NoGradGuard no_grad;
  for (std::size_t i = 0; i < buffers.size(); ++i) buffers[i].copy_(before[i]);
  return std::nullopt;
}

void CompiledGraph::refuse(const std::string& why) const {
  if (use_ == CompiledUse::kRequired) throw code_cannot(source_, why);
  say_of_code("the compiled code of " + printable(source_) + " is not run: " + why +
              "; the graph is run operator by operator");
}

std::optional<std::vector<at::Tensor>> CompiledGraph::run(const std::vector<c10::IValue>& users,
                                                          const Interpreter& interpret) const {
  if (state_ == State::kBad) {
    refuse(fault());
    return std::nullopt;
  }
  if (!gradients_.empty() && !at::GradMode::is_enabled()) return std::nullopt;
  CompiledArguments arguments;
  std::string why = fault_of_call(users);
  if (why.empty()) {
    const at::NoGradGuard no_grad;
    why = inputs_.gather(users, arguments);
  }
  if (!why.empty()) {
    refuse(why);
    return std::nullopt;
  }
  std::unique_lock lock(first_, std::defer_lock);
  if (state_ == State::kNotCompared) lock.lock();
  if (state_ == State::kBad) return std::nullopt;
  if (state_ == State::kNotCompared) return compare_first(std::move(arguments), interpret);
  if (lock.owns_lock()) lock.unlock();
  Results results = call(std::move(arguments));
  write_buffers(results);
  return with_derivatives(std::move(results));
}

}  // namespace accel::exported
