// A model: read, prepared, its inputs and outputs, and the training step.
//
// An input is a tensor on the program's memory, made when it is bound and given to each forward. The outputs of the last forward are kept
// until the next one: backward starts from them, and C sees them as memory. A backward with a gradient from the program is the
// one of sum(output * gradient), whose derivative by the output is that gradient.

#include <algorithm>
#include <cstddef>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/optim/optimizer.h>

#include <accel/accelerator.h>
#include <accel/c/accel.h>
#include <accel/error.h>
#include <accel/exported_model.h>
#include <accel/schedulers.h>

#include "libaccel/c_interface/arrays.h"
#include "libaccel/c_interface/guarded_call.h"
#include "libaccel/c_interface/handles.h"
#include "libaccel/c_interface/options.h"
#include "runtime/printable.h"
#include "runtime/text/joined.h"

namespace accel::c_interface {
namespace {

Prepared<ExportedModel>& prepared_of(accel_model& model) {
  if (model.prepared) return *model.prepared;
  throw Error(ErrorCode::kNotInitialized,
              "the model is not prepared",
              "call accel_prepare() once, before the first forward");
}

AcceleratedOptimizer& optimizer_of(accel_model& model) {
  (void)prepared_of(model);
  if (model.optimizer) return *model.optimizer;
  throw Error(ErrorCode::kNotInitialized,
              "the model was prepared without an optimizer",
              "pass one to accel_prepare()");
}

accel_model::Input& input_of(accel_model& model, const std::string& name) {
  const auto found = model.inputs.find(name);
  if (found != model.inputs.end()) return found->second;
  throw Error(ErrorCode::kInvalidArgument,
              "the model has no input '" + printable(name) + "': its inputs are " +
                  joined(model.input_names, ", "));
}

// Its place among the outputs of the last forward.
std::size_t output_of(const accel_model& model, const char* name) {
  if (!model.outputs) {
    throw Error(ErrorCode::kNotInitialized,
                "there are no outputs: nothing was run since the model was loaded, or the last "
                "forward failed",
                "call accel_forward() or accel_step() before");
  }
  const std::vector<std::string>& names = model.outputs->names;
  if (name == nullptr && names.size() == 1) return 0;
  const std::string wanted = name == nullptr ? "loss" : name;
  const auto found = std::ranges::find(names, wanted);
  if (found == names.end()) {
    throw Error(ErrorCode::kInvalidArgument,
                "the model has no output '" + printable(wanted) + "': its outputs are " +
                    joined(names, ", "));
  }
  const auto place = static_cast<std::size_t>(found - names.begin());
  if (model.outputs->tensors[place].defined()) return place;
  throw Error(ErrorCode::kInvalidArgument, "the output '" + printable(wanted) + "' is None");
}

std::string output_text(const accel_model& model, std::size_t place) {
  return "output '" + model.outputs->names[place] + "'";
}

// A region in which gradients are recorded, or not.
bool keeps_graph(const accel_model& model) {
  return model.net->is_training() || std::ranges::any_of(model.inputs, [](const auto& entry) {
           return entry.second.requires_gradient && entry.second.memory.defined();
         });
}

void bind_input(accel_model& model, const std::string& name, const accel_array* array) {
  accel_model::Input& input = input_of(model, name);
  if (array == nullptr) {
    input.memory = at::Tensor();
    return;
  }
  const std::string text = "input '" + name + "'";
  at::Tensor memory = tensor_on(*array, text);
  const auto expected = model.net->input_dtype(name);
  if (expected && memory.scalar_type() != *expected) {
    throw Error(ErrorCode::kInvalidArgument,
                text + " is of the dtype " + dtype_name(memory.scalar_type()) + ", expected " +
                    dtype_name(*expected),
                "convert it, or export the model for that dtype");
  }
  input.memory = std::move(memory);
}

// Sizes that the graph leaves open are -1.
accel_array described_input(accel_model& model, const std::string& name) {
  (void)input_of(model, name);
  accel_array array{};
  const auto dtype = model.net->input_dtype(name);
  if (!dtype) return array;
  const std::vector<std::int64_t> sizes = model.net->input_sizes(name);
  array.dtype = dtype_number(*dtype, "input '" + name + "'");
  array.num_dims = static_cast<int>(std::min<std::size_t>(sizes.size(), ACCEL_MAX_DIMS));
  std::ranges::copy_n(sizes.begin(), array.num_dims, array.shape);
  return array;
}

// Of the program's memory; a graph that takes a number there gets one.
c10::IValue input_value(accel_model& model, const std::string& name, accel_model::Input& input) {
  if (!model.net->input_dtype(name)) {
    const at::Scalar number = input.memory.item();
    return number;
  }
  at::Tensor value = input.memory.to(model.owner.accelerator.device());
  if (!input.requires_gradient) return value;
  value = value.detach();  // so that the tensor on the program's memory requires none
  value.requires_grad_(true);
  input.leaf = value;
  return value;
}

ExportedInputs bound_inputs(accel_model& model) {
  std::vector<std::pair<std::string, c10::IValue>> values;
  for (const std::string& name : model.input_names) {
    accel_model::Input& input = model.inputs.at(name);
    input.leaf = input.gradient = at::Tensor();
    if (input.memory.defined()) values.emplace_back(name, input_value(model, name, input));
  }
  return ExportedInputs(std::move(values));
}

void forward(accel_model& model) {
  const Prepared<ExportedModel>& prepared = prepared_of(model);
  model.outputs.reset();
  model.views.clear();
  model.may_go_backward = false;
  if (model.net->is_training() && model.optimizer && !model.batch)
    model.batch.reset(new NoSyncScope(model.owner.accelerator.accumulate(prepared)));
  const bool is_kept = keeps_graph(model);
  const at::AutoGradMode recording(is_kept);
  model.outputs = prepared(bound_inputs(model));
  model.may_go_backward = is_kept;
}

// What backward() starts from.
at::Tensor backward_start(const accel_model& model,
                          std::size_t place,
                          const accel_array* gradient) {
  const at::Tensor& output = model.outputs->tensors[place];
  const std::string text = output_text(model, place);
  if (!output.requires_grad()) {
    throw Error(ErrorCode::kInvalidArgument,
                text + " does not depend on anything that has a gradient",
                "start from another output, or call accel_require_input_gradient()");
  }
  if (gradient != nullptr) {
    check_alike(*gradient, output, "the gradient of " + text);
    return (output * tensor_on(*gradient, "gradient").to(output.device())).sum();
  }
  if (output.numel() == 1) return output.dim() == 0 ? output : output.reshape({});
  throw Error(ErrorCode::kShapeMismatch,
              text + " has " + std::to_string(output.numel()) + " elements, and a loss has one",
              "name the output that is the loss, or pass its gradient");
}

// Of the inputs alone: parameters keep the gradients that they have, and no other rank is asked.
void differentiate_inputs(accel_model& model, const at::Tensor& loss) {
  std::vector<accel_model::Input*> inputs;
  std::vector<at::Tensor> leaves;
  for (auto& [name, input] : model.inputs) {
    if (!input.leaf.defined()) continue;
    inputs.push_back(&input);
    leaves.push_back(input.leaf);
  }
  const std::vector<at::Tensor> gradients = torch::autograd::grad(
      {loss}, leaves, {}, /*retain_graph=*/false, /*create_graph=*/false, /*allow_unused=*/true);
  for (std::size_t i = 0; i < inputs.size(); ++i) inputs[i]->gradient = gradients[i];
}

// Accelerator::backward() divides by the steps of an accumulation and scales for fp16, which is the optimizer's affair.
void take_input_gradients(accel_model& model) {
  const Accelerator& accelerator = model.owner.accelerator;
  double factor = accelerator.gradient_accumulation_steps();
  if (const GradScaler* const scaler = accelerator.scaler()) factor /= scaler->get_scale();
  for (auto& [name, input] : model.inputs) {
    if (!input.leaf.defined() || !input.leaf.grad().defined()) continue;
    input.gradient = factor == 1.0 ? input.leaf.grad() : input.leaf.grad() * factor;
  }
}

void backward(accel_model& model, const char* name, const accel_array* gradient) {
  const std::size_t place = output_of(model, name);
  if (!model.may_go_backward) {
    throw Error(
        ErrorCode::kNotInitialized,
        "nothing is kept for a backward: the last forward was in evaluation mode, or has had one",
        "call accel_set_training() with 1 and accel_forward() before each accel_backward()");
  }
  const at::Tensor loss = backward_start(model, place, gradient);
  model.may_go_backward = false;
  if (!model.net->is_training()) return differentiate_inputs(model, loss);
  model.owner.accelerator.backward(loss);
  take_input_gradients(model);
}

void check_max_norm(double max_grad_norm) {
  if (max_grad_norm >= 0) return;
  throw Error(ErrorCode::kInvalidArgument,
              "max_grad_norm is " + std::to_string(max_grad_norm) + ", expected 0 or more",
              "pass 0 to clip nothing");
}

double lr_of(const accel_model& model) {
  return model.optimizer->optimizer().param_groups().front().options().get_lr();
}

accel_step_result optimizer_step(accel_model& model, double max_grad_norm) {
  const AcceleratedOptimizer& optimizer = optimizer_of(model);
  Accelerator& accelerator = model.owner.accelerator;
  if (!model.batch) {
    throw Error(ErrorCode::kNotInitialized,
                "there was no forward in training mode since the last step",
                "call accel_forward() and accel_backward() before");
  }
  check_max_norm(max_grad_norm);
  // Whatever happens, the next forward begins another batch.
  const std::unique_ptr<NoSyncScope> ending = std::move(model.batch);
  const double none = std::numeric_limits<double>::quiet_NaN();
  accel_step_result result{.loss = none, .grad_norm = none, .lr = lr_of(model), .stepped = 0};
  const bool ends_accumulation = accelerator.sync_gradients();
  if (ends_accumulation && max_grad_norm != 0) {
    result.grad_norm =
        accelerator.clip_grad_norm_(model.net->parameters(), max_grad_norm).item<double>();
  }
  optimizer.step();
  if (model.scheduler) model.scheduler->step();
  optimizer.zero_grad();
  result.stepped = ends_accumulation && !optimizer.step_was_skipped() ? 1 : 0;
  return result;
}

void prepare(accel_model& model,
             const accel_optimizer_options* optimizer,
             const accel_schedule* schedule) {
  if (model.prepared) {
    throw Error(ErrorCode::kInvalidArgument, "the model is prepared already", "prepare it once");
  }
  if (optimizer == nullptr && schedule != nullptr) {
    throw Error(ErrorCode::kInvalidArgument,
                "there is a schedule, but no optimizer whose rate it could set",
                "pass both, or neither");
  }
  Accelerator& accelerator = model.owner.accelerator;
  const bool has_other = std::ranges::any_of(
      model.owner.models, [](const auto& other) { return other->optimizer.has_value(); });
  if (optimizer != nullptr && has_other && accelerator.gradient_accumulation_steps() > 1) {
    throw Error(ErrorCode::kUnsupported,
                "batches are counted for all models together, so gradients of one model alone can "
                "be accumulated",
                "set options.gradient_accumulation_steps to 1 to train several models");
  }
  const LrFactor factor = schedule == nullptr ? LrFactor() : lr_factor(*schedule);
  if (optimizer == nullptr) {
    model.prepared = accelerator.prepare(model.net);
    return;
  }
  auto stepped = make_optimizer(*optimizer, *model.net);
  auto [prepared, accelerated] = accelerator.prepare(model.net, std::move(stepped));
  if (optimizer->fused != 0) accelerated.use_fused_kernels();
  if (factor) {
    // A prepared schedule is stepped once for each process; counts are of optimizer steps here.
    const std::int64_t ranks = accelerator.num_processes();
    model.scheduler = accelerator.prepare(std::make_shared<LambdaLR>(
        accelerated.optimizer(),
        [factor, ranks](std::int64_t step) { return factor(step / ranks); }));
  }
  model.optimizer = accelerated;
  model.prepared = prepared;
}

}  // namespace
}  // namespace accel::c_interface

