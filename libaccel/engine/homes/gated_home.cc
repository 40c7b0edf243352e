#include "libaccel/engine/homes/gated_home.h"

#include <algorithm>
#include <exception>
#include <string>
#include <utility>

#include <ATen/ops/empty_strided.h>
#include <ATen/ops/full.h>

#include <accel/env_contract.h>
#include <accel/error.h>
#include <accel/types.h>

#include "libaccel/engine/construction/tensor_memory.h"
#include "libaccel/engine/homes/page_budget.h"
#include "libaccel/engine/process/agreement.h"
#include "libaccel/engine/process/process_group.h"
#include "runtime/page_size.h"

namespace accel::sharding {
namespace {

Error parameters_in_use(const std::string& by) {
  return Error(ErrorCode::kUnsupported,
               "parameters are in use by " + by + " while they are to be written",
               "let go of what with_params() holds, and let no other thread use the model during "
               "optimizer.step() and load_state()");
}

}  // namespace

GatedHome::GatedHome(const std::vector<Unit>& units,
                     std::shared_ptr<PageAccess> access,
                     std::shared_ptr<ProcessGroup> group,
                     const PagedHomeOptions& options,
                     pager::Pager::MakeSource make_source)
    : units_(units),
      access_(std::move(access)),
      group_(std::move(group)),
      pages_(units, options, std::move(make_source)) {}

void GatedHome::take_in(std::vector<NamedParameter>& parameters) {
  for (const Unit& unit : units_) {
    for (const Slot& slot : unit.slots) {
      // Their values are in the shards by now. What still refers to the memory of before (Gloo's threads, for a moment)
      // keeps that.
      const at::Tensor& parameter = parameters[slot.parameter].tensor;
      const at::TensorOptions like =
          parameter.options().dtype(unit.dtype).device(at::kCPU).requires_grad(false);
      construction::give_memory(parameter,
                                at::empty_strided(parameter.sizes(), parameter.strides(), like));
    }
  }
  pages_.take_in(parameters);
}

at::Tensor GatedHome::own_shard(std::size_t unit) const {
  const std::int64_t numel = units_.at(unit).shard_numel;
  return writable_.at(unit).narrow(0, group_->rank() * numel, numel);
}

void GatedHome::before_write() {
  close_gate_on_all_ranks("waiting for the ends of all backwards");
}

void GatedHome::finish_write(std::span<const std::size_t>, ProcessGroup& group) {
  group.barrier("waiting for the steps of all optimizers");
}

void GatedHome::publish(std::span<const std::size_t> units) {
  finish_write(units, *group_);
  pages_.end_step();
  open_gate();
}

void GatedHome::begin_load() {
  close_gate_on_all_ranks("waiting for all ranks to begin to load");
  access_->access = pager::GuardRange::Access::kReadWrite;
  access_->permit->give();
  open_gate();
}

// By this rank alone: it may be on its way out of an error. Whatever comes, nobody may write any more.
void GatedHome::end_load() {
  close_gate();
  access_->access = pager::GuardRange::Access::kRead;
  access_->permit->withdraw();
  try {
    if (!pages_.give_all_back()) throw parameters_in_use("this rank");
  } catch (...) {
    open_gate();
    throw;
  }
  open_gate();
}

// What is fetched ahead ends first: it would be refused at the gate, and waited for by who gives units back.
void GatedHome::close_gate() {
  pages_.pause_prefetch();
  access_->gate.close();
}

void GatedHome::close_gate_on_all_ranks(const char* operation) {
  close_gate();
  try {
    give_back_on_all_ranks([this] { return pages_.give_all_back(); }, *group_, operation);
  } catch (...) {
    open_gate();
    throw;
  }
}

void GatedHome::open_gate() noexcept {
  access_->gate.open();
  pages_.resume_prefetch();
}

// Waits for all ranks, as a barrier does. What one of them threw costs another message, in which it is told.
void give_back_on_all_ranks(const std::function<bool()>& give_all_back,
                            ProcessGroup& group,
                            const char* operation) {
  std::exception_ptr failure;
  bool is_free = false;
  try {
    is_free = give_all_back();
  } catch (const std::exception&) {
    failure = std::current_exception();
  }
  const int failed = group.size() + group.rank();
  at::Tensor holder = at::full({1}, failure ? failed : is_free ? -1 : group.rank(), at::kInt);
  group.all_reduce_(holder, Reduction::kMax, operation);
  const int rank = holder.item<int>();
  if (rank >= group.size()) {
    const auto tell = [&] {
      if (failure) std::rethrow_exception(failure);
    };
    jointly(tell, &group, operation);
  }
  if (rank >= 0) throw parameters_in_use("rank " + std::to_string(rank));
}

std::uint64_t agreed_live_bytes(const PagingLimits& limits,
                                const std::vector<Unit>& units,
                                ProcessGroup& group) {
  std::size_t largest = 0;
  for (const Unit& unit : units) largest = std::max(largest, whole_pages(unit.bytes()));
  std::uint64_t bytes = 0;
  jointly([&] { bytes = live_bytes(limits, largest, process_env()); },
          &group,
          "asking whether every rank may hold the largest unit");
  return bytes;
}

}  // namespace accel::sharding
