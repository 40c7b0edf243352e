// Fuzzes the safetensors header: any bytes give a header whose promises hold, or an error.

#include <cstdlib>

#include <accel/safetensors.h>

namespace st = accel::safetensors;

namespace {

// What code that moves bytes relies on without checking again.
void check_promises(const st::Header& header, size_t file_bytes) {
  if (header.data_offset + header.data_bytes != file_bytes) std::abort();
  std::uint64_t covered = 0;
  for (const st::TensorInfo& tensor : header.tensors) {
    if (tensor.begin != covered || tensor.end < tensor.begin) std::abort();
    const auto bytes = st::tensor_bytes(tensor.name, tensor.dtype, tensor.shape);
    if (!bytes || *bytes != tensor.num_bytes()) std::abort();
    covered = tensor.end;
  }
  if (covered != header.data_bytes) std::abort();
}

// A header that was accepted can be written, and what was written is accepted again.
void check_round_trip(const st::Header& header) {
  std::vector<st::TensorSpec> specs;
  for (const st::TensorInfo& tensor : header.tensors) {
    specs.push_back({tensor.name, tensor.dtype, tensor.shape});
  }
  const auto layout = st::plan_layout(std::move(specs), header.metadata);
  if (!layout) std::abort();
  const std::string_view json = std::string_view(layout->bytes).substr(st::kPrefixBytes);
  const auto again = st::parse_header(json, layout->bytes.size() + layout->header.data_bytes);
  if (!again || again->tensors.size() != header.tensors.size()) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, size_t size) {
  const std::span<const std::byte> bytes(reinterpret_cast<const std::byte*>(data), size);
  const auto length = st::header_length(bytes, size);
  if (!length) return 0;
  const std::string_view json(reinterpret_cast<const char*>(data) + st::kPrefixBytes, *length);
  const auto header = st::parse_header(json, size);
  if (!header) return 0;
  check_promises(*header, size);
  check_round_trip(*header);
  return 0;
}
