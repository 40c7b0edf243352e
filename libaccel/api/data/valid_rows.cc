#include <string>

#include <ATen/ops/cat.h>
#include <ATen/ops/full.h>

#include <accel/detail/valid_rows.h>
#include <accel/error.h>
#include <accel/operations.h>

namespace accel::detail {

std::vector<std::int64_t> counts_of_ranks(std::int64_t own) {
  const at::Tensor counts = gather(at::full({1}, own, at::kLong));
  const auto* const first = counts.const_data_ptr<std::int64_t>();
  return {first, first + counts.numel()};
}

at::Tensor first_rows_of_ranks(const at::Tensor& gathered,
                               const std::vector<std::int64_t>& counts) {
  const std::int64_t rows = gathered.dim() > 0 ? gathered.size(0) : 0;
  const std::int64_t of_each = rows / std::ssize(counts);
  std::vector<at::Tensor> parts;
  for (std::size_t rank = 0; rank < counts.size(); ++rank) {
    if (counts[rank] > of_each) {
      throw Error(ErrorCode::kShapeMismatch,
                  "gather_for_metrics() got " + std::to_string(of_each) + " rows of rank " +
                      std::to_string(rank) + ", whose last batch has " +
                      std::to_string(counts[rank]) + " samples",
                  "give it a row for each sample of the batch");
    }
    parts.push_back(gathered.narrow(0, static_cast<std::int64_t>(rank) * of_each, counts[rank]));
  }
  return at::cat(parts);
}

}  // namespace accel::detail
