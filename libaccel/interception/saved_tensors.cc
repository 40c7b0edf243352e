#include "libaccel/interception/saved_tensors.h"

#include <typeinfo>
#include <utility>

#include <torch/csrc/autograd/engine.h>

#include <accel/error.h>

namespace accel::interception {
namespace {

thread_local SavedTensorScope* t_saved_tensors = nullptr;

}  // namespace

struct SavedTensorEngine final : torch::autograd::Engine {
  std::unique_ptr<torch::autograd::SavedVariableHooks> get_default_saved_variable_hooks() override {
    return t_saved_tensors == nullptr ? nullptr : t_saved_tensors->make_hooks_();
  }

  // Never destroyed: threads of a backward may end after everything else.
  static Engine& get() {
    static auto* const engine = new SavedTensorEngine();
    return *engine;
  }

  static void install() {
    static const bool is_installed = [] {
      const Engine& present = get_default_engine();
      if (typeid(present) != typeid(Engine))
        throw Error(ErrorCode::kUnsupported,
                    "what autograd saves cannot be kept elsewhere: another library has replaced "
                    "its engine, as LibTorch's Python does",
                    "run the program without that library");
      torch::autograd::set_default_engine_stub(&get);
      return true;
    }();
    (void)is_installed;
  }
};

SavedTensorScope::SavedTensorScope(MakeHooks make_hooks)
    : make_hooks_((SavedTensorEngine::install(), std::move(make_hooks))),
      outer_(std::exchange(t_saved_tensors, this)) {}

SavedTensorScope::~SavedTensorScope() {
  t_saved_tensors = outer_;
}

}  // namespace accel::interception
