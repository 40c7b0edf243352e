// Prepared: the model that Accelerator::prepare() returns. Call it like the model itself.
//
// With several ranks a forward sends the buffers of rank 0 to the others and prepares the reducer for the backward. With mixed
// precision it runs under autocast and converts 16-bit outputs to fp32.
//
//   model(x), model.forward(x)   do all this
//   model->forward(x)            operator-> gives the module itself: its members and methods. The gradients of such a forward are
//                                averaged over the ranks, too. The buffers of rank 0 are sent at the end of the backward, and
//                                every trained parameter needs a gradient. With find_unused_parameters or static_graph
//                                backward() refuses such a forward. With mixed precision backward() refuses a model if all of
//                                its forwards are of this kind, unless the program calls accelerator.autocast(). Shards
//                                (accel/fsdp.h) are reduced in each backward, also within no_sync().
//
// LibTorch has no 16-bit LSTM kernel on some CPUs. There the forward throws kUnsupported with a remedy; model->forward(x) throws
// oneDNN's own message.
//
// Handle: the type that was prepared, a torch::nn::ModuleHolder or a std::shared_ptr to a module.
//
// Threads:  the thread that trains.
// Cost:     with one process in fp32, two branches. Otherwise one walk over the outputs, without a copy.
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

// One forward: constructed before the module runs, finished with the tensors that the module returned.
class ACCEL_EXPORT ForwardScope {
 public:
  // Throws kPeerLost, kProcessGroup, and kInvalidArgument if parameters had no gradient in the last
  // step; the error names them.
  explicit ForwardScope(ModelRuntime& runtime);
  ~ForwardScope();
  ForwardScope(const ForwardScope&) = delete;
  ForwardScope& operator=(const ForwardScope&) = delete;

  // The tensor that the module gets in place of `argument`; valid as long as this object. nullptr: `argument` itself.
  [[nodiscard]] at::Tensor* replacement(const at::Tensor& argument);
  // Whether finish() needs the outputs. If not, it may be called without any.
  [[nodiscard]] bool wants_outputs() const noexcept;
  // Ends autocast, converts the outputs in place, prepares the reducer.
  void finish(std::vector<at::Tensor>& outputs);
  // The module has thrown `error`. Throws kUnsupported with a remedy where LibTorch's message has none
  // (engine/precision/lstm_kernels.h); otherwise returns.
  void explain(const std::exception& error) const;

 private:
  ModelRuntime& runtime_;
  std::optional<Autocast> autocast_;
  std::unique_ptr<recompute::UnitForward> units_;
  std::deque<at::Tensor> replacements_;
};

// The argument for the module. For arguments with named tensors (ExportedInputs) it is a copy, not a reference.
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

  // Runs the module's forward. The forward may return tensors, nested containers of tensors, and structs
  // with fields() (accel/nested.h). Other classes do not compile.
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

  // The handle that was prepared.
  [[nodiscard]] const Handle& unwrap() const noexcept { return handle_; }
  [[nodiscard]] const std::shared_ptr<detail::ModelRuntime>& runtime() const noexcept {
    return runtime_;
  }

 private:
  [[nodiscard]] auto& module() const { return *detail::module_of(handle_); }

  Handle handle_;
  std::shared_ptr<detail::ModelRuntime> runtime_;
};

// The handle that was prepared, as unwrap(); a model that was not prepared is returned unchanged. prepare() wraps no module in
// another module: Prepared does mixed precision and the exchange of gradients. So there is nothing else to unwrap.
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
