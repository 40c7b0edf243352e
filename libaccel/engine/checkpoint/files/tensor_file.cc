// Tensors to and from safetensors files.
//
// The header is planned (or read and checked) by safetensors/, without torch; since its tensors
// follow each other without a gap, both directions are one sequential pass, which also yields the
// hash of the whole file. Each tensor is made plain (on the CPU, contiguous, no pending
// conjugation) just before its bytes are written, so that only one copy exists at a time.

#include "libaccel/engine/checkpoint/files/tensor_file.h"

#include <array>
#include <optional>
#include <utility>
#include <vector>

#include <ATen/ops/empty.h>
#include <ATen/ops/resolve_conj.h>
#include <ATen/ops/resolve_neg.h>

#include <accel/error.h>
#include <accel/result.h>
#include <accel/safetensors.h>
#include <accel/safetensors_reader.h>
#include <accel/safetensors_writer.h>

#include "libaccel/engine/pager/paged_storage.h"

namespace accel::checkpoint {
namespace {

namespace st = accel::safetensors;

struct DtypePair {
  st::Dtype file;
  at::ScalarType torch;
};
constexpr std::array kDtypePairs = {
    DtypePair{st::Dtype::kBool, at::kBool},
    DtypePair{st::Dtype::kF4, at::ScalarType::Float4_e2m1fn_x2},
    DtypePair{st::Dtype::kU8, at::kByte},
    DtypePair{st::Dtype::kI8, at::kChar},
    DtypePair{st::Dtype::kF8E5M2, at::ScalarType::Float8_e5m2},
    DtypePair{st::Dtype::kF8E4M3, at::ScalarType::Float8_e4m3fn},
    DtypePair{st::Dtype::kF8E8M0, at::ScalarType::Float8_e8m0fnu},
    DtypePair{st::Dtype::kF8E4M3Fnuz, at::ScalarType::Float8_e4m3fnuz},
    DtypePair{st::Dtype::kF8E5M2Fnuz, at::ScalarType::Float8_e5m2fnuz},
    DtypePair{st::Dtype::kI16, at::kShort},
    DtypePair{st::Dtype::kU16, at::ScalarType::UInt16},
    DtypePair{st::Dtype::kF16, at::kHalf},
    DtypePair{st::Dtype::kBF16, at::kBFloat16},
    DtypePair{st::Dtype::kI32, at::kInt},
    DtypePair{st::Dtype::kU32, at::ScalarType::UInt32},
    DtypePair{st::Dtype::kF32, at::kFloat},
    DtypePair{st::Dtype::kC64, at::kComplexFloat},
    DtypePair{st::Dtype::kF64, at::kDouble},
    DtypePair{st::Dtype::kI64, at::kLong},
    DtypePair{st::Dtype::kU64, at::ScalarType::UInt64},
};

[[noreturn]] void refuse_tensor(const std::string& name,
                                const std::string& why,
                                const std::string& remedy) {
  throw Error(ErrorCode::kUnsupported, "tensor \"" + name + "\" " + why, remedy);
}

}  // namespace

st::TensorSpec spec_of(const std::string& name, const at::Tensor& tensor) {
  if (!tensor.defined()) refuse_tensor(name, "is undefined", "leave it out of what is saved");
  if (tensor.is_meta()) {
    refuse_tensor(
        name, "is on the meta device: it has no data", "load or initialize it before saving");
  }
  if (tensor.layout() != at::kStrided || tensor.is_quantized()) {
    refuse_tensor(name, "is sparse or quantized", "save tensor.to_dense() or tensor.dequantize()");
  }
  return spec_of_shape(name, tensor.scalar_type(), tensor.sizes());
}

st::TensorSpec spec_of_shape(const std::string& name, at::ScalarType dtype, at::IntArrayRef shape) {
  for (const DtypePair& pair : kDtypePairs) {
    if (pair.torch != dtype) continue;
    st::TensorSpec spec{.name = name, .dtype = pair.file};
    spec.shape.assign(shape.begin(), shape.end());
    if (pair.file ==
        st::Dtype::kF4) {  // LibTorch counts bytes of two elements, the file counts elements
      if (spec.shape.empty())
        refuse_tensor(name, "holds two elements but has no dimension", "view it as [1]");
      spec.shape.back() *= 2;
    }
    return spec;
  }
  refuse_tensor(
      name,
      std::string("has dtype ") + c10::toString(dtype) + ", which safetensors cannot hold",
      "convert it to a dtype of the format first");
}

std::vector<st::TensorSpec> specs_of(const st::TensorMap& tensors) {
  std::vector<st::TensorSpec> specs;
  specs.reserve(tensors.size());
  for (const auto& [name, tensor] : tensors) specs.push_back(spec_of(name, tensor));
  return specs;
}

at::ScalarType scalar_type_of(const std::string& name, st::Dtype dtype) {
  for (const DtypePair& pair : kDtypePairs)
    if (pair.file == dtype) return pair.torch;
  refuse_tensor(name,
                "has dtype " + std::string(st::dtype_name(dtype)) + ", which LibTorch lacks",
                "convert it with another tool");
}

at::Tensor allocate(const st::TensorInfo& info, at::DeviceType device) {
  std::vector<std::int64_t> shape(info.shape.begin(), info.shape.end());
  for (const std::int64_t dim : shape) {
    if (dim < 0) refuse_tensor(info.name, "has a dimension above 2^63", "write the file again");
  }
  const at::ScalarType dtype = scalar_type_of(info.name, info.dtype);
  if (info.dtype == st::Dtype::kF4) {
    if (shape.empty() || shape.back() % 2 != 0) {
      refuse_tensor(
          info.name, "has an odd number of F4 elements in a row", "pad its last dimension");
    }
    shape.back() /= 2;
  }
  return at::empty(shape, at::TensorOptions().dtype(dtype).device(device));
}

at::Tensor plain(const at::Tensor& tensor) {
  return pager::with_memory(at::resolve_neg(at::resolve_conj(tensor.detach().cpu())).contiguous());
}

std::uint64_t stored_bytes(const std::string& name, const at::Tensor& tensor) {
  const st::TensorSpec spec = spec_of(name, tensor);
  return or_throw(st::tensor_bytes(name, spec.dtype, spec.shape));
}

FileDigest write_tensor_file(FileSystem& file_system,
                             const std::filesystem::path& path,
                             const st::TensorMap& tensors,
                             const st::Metadata& metadata,
                             UnsyncedFiles& unsynced) {
  const st::Layout layout = or_throw(st::plan_layout(specs_of(tensors), metadata));

  OutputFile file(file_system, path);
  file.append(layout.bytes);
  for (const st::TensorInfo& info : layout.header.tensors) {
    const at::Tensor values = plain(tensors.at(info.name));
    file.append({static_cast<const std::byte*>(values.const_data_ptr()), info.num_bytes()});
  }
  return file.finish(unsynced);
}

FileDigest write_tensor_file(FileSystem& file_system,
                             const std::filesystem::path& path,
                             const st::TensorMap& tensors,
                             const st::Metadata& metadata) {
  UnsyncedFiles unsynced;
  const FileDigest digest = write_tensor_file(file_system, path, tensors, metadata, unsynced);
  unsynced.sync(file_system);
  return digest;
}

LoadedTensors read_tensor_file(const std::filesystem::path& path) {
  InputFile file(path);
  Result<st::Header> header = st::read_header(file.fd());
  if (!header)
    throw std::move(header).error().while_doing("reading the header of " + path.string());

  LoadedTensors loaded{.metadata = std::move(header->metadata)};
  std::string front(header->data_offset, '\0');
  file.read(std::as_writable_bytes(std::span(front)));
  for (const st::TensorInfo& info : header->tensors) {
    at::Tensor tensor = allocate(info);
    file.read({static_cast<std::byte*>(tensor.mutable_data_ptr()), info.num_bytes()});
    loaded.tensors.emplace(info.name, std::move(tensor));
  }
  loaded.digest = file.digest();
  return loaded;
}

safetensors::TensorMap read_shapes(const std::filesystem::path& path) {
  const st::Reader reader = or_throw(st::Reader::open(path));
  safetensors::TensorMap shapes;
  for (const st::TensorInfo& info : reader.header().tensors)
    shapes.emplace(info.name, allocate(info, at::kMeta));
  return shapes;
}

}  // namespace accel::checkpoint

namespace accel::safetensors {

void save_file(const TensorMap& tensors,
               const std::filesystem::path& path,
               const Metadata& metadata) {
  Writer writer = or_throw(Writer::create(path, checkpoint::specs_of(tensors), metadata));
  for (const TensorInfo& info : writer.header().tensors) {
    const at::Tensor values = checkpoint::plain(tensors.at(info.name));
    or_throw(writer.write(
        info.name, {static_cast<const std::byte*>(values.const_data_ptr()), info.num_bytes()}));
  }
  or_throw(writer.publish());
}

TensorMap load_file(const std::filesystem::path& path) {
  const Reader reader = or_throw(Reader::open(path));
  TensorMap tensors;
  for (const TensorInfo& info : reader.header().tensors) {
    at::Tensor tensor = checkpoint::allocate(info);
    or_throw(reader.read(info.name,
                         {static_cast<std::byte*>(tensor.mutable_data_ptr()), info.num_bytes()}));
    tensors.emplace(info.name, std::move(tensor));
  }
  return tensors;
}

Metadata load_metadata(const std::filesystem::path& path) {
  return or_throw(Reader::open(path)).header().metadata;
}

}  // namespace accel::safetensors
