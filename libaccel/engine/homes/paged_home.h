// PagedHome: parameters that are in memory only while operators use them, and otherwise where a source keeps them: host memory, a
// file, the shards of other nodes.
//
// It knows of no ranks and no gradients, so one process may have one; where ranks share what it pages, RemoteHome says when a
// rank may write (remote_home.cc).
//
//   PagedHome home(units, {.max_live_bytes = bytes}, make_source);
//   home.take_in(parameters);
//   loss = model->forward(x)...; loss.backward(); optimizer.step(); home.end_step();
//
// Threads:  operators on any thread; the calls below on one thread, while no other one uses the parameters.
// Cost:     of a pager (engine/pager/pager.h).
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "libaccel/engine/pager/pager.h"
#include "libaccel/tensors/parameter_list.h"
#include "libaccel/tensors/unit_layout.h"

namespace accel::sharding {

struct PagedHomeOptions {
  // Bytes of units in memory at once; an operator that needs more gets it. live_bytes() says how many (page_budget.h).
  std::uint64_t max_live_bytes = 0;
  int units_ahead = 1;  // fetched before they are needed, once a step is known; 0: none
  // What parameters have when the home is gone: their pages, for as long as they live, or ordinary memory with their values.
  enum class AtEnd { kOrdinaryMemory, kPages } at_end = AtEnd::kOrdinaryMemory;
};

class PagedHome {
 public:
  // Throws nothing of the source's: that is made by take_in().
  PagedHome(std::vector<Unit> units,
            const PagedHomeOptions& options,
            pager::Pager::MakeSource make_source);

  // Gives the parameters their pages; the source is made with their values. parameters: in the order that the units were planned
  // for. To be called once. Throws what Pager throws, and what the source does.
  void take_in(const std::vector<NamedParameter>& parameters);

  // To be called after each step of the optimizer: the order of uses becomes known.
  void end_step();
  // Whether nothing is in memory any more: nothing was held, or in use by another thread. What was written goes to the source.
  [[nodiscard]] bool give_all_back();
  // Between them nothing is fetched ahead.
  void pause_prefetch();
  void resume_prefetch() noexcept;

  // Requires: take_in().
  [[nodiscard]] pager::PagerStatistics statistics() const { return pager_->statistics(); }

 private:
  std::vector<Unit> units_;
  PagedHomeOptions options_;
  pager::Pager::MakeSource make_source_;
  std::unique_ptr<pager::Pager> pager_;  // from take_in() on
};

}  // namespace accel::sharding
