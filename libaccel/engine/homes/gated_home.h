// GatedHome: a home whose units each rank has in memory only while operators use them, and of which no shard is read while its owner
// writes it.
//
//   RemoteHome    units come from the memory of the node and from other nodes (remote_home.cc)
//   DiskHome      units come from a file (disk_home.cc)
//
// before_write() closes the gate, so that nothing is fetched ahead any more, gives all units back and waits for the other ranks to
// have done the same; publish() waits until all shards are written, and opens it. After it a rank has no unit until its program
// uses one, which also wakes the thread that fetches ahead.
//
// Threads:  as ParameterHome; what fills pages looks at PageAccess from any thread.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "libaccel/engine/homes/paged_home.h"
#include "libaccel/engine/homes/parameter_home.h"
#include "libaccel/engine/remote/write_gate.h"

namespace accel::sharding {

// Whether units may be filled now, and what may be done with them. Outlives the home: views of parameters may.
struct PageAccess {
  WriteGate gate;
  std::atomic<pager::GuardRange::Access> access = pager::GuardRange::Access::kRead;
  std::shared_ptr<pager::WritePermit> permit = make_shared_permit();  // given with kReadWrite
};

class GatedHome : public ParameterHome {
 public:
  GatedHome(const std::vector<Unit>& units,
            std::shared_ptr<PageAccess> access,
            std::shared_ptr<ProcessGroup> group,
            const PagedHomeOptions& options,
            pager::Pager::MakeSource make_source);
  ~GatedHome() override { open_gate(); }

  void take_in(std::vector<NamedParameter>& parameters) override;
  [[nodiscard]] at::Tensor own_shard(std::size_t unit) const override;
  [[nodiscard]] bool is_shared() const noexcept override { return true; }
  [[nodiscard]] bool is_paged() const noexcept override { return true; }

  // Throws kUnsupported, the same on all ranks, where one of them holds parameters.
  void before_write() override;
  void publish(std::span<const std::size_t> units) override;
  void abandon_write() noexcept override { open_gate(); }
  void begin_load() override;
  void end_load() override;
  void begin_evaluation() override { pages_.end_step(); }

 protected:
  // By unit: [world_size * shard_numel].
  void set_writable(std::vector<at::Tensor> writable) { writable_ = std::move(writable); }
  // Returns when all ranks have written. What it throws, all ranks throw.
  virtual void finish_write(std::span<const std::size_t> units, ProcessGroup& group);

 private:
  void close_gate();
  // With no unit here any more, on all ranks. The gate is open again where it throws.
  void close_gate_on_all_ranks(const char* operation);
  void open_gate() noexcept;

  std::vector<Unit> units_;
  std::shared_ptr<PageAccess> access_;
  std::shared_ptr<ProcessGroup> group_;
  PagedHome pages_;
  std::vector<at::Tensor> writable_;
};

// Has every rank give its units back: give_all_back says whether nobody holds one. Throws, the same on all ranks, kUnsupported where one
// is held, and what give_all_back throws on a rank. Requires: every rank calls it.
void give_back_on_all_ranks(const std::function<bool()>& give_all_back,
                            ProcessGroup& group,
                            const char* operation);

// The bytes of units that this rank has in memory at once. Throws, the same on all ranks, what live_bytes() throws. Budgets of ranks
// may differ, their units do not. Requires: every rank calls it.
[[nodiscard]] std::uint64_t agreed_live_bytes(const PagingLimits& limits,
                                              const std::vector<Unit>& units,
                                              ProcessGroup& group);

}  // namespace accel::sharding
