// SpeculativeStep: steps parameters in the backward, as their gradients land, before it is known whether the step counts.
//
//   backward   | gradient 9 | gradient 8 | ...            | the gradients may still be clipped, unscaled with an overflow, or get more
//   step             | 9          | 8     ...             |
//   disk       | read 9, 8 ...    | write 9, 8 ...  |     |
//   step()                                                | as it was when they landed?  yes: commit()  no: drop(), and a step anew
//
// All goes aside: new states to other places of the file than the present ones, new parameters into memory. So there is nothing to
// undo, and nobody sees any of it before commit(), which lets both change places.
//
// Threads:  the thread that trains and its backward; a thread that writes, from the first land() to commit() or drop().
// Cost:     twice the states on disk; memory for the parameters from land() to commit(), and for kNumBuffers parts of states.
// Source:   SuperOffload's "speculation then validation" (DeepSpeed).
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <unordered_map>
#include <vector>

#include <ATen/core/Tensor.h>

#include "libaccel/engine/optim/state_file.h"

namespace torch::optim {
class Optimizer;
class OptimizerOptions;
class OptimizerParamState;
}  // namespace torch::optim

namespace accel {

struct OptimizerTraits;

// Of a parameter, the tensors of its state that lie in a file, by field; undefined: it has none.
struct StatesOnDisk {
  at::Tensor parameter;            // its address is the key as long as it lives
  std::vector<at::Tensor> fields;  // the present ones
  std::vector<at::Tensor> spare;   // where the next ones go; empty before the first land()
};
using StatesByParameter = std::unordered_map<const void*, StatesOnDisk>;

class SpeculativeStep {
 public:
  using IsPadded = std::function<bool(const at::Tensor& parameter)>;
  using Step = std::function<void(const IsPadded& is_padded)>;
  using WasStepped =
      std::function<void(const at::Tensor& parameter, std::int64_t begin, std::int64_t numel)>;

  // part_bytes: of state, in memory at once as one part. Borrows all.
  SpeculativeStep(torch::optim::Optimizer& optimizer,
                  const OptimizerTraits& traits,
                  StateFile& file,
                  StatesByParameter& states,
                  std::size_t part_bytes);
  ~SpeculativeStep();
  SpeculativeStep(const SpeculativeStep&) = delete;
  SpeculativeStep& operator=(const SpeculativeStep&) = delete;

  // A gradient is complete. Steps its parameter aside, where that has a state on disk; `step` steps what is in the optimizer's groups.
  // inverse_scale: 0-d float, what gradients will be multiplied by before step(); undefined: by nothing. Throws kDiskFull before the
  // first; kFileIo, kDiskFull.
  void land(const at::Tensor& parameter,
            const at::Tensor& gradient,
            const at::Tensor& inverse_scale,
            const Step& step,
            const IsPadded& is_padded);

  // Whether each parameter with a gradient was stepped by that, with the options, state and values that it has now.
  [[nodiscard]] bool is_right() const;
  // The gradients were multiplied by the scale that land() was told, and is_right() was true before.
  void gradients_were_unscaled();
  // What was stepped aside becomes the state of now. Requires: is_right(). Throws kFileIo, kDiskFull, and then has changed nothing.
  void commit(const WasStepped& was_stepped);
  // Forgets what was stepped aside. Throws nothing.
  void drop() noexcept;

  [[nodiscard]] bool is_empty() const noexcept { return landed_.empty(); }

 private:
  struct Landed;
  class Writer;

  [[nodiscard]] bool can_step(const at::Tensor& parameter, const at::Tensor& gradient) const;
  [[nodiscard]] std::size_t group_of(const at::Tensor& parameter) const;
  void make_all_spare();
  void step_part(Landed& landed,
                 std::int64_t begin,
                 std::int64_t numel,
                 const Step& step,
                 const IsPadded& is_padded);
  void ask_for_next(const void* parameter);
  void note_options();
  [[nodiscard]] bool has_same_options() const;

  torch::optim::Optimizer& optimizer_;
  const OptimizerTraits& traits_;
  StateFile& file_;
  StatesByParameter& states_;
  std::size_t part_bytes_;
  std::unordered_map<const void*, std::unique_ptr<Landed>> landed_;       // by parameter
  std::vector<const void*> order_;                                        // in which they landed
  std::vector<const void*> last_order_;                                   // of the step before
  std::vector<std::unique_ptr<torch::optim::OptimizerOptions>> options_;  // by group
  bool is_void_ = false;  // a second gradient came, or one that cannot be stepped aside
  std::unique_ptr<Writer> writer_;
};

}  // namespace accel