using namespace accel::c_interface;

int accel_load_model(accel_accelerator* accelerator,
                     const char* path,
                     const char* weights,
                     accel_model** model) {
  return guarded(__func__, [&] {
    accel_accelerator& owner = given(accelerator, "accelerator");
    accel_model*& result = given(model, "model");
    accel::ExportedModel net(std::filesystem::path(&given(path, "path")),
                             {.weights = weights == nullptr ? "" : weights});
    auto made = std::unique_ptr<accel_model>(new accel_model{.owner = owner,
                                                             .net = net,
                                                             .input_names = net->input_names(),
                                                             .output_names = net->output_names(),
                                                             .inputs = {}});
    for (const std::string& name : made->input_names) made->inputs[name];
    owner.models.push_back(std::move(made));
    result = owner.models.back().get();
  });
}

int accel_optimizer_options_init(accel_optimizer_options* options, const char* name) {
  return guarded(__func__, [&] { given(options, "options") = default_optimizer(name); });
}

int accel_schedule_init(accel_schedule* schedule, const char* name) {
  return guarded(__func__, [&] { given(schedule, "schedule") = default_schedule(name); });
}

int accel_prepare(accel_model* model,
                  const accel_optimizer_options* optimizer,
                  const accel_schedule* schedule) {
  return guarded(__func__, [&] { prepare(given(model, "model"), optimizer, schedule); });
}

