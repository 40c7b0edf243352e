// ProcessGroup: the connection between the ranks, and the four collectives that the operations
// stand on.
//
// Wraps a c10d::ProcessGroup, so that c10d::Reducer takes the same connection. Behind it are shared
// memory, when all ranks are on one node (engine/collectives/shm_backend.h), shared memory in each node and
// Gloo between nodes (engine/collectives/two_level_group.h), or Gloo alone.
// This header includes no c10d: what needs the c10d type calls c10d_group() and includes
// <torch/csrc/distributed/c10d/ProcessGroup.hpp> itself.
//
// Threads:  one caller at a time; the same calls in the same order on every rank, those of a group and of its parts together.
// Errors    all collectives throw kPeerLost when another rank ended, kProcessGroup otherwise,
// naming
//           `operation` and the rank.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/util/intrusive_ptr.h>

#include <accel/env_contract.h>
#include <accel/error.h>
#include <accel/state.h>

#include "libaccel/engine/collectives/node_layout.h"
#include "libaccel/engine/shm/group/stop_word.h"

namespace c10d {
class Backend;
class ProcessGroup;
class Store;
class Work;
}  // namespace c10d

namespace accel {

class NodeLink;
struct ShmMeetingOptions;
struct StoreMember;

namespace device {
class DeviceBackend;
}  // namespace device

namespace shm {
class ByteGroup;
class ShmGroup;
struct Piece;
}  // namespace shm

// A collective that has begun. Other ones of the group may begin before it ends; its tensors are left alone until then. Through
// shared memory it has ended when it comes back, with Gloo it goes on beside the caller.
class [[nodiscard]] Work {
 public:
  Work(Work&&) noexcept;
  ~Work();
  // Blocks until the result is there. Throws kPeerLost, kProcessGroup. Requires: it is called once.
  void wait();

 private:
  friend class ProcessGroup;
  Work();

  c10::intrusive_ptr<c10d::Work> work_;  // nullptr: nothing is to be done
  std::string operation_;
  int rank_ = 0;
  int size_ = 1;
  std::function<void()> at_end_;
};

// Of a rank that trains on a device.
struct RankDevice {
  device::DeviceBackend* backend = nullptr;  // nullptr: the CPU
  int index = 0;
};

class ProcessGroup {
 public:
  // Meets the other ranks at identity.master_addr:master_port. Rank 0 hosts the store unless
  // identity.use_agent_store; a group of one needs no store.
  // Tensors of the rank's device are exchanged too: by NCCL where each rank has a GPU of its own, else by copies in the memory of
  // the host (engine/collectives/host_copies_backend.h). Requires: all ranks have a device of one kind, or none.
  static std::unique_ptr<ProcessGroup> join(const WorkerIdentity& identity,
                                            const InitProcessGroupKwargs& options,
                                            RankDevice device = {});
  ~ProcessGroup();
  // A group of some ranks of this one, in this order; this rank is one of them. One alone meets nobody. Throws what join()
  // throws, and kUnsupported where the ranks of a node cannot share memory. Requires: no part has parts; every rank of this group
  // calls it as often, with itself among the ranks, and those of one part with the same ranks.
  [[nodiscard]] std::shared_ptr<ProcessGroup> part(const std::vector<int>& ranks);
  // The same ranks with connections and memory of their own: another thread may call it while this group is called, in any
  // order. Throws what join() throws. Requires: this is no part; every rank calls it as often.
  [[nodiscard]] std::shared_ptr<ProcessGroup> twin();

  [[nodiscard]] int rank() const noexcept { return identity_.global_rank; }
  [[nodiscard]] int size() const noexcept { return identity_.world_size; }
  // Of the tensors that it moves in any case.
  [[nodiscard]] c10::Device device() const noexcept { return c10::kCPU; }
  // What moves tensors on the CPU: "shm", "two_level" or "gloo".
  [[nodiscard]] const std::string& backend() const noexcept { return backend_; }
  // Whether tensors on the ranks' devices go from device to device ("nccl"); else the backend moves them too, by copies.
  [[nodiscard]] bool connects_devices() const noexcept { return has_own_devices_; }
  // Why the ranks of a node do not share memory, or tensors on devices take the way by the host's, although nobody chose another
  // backend; else empty.
  [[nodiscard]] const std::string& notice() const noexcept { return notice_; }

