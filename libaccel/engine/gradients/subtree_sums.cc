// A gradient is taken as autograd has left it and added to in place, so the first one of a subtree lies where its backward
// has put it: in memory that ranks share, where there is some (gradient_room.h).

#include "libaccel/engine/gradients/subtree_sums.h"

#include <algorithm>

#include <ATen/core/grad_mode.h>

#include <accel/error.h>

#include "libaccel/engine/gradients/divided_gradients.h"
#include "libaccel/engine/gradients/gradient_room.h"

namespace accel {
namespace {

// Of what may be missing.
void add_gradient(at::Tensor& left, at::Tensor& right) {
  if (!left.defined()) std::swap(left, right);
  if (!left.defined()) return;
  if (right.defined()) {
    left.add_(right);
  } else {
    left.add_(0);
  }
}

at::Tensor taken_from(const at::Tensor& parameter) {
  if (sharding::is_stand_in(parameter.grad())) return {};
  return std::exchange(parameter.mutable_grad(), at::Tensor());
}

}  // namespace

std::vector<Subtree> subtrees_of(std::int64_t begin, std::int64_t end) {
  struct Nothing {};
  const auto add = [](Nothing&, Nothing&) {};
  TreeSum<Nothing, decltype(add)> sum(add);
  for (std::int64_t i = begin; i < end; ++i) sum.push({0, i}, {});
  std::vector<Subtree> places;
  for (const auto& entry : sum.entries()) places.push_back(entry.place);
  return places;
}

void SubtreeSums::AddEach::operator()(Gradients& left, Gradients& right) const {
  for (std::size_t i = 0; i < left.size(); ++i) add_gradient(left[i], right[i]);
}

SubtreeSums::SubtreeSums(std::vector<NamedParameter> parameters,
                         std::optional<at::ScalarType> dtype)
    : parameters_(std::move(parameters)), dtype_(dtype) {
  rounds_any_ = std::any_of(parameters_.begin(), parameters_.end(), [this](const auto& parameter) {
    return rounds(parameter.tensor);
  });
}

bool SubtreeSums::rounds(const at::Tensor& parameter) const {
  return dtype_ && at::isFloatingType(parameter.scalar_type()) &&
         parameter.scalar_type() != *dtype_;
}

void SubtreeSums::begin() {
  drop();
  for (const NamedParameter& parameter : parameters_) kept_.push_back(taken_from(parameter.tensor));
}

void SubtreeSums::before_backward(std::int64_t micro_batch) {
  auto& entries = sum_.entries();
  if (rounds_any_ || entries.empty() || !entries.back().place.is_left_of({0, micro_batch})) return;
  left_ = std::move(entries.back().value);
  entries.pop_back();
  versions_.assign(parameters_.size(), 0);
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    const at::Tensor& gradient = (*left_)[i];
    if (!gradient.defined()) continue;
    versions_[i] = gradient._version();
    parameters_[i].tensor.mutable_grad() = gradient;
  }
}

// The sum of both halves, as AddEach makes it.
void SubtreeSums::settle_left(Gradients& both) {
  const Gradients left = *std::exchange(left_, std::nullopt);
  for (std::size_t i = 0; i < both.size(); ++i) {
    const bool has_both = left[i].defined() && both[i].defined() &&
                          !(both[i].is_same(left[i]) && both[i]._version() == versions_[i]);
    if (both[i].defined() && !has_both) both[i].add_(0);
  }
}

void SubtreeSums::take(std::int64_t micro_batch) {
  const at::NoGradGuard no_grad;
  separate_gradients(parameters_);
  Gradients own;
  for (const NamedParameter& parameter : parameters_) {
    if (parameter.tensor.grad().defined() && parameter.tensor.grad().is_sparse()) {
      throw Error(ErrorCode::kUnsupported,
                  "the gradient of " + parameter.name +
                      " is sparse, which reproducible training does not sum",
                  "construct the embedding with sparse(false)");
    }
    own.push_back(taken_from(parameter.tensor));
    if (own.back().defined() && rounds(parameter.tensor)) own.back() = own.back().to(*dtype_);
  }
  const bool has_left = left_.has_value();
  if (has_left) settle_left(own);
  sum_.push(has_left ? Subtree{1, micro_batch / 2} : Subtree{0, micro_batch}, std::move(own));
}

void SubtreeSums::give(Gradients sum) {
  const at::NoGradGuard no_grad;
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    at::Tensor& gradient = parameters_[i].tensor.mutable_grad();
    if (kept_[i].defined() && sum[i].defined()) {
      gradient = kept_[i].add_(sum[i]);
    } else if (kept_[i].defined() || sum[i].defined()) {
      gradient = kept_[i].defined() ? kept_[i] : sum[i];
    }
  }
  drop();
}

void SubtreeSums::drop() noexcept {
  kept_.clear();
  sum_.entries().clear();
  left_.reset();
}

std::vector<SubtreeSums::Gradients> SubtreeSums::take_subtrees() {
  std::vector<Gradients> subtrees;
  for (auto& entry : std::exchange(sum_.entries(), {})) subtrees.push_back(std::move(entry.value));
  return subtrees;
}

SubtreeSums::Gradients SubtreeSums::take_total() {
  const at::NoGradGuard no_grad;
  Gradients total = sum_.total();
  sum_.entries().clear();
  return total;
}

}  // namespace accel
