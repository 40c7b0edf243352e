// ActivationCheckpoint: recompute the activations of a part of a forward in the backward, in place of keeping them.
//
//   at::Tensor forward(at::Tensor x) {
//     for (auto& block : blocks) x = accel::checkpoint_activations([block](at::Tensor h) mutable { return block->forward(h); }, x);
//     return head(x);
//   }
//
// It is torch.utils.checkpoint.checkpoint() with use_reentrant=False. Gradients are bitwise equal to the gradients without it.
// Two things are kept of the part: its inputs, and a copy of each tensor that it writes to and did not create. When the backward
// reaches the part, it runs again:
//
//   - with the grad mode, the autocast and the default generators of the forward, so dropout drops the same elements;
//   - once for each backward: a second backward of a retained graph computes it again;
//   - up to the last tensor that is needed;
//   - on copies of running statistics and other buffers: accel updates them once, torch twice.
//
// Parts may be nested. In evaluation, without a graph, the part runs normally.
//
// Selective recomputation keeps the results of expensive operators:
//
//   x = accel::checkpoint_activations({.keep = accel::KeptOperators::compute_intensive()}, function, x);
//
// These operators are then not computed again; the operators between them, such as norms, activations,
// softmax and dropout, run again. The results are bitwise the same. Memory and time are between a full part and no part.
//
// The part must do the same each time. Tensors that it reads from outside, also captured ones, must not change in place
// until the backward. Do not call a prepared model in a part: put the part inside the model's own forward.
//
// Threads:  any; the part runs again on the thread of the backward.
// Cost:     memory: the inputs, some 200 bytes for each saved tensor, and 5 KB. Time: another forward of the part, and some microseconds for
//           each of its operators. Kept operators cost the memory of their results and no second computation.
// Source:   torch/utils/checkpoint.py of PyTorch 2.11; tests/unit/libaccel/recompute/activation_checkpoint_test.cc.
#pragma once

#include <concepts>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include <accel/export.h>
#include <accel/nested.h>

namespace c10 {
class OperatorHandle;
}

namespace accel {

// Operators whose results a part keeps: MUST_SAVE of PyTorch's CheckpointPolicy, where all others are PREFER_RECOMPUTE.
class ACCEL_EXPORT KeptOperators {
 public:
  // names: names of LibTorch's kernels. "aten::mm" is all overloads, "aten::max.dim" one overload.
  // Throws kInvalidArgument, naming the operator: no operator has this name; it is composed of other operators, like aten::linear; it
  // writes to its arguments, or returns views of them. Takes some microseconds for each name: construct it once.
  explicit KeptOperators(const std::vector<std::string>& names);

  // Matrix products, convolutions, attention and recurrent layers: they take nearly all time of a forward.
  [[nodiscard]] static const KeptOperators& compute_intensive();

  // Whether the results of this operator are kept.
  [[nodiscard]] bool contains(const c10::OperatorHandle& op) const;

 private:
  struct Schemas;
  std::shared_ptr<const Schemas> schemas_;
};

struct ActivationCheckpointOptions {
  // Unset: only the inputs are kept.
  std::optional<KeptOperators> keep = std::nullopt;
};

namespace detail {

// Whether a graph is recorded.
[[nodiscard]] ACCEL_EXPORT bool has_activations();

// During its lifetime the computation of its thread is a part.
class ACCEL_EXPORT ActivationRegion {
 public:
  using RunAgain = std::function<void(const std::vector<at::Tensor>& inputs)>;

  ActivationRegion(const std::vector<at::Tensor>& inputs,
                   RunAgain run_again,
                   const ActivationCheckpointOptions& options);
  ~ActivationRegion();
  ActivationRegion(const ActivationRegion&) = delete;
  ActivationRegion& operator=(const ActivationRegion&) = delete;

 private:
  struct Parts;
  std::unique_ptr<Parts> parts_;
};

}  // namespace detail

// Returns function(inputs...). The tensors among the inputs, also in nested data (accel/nested.h), are the inputs of the part; a
// copy of the function and of the other inputs is kept.
// Errors  throws kUnsupported: another library has replaced autograd's engine, as LibTorch's Python does. The backward throws
// kShapeMismatch: the part saved other tensors than in the forward; the error gives the number of the first one and both shapes;
// kInvalidArgument: an input, or another tensor that the part reads, was changed in place meanwhile.
template <typename Function, typename... Inputs>
auto checkpoint_activations(const ActivationCheckpointOptions& options,
                            Function&& function,
                            const Inputs&... inputs) {
  using Result = std::invoke_result_t<Function&, const Inputs&...>;
  if (!detail::has_activations()) return static_cast<Result>(std::invoke(function, inputs...));
  std::vector<at::Tensor> tensors;
  // Without the tensors, which autograd keeps.
  auto rest = map_leaves<at::Tensor>(std::tuple<std::decay_t<Inputs>...>(inputs...),
                                     [&tensors](const at::Tensor& tensor) {
                                       tensors.push_back(tensor);
                                       return at::Tensor();
                                     });
  const detail::ActivationRegion region(
      tensors,
      [copy = std::decay_t<Function>(function),
       rest = std::move(rest)](const std::vector<at::Tensor>& again) {
        std::size_t next = 0;
        const auto arguments =
            map_leaves<at::Tensor>(rest, [&](const at::Tensor&) { return again[next++]; });
        std::decay_t<Function> own = copy;
        (void)std::apply(own, arguments);
      },
      options);
  return static_cast<Result>(std::invoke(function, inputs...));
}

// Without options.
template <typename Function, typename... Inputs>
requires std::invocable<Function&, const Inputs&...>
auto checkpoint_activations(Function&& function, const Inputs&... inputs) {
  return checkpoint_activations(
      ActivationCheckpointOptions{}, std::forward<Function>(function), inputs...);
}

}  // namespace accel