  // [W, ...] the tensors of all W ranks. `input` is contiguous and of the same shape on every rank.
  at::Tensor all_gather(const at::Tensor& input, std::string_view operation);
  void all_reduce_(at::Tensor& values, Reduction reduction, std::string_view operation) {
    begin_all_reduce(values, reduction, operation).wait();
  }
  void broadcast_(at::Tensor& values, int from_process, std::string_view operation);
  // output: [W * n] <- the [n] inputs of all W ranks in order. Both contiguous, of one dtype.
  void all_gather_into(at::Tensor& output, const at::Tensor& input, std::string_view operation) {
    begin_all_gather_into(output, input, operation).wait();
  }
  // output: [n] <- the rank's own part of the sum of the [W * n] inputs. Both contiguous, of one dtype.
  void reduce_scatter(at::Tensor& output, at::Tensor& input, std::string_view operation) {
    begin_reduce_scatter(output, input, operation).wait();
  }
  // output: rows of all ranks in order, output_rows[r] of rank r <- input_rows[r] of `input`, one part after the other, to rank r.
  // Both contiguous, of one dtype, with rows of one size.
  void all_to_all_rows(at::Tensor& output,
                       const at::Tensor& input,
                       std::vector<std::int64_t> output_rows,
                       std::vector<std::int64_t> input_rows,
                       std::string_view operation);
  // The same, begun.
  Work begin_all_reduce(at::Tensor& values, Reduction reduction, std::string_view operation);
  Work begin_all_gather_into(at::Tensor& output,
                             const at::Tensor& input,
                             std::string_view operation);
  Work begin_reduce_scatter(at::Tensor& output, at::Tensor& input, std::string_view operation);
  // Sums of tensors that lie apart, without gathering them first: see shm::ByteGroup. Return false, and have done nothing,
  // where they do not all lie in memory of allocate_shared(): on all ranks alike. dtype: floating-point, of all pieces.
  [[nodiscard]] bool all_reduce_pieces(std::span<const shm::Piece> pieces,
                                       at::ScalarType dtype,
                                       double factor,
                                       std::string_view operation);
  // output: [n], of W * n elements in all pieces.
  [[nodiscard]] bool reduce_scatter_pieces(at::Tensor& output,
                                           std::span<const shm::Piece> pieces,
                                           double factor,
                                           std::string_view operation);
  // Zeros that the other ranks can map, where all are on this node; else, and where no more can be had, nullptr. The memory may
  // outlive the group.
  [[nodiscard]] std::shared_ptr<std::byte> allocate_shared(std::size_t bytes);
  void barrier(std::string_view operation);
  // Begins to ask all ranks; what it returns gives, once, whether any of them brought true, and waits as Work.
  [[nodiscard]] std::function<bool()> begin_any(bool mine, std::string_view operation);

  // Of all ranks, where they are on one node; else nullptr.
  [[nodiscard]] shm::StopWord* stop_word() noexcept { return stop_word_ ? &*stop_word_ : nullptr; }

  // The ranks by nodes, with the backend two_level; else as if all were on one.
  [[nodiscard]] const NodeLayout& layout() const noexcept { return layout_; }

  [[nodiscard]] const c10::intrusive_ptr<c10d::ProcessGroup>& c10d_group() const { return group_; }
  [[nodiscard]] const c10::intrusive_ptr<c10d::Store>& store() const { return store_; }
  // Where it is.
  [[nodiscard]] const std::string& store_host() const noexcept { return identity_.master_addr; }
  [[nodiscard]] int store_port() const noexcept { return identity_.master_port; }

 private:
  ProcessGroup(const WorkerIdentity& identity, const InitProcessGroupKwargs& options);
  [[nodiscard]] bool is_one_node() const noexcept {
    return identity_.local_world_size == identity_.world_size;
  }
  [[nodiscard]] ShmMeetingOptions meeting_options() const;
  [[nodiscard]] bool join_shm();
  void join_gloo();
  [[nodiscard]] bool join_two_level(const c10::intrusive_ptr<c10d::Backend>& gloo);
  void take_backend(const char* name,
                    int type,  // a c10d::ProcessGroup::BackendType
                    const c10::intrusive_ptr<c10d::Backend>& backend);
  // The rest of part(), of several ranks.
  void join_part(ProcessGroup& part, const std::vector<int>& ranks);
  [[nodiscard]] std::string agree_on_devices(const StoreMember& member);
  // What moves the tensors of the ranks' devices, besides. Collective.
  void connect_devices();
  void take_memory(const char* name, std::shared_ptr<shm::ByteGroup> memory);
  void take_layout(NodeLayout layout, const std::shared_ptr<shm::ShmGroup>& node);
  // A collective: what all ranks must bring alike, and for what.
  struct Call {
    std::string_view kind;
    std::string_view operation;
    std::int64_t elements = 0;
    std::optional<at::ScalarType> type = std::nullopt;
  };
  // Tells the supervisor of it, unless it is one of a part or a twin.
  void record(const Call& call) const noexcept;
  // Calls start(), which returns a c10d::Work.
  template <typename F>
  Work begin(const Call& call, F&& start, std::function<void()> at_end = {}) const;

  WorkerIdentity identity_;  // its ranks are this group's
  InitProcessGroupKwargs options_;
  std::vector<int> names_;  // of the ranks, in the job
  RankDevice device_;
  bool has_own_devices_ = false;  // no two ranks have the same; and they can be connected
  NodeLayout layout_;
  std::string backend_;
  std::string notice_;
  c10::intrusive_ptr<c10d::Store> store_;
  c10::intrusive_ptr<c10d::ProcessGroup> group_;
  std::shared_ptr<shm::ByteGroup> memory_;  // behind it, unless that is Gloo
  std::optional<shm::StopWord> stop_word_;  // in its memory
  // With the backend two_level, also for the parts.
  std::shared_ptr<shm::ShmGroup> node_;
  std::shared_ptr<NodeLink> link_;
  int num_parts_ = 0;
  int num_twins_ = 0;
  bool is_part_ = false;  // or a twin
};

// Turns what c10d or Gloo threw into kPeerLost, kStoreTimeout, kStoreUnreachable or kProcessGroup.
// Pure.
Error collective_error(std::string_view what, std::string_view operation, int rank, int size);
// The same error of the shared memory backend, with the operation and the rank before its message. Pure.
Error collective_error(const Error& cause, std::string_view operation, int rank, int size);

}  // namespace accel