const char* accel_input_name(const accel_model* model, int index) {
  return guarded_value<const char*>(__func__, nullptr, [&]() -> const char* {
    const auto& names = given(model, "model").input_names;
    const bool is_there = index >= 0 && static_cast<std::size_t>(index) < names.size();
    return is_there ? names[static_cast<std::size_t>(index)].c_str() : nullptr;
  });
}

const char* accel_output_name(const accel_model* model, int index) {
  return guarded_value<const char*>(__func__, nullptr, [&]() -> const char* {
    const auto& names = given(model, "model").output_names;
    const bool is_there = index >= 0 && static_cast<std::size_t>(index) < names.size();
    return is_there ? names[static_cast<std::size_t>(index)].c_str() : nullptr;
  });
}

int accel_bind_input(accel_model* model, const char* name, const accel_array* array) {
  return guarded(__func__, [&] {
    const std::string text = &given(name, "name");
    bind_input(given(model, "model"), text, array);
  });
}

int accel_describe_input(const accel_model* model, const char* name, accel_array* array) {
  return guarded(__func__, [&] {
    auto& described = const_cast<accel_model&>(given(model, "model"));
    given(array, "array") = described_input(described, &given(name, "name"));
  });
}

int accel_require_input_gradient(accel_model* model, const char* name, int required) {
  return guarded(__func__, [&] {
    input_of(given(model, "model"), &given(name, "name")).requires_gradient = required != 0;
  });
}

