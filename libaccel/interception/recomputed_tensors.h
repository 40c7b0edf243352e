// RecomputedTensors: what autograd saves while a region of a forward runs is not kept, but computed again when a backward first
// asks for it.
//
// A slot is the place of one saved tensor. Slots are numbered in the order of saving; when the region runs again it saves
// the same tensors in the same order, and these fill the slots.
//
//   empty --the region runs again--> filled --a node of the backward asks--> used
//
// Each backward has slots of its own, so that a graph that is retained can be gone through again. A slot's tensor is given away
// when it is used, and what was not used goes at the end of the backward. The region stops when the last slot that is
// still wanted is filled: what comes behind is not computed.
//
// Checked: that shape, dtype and device are those of the tensor that was saved first; that a tensor from outside of the region,
// such as a weight, was not changed in place since; that nothing was changed in place after it was saved.
//
// Threads:  saved on the thread of the forward, used on those of the backward, which take turns.
// Cost:     some 200 bytes for each saved tensor; the region's work once more for each backward.
// Source:   torch/utils/checkpoint.py of PyTorch 2.11, use_reentrant=False.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/Storage.h>
#include <torch/csrc/autograd/saved_variable_hooks.h>

namespace accel::interception {

// What the tensors that are computed again are compared with.
enum class Comparison {
  kShapes,  // with shape, dtype and device of those that were saved
  kValues,  // with their bits too, on a CPU: a pass over each. Not of bytes, which are room of libraries
};

// What to do about a region that does something else when it runs again.
inline constexpr const char* kSameAgain =
    "let the region do the same each time: no counters, clocks, or numbers of generators other "
    "than LibTorch's default ones";

// As autograd counts writes; tensors of inference mode have no count.
[[nodiscard]] std::uint32_t write_version_of(const at::Tensor& tensor);

class RecomputedTensors : public std::enable_shared_from_this<RecomputedTensors> {
 public:
  class Filling;
  // Prepares what the region needs, and then runs it once within filling.run().
  using RunAgain = std::function<void(Filling& filling)>;

  explicit RecomputedTensors(RunAgain run_again, Comparison comparison = Comparison::kShapes)
      : run_again_(std::move(run_again)), comparison_(comparison) {}
  RecomputedTensors(const RecomputedTensors&) = delete;
  RecomputedTensors& operator=(const RecomputedTensors&) = delete;

  // For a SavedTensorScope around the region. Requires: owned by a std::shared_ptr, which the hooks share.
  [[nodiscard]] std::unique_ptr<torch::autograd::SavedVariableHooks> make_hooks();
  [[nodiscard]] std::size_t num_slots() const noexcept { return slots_.size(); }

 private:
  class Hooks;

  struct Slot {
    std::vector<std::int64_t> sizes;
    at::ScalarType dtype = at::kFloat;
    c10::Device device = c10::kCPU;
    c10::weak_intrusive_ptr<c10::StorageImpl> storage;
    std::uint32_t version = 0;
    std::uint64_t digest = 0;  // where values are compared
    bool is_wanted = true;     // a node of the graph has it still
  };
  struct Value {
    at::Tensor tensor;
    std::uint32_t version = 0;
    bool was_used = false;
  };
  using Values = std::vector<Value>;  // by slot

  std::size_t add_slot(const at::Tensor& tensor);
  void drop_slot(std::size_t slot);
  at::Tensor take(std::size_t slot);
  void fill(Values& values, std::size_t wanted);
  void check(std::size_t slot, const at::Tensor& again) const;

  RunAgain run_again_;
  Comparison comparison_;
  std::recursive_mutex mutex_;  // what runs again may let go of a graph that has slots of it
  std::vector<Slot> slots_;
  std::map<int, Values> backwards_;  // by the number of LibTorch's graph task
};

// One run of a region that fills slots.
class RecomputedTensors::Filling {
 public:
  Filling(const RecomputedTensors& tensors, Values& values, std::size_t wanted);

  // work: the region. Returns when it ends, or when no slot is left to be filled.
  void run(const std::function<void()>& work);

  // For a region that is run operator by operator: the next one saved `count` tensors in forward, from slot `first`. Ends run()
  // when nobody needs what comes behind.
  void begin_operator(std::size_t first, std::size_t count);
  // It has run. name: for the error. Throws kShapeMismatch: it saved fewer.
  void end_operator(const std::string& name) const;

 private:
  friend class RecomputedTensors;
  class Hooks;
  struct Filled {
  };  // thrown; no std::exception, so that no region takes it for an error of its own

  void take(const at::Tensor& tensor);

  const RecomputedTensors& tensors_;
  Values& values_;
  std::size_t wanted_;
  std::size_t end_;  // behind the last slot to be filled
  std::size_t next_ = 0;
  std::size_t operator_end_;  // what is saved behind it fills no slot
};

}  // namespace accel::interception
