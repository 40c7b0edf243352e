// The parts of the object bytes that are not templates, and the checks while reading.

#include <ATen/ops/empty.h>

#include <accel/detail/object_codec.h>
#include <accel/error.h>

#include "libaccel/engine/pager/paged_storage.h"

namespace accel {
namespace {

Error broken(std::string what) {
  return Error(ErrorCode::kProtocol,
               "an object from another rank cannot be read: " + std::move(what),
               "run the same program on every rank");
}

}  // namespace

void ObjectWriter::write_tensor(const at::Tensor& tensor) {
  write(tensor.defined());
  if (!tensor.defined()) return;
  const at::Tensor whole = pager::with_memory(tensor.detach().cpu().contiguous());
  write(whole.scalar_type());
  write(whole.sizes().vec());
  write_bytes(whole.const_data_ptr(), whole.nbytes());
}

std::string_view ObjectReader::read_bytes(std::size_t size) {
  if (size > bytes_.size()) {
    throw broken(std::to_string(size) + " bytes are needed, " + std::to_string(bytes_.size()) +
                 " are left");
  }
  const std::string_view part = bytes_.substr(0, size);
  bytes_.remove_prefix(size);
  return part;
}

std::size_t ObjectReader::read_size(std::size_t element_size) {
  const auto size = read<std::uint64_t>();
  if (element_size > 0 && size > bytes_.size() / element_size) {
    throw broken("a length of " + std::to_string(size) + " is more than what is left");
  }
  return static_cast<std::size_t>(size);
}

at::Tensor ObjectReader::read_tensor() {
  if (!read<bool>()) return {};
  const auto type = read<at::ScalarType>();
  const auto shape = read<std::vector<std::int64_t>>();
  at::Tensor tensor = at::empty(shape, type);
  const std::string_view bytes = read_bytes(tensor.nbytes());
  if (!bytes.empty()) std::memcpy(tensor.mutable_data_ptr(), bytes.data(), bytes.size());
  return tensor;
}

void ObjectReader::finish() const {
  if (!bytes_.empty()) throw broken(std::to_string(bytes_.size()) + " bytes are left over");
}

namespace detail {

void check_type_tag(std::string_view expected, std::string_view found) {
  if (expected == found) return;
  throw Error(ErrorCode::kProtocol,
              "another rank sent an object of type " + std::string(found) +
                  " where this one expects " + std::string(expected),
              "call the operation with the same type on every rank");
}

void throw_bad_alternative(std::size_t index) {
  throw broken("a variant has no alternative " + std::to_string(index));
}

}  // namespace detail
}  // namespace accel