int accel_set_training(accel_model* model, int training) {
  return guarded(__func__, [&] { given(model, "model").net->train(training != 0); });
}

int accel_step(accel_model* model, double max_grad_norm, accel_step_result* result) {
  return guarded(__func__, [&] {
    accel_model& trained = given(model, "model");
    (void)optimizer_of(trained);
    check_max_norm(max_grad_norm);
    forward(trained);
    backward(trained, nullptr, nullptr);
    accel_step_result done = optimizer_step(trained, max_grad_norm);
    if (result == nullptr) return;
    done.loss = trained.outputs->tensors[output_of(trained, nullptr)].item<double>();
    *result = done;
  });
}

int accel_forward(accel_model* model) {
  return guarded(__func__, [&] { forward(given(model, "model")); });
}

int accel_get_output(accel_model* model, const char* name, accel_array* array) {
  return guarded(__func__, [&] {
    accel_model& run = given(model, "model");
    const std::size_t place = output_of(run, name);
    at::Tensor& view = run.views[place];
    if (!view.defined()) view = run.outputs->tensors[place].detach().cpu().contiguous();
    given(array, "array") = array_on(view, output_text(run, place));
  });
}

int accel_read_output(accel_model* model, const char* name, const accel_array* array) {
  return guarded(__func__, [&] {
    accel_model& run = given(model, "model");
    const std::size_t place = output_of(run, name);
    read_into(given(array, "array"), run.outputs->tensors[place], output_text(run, place));
  });
}

int accel_backward(accel_model* model, const char* name, const accel_array* gradient) {
  return guarded(__func__, [&] { backward(given(model, "model"), name, gradient); });
}

int accel_read_input_gradient(accel_model* model, const char* name, const accel_array* array) {
  return guarded(__func__, [&] {
    const std::string text = &given(name, "name");
    const accel_model::Input& input = input_of(given(model, "model"), text);
    if (!input.gradient.defined()) {
      throw accel::Error(
          accel::ErrorCode::kNotInitialized,
          "the input '" + text + "' has no gradient",
          "call accel_require_input_gradient() before the forward, and accel_backward() after it");
    }
    read_into(given(array, "array"), input.gradient, "the gradient of input '" + text + "'");
  });
}

int accel_optimizer_step(accel_model* model, double max_grad_norm, accel_step_result* result) {
  return guarded(__func__, [&] {
    const accel_step_result done = optimizer_step(given(model, "model"), max_grad_norm);
    if (result != nullptr) *result = done;
  });
}

int accel_get_lr(const accel_model* model, double* lr) {
  return guarded(__func__, [&] {
    const accel_model& trained = given(model, "model");
    (void)optimizer_of(const_cast<accel_model&>(trained));
    given(lr, "lr") = lr_of(trained);
  });
}

int accel_set_lr(accel_model* model, double lr) {
  return guarded(__func__, [&] {
    accel_model& trained = given(model, "model");
    if (optimizer_of(trained); trained.scheduler) {
      throw accel::Error(accel::ErrorCode::kInvalidArgument,
                         "the model was prepared with a schedule, which sets the rate",
                         "pass NULL for the schedule to accel_prepare()");
    }
    if (!(lr >= 0)) {
      throw accel::Error(accel::ErrorCode::kInvalidArgument,
                         "lr is " + std::to_string(lr) + ", expected 0 or more");
    }
    for (auto& group : trained.optimizer->optimizer().param_groups()) group.options().set_lr(lr);
  });
}

int accel_save_model(accel_model* model, const char* folder) {
  return guarded(__func__, [&] {
    accel_model& trained = given(model, "model");
    trained.owner.accelerator.save_model(prepared_of(trained), &given(folder, "folder"));
  });
}
