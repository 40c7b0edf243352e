// SubtreeSums: gradients of the micro-batches of a step, summed in an order that does not depend on who has them.
//
// A binary tree stands over the micro-batches: the subtree of level l and index i has those of [i * 2^l, (i + 1) * 2^l), and its sum
// is that of its two halves. A rank that has a run of micro-batches keeps the sums of the largest subtrees that lie in it, at most 2 *
// log2(total), and adds two as soon as they are halves of one; the rest of the tree is summed over the ranks (tree_exchange.h).
//
//   8 micro-batches, 3 ranks:       ((g0 + g1) + (g2 + g3)) + ((g4 + g5) + (g6 + g7))
//     rank 0 has 0 1                 (g0 + g1)
//     rank 1 has 2 3 4                           (g2 + g3)     g4
//     rank 2 has 5 6 7                                              g5   (g6 + g7)
//
// Where a total is no power of two, a subtree without a right half is its left one.
//
// What has no gradient counts as zeros, so that it does not matter who has the other half (-0 becomes +0 in a sum).
//
// Each gradient is rounded to the dtype that ranks sum in before the first addition: a sum on one rank and one over two round alike.
//
// Threads:  the thread that trains.
// Cost:     the additions of an ordinary accumulation; a gradient of the model for each subtree that is not complete.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "libaccel/tensors/parameter_list.h"

namespace accel {

struct Subtree {
  int level = 0;
  std::int64_t index = 0;

  [[nodiscard]] bool is_left_of(const Subtree& right) const noexcept {
    return level == right.level && index % 2 == 0 && index + 1 == right.index;
  }
};

// The largest subtrees within [begin, end), from the left.
[[nodiscard]] std::vector<Subtree> subtrees_of(std::int64_t begin, std::int64_t end);

// Adds up values of subtrees, which come from the left without gaps. add(left, right) leaves the sum in `left`.
template <typename Value, typename Add>
class TreeSum {
 public:
  struct Entry {
    Subtree place;
    Value value;
  };

  explicit TreeSum(Add add) : add_(std::move(add)) {}

  void push(Subtree place, Value value) {
    entries_.push_back({place, std::move(value)});
    while (entries_.size() > 1 && (entries_.end() - 2)->place.is_left_of(entries_.back().place)) {
      add_last();
      entries_.back().place = {entries_.back().place.level + 1, entries_.back().place.index / 2};
    }
  }
  // Of all micro-batches. Requires: the first subtree began at 0.
  [[nodiscard]] Value total() {
    while (entries_.size() > 1) add_last();
    return std::move(entries_.front().value);
  }
  [[nodiscard]] std::vector<Entry>& entries() noexcept { return entries_; }

 private:
  void add_last() {
    add_((entries_.end() - 2)->value, entries_.back().value);
    entries_.pop_back();
  }

  Add add_;
  std::vector<Entry> entries_;
};

class SubtreeSums {
 public:
  using Gradients = std::vector<at::Tensor>;  // by parameter; undefined: none
  // parameters: leaves that require a gradient. dtype: in which gradients are summed; unset: each in its own.
  explicit SubtreeSums(std::vector<NamedParameter> parameters,
                       std::optional<at::ScalarType> dtype = std::nullopt);

  // Before the first micro-batch of a step: gradients that are there already are kept apart, until give().
  void begin();
  // Before the backward of the micro-batch: where the one before it is its left half, autograd adds to that one's gradients in
  // place, while the new ones are still in the caches. Not where gradients come in another dtype than they are summed in.
  void before_backward(std::int64_t micro_batch);
  // Takes the gradients of the micro-batch away from the parameters. Throws kUnsupported naming a parameter whose gradient is
  // sparse.
  void take(std::int64_t micro_batch);
  // Gives the parameters the sum of the step, beside what was kept apart, and forgets the rest.
  void give(Gradients sum);
  // Forgets all but the parameters.
  void drop() noexcept;

  [[nodiscard]] const std::vector<NamedParameter>& parameters() const noexcept {
    return parameters_;
  }
  // By subtree, in the order of subtrees_of().
  [[nodiscard]] std::vector<Gradients> take_subtrees();
  // The same added up. Requires: this rank has all micro-batches.
  [[nodiscard]] Gradients take_total();

 private:
  struct AddEach {
    void operator()(Gradients& left, Gradients& right) const;
  };

  [[nodiscard]] bool rounds(const at::Tensor& parameter) const;
  void settle_left(Gradients& both);

  std::vector<NamedParameter> parameters_;
  std::optional<at::ScalarType> dtype_;
  bool rounds_any_;
  Gradients kept_;
  TreeSum<Gradients, AddEach> sum_{AddEach{}};
  // Of the left half that autograd adds to: its gradients, and what tells whether they were added to.
  std::optional<Gradients> left_;
  std::vector<std::int64_t> versions_;
};

}  // namespace accel
