// Stacking the elements of a batch.

#include <sstream>

#include <ATen/ops/from_blob.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/tensor.h>

#include <accel/collate.h>
#include <accel/error.h>

namespace accel {
namespace {

constexpr const char* kPadOrCollate =
    "make all elements alike, or give the DataLoader a collate function that pads";

}  // namespace

at::Tensor stack_elements(const std::vector<at::Tensor>& elements) {
  if (elements.empty()) {
    throw Error(ErrorCode::kInvalidArgument, "a batch needs at least one element, got none");
  }
  for (std::size_t i = 1; i < elements.size(); ++i) {
    if (elements[i].sizes() == elements[0].sizes()) continue;
    std::ostringstream message;
    message << "element " << i << " of a batch has shape " << elements[i].sizes()
            << ", the first one has " << elements[0].sizes();
    throw Error(ErrorCode::kShapeMismatch, message.str(), kPadOrCollate);
  }
  return at::stack(elements);
}

at::Tensor tensor_of_numbers(const std::vector<std::int64_t>& numbers) {
  return at::tensor(numbers);
}
at::Tensor tensor_of_numbers(const std::vector<float>& numbers) {
  return at::tensor(numbers);
}
at::Tensor tensor_of_numbers(const std::vector<double>& numbers) {
  return at::tensor(numbers);
}

at::Tensor tensor_of_flags(const std::vector<bool>& flags) {
  return at::tensor(std::vector<std::int64_t>(flags.begin(), flags.end())).to(at::kBool);
}

namespace detail {

void throw_different_keys(std::size_t element) {
  throw Error(
      ErrorCode::kShapeMismatch,
      "element " + std::to_string(element) + " of a batch has other keys than the first one",
      kPadOrCollate);
}

void throw_different_lengths(std::size_t element, std::size_t length, std::size_t first_length) {
  throw Error(ErrorCode::kShapeMismatch,
              "element " + std::to_string(element) + " of a batch has " + std::to_string(length) +
                  " entries, the first one has " + std::to_string(first_length),
              kPadOrCollate);
}

}  // namespace detail
}  // namespace accel
