#include "libaccel/exported/loaded_model.h"

#include <algorithm>
#include <utility>

#include <accel/checkpoint_names.h>
#include <accel/error.h>

#include "libaccel/exported/graph_reader.h"
#include "runtime/printable.h"
#include "runtime/text/joined.h"

namespace accel::exported {
namespace {

constexpr const char* kEvaluation = "eval";

// The graph for training: the only one, or the one of that name.
std::string training_model(const Archive& archive, const std::string& wanted) {
  const std::vector<std::string>& models = archive.models();
  if (std::find(models.begin(), models.end(), wanted) != models.end()) return wanted;
  if (models.size() == 1) return models.front();
  throw Error(ErrorCode::kInvalidArgument,
              printable(archive.path()) + " has no model '" + printable(wanted) + "'; it has " +
                  printable(joined(models, ", ")),
              "name one of them in ExportedModelOptions::model");
}

// Operators of graphs that torch decomposed for inference: they have no derivative.
void check_trainable(const ExportedGraph& graph) {
  for (const Node& node : graph.graph.nodes) {
    if (node.target.find("_no_training") == std::string::npos &&
        node.target.find("_norm_legit_functional") == std::string::npos)
      continue;
    throw Error(
        ErrorCode::kUnsupported,
        "the node " + printable(node.name) + " of the exported model is " + printable(node.target) +
            ": the graph was decomposed for inference",
        "export with torch.export.export(model.train(), ...), and leave run_decompositions() "
        "and export_for_inference() out");
  }
}

// Where `accel export --weights beside` has put the values that are not in the archive. Empty: they are, or nothing is there.
std::filesystem::path weights_beside(const std::filesystem::path& archive,
                                     const std::vector<Payload>& payloads) {
  if (std::ranges::all_of(payloads, &Payload::has_bytes)) return {};
  std::filesystem::path path = archive.parent_path() / kSafeWeightsName;
  std::error_code ignored;
  return std::filesystem::exists(path, ignored) ? path : std::filesystem::path();
}

// nullptr: the module has no tensors.
torch::nn::Module* submodule_at(torch::nn::Module& root, const std::string& path) {
  torch::nn::Module* module = &root;
  for (std::size_t begin = 0; begin < path.size() && module != nullptr;) {
    const std::size_t end = std::min(path.find('.', begin), path.size());
    const auto children = module->named_children();
    const auto* const child = children.find(path.substr(begin, end - begin));
    module = child == nullptr ? nullptr : child->get();
    begin = end + 1;
  }
  return module;
}

Error no_module_to_hook(const std::string& path) {
  return Error(
      ErrorCode::kInvalidArgument,
      "the graphs of the exported model do not call a module '" + printable(path) + "'",
      "name a module as named_modules() does, without \"@\" and the number of a call; what "
      "Python runs within torch.no_grad(), torch.autocast() or torch.cond() cannot have a "
      "hook");
}

}  // namespace

LoadedModel::LoadedModel(const std::filesystem::path& path, const ExportedModelOptions& options)
    : path_(path) {
  try {
    const Archive archive(path);
    const std::string model = training_model(archive, options.model);
    training_ = std::make_unique<BoundGraph>(read_graph(archive.graph_text(model)), source());
    check_trainable(training_->source());
    const auto& models = archive.models();
    if (model != kEvaluation &&
        std::find(models.begin(), models.end(), kEvaluation) != models.end())
      evaluation_ =
          std::make_unique<BoundGraph>(read_graph(archive.graph_text(kEvaluation)), source());
    load_tensors(archive, options);
    load_code(archive, options);
  } catch (Error& error) {
    throw std::move(error).while_doing("loading the exported model " + printable(path.string()));
  }
}

void LoadedModel::load_tensors(const Archive& archive, const ExportedModelOptions& options) {
  const std::string model = training_model(archive, options.model);
  const std::vector<Payload> payloads = archive.weights(model);
  for (const Payload& payload : payloads) {
    requires_grad_[payload.name] = payload.requires_grad;
    if (payload.is_parameter && payload.device_type == "cuda") home_ = c10::DeviceType::CUDA;
  }
  const std::filesystem::path weights =
      options.weights.empty() ? weights_beside(path_, payloads) : options.weights;
  tensors_ = weights.empty() ? read_tensors(payloads) : read_tensors(payloads, weights);
  tensors_.merge(read_tensors(archive.constants(model)));
  // Each graph has numbered the constants of its own code.
  if (evaluation_) evaluation_constants_ = read_tensors(archive.constants(kEvaluation));
}

// Why it is not there; empty: it is.
std::string LoadedModel::load_code_of(BoundGraph& graph,
                                      const Archive& archive,
                                      const std::string& model,
                                      CompiledUse use) {
  const std::vector<std::string> models = CompiledPackage::models(archive);
  if (std::ranges::find(models, model) == models.end())
    return printable(source()) + " has no compiled code of the graph '" + printable(model) + "'";
  try {
    const CompiledPackage package(archive, model);
    if (!package.is_made_of(archive.graph_text(model)))
      throw Error(ErrorCode::kUnsupported,
                  "the compiled code of " + printable(source()) +
                      " was not made of its graph by accel export",
                  "export the model with accel export --compile; accel/compiled_model.h loads "
                  "packages of others");
    graph.use_code(package, use);
    return "";
  } catch (const Error& error) {
    if (use == CompiledUse::kRequired || error.code() != ErrorCode::kUnsupported) throw;
    say_of_code(error.message() + "; the graph is run operator by operator (" + error.remedy() +
                ")");
    return error.message();
  }
}

void LoadedModel::load_code(const Archive& archive, const ExportedModelOptions& options) {
  no_training_code_ = "ExportedModelOptions::compiled does not ask for it";
  no_evaluation_code_ = no_training_code_;
  needs_code_ = options.compiled == CompiledUse::kRequired;
  if (options.compiled == CompiledUse::kNever) return;
  no_training_code_ = "one graph serves both modes, and code knows one";
  no_evaluation_code_ = no_training_code_;
  if (evaluation_) {
    no_training_code_ =
        load_code_of(*training_, archive, training_model(archive, options.model), options.compiled);
    no_evaluation_code_ = load_code_of(*evaluation_, archive, kEvaluation, options.compiled);
    if (training_->code() != nullptr || evaluation_->code() != nullptr) return;
  }
  if (needs_code_)
    throw Error(ErrorCode::kUnsupported,
                printable(source()) + " has no compiled code",
                "export the model with accel export --compile");
  if (CompiledPackage::models(archive).empty())
    say_of_code(printable(source()) +
                " has no compiled code; its graphs are run operator by operator (export the model "
                "with accel export --compile)");
}

std::string LoadedModel::why_not_compiled(bool is_training) const {
  const BoundGraph& used = graph(is_training);
  if (used.code() != nullptr && used.has_hooks()) return "a submodule has a hook";
  if (used.code() != nullptr) return used.code()->fault();
  return &used == evaluation_.get() ? no_evaluation_code_ : no_training_code_;
}

std::string LoadedModel::class_name() const {
  const ClassNames classes = class_names(training_->source().graph);
  const auto root = classes.find("");
  return root == classes.end() ? "ExportedModel" : root->second;
}

void LoadedModel::attach(torch::nn::Module& root) {
  std::vector<std::string> names;
  for (const InputSpec& input : training_->source().inputs)
    if (input.kind == InputSpec::Kind::kParameter || input.kind == InputSpec::Kind::kBuffer)
      names.push_back(input.target);
  ModuleTree tree(root, class_names(training_->source().graph));
  tree.expect(names);
  std::map<std::string, TensorPlace> places;
  for (const InputSpec& input : training_->source().inputs) {
    const auto tensor = tensors_.find(input.target);
    const bool is_parameter = input.kind == InputSpec::Kind::kParameter;
    if (!is_parameter && input.kind != InputSpec::Kind::kBuffer) continue;
    if (tensor == tensors_.end())
      throw damaged_export("its graph takes " + printable(input.target) + ", which has no values");
    places[input.target] =
        is_parameter
            ? tree.add_parameter(input.target,
                                 tensor->second,
                                 requires_grad_[input.target] && tensor->second.is_floating_point())
            : tree.add_buffer(input.target, tensor->second, input.is_persistent);
  }
  training_->bind(places, tensors_);
  if (evaluation_) evaluation_->bind(places, evaluation_constants_);
  tensors_.clear();
  evaluation_constants_.clear();
  move_to(at::Device(at::kCPU), std::nullopt, false);
}

bool LoadedModel::is_persistent_buffer(const std::string& name) const {
  return std::ranges::none_of(training_->source().inputs, [&](const InputSpec& input) {
    return input.kind == InputSpec::Kind::kBuffer && input.target == name && !input.is_persistent;
  });
}

void LoadedModel::add_hook(torch::nn::Module& root,
                           const std::string& path,
                           std::shared_ptr<ModelHook> hook,
                           bool append) {
  if (needs_code_)
    throw Error(ErrorCode::kUnsupported,
                printable(source()) + " has to run machine code, in which no hook can be called",
                "load it with CompiledUse::kWherePossible or kNever");
  std::vector<std::pair<BoundGraph*, ModuleCalls>> graphs;
  HookedModule hooked{.path = path, .module = submodule_at(root, path)};
  for (BoundGraph* const graph : {training_.get(), evaluation_.get()}) {
    if (graph == nullptr) continue;
    ModuleCalls calls = calls_of_module(graph->source().graph, path);
    if (calls.ranges.empty()) continue;
    graph->check_hook(calls, path);
    hooked.class_name = calls.class_name;
    graphs.emplace_back(graph, std::move(calls));
  }
  if (graphs.empty()) throw no_module_to_hook(path);
  const auto module = std::make_shared<const HookedModule>(std::move(hooked));
  hook->init_hook(*module);
  Hooked& current = hooks_[path];
  const std::shared_ptr<ModelHook> old = current.hook;
  current = {module,
             old != nullptr && append ? std::make_shared<SequentialHook>(
                                            std::vector<std::shared_ptr<ModelHook>>{old, hook})
                                      : hook};
  for (const auto& [graph, calls] : graphs) graph->set_hook(calls, module, current.hook);
  if (old != nullptr && old != hook && !append) old->detach_hook(*module);
}

void LoadedModel::remove_hooks(const std::string& path, bool recurse) {
  std::map<std::string, Hooked> removed;
  for (const auto& entry : hooks_) {
    const std::string& other = entry.first;
    if (other == path || (recurse && (path.empty() || other.starts_with(path + '.'))))
      removed.insert(entry);
  }
  for (const auto& entry : removed) hooks_.erase(entry.first);
  for (BoundGraph* const graph : {training_.get(), evaluation_.get()})
    if (graph != nullptr && !removed.empty())
      graph->drop_hooks([&](const std::string& other) { return removed.contains(other); });
  for (const auto& [other, hooked] : removed) hooked.hook->detach_hook(*hooked.module);
}

bool LoadedModel::starts_in_training() const {
  return evaluation_ != nullptr || !training_->program().is_fixed_evaluation();
}

void LoadedModel::set_training(bool on) {
  if (evaluation_) return;
  Program& program = training_->program();
  if (on && program.is_fixed_evaluation())
    throw Error(ErrorCode::kUnsupported,
                printable(source()) +
                    " was exported in evaluation mode: its dropout and batch norm "
                    "cannot be switched on",
                "export model.train(), or both graphs: docs/guides/exported-models.md");
  program.set_training(on);
}

void LoadedModel::move_to(std::optional<at::Device> device,
                          std::optional<at::ScalarType> dtype,
                          bool non_blocking) {
  at::TensorOptions options;
  if (device) options = options.device(*device);
  if (dtype) options = options.dtype(*dtype);
  for (const auto& graph : {training_.get(), evaluation_.get()}) {
    if (graph == nullptr) continue;
    graph->move_constants(options, non_blocking);
    if (device) graph->program().set_device(home_, *device);
  }
}

}  // namespace accel::exported
