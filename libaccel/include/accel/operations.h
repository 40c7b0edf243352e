// Operations: collectives on nested data (see nested.h) and on plain objects (see object_codec.h).
//
// Every rank must call the same operations in the same order, with data of the same structure.
// Without a process group (one process without a launcher) they return their input.
//
//   N = 2, rank r holds [1, 2] + 2r       gather          [1, 2, 3, 4] on both
//                                         reduce kSum     [4, 6]    kMean [2, 3]    kMax [3, 4]
//                                         broadcast       [1, 2]
//
// gather, reduce and broadcast first compare the tensors of the ranks, because Gloo ends the process from its own thread when
// sizes differ. A mismatch throws kShapeMismatch on every rank with a table of all shapes. Without ACCELERATE_DEBUG_MODE=1 the
// ranks exchange only a fingerprint, and the table if it differs. With it gather_object, broadcast_object_list and broadcast_object
// also compare the operation, the type of the objects and the sender; numbers and values of objects may differ.
//
// Errors    kPeerLost and kProcessGroup from all of them, naming the operation; kNotInitialized after
//           PartialState::reset() or destroy_process_group().
// Threads:  one caller at a time, as with all collectives.
// Cost:     one collective for each tensor, and one of 16 bytes for the comparison. gather: W times
//           the memory of the input.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <typeinfo>
#include <vector>

#include <ATen/core/Tensor.h>

#include <accel/batch.h>
#include <accel/detail/concatenate.h>
#include <accel/detail/object_codec.h>
#include <accel/export.h>
#include <accel/nested.h>
#include <accel/types.h>

namespace accel {

class ProcessGroup;

struct PadOptions {
  std::int64_t dim = 0;    // negative: counted from the last; a tensor without it stays unchanged
  double pad_index = 0;    // the value of the new elements
  bool pad_first = false;  // true: in front of the data
};

namespace detail {

// One operation in progress: its name for messages, and the group. The templates below
// use it.
class ACCEL_EXPORT CollectiveCall {
 public:
  explicit CollectiveCall(std::string_view operation);
  ~CollectiveCall();
  CollectiveCall(const CollectiveCall&) = delete;
  CollectiveCall& operator=(const CollectiveCall&) = delete;

  // Whether this is the only rank.
  [[nodiscard]] bool alone() const { return group_ == nullptr; }

  // Throws kShapeMismatch when the tensors' shapes or types, or the operations, differ between
  // ranks.
  template <typename T>
  void verify(const T& data) const {
    if (alone()) return;
    std::string description;
    for_each_leaf<at::Tensor>(data,
                              [&](const at::Tensor& tensor) { describe(tensor, description); });
    compare(description);
  }

  // With ACCELERATE_DEBUG_MODE=1 throws kShapeMismatch when the operations, the types of the objects or the senders differ
  // between ranks; otherwise does nothing. from_process: -1 if all send.
  void verify_objects(const std::type_info& type, int from_process = -1) const;

  [[nodiscard]] at::Tensor gather(const at::Tensor& tensor) const;
  [[nodiscard]] at::Tensor reduce(const at::Tensor& tensor, Reduction reduction) const;
  [[nodiscard]] at::Tensor broadcast(const at::Tensor& tensor, int from_process) const;
  [[nodiscard]] at::Tensor pad(const at::Tensor& tensor, const PadOptions& options) const;

  // The bytes of every rank, in rank order.
  [[nodiscard]] std::vector<std::string> gather_bytes(const std::string& bytes) const;
  [[nodiscard]] std::string broadcast_bytes(const std::string& bytes, int from_process) const;
  [[nodiscard]] bool is_source(int from_process) const;

 private:
  void describe(const at::Tensor& tensor, std::string& description) const;
  void compare(const std::string& description) const;
  [[nodiscard]] bool is_same_everywhere(const std::string& text) const;

  std::string operation_;
  std::shared_ptr<ProcessGroup> group_;
  bool is_debug_ = false;
};

}  // namespace detail

// The tensors of all ranks, one after another along the first dimension, on every rank. 0-d tensors
// become 1-d. All ranks must pass the same shape: see pad_across_processes().
template <typename T>
T gather(const T& data) {
  const detail::CollectiveCall call("gather");
  if (call.alone()) return data;
  call.verify(data);
  return recursively_apply(data, [&](const at::Tensor& tensor) { return call.gather(tensor); });
}

// The mean (the default; Accelerator::reduce() sums by default), sum or maximum over the ranks, in new tensors. With kNone it
// returns the data itself, and no rank waits.
// Errors  kInvalidArgument for the mean of integers.
template <typename T>
T reduce(const T& data, Reduction reduction = Reduction::kMean) {
  if (reduction == Reduction::kNone) return data;
  const detail::CollectiveCall call("reduce");
  call.verify(data);
  return recursively_apply(
      data, [&](const at::Tensor& tensor) { return call.reduce(tensor, reduction); });
}

// The values of one rank, on all ranks. The tensors of the other ranks are overwritten and returned.
// Errors  kInvalidArgument when there is no such rank.
template <typename T>
T broadcast(const T& data, int from_process = 0) {
  const detail::CollectiveCall call("broadcast");
  if (call.alone()) return data;
  call.verify(data);
  return recursively_apply(
      data, [&](const at::Tensor& tensor) { return call.broadcast(tensor, from_process); });
}

// Pads every tensor in options.dim to the length of the longest one of all ranks.
// Errors  kShapeMismatch on every rank when the number of dimensions differs.
template <typename T>
T pad_across_processes(const T& data, const PadOptions& options = {}) {
  const detail::CollectiveCall call("pad_across_processes");
  if (call.alone()) return data;
  return recursively_apply(data,
                           [&](const at::Tensor& tensor) { return call.pad(tensor, options); });
}

// The elements of all ranks in one list, in rank order; their numbers may differ.
template <typename T>
std::vector<T> gather_object(const std::vector<T>& objects) {
  const detail::CollectiveCall call("gather_object");
  if (call.alone()) return objects;
  call.verify_objects(typeid(T));
  std::vector<T> gathered;
  for (const std::string& bytes : call.gather_bytes(encode_object(objects))) {
    for (auto&& object : decode_object<std::vector<T>>(bytes))
      gathered.push_back(std::move(object));
  }
  return gathered;
}

// Replaces the objects of all ranks by the objects of one rank; the lists may differ in length before.
template <typename T>
void broadcast_object_list(std::vector<T>& objects, int from_process = 0) {
  const detail::CollectiveCall call("broadcast_object_list");
  if (call.alone()) return;
  call.verify_objects(typeid(T), from_process);
  const std::string bytes = call.is_source(from_process) ? encode_object(objects) : std::string();
  objects = decode_object<std::vector<T>>(call.broadcast_bytes(bytes, from_process));
}

// Copies a tensor of one rank to all ranks; the other ranks need to know neither its shape nor its type.
// Errors  kInvalidArgument, on every rank, unless exactly one rank passes a tensor.
ACCEL_EXPORT at::Tensor copy_tensor_to_devices(
    const std::optional<at::Tensor>& tensor = std::nullopt);

// PartialState::wait_for_everyone().
ACCEL_EXPORT void wait_for_everyone();

// Copies one object of one rank to all ranks.
template <typename T>
T broadcast_object(const T& object, int from_process = 0) {
  std::vector<T> objects{object};
  broadcast_object_list(objects, from_process);
  return std::move(objects.front());
}

}  // namespace accel
