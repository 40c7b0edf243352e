// StateStaging: copies of tensors that are made while training reads the tensors, and that are whole before anything writes to them.
//
// A save in the background lists what it is to write and goes on; the copies are made behind it, chunk by chunk. A forward and a
// backward read parameters and states of optimizers, and do not write to them. Who does calls before_state_is_written() first:
//
//   listed --chunks, taken by the save's thread and by whoever is about to write--> whole --> written to
//
// Two nets for those who do not call it. Operators of LibTorch are seen before they run (at::RecordFunction, while copies are being
// made): one that writes to a storage with listed memory, through whatever tensor, calls it; those of c10d count as writers. And when all
// is copied no tensor may have another version or other memory than it had when it was listed: code that writes by an address and counts
// the version up, and Storage::resize_, fail the check. Code that writes by an address and says nothing is not seen, and no code may
// free a storage's memory by itself while it is being copied.
//
// LibTorch's header wants observers to be added while a program begins; its implementation (2.11) takes a lock and publishes a new list,
// which threads take over at their next operator. One that was in an operator then has begun before the copies were listed.
//
// Threads:  any.
// Cost:     before_state_is_written(): one atomic load while nothing is being copied, else what is not copied yet. Operators: boxing,
//           while copies are being made.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

namespace accel {

struct StagedTensor {
  std::string name;  // for messages
  at::Tensor from;   // dense, on the CPU
  at::Tensor to;     // of its dtype, sizes and strides
  // Others that share from's memory, and not its version.
  std::vector<at::Tensor> aliases = {};
};

class StateStaging {
 public:
  // Keeps the tensors' memory alive.
  explicit StateStaging(std::vector<StagedTensor> tensors);
  // Copies what is left.
  ~StateStaging();
  StateStaging(const StateStaging&) = delete;
  StateStaging& operator=(const StateStaging&) = delete;

  // Returns when all is copied. For the save's thread.
  void copy() noexcept;
  // Throws kInvalidArgument naming a tensor that was written to before it was copied: the copies are of no moment. Requires: copy().
  void check() const;

  // For tests: the save's thread calls it before it looks for a chunk. nullptr: none.
  static void set_gate(std::function<void()> gate);
  static constexpr std::size_t kChunkBytes = std::size_t{1} << 20;

  struct Copies;

 private:
  std::shared_ptr<Copies> copies_;
};

// To be called before parameters or states of optimizers are written to. Returns when nothing is still to be copied.
void before_state_is_written() noexcept;
// The same where the storage of `tensor` has memory that is still to be copied: for code that writes to tensors of all kinds.
void before_write_to(const at::Tensor& tensor) noexcept;

}  // namespace accel
