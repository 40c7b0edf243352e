// The collectives for a single tensor or byte string, and the comparison of what the ranks bring.
//
// The comparison sends a hash and its negative through one maximum: the two results are each other's
// negatives only when all hashes are equal. The texts themselves follow only when they differ.
//
// pad_across_processes() has to learn the sizes of the other ranks. It sends a record of fixed
// length (number of dimensions, then the sizes), so ranks with different numbers of dimensions
// still understand each other and all of them report it; sending the bare sizes would leave the
// shorter side waiting.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <sstream>
#include <string>
#include <tuple>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <c10/util/Type.h>
#include <xxhash.h>

#include <accel/error.h>
#include <accel/operations.h>
#include <accel/state.h>

#include "libaccel/engine/pager/paged_storage.h"
#include "libaccel/engine/process/process_group.h"

namespace accel::detail {
namespace {

constexpr std::int64_t kMaxDims = 64;  // LibTorch's own limit
constexpr std::int64_t kRecordSize = 2 + kMaxDims;

// [R] the element type, the number of dimensions, then their sizes.
at::Tensor shape_record(const at::Tensor& tensor) {
  at::Tensor record = at::zeros({kRecordSize}, at::kLong);
  auto* values = record.mutable_data_ptr<std::int64_t>();
  values[0] = static_cast<std::int64_t>(tensor.scalar_type());
  values[1] = tensor.dim();
  std::copy(tensor.sizes().begin(), tensor.sizes().end(), values + 2);
  return record;
}

std::string shape_text(const std::int64_t* sizes, std::int64_t count) {
  std::string text = "[";
  for (std::int64_t i = 0; i < count; ++i) text += (i > 0 ? ", " : "") + std::to_string(sizes[i]);
  return text + "]";
}

// In the words of Accelerate, with the element type behind each shape.
Error shape_mismatch(std::string_view operation, const std::vector<std::string>& per_rank) {
  std::string table;
  for (std::size_t rank = 0; rank < per_rank.size(); ++rank) {
    table += "\n  - Process " + std::to_string(rank) + ": " + per_rank[rank];
  }
  return Error(
      ErrorCode::kShapeMismatch,
      "Cannot apply desired operation due to shape mismatches. All shapes across devices must be "
      "valid.\n\nOperation: `" +
          std::string(operation) + "`\nInput shapes:" + table);
}

// What every rank brings: "[1, 5] Float". `records` is [W, R].
std::vector<std::string> record_texts(const at::Tensor& records) {
  std::vector<std::string> texts;
  for (std::int64_t rank = 0; rank < records.size(0); ++rank) {
    const auto* record = records.const_data_ptr<std::int64_t>() + rank * kRecordSize;
    texts.push_back(shape_text(record + 2, record[1]) + " " +
                    c10::toString(static_cast<at::ScalarType>(record[0])));
  }
  return texts;
}

void require_rank(int from_process, int size, std::string_view operation) {
  if (from_process >= 0 && from_process < size) return;
  throw Error(ErrorCode::kInvalidArgument,
              std::string(operation) + " from process " + std::to_string(from_process) + " of " +
                  std::to_string(size),
              "pass a process index from 0 to " + std::to_string(size - 1));
}

at::Tensor bytes_tensor(const std::string& bytes, std::int64_t size) {
  at::Tensor tensor = at::zeros({size}, at::kByte);
  std::memcpy(tensor.mutable_data_ptr(), bytes.data(), bytes.size());
  return tensor;
}

std::string first_bytes(const at::Tensor& tensor, std::int64_t size) {
  return {static_cast<const char*>(tensor.const_data_ptr()), static_cast<std::size_t>(size)};
}

}  // namespace

CollectiveCall::CollectiveCall(std::string_view operation)
    : operation_(operation), group_(PartialState::process_group()) {
  is_debug_ = group_ != nullptr && PartialState().debug();
}

CollectiveCall::~CollectiveCall() = default;

at::Tensor CollectiveCall::gather(const at::Tensor& tensor) const {
  const at::Tensor rows = tensor.dim() == 0 ? tensor.view({1}) : tensor;
  return group_->all_gather(pager::with_memory(rows.contiguous()), operation_).flatten(0, 1);
}

at::Tensor CollectiveCall::reduce(const at::Tensor& tensor, Reduction reduction) const {
  if (reduction == Reduction::kMean && !at::isFloatingType(tensor.scalar_type()) &&
      !at::isComplexType(tensor.scalar_type())) {
    throw Error(ErrorCode::kInvalidArgument,
                "reduce: the mean of " + std::string(c10::toString(tensor.scalar_type())) +
                    " values is not a whole number",
                "convert the tensor to a floating type, or use Reduction::kSum");
  }
  at::Tensor result = tensor.detach().clone();
  if (!alone()) group_->all_reduce_(result, reduction, operation_);
  return result;
}

at::Tensor CollectiveCall::broadcast(const at::Tensor& tensor, int from_process) const {
  require_rank(from_process, group_->size(), operation_);
  at::Tensor values = tensor;
  group_->broadcast_(values, from_process, operation_);
  return values;
}

at::Tensor CollectiveCall::pad(const at::Tensor& tensor, const PadOptions& options) const {
  const at::Tensor records = group_->all_gather(shape_record(tensor), operation_);
  // Compared with rank 0, so that every rank comes to the same answer.
  const at::Tensor num_dims = records.select(1, 1);
  if (!num_dims.eq(num_dims[0]).all().item<bool>()) {
    throw shape_mismatch(operation_, record_texts(records));
  }
  const std::int64_t dim = options.dim < 0 ? options.dim + tensor.dim() : options.dim;
  if (dim < 0 || dim >= tensor.dim()) return tensor;

  const auto longest = records.select(1, 2 + dim).max().item<std::int64_t>();
  const std::int64_t length = tensor.size(dim);
  if (longest == length) return tensor;
  auto shape = tensor.sizes().vec();
  shape[static_cast<std::size_t>(dim)] = longest;
  at::Tensor padded = at::full(shape, options.pad_index, tensor.options().requires_grad(false));
  padded.narrow(dim, options.pad_first ? longest - length : 0, length).copy_(tensor);
  return padded;
}

std::vector<std::string> CollectiveCall::gather_bytes(const std::string& bytes) const {
  const auto own_size = static_cast<std::int64_t>(bytes.size());
  const at::Tensor sizes = group_->all_gather(at::full({1}, own_size, at::kLong), operation_);
  const auto* size_of = sizes.const_data_ptr<std::int64_t>();
  const std::int64_t longest = *std::max_element(size_of, size_of + group_->size());
  const at::Tensor gathered = group_->all_gather(bytes_tensor(bytes, longest), operation_);
  std::vector<std::string> result;
  for (int rank = 0; rank < group_->size(); ++rank) {
    result.push_back(first_bytes(gathered.select(0, rank), size_of[rank]));
  }
  return result;
}

std::string CollectiveCall::broadcast_bytes(const std::string& bytes, int from_process) const {
  require_rank(from_process, group_->size(), operation_);
  at::Tensor size = at::full({1}, static_cast<std::int64_t>(bytes.size()), at::kLong);
  group_->broadcast_(size, from_process, operation_);
  const std::int64_t length = *size.const_data_ptr<std::int64_t>();
  at::Tensor content =
      is_source(from_process) ? bytes_tensor(bytes, length) : at::empty({length}, at::kByte);
  group_->broadcast_(content, from_process, operation_);
  return first_bytes(content, length);
}

bool CollectiveCall::is_source(int from_process) const {
  return group_->rank() == from_process;
}

void CollectiveCall::describe(const at::Tensor& tensor, std::string& description) const {
  std::ostringstream text;
  if (!description.empty()) text << ", ";
  if (tensor.defined()) {
    text << shape_text(tensor.sizes().data(), tensor.dim()) << " " << tensor.scalar_type();
    if (tensor.device().type() != PartialState().device().type()) text << " on " << tensor.device();
  } else {
    text << "undefined";
  }
  description += text.str();
}

void CollectiveCall::verify_objects(const std::type_info& type, int from_process) const {
  if (!is_debug_) return;
  std::string description = "objects of type " + c10::demangle(type.name());
  if (from_process >= 0) description += " from process " + std::to_string(from_process);
  compare(description);
}

bool CollectiveCall::is_same_everywhere(const std::string& text) const {
  // 62 bits, so that the negative exists too.
  const auto hash = static_cast<std::int64_t>(XXH3_64bits(text.data(), text.size()) >> 2);
  at::Tensor pair = at::empty({2}, at::kLong);
  auto* values = pair.mutable_data_ptr<std::int64_t>();
  values[0] = hash;
  values[1] = -hash;
  group_->all_reduce_(pair, Reduction::kMax, operation_);
  return values[0] == -values[1];
}

void CollectiveCall::compare(const std::string& description) const {
  const std::string mine = operation_ + " of " + description;
  if (!is_debug_ && is_same_everywhere(mine)) return;
  std::vector<std::string> per_rank = gather_bytes(mine);
  bool is_one_operation = true;
  for (const std::string& other : per_rank) {
    is_one_operation = is_one_operation && other.starts_with(operation_ + " of ");
  }
  bool differs = false;
  for (std::string& other : per_rank) {
    if (is_one_operation) other.erase(0, operation_.size() + 4);
    differs = differs || other != per_rank.front() || other.find(" on ") != std::string::npos;
  }
  if (differs) throw shape_mismatch(operation_, per_rank);
}

}  // namespace accel::detail

