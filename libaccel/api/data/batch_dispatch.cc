// The rows of a dispatched batch, and the errors of dispatching batches from rank 0.

#include <sstream>
#include <string>

#include <accel/detail/batch_dispatch.h>
#include <accel/error.h>

namespace accel::detail {
namespace {

constexpr const char* kReadAlone =
    "pass dispatch_batches = false and let each rank read its own batches, or split_batches = true "
    "so that one batch is cut into parts";

[[noreturn]] void refuse_beside(const std::string& what, std::int64_t rows) {
  throw Error(
      ErrorCode::kDataSharding,
      "a batch that rank 0 reads for all holds " + what + " beside " + std::to_string(rows) +
          " rows, so nobody knows which of it belongs to which rank",
      "give the batch a row or an element for each sample, or pass dispatch_batches = false");
}

}  // namespace

void throw_cannot_join(const std::string& why) {
  throw Error(
      ErrorCode::kShapeMismatch,
      "batches of different shapes cannot be joined for dispatch_batches = true (the default "
      "for an iterable dataset): " +
          why,
      kReadAlone);
}

void throw_does_not_divide(std::int64_t rows, std::int64_t num_processes) {
  throw Error(ErrorCode::kDataSharding,
              "a batch of " + std::to_string(rows) +
                  " rows that is not the last one cannot be divided "
                  "by " +
                  std::to_string(num_processes) + " processes",
              kReadAlone);
}

void throw_other_length(std::int64_t length, std::int64_t rows) {
  refuse_beside("a list of " + std::to_string(length) + " elements", rows);
}

at::Tensor rows_of_batch(const at::Tensor& tensor,
                         std::int64_t num_rows,
                         std::int64_t begin,
                         std::int64_t end) {
  if (tensor.dim() > 0 && tensor.size(0) == num_rows) return slice_rows(tensor, begin, end);
  std::ostringstream shape;
  shape << tensor.sizes();
  refuse_beside("a tensor of shape " + shape.str(), num_rows);
}

void throw_reader_failed(const std::string& why) {
  throw Error(ErrorCode::kPeerLost, "rank 0, which reads for all ranks, failed: " + why);
}

void throw_cannot_send() {
  throw Error(
      ErrorCode::kUnsupported,
      "dispatch_batches = true needs batches that can be sent to other ranks, and this type "
      "has no ObjectCodec",
      "give the batch fields() (see accel/nested.h), or pass dispatch_batches = false");
}

}  // namespace accel::detail
