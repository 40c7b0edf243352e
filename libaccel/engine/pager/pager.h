// Pager: runs an unmodified model whose parameters are in memory only while operators use them.
//
//   Pager pager(parameters_of(*model), {.max_live_bytes = 512 << 20});
//   loss = model->forward(x)...; loss.backward(); optimizer.step(); pager.end_step();
//
// The parameters keep their tensor objects: modules, optimizers and scripts that hold them need not know. Each operator
// that touches one has its unit filled first (paged_storage.h); units leave under a budget (page_table.h), and what was
// written to goes back to where it came from (page_source.h). Gradients are ordinary tensors.
//
// Tied parameters, and those that share a storage, are paged once and stay tied.
//
// Code that takes data_ptr() itself must hold the parameters meanwhile, or it dies by SIGSEGV with the parameter's name:
//
//   { const auto held = pager.with_params({"fc1.weight"}, Access::kRead); my_kernel(model->fc1->weight.data_ptr<float>()); }
//
// Threads:  operators on any thread; construction, destruction and the calls below while no other thread uses the
//           parameters.
// Cost:     see page_table.h.
#pragma once

#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "libaccel/engine/pager/page_table.h"

namespace accel::pager {

struct NamedTensor {
  std::string name;
  at::Tensor tensor;
};

struct PagerOptions {
  // Bytes of parameters in memory at a time, besides what the source keeps. At least the largest unit, and what the
  // neediest operator uses at once.
  std::size_t max_live_bytes = std::numeric_limits<std::size_t>::max();
  std::size_t unit_bytes = 64 << 20;  // cut units at; smaller ones page more finely and more often
  std::size_t resident_below_bytes =
      0;                   // smaller parameters are left alone: always in memory, not hooked
  int prefetch_units = 0;  // fill so many ahead, in a thread of its own, once a step is known
  std::vector<std::size_t> order;  // of the parameters, for cutting units; empty: as given
  bool learns_units = false;  // cut them anew, by order of first use, at the end of the first step
  std::optional<at::ScalarType>
      page_dtype;  // of floating parameters' pages, e.g. bf16 of fp32 masters
  // Where the parameters given lie, instead of what follows from the options above; each has a storage of its own, and those
  // without elements may lie nowhere: they are left alone.
  std::optional<std::vector<Unit>> units;
  bool may_exceed = false;   // see PageTableOptions
  bool stays_paged = false;  // at the end the parameters keep their pages, for as long as they live
};

enum class Access { kRead, kReadWrite };

// Holds units in memory until it is destroyed. Outlives no Pager.
class ParameterHold {
 public:
  ParameterHold(std::shared_ptr<PageTable> table, std::vector<std::size_t> units);
  ~ParameterHold();
  ParameterHold(ParameterHold&&) noexcept = default;
  ParameterHold& operator=(ParameterHold&&) = delete;

 private:
  std::shared_ptr<PageTable> table_;
  std::vector<std::size_t> units_;
};

// Keeps those of the tensors that are paged, by whichever Pager, in memory for as long as somebody has what it returns; nullptr where
// none is. Throws what the source throws.
[[nodiscard]] std::shared_ptr<void> hold_pages(std::span<const at::Tensor> tensors);

class Pager {
 public:
  // Makes the source of a layout. values: of each parameter of the layout, flat, in the parameters' own dtype; to be read
  // through operators (they may be paged already).
  using MakeSource = std::function<std::unique_ptr<PageSource>(const UnitLayout& layout,
                                                               std::span<const at::Tensor> values)>;

  // Throws kUnsupported naming a parameter that cannot be paged (not on CPU, sparse, quantized, made in inference mode,
  // paged by another Pager, sharing memory with tensors that are not given); kInvalidArgument; kOutOfMemory: the budget is too small, the remedy says which
  // is not. make_source: empty for HostMemory.
  Pager(std::vector<NamedTensor> parameters, PagerOptions options, MakeSource make_source = {});

  // The parameters get ordinary memory with their values (in the dtype of their pages), unless they stay paged.
  ~Pager();
  Pager(const Pager&) = delete;
  Pager& operator=(const Pager&) = delete;

  // Keeps the named parameters in memory; all of them when names is empty. kReadWrite: what the caller writes is kept.
  // Throws kInvalidArgument for an unknown name; kOutOfMemory.
  [[nodiscard]] ParameterHold with_params(const std::vector<std::string>& names,
                                          Access access = Access::kRead);

  // To be called once a step (optimizer included): the order of uses becomes known. Throws as verify().
  void end_step();

  // Throws kUnsupported naming a parameter that left its pages (module->to(), set_data(), a new tensor in its place).
  void verify() const;

  // Evicts what nobody uses. discard_all(): what was written since is lost, for values that changed in the source.
  void evict_all() { table_->evict_all(); }
  void discard_all() { table_->discard_all(); }

  // See PageTable.
  void pause_prefetch() { table_->pause_prefetch(); }
  void resume_prefetch() noexcept { table_->resume_prefetch(); }

  // Indices into the parameters given, in the order of their first use so far.
  [[nodiscard]] std::vector<std::size_t> first_use_order() const;

  [[nodiscard]] const UnitLayout& layout() const noexcept { return table_->layout(); }
  [[nodiscard]] PageSource& source() noexcept { return table_->source(); }
  [[nodiscard]] PagerStatistics statistics() const { return table_->statistics(); }

 private:
  // Tensors over one storage, which is one parameter of the layout.
  struct Group {
    std::vector<NamedTensor> tensors;
    std::vector<std::size_t> given;  // indices of the parameters given
    std::int64_t num_elements = 0;
    bool keeps_offsets = false;  // several tensors over one storage
  };

  [[nodiscard]] std::vector<Group> groups_of(std::vector<NamedTensor> parameters) const;
  [[nodiscard]] at::Tensor flat_values(const Group& group) const;
  void build(const std::vector<std::size_t>& order);
  [[nodiscard]] bool is_paged(std::size_t parameter) const {
    return layout().places[parameter].unit != SlotPlace::kNoUnit;
  }
  void give_back(Group& group) noexcept;

  PagerOptions options_;
  MakeSource make_source_;
  std::vector<Group> groups_;
  std::shared_ptr<PageTable> table_;
  bool has_learned_ = false;
};

}  // namespace accel::pager
