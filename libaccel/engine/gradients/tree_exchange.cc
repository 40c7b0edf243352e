#include "libaccel/engine/gradients/tree_exchange.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <utility>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include <accel/types.h>

#include "libaccel/engine/gradients/gradient_room.h"
#include "libaccel/engine/process/process_group.h"
#include "libaccel/engine/shm/group/byte_group.h"
#include "libaccel/tensors/alignment.h"

namespace accel {
namespace {

constexpr const char* kSumming = "summing gradients in the order of micro-batches";
// Of one message: of its subtrees, parts and sums a few are in memory at a time.
constexpr std::int64_t kTreeChunkBytes = std::int64_t{8} << 20;

at::Tensor in_order_of_memory(const at::Tensor& gradient) {
  return gradient.as_strided({gradient.numel()}, {1}, gradient.storage_offset());
}

// Parameters of one dtype by chunks.
std::vector<std::vector<std::size_t>> chunks_of(const SubtreeSums::Gradients& gradients,
                                                const std::vector<std::size_t>& parameters) {
  std::vector<std::vector<std::size_t>> chunks;
  std::int64_t bytes = 0;  // of the last one
  for (const std::size_t i : parameters) {
    const auto own = static_cast<std::int64_t>(gradients[i].nbytes());
    const bool fits = !chunks.empty() && bytes + own <= kTreeChunkBytes &&
                      gradients[chunks.back().front()].scalar_type() == gradients[i].scalar_type();
    if (!fits) {
      chunks.emplace_back();
      bytes = 0;
    }
    chunks.back().push_back(i);
    bytes += own;
  }
  return chunks;
}

}  // namespace

TreeExchange::TreeExchange(std::shared_ptr<ProcessGroup> group, const MicroBatches& run)
    : group_(std::move(group)) {
  for (int rank = 0; rank < group_->size(); ++rank) {
    const MicroBatches theirs = micro_batches_of(run.total, rank, group_->size());
    subtrees_.push_back(subtrees_of(theirs.begin, theirs.end));
  }
}

bool TreeExchange::is_one_sum() const {
  return group_->size() == 2 && subtrees_[0].size() == 1 && subtrees_[1].size() == 1;
}

std::vector<bool> TreeExchange::fill_up(const std::vector<NamedParameter>& parameters,
                                        std::vector<SubtreeSums::Gradients>& subtrees) {
  at::Tensor used = at::zeros({std::ssize(parameters)}, at::kInt);
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    used.data_ptr<int>()[i] = std::any_of(
        subtrees.begin(), subtrees.end(), [i](const auto& each) { return each[i].defined(); });
  }
  group_->all_reduce_(used, Reduction::kMax, "comparing which parameters have gradients");
  std::vector<bool> is_used;
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    is_used.push_back(used.data_ptr<int>()[i] != 0);
    for (SubtreeSums::Gradients& subtree : subtrees) {
      if (is_used[i] && !subtree[i].defined()) subtree[i] = at::zeros_like(parameters[i].tensor);
    }
  }
  return is_used;
}

SubtreeSums::Gradients TreeExchange::all_reduce(std::vector<SubtreeSums::Gradients> subtrees) {
  const at::NoGradGuard no_grad;
  const SubtreeSums::Gradients& first = subtrees.front();
  std::vector<std::size_t> rest;
  for (std::size_t i = 0; i < first.size(); ++i) {
    if (first[i].defined() && first[i].numel() > 0) rest.push_back(i);
  }
  if (is_one_sum()) sum_where_they_lie(first, rest);
  for (const std::vector<std::size_t>& chunk : chunks_of(first, rest))
    all_reduce_chunk(subtrees, chunk);
  return std::move(subtrees.front());
}

