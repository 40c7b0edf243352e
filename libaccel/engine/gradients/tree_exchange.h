// TreeExchange: sums the subtrees of all ranks (subtree_sums.h), in the order of the tree.
//
//   two ranks with a subtree each   the ordinary sum of both: there is one order
//   any other                       each rank gets its part of every subtree of every rank, adds them up as the tree says
//                                   and, where all want the whole, sends the sum of its part to all
//
// Threads:  the thread that trains; every rank makes the same calls.
// Cost:     the ordinary sum; else s times the bytes of a reduce-scatter, where ranks have s subtrees, and memory for them.
// Errors    throws what ProcessGroup throws.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include <ATen/core/Tensor.h>

#include <accel/micro_batches.h>

#include "libaccel/engine/gradients/subtree_sums.h"

namespace accel {

class ProcessGroup;

class TreeExchange {
 public:
  // run: of this rank.
  TreeExchange(std::shared_ptr<ProcessGroup> group, const MicroBatches& run);

  // Whether any rank has a gradient of each parameter, on which all agree; those have one in each subtree then: zeros.
  [[nodiscard]] std::vector<bool> fill_up(const std::vector<NamedParameter>& parameters,
                                          std::vector<SubtreeSums::Gradients>& subtrees);
  // The sums of the step, on every rank. Requires: fill_up().
  [[nodiscard]] SubtreeSums::Gradients all_reduce(std::vector<SubtreeSums::Gradients> subtrees);
  // [n] of this rank, out of [W * n] for each of its subtrees.
  [[nodiscard]] at::Tensor reduce_scatter(std::vector<at::Tensor> subtrees);

 private:
  [[nodiscard]] bool is_one_sum() const;
  // Of the large ones, in memory that both ranks share; the rest is left in the list.
  void sum_where_they_lie(const SubtreeSums::Gradients& gradients, std::vector<std::size_t>& rest);
  void all_reduce_chunk(std::vector<SubtreeSums::Gradients>& subtrees,
                        const std::vector<std::size_t>& parameters);

  std::shared_ptr<ProcessGroup> group_;
  std::vector<std::vector<Subtree>> subtrees_;  // by rank
};

}  // namespace accel