namespace accel {

at::Tensor copy_tensor_to_devices(const std::optional<at::Tensor>& tensor) {
  const bool is_here = tensor && tensor->defined();
  using Form = std::tuple<bool, std::vector<std::int64_t>, int>;
  const Form own =
      is_here ? Form(true, tensor->sizes().vec(), static_cast<int>(tensor->scalar_type())) : Form();
  const std::vector<Form> forms = gather_object(std::vector<Form>{own});
  std::vector<int> owners;
  for (std::size_t rank = 0; rank < forms.size(); ++rank) {
    if (std::get<bool>(forms[rank])) owners.push_back(static_cast<int>(rank));
  }
  if (owners.size() != 1) {
    throw Error(ErrorCode::kInvalidArgument,
                "copy_tensor_to_devices: " + std::to_string(owners.size()) + " of " +
                    std::to_string(forms.size()) + " ranks bring a tensor",
                "pass the tensor on one rank, and nothing on the others");
  }
  const auto& [_, sizes, type] = forms[static_cast<std::size_t>(owners.front())];
  if (is_here) return broadcast(tensor->detach().clone(), owners.front());
  const auto options =
      at::TensorOptions().dtype(static_cast<at::ScalarType>(type)).device(PartialState().device());
  return broadcast(at::zeros(sizes, options), owners.front());
}

void wait_for_everyone() {
  PartialState().wait_for_everyone();
}

}  // namespace accel
