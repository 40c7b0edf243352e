// ActivationCheckpoint: a part of a forward whose activations are not kept for the backward, but computed again in it.
//
//   at::Tensor forward(at::Tensor x) {
//     for (auto& block : blocks) x = accel::checkpoint_activations([block](at::Tensor h) mutable { return block->forward(h); }, x);
//     return head(x);
//   }
//
// It is torch.utils.checkpoint.checkpoint() with use_reentrant=False. Gradients are equal to the bit to those without it. What
// is kept of the part: its inputs, and a copy of what it writes to and has not made itself. When the backward comes to the part,
// it runs again:
//
//   - with the grad mode, the autocast and the default generators of the forward, so dropout drops the same elements;
//   - once for each backward: a graph that is retained may be gone through again, which computes it once more;
//   - up to the last tensor that is needed;
//   - on copies of running statistics and other buffers: they are updated once, where torch updates them twice.
//
// Parts may lie in one another. In evaluation, without a graph, the part runs as it is.
//
// What is expensive to compute may be kept all the same, which is called selective recomputation:
//
//   x = accel::checkpoint_activations({.keep = accel::KeptOperators::compute_intensive()}, function, x);
//
// The results of these operators are then given in place of computing them; the operators between them, such as norms, activations,
// softmax and dropout, run again. The bits stay the same. Memory and time lie between those of a part and of no part.
//
// The part has to do the same each time. What it reads from outside, tensors that the function has captured too, must not change in place
// until the backward. A model that was prepared is not called in a part: the part belongs inside of the model's own forward.
//
// Threads:  any; the part runs again on the thread of the backward.
// Cost:     memory of the inputs, some 200 bytes for each saved tensor and 5 KB; time of another forward of the part, and some microseconds for
//           each of its operators. With kept operators also the memory of their results, and not their time.
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
  // names: those that LibTorch's kernels have, "aten::mm"; all overloads, or one with its name behind a point: "aten::max.dim".
  // Throws kInvalidArgument, naming the operator: there is none of that name; it is made of other operators, as aten::linear is; it
  // writes to its arguments, or gives views of them. Takes some microseconds for each name: make it once.
  explicit KeptOperators(const std::vector<std::string>& names);

  // Matrix products, convolutions, attention and recurrent layers: where nearly all of a forward's time goes.
  [[nodiscard]] static const KeptOperators& compute_intensive();

  // Whether the results of this one are kept.
  [[nodiscard]] bool contains(const c10::OperatorHandle& op) const;

 private:
  struct Schemas;
  std::shared_ptr<const Schemas> schemas_;
};

struct ActivationCheckpointOptions {
  // Unset: nothing but the inputs is kept.
  std::optional<KeptOperators> keep = std::nullopt;
};

namespace detail {

// Whether a graph is recorded.
[[nodiscard]] ACCEL_EXPORT bool has_activations();

// While it lives, what its thread computes is a part.
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

// Returns function(inputs...). The tensors among the inputs, in nested data too (accel/nested.h), are what the part begins with; a
// copy of the function and of the other inputs is kept.
// Errors  throws kUnsupported: another library has replaced autograd's engine, as LibTorch's Python does. The backward throws
// kShapeMismatch: the part saved other tensors than in the forward, with the number of the first one and both shapes;
// kInvalidArgument: an input, or another tensor that the part reads, was changed in place since.
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
