// Prepared: a model as Accelerator::prepare() hands it back, called like the model itself.
//
// Around each forward it does what the job needs: with several ranks the buffers of rank 0 are sent
// to the others and the reducer is told that a backward will come; with mixed precision the forward
// runs under autocast and 16-bit outputs come back as fp32.
//
//   model(x), model.forward(x)   do all of that
//   model->forward(x)            operator-> reaches the module itself: its members, its own methods. The gradients of such a
//                                forward are averaged over the ranks all the same, at the end of the backward the buffers of
//                                rank 0 are sent, and every trained parameter needs a gradient. With mixed precision a model
//                                all of whose forwards go this way is refused by backward(), unless the program calls
//                                accelerator.autocast(); so is each one with find_unused_parameters or static_graph. Shards
//                                (accel/fsdp.h) are reduced in each backward, also within no_sync().
//
// A forward of an LSTM in 16 bits for which LibTorch has no kernel on this CPU throws kUnsupported with what to do; past the
// prepared model it throws oneDNN's own words.
//
// Handle: what was prepared, a torch::nn::ModuleHolder or a std::shared_ptr to a module.
//
// Threads:  the thread that trains.
// Cost:     one process in fp32: two branches. Otherwise one walk over the outputs, no copy.
#pragma once

#include <cstddef>
#include <deque>
#include <exception>
#include <memory>
#include <optional>
#include <type_traits>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include <accel/export.h>
#include <accel/nested.h>
#include <accel/precision.h>

namespace torch::nn {
class Module;
}

namespace accel {
namespace recompute {
class UnitForward;
}
namespace detail {

class ModelRuntime;

// One forward: entered before the module runs, finished with the tensors that it returned.
class ACCEL_EXPORT ForwardScope {
 public:
  // Throws kPeerLost, kProcessGroup, and kInvalidArgument naming the parameters that got no
  // gradient in the step before.
  explicit ForwardScope(ModelRuntime& runtime);
  ~ForwardScope();
  ForwardScope(const ForwardScope&) = delete;
  ForwardScope& operator=(const ForwardScope&) = delete;

  // What the module gets in place of an argument, kept as long as this object; nullptr: the argument itself.
  [[nodiscard]] at::Tensor* replacement(const at::Tensor& argument);
  // Whether finish() has to see the outputs; otherwise it may be called with none.
  [[nodiscard]] bool wants_outputs() const noexcept;
  // Ends autocast, converts the outputs in place and prepares the reducer.
  void finish(std::vector<at::Tensor>& outputs);
  // The module has thrown: throws kUnsupported in place of words of LibTorch that name no remedy (engine/precision/lstm_kernels.h).
  void explain(const std::exception& error) const;

 private:
  ModelRuntime& runtime_;
  std::optional<Autocast> autocast_;
  std::unique_ptr<recompute::UnitForward> units_;
  std::deque<at::Tensor> replacements_;
};

// Of arguments that have their tensors by name (ExportedInputs) a copy: a value in place of a reference.
template <typename T>
decltype(auto) argument_of(ForwardScope& scope, std::remove_reference_t<T>& argument) {
  const auto replaced = [&scope](const at::Tensor& tensor) {
    const at::Tensor* const other = scope.replacement(tensor);
    return other == nullptr ? tensor : *other;
  };
  if constexpr (requires { argument.with_tensors(replaced); }) {
    return argument.with_tensors(replaced);
  } else if constexpr (std::is_same_v<std::remove_cvref_t<T>, at::Tensor>) {
    at::Tensor* const other = scope.replacement(argument);
    return static_cast<T&&>(other == nullptr ? argument : *other);
  } else {
    return static_cast<T&&>(argument);
  }
}

// The module behind a handle.
template <typename M>
const std::shared_ptr<M>& module_of(const std::shared_ptr<M>& handle) {
  return handle;
}
template <typename Holder>
requires requires {
  typename Holder::ContainedType;
}
const std::shared_ptr<typename Holder::ContainedType>& module_of(const Holder& handle) {
  return handle.ptr();
}

}  // namespace detail

template <typename Handle>
class Prepared {
 public:
  Prepared(Handle handle, std::shared_ptr<detail::ModelRuntime> runtime)
      : handle_(std::move(handle)), runtime_(std::move(runtime)) {}

  // Runs the module's forward. It may return tensors, nested containers of them, and structs that list
  // their members (accel/nested.h); other classes do not compile.
  template <typename... Args>
  auto operator()(Args&&... args) const {
    return forward(std::forward<Args>(args)...);
  }

  template <typename... Args>
  auto forward(Args&&... args) const {
    detail::ForwardScope scope(*runtime_);
    std::vector<at::Tensor> tensors;
    auto outputs = [&] {
      try {
        return module().forward(detail::argument_of<Args>(scope, args)...);
      } catch (const std::exception& error) {
        scope.explain(error);
        throw;
      }
    }();
    static_assert(
        Nested<decltype(outputs)>,
        "the forward of a prepared model returns a class whose tensors nobody sees: give the "
        "struct fields() (see accel/nested.h), or return a tuple of tensors");
    if (!scope.wants_outputs()) {
      scope.finish(tensors);
      return outputs;
    }
    for_each_leaf<at::Tensor>(outputs, [&](const at::Tensor& tensor) {
      if (tensor.defined()) tensors.push_back(tensor);
    });
    scope.finish(tensors);
    std::size_t next = 0;
    return recursively_apply(outputs, [&](const at::Tensor&) { return tensors[next++]; });
  }

  auto* operator->() const { return &module(); }
  auto& operator*() const { return module(); }

  // What was prepared.
  [[nodiscard]] const Handle& unwrap() const noexcept { return handle_; }
  [[nodiscard]] const std::shared_ptr<detail::ModelRuntime>& runtime() const noexcept {
    return runtime_;
  }

 private:
  [[nodiscard]] auto& module() const { return *detail::module_of(handle_); }

  Handle handle_;
  std::shared_ptr<detail::ModelRuntime> runtime_;
};

// What was prepared: unwrap(). Of a model that was not, the model itself. No module is wrapped within another, so there is nothing
// to take off: mixed precision and the exchange of gradients belong to Prepared.
template <typename Handle>
[[nodiscard]] Handle extract_model_from_parallel(const Prepared<Handle>& model) {
  return model.unwrap();
}
template <typename Handle>
[[nodiscard]] Handle extract_model_from_parallel(const Handle& model) {
  return model;
}

namespace detail {
template <typename T>
inline constexpr bool is_prepared = false;
template <typename Handle>
inline constexpr bool is_prepared<Prepared<Handle>> = true;
}  // namespace detail

}  // namespace accel
