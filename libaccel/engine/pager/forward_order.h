// ForwardOrder: in which order a forward uses the weights of a model, seen from the operators alone.
//
// A StepTrace is told where a step ends. A forward is over when the weight that it began with comes again, after as many different
// ones as the forward before used; a model that leaves some out this time (experts, branches) is over at the latest after twice as
// many uses. Until the first forward is over, the order is that in which the weights are numbered.
//
// Threads:  a value; whoever owns it locks.
#pragma once

#include <cstddef>
#include <vector>

#include "libaccel/engine/pager/step_trace.h"

namespace accel::pager {

class ForwardOrder {
 public:
  explicit ForwardOrder(std::size_t num_weights) : trace_(num_weights), is_used_(num_weights) {
    for (std::size_t weight = 0; weight < num_weights; ++weight) trace_.use(weight);
    trace_.end_step();
    num_expected_ = length_expected_ = num_weights;
  }

  void use(std::size_t weight) {
    if (trace_.current() == weight) return;
    if (length_ > 0 && weight == first_ && is_over()) end();
    if (length_++ == 0) first_ = weight;
    trace_.use(weight);
    use_rows(weight);
  }

  // Of a table of which an operator reads some rows: that is no use of all of it.
  void use_rows(std::size_t weight) {
    if (is_used_[weight]) return;
    is_used_[weight] = true;
    ++num_used_;
  }

  [[nodiscard]] const StepTrace& trace() const noexcept { return trace_; }

 private:
  [[nodiscard]] bool is_over() const noexcept {
    return num_used_ >= num_expected_ || length_ >= 2 * length_expected_;
  }

  void end() {
    trace_.end_step();
    num_expected_ = num_used_;
    length_expected_ = length_;
    num_used_ = length_ = 0;
    is_used_.assign(is_used_.size(), false);
  }

  StepTrace trace_;
  std::vector<bool> is_used_;        // in this forward
  std::size_t first_ = 0;            // of this forward
  std::size_t num_used_ = 0;         // different ones
  std::size_t length_ = 0;           // uses
  std::size_t num_expected_ = 0;     // as num_used_, of the forward before
  std::size_t length_expected_ = 0;  // as length_
};

}  // namespace accel::pager
