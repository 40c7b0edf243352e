// Hooks of an exported model's submodules: they read and change what goes into a submodule and what comes out of it.
//
//   struct Steer : accel::ModelHook {                       // adds a direction to the activations of a layer
//     void post_forward(const accel::HookedModule&, accel::HookValues& outputs) override {
//       outputs.values[0] = outputs.values[0].toTensor() + direction;
//     }
//     at::Tensor direction;
//   };
//   accel::add_hook_to_module(*net, "model.layers.5", std::make_shared<Steer>());
//
// Names and order of events are those of accelerate.hooks. There a submodule has Python's arguments; here it has the values that its part
// of the graph takes from before it and gives to what follows (ExportedRegion in accel/exported_model.h): for a layer the hidden states,
// and what else it reads, such as a mask or a dynamic size. Parameters are not among them.
//
// A hook may add and remove hooks, of its own submodule too: the next forward has them. What runs within torch.no_grad(),
// torch.autocast() or torch.cond() of Python is a graph of its own, whose submodules can have none.
//
// A submodule that is called several times has its hook run in each call. Hooks run in forwards and in the regions of the model that
// hold the whole call. A model with hooks runs its graph operator by operator, not machine code (CompiledUse).
//
// A module of C++ calls forward() of its parts itself, and nothing can come between: call what a hook would do in that forward().
//
// Threads:  adding and removing alone, or in a hook while no other thread runs a forward. Hooks run in the threads of forwards, so in several at once where those are.
// Cost:     a model without hooks pays nothing. Adding one looks through the graph once. A hook keeps its inputs in memory until its submodule has been run.
// Source:   accelerate/hooks.py of Accelerate 1.15.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <ATen/core/ivalue.h>
#include <torch/nn/module.h>

#include <accel/export.h>
#include <accel/exported_model.h>

namespace accel {

// The submodule that a hook is called for.
struct HookedModule {
  std::string path;        // "model.layers.0", as named_modules() has it; empty: the whole model
  std::string class_name;  // in Python
  // Its tensors; belongs to the model. nullptr: it has no parameter and no buffer.
  torch::nn::Module* module = nullptr;
};

// What goes into a call or comes out of it: tensors, then numbers where a size is dynamic. Inputs: what the caller of the model gives,
// then what nodes before have computed, each in the order of use. Outputs: in the order in which the graph computes them, with new values
// of buffers among them; of the whole model in the order in which it returns them.
struct ACCEL_EXPORT HookValues {
  std::vector<std::string> names;  // of the graph's nodes
  std::vector<c10::IValue> values;

  // By name. Throws kInvalidArgument naming the values that there are.
  [[nodiscard]] c10::IValue& operator[](std::string_view name);
};

class ACCEL_EXPORT ModelHook {
 public:
  ModelHook() = default;
  ModelHook(const ModelHook&) = delete;
  ModelHook& operator=(const ModelHook&) = delete;
  virtual ~ModelHook() = default;

  // Whether the submodule runs without autograd. Asked at each call.
  [[nodiscard]] virtual bool no_grad() const { return false; }
  // When the hook is added. What it throws leaves the model as it was.
  virtual void init_hook(const HookedModule& module);
  // Before a call. May replace values, of which the submodule then takes the new ones; the rest of the graph keeps the old ones, unless
  // the submodule writes to them in place. Runs, as post_forward(), without autograd where a module around it wants none.
  virtual void pre_forward(const HookedModule& module, HookValues& inputs);
  // After a call. May replace values, of which all that follows takes the new ones.
  virtual void post_forward(const HookedModule& module, HookValues& outputs);
  // When the hook is removed, and when another one has taken its place. Not called when the model is destroyed.
  virtual void detach_hook(const HookedModule& module);
};

// Several hooks as one: each event goes to all of them in their order, each on the values of the one before.
class ACCEL_EXPORT SequentialHook final : public ModelHook {
 public:
  // Throws kInvalidArgument for nullptr.
  explicit SequentialHook(std::vector<std::shared_ptr<ModelHook>> hooks);

  // Whether any of them wants that. (In Accelerate it is lost: SequentialHook.no_grad stays False.)
  [[nodiscard]] bool no_grad() const override;
  void init_hook(const HookedModule& module) override;
  void pre_forward(const HookedModule& module, HookValues& inputs) override;
  void post_forward(const HookedModule& module, HookValues& outputs) override;
  void detach_hook(const HookedModule& module) override;

 private:
  std::vector<std::shared_ptr<ModelHook>> hooks_;
};

// Gives a submodule a hook in place of the one that it has; with append, behind that one (SequentialHook).
// path: as named_modules() has it; empty: the whole model. A hook may serve several submodules.
// Throws kInvalidArgument when no graph calls a module of this path, for nullptr, and for a path of one call ("layer@1"); kUnsupported
// for a model that was made with CompiledUse::kRequired, and where the graph runs nodes of the module among those of another one that has
// a hook.
ACCEL_EXPORT void add_hook_to_module(ExportedModelImpl& model,
                                     const std::string& path,
                                     std::shared_ptr<ModelHook> hook,
                                     bool append = false);

// Takes the hook from a submodule; with recurse, from all within it as well. Nothing happens where there is none.
ACCEL_EXPORT void remove_hook_from_module(ExportedModelImpl& model,
                                          const std::string& path,
                                          bool recurse = false);

// Takes all hooks from a submodule and from all within it.
ACCEL_EXPORT void remove_hook_from_submodules(ExportedModelImpl& model,
                                              const std::string& path = "");

}  // namespace accel