void TreeExchange::sum_where_they_lie(const SubtreeSums::Gradients& gradients,
                                      std::vector<std::size_t>& rest) {
  std::map<at::ScalarType, std::vector<shm::Piece>> pieces;
  const auto is_large = [&](std::size_t i) {
    return gradients[i].nbytes() >= GradientRoom::kSmallest &&
           at::isFloatingType(gradients[i].scalar_type());
  };
  for (const std::size_t i : rest) {
    if (!is_large(i)) continue;
    pieces[gradients[i].scalar_type()].push_back({static_cast<std::byte*>(gradients[i].data_ptr()),
                                                  static_cast<std::size_t>(gradients[i].numel())});
  }
  for (const auto& [dtype, of_type] : pieces) {
    if (!group_->all_reduce_pieces(of_type, dtype, /*factor=*/1.0, kSumming)) continue;
    std::erase_if(rest, [&, type = dtype](std::size_t i) {
      return is_large(i) && gradients[i].scalar_type() == type;
    });
  }
}

// The sums come to be in the first subtree.
void TreeExchange::all_reduce_chunk(std::vector<SubtreeSums::Gradients>& subtrees,
                                    const std::vector<std::size_t>& parameters) {
  const at::Tensor& first = subtrees.front()[parameters.front()];
  const auto alignment = static_cast<std::int64_t>(kCacheLine / first.element_size());
  std::int64_t numel = 0;
  for (const std::size_t i : parameters) numel += subtrees.front()[i].numel();
  const std::int64_t part = rounded_up((numel + group_->size() - 1) / group_->size(), alignment);
  std::vector<at::Tensor> flats;
  for (const SubtreeSums::Gradients& subtree : subtrees) {
    flats.push_back(at::empty({part * group_->size()}, first.options()));
    flats.back().narrow(0, numel, flats.back().numel() - numel).zero_();
    std::int64_t offset = 0;
    for (const std::size_t i : parameters) {
      flats.back().narrow(0, offset, subtree[i].numel()).copy_(in_order_of_memory(subtree[i]));
      offset += subtree[i].numel();
    }
  }
  at::Tensor sums;
  if (is_one_sum()) {
    sums = flats.front();
    group_->all_reduce_(sums, Reduction::kSum, kSumming);
  } else {
    const at::Tensor own = reduce_scatter(std::move(flats));
    sums = at::empty({part * group_->size()}, own.options());
    group_->all_gather_into(sums, own, kSumming);
  }
  std::int64_t offset = 0;
  for (const std::size_t i : parameters) {
    in_order_of_memory(subtrees.front()[i])
        .copy_(sums.narrow(0, offset, subtrees.front()[i].numel()));
    offset += subtrees.front()[i].numel();
  }
}

at::Tensor TreeExchange::reduce_scatter(std::vector<at::Tensor> subtrees) {
  const at::NoGradGuard no_grad;
  const std::int64_t numel = subtrees.front().numel() / group_->size();
  if (numel == 0)
    return subtrees.front().narrow(0, 0, 0);  // of a unit whose parameters have no numbers
  if (is_one_sum()) {
    at::Tensor sum = at::empty({numel}, subtrees.front().options());
    group_->reduce_scatter(sum, subtrees.front(), kSumming);
    return sum;
  }
  // [W, own subtrees, n]
  at::Tensor sent = at::stack(subtrees).view({std::ssize(subtrees), group_->size(), numel});
  sent = sent.transpose(0, 1).contiguous();
  std::vector<std::int64_t> sizes;  // rows from each rank
  std::int64_t num_rows = 0;
  for (const std::vector<Subtree>& theirs : subtrees_) {
    sizes.push_back(std::ssize(theirs));
    num_rows += sizes.back();
  }
  subtrees.clear();
  at::Tensor got = at::empty({num_rows, numel}, sent.options());
  std::vector<std::int64_t> own(static_cast<std::size_t>(group_->size()), sent.size(1));
  group_->all_to_all_rows(got, sent.view({-1, numel}), sizes, own, kSumming);
  const auto add = [](at::Tensor& left, const at::Tensor& right) { left.add_(right); };
  TreeSum<at::Tensor, decltype(add)> sum(add);
  std::int64_t row = 0;
  for (const std::vector<Subtree>& theirs : subtrees_) {
    for (const Subtree& place : theirs) sum.push(place, got[row++]);
  }
  return sum.total();
}

}  // namespace accel
