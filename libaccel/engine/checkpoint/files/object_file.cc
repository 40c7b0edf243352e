#include "libaccel/engine/checkpoint/files/object_file.h"

#include <map>
#include <utility>

#include <ATen/core/Dict.h>
#include <ATen/core/ivalue.h>

#include <accel/error.h>
#include <accel/result.h>

#include "checkpoint_tools/formats/pickle_writer.h"
#include "checkpoint_tools/formats/torch_archive.h"
#include "libaccel/engine/checkpoint/files/tensor_file.h"
#include "libaccel/tensors/memory_key.h"
#include "runtime/checksum.h"
#include "runtime/printable.h"

namespace accel::checkpoint {
namespace {

namespace pickled = launcher::pickled;

constexpr int kMostWrittenLevels = 900;  // as Python has it

// The opcodes of a value, and the tensors that they name.
class Pickling {
 public:
  std::string run(const c10::IValue& value, const std::string& name) {
    if (levels_ == kMostWrittenLevels)
      throw Error(ErrorCode::kInvalidArgument,
                  "values that are nested in more than " + std::to_string(kMostWrittenLevels) +
                      " levels cannot be saved, or one contains itself");
    ++levels_;
    std::string ops = opcodes(value, name);
    --levels_;
    return ops;
  }
  std::vector<at::Tensor>& tensors() noexcept { return tensors_; }

 private:
  std::string opcodes(const c10::IValue& value, const std::string& name) {
    if (value.isNone()) return pickled::none();
    if (value.isBool()) return pickled::boolean(value.toBool());
    if (value.isInt()) return pickled::integer(value.toInt());
    if (value.isDouble()) return pickled::real(value.toDouble());
    if (value.isString()) return pickled::text(value.toStringRef());
    if (value.isTensor()) return tensor(value.toTensor(), name);
    if (value.isTuple()) return pickled::tuple(items(value.toTupleRef().elements(), name));
    if (value.isList()) return pickled::list(items(value.toListRef(), name));
    if (value.isGenericDict()) return dict(value.toGenericDict(), name);
    throw Error(ErrorCode::kUnsupported,
                "a value of the type " + value.tagKind() + (name.empty() ? "" : ", " + name) +
                    ", cannot be saved",
                "save booleans, numbers, texts, lists, tuples, dictionaries and tensors");
  }

  template <typename Values>
  std::string items(const Values& values, const std::string& name) {
    std::string ops;
    for (const c10::IValue& value : values) ops += run(value, name);
    return ops;
  }

  std::string dict(const c10::impl::GenericDict& values, const std::string& name) {
    std::string ops;
    for (const auto& entry : values) {
      const c10::IValue& key = entry.key();
      const std::string part = key.isString() ? key.toStringRef() : "";
      ops += run(key, name) +
             run(entry.value(), name.empty() || part.empty() ? name + part : name + "." + part);
    }
    return pickled::dict(ops);
  }

  std::string tensor(const at::Tensor& tensor, const std::string& name) {
    const safetensors::TensorSpec spec = spec_of(name, tensor);
    std::size_t storage = tensors_.size();
    if (may_be_tied(tensor))
      storage = storages_.try_emplace(memory_key(tensor), storage).first->second;
    if (storage == tensors_.size()) tensors_.push_back(tensor.detach());
    return or_throw(
        pickled::tensor(name, {.dtype = spec.dtype, .shape = spec.shape, .storage = storage}));
  }

  int levels_ = 0;
  std::vector<at::Tensor> tensors_;
  std::map<MemoryKey, std::size_t> storages_;
};

std::span<const std::byte> bytes_of(const at::Tensor& plain) {
  return {static_cast<const std::byte*>(plain.const_data_ptr()), plain.nbytes()};
}

launcher::TorchArchive archive_of(const std::string& folder,
                                  const std::string& pickle,
                                  const std::vector<at::Tensor>& tensors) {
  std::vector<std::uint64_t> sizes;
  for (const at::Tensor& tensor : tensors)
    sizes.push_back(static_cast<std::uint64_t>(tensor.numel()) * tensor.element_size());
  return launcher::plan_object_archive(folder, pickle, sizes);
}

}  // namespace

ObjectFile::ObjectFile(const c10::IValue& value, std::string folder) : folder_(std::move(folder)) {
  Pickling pickling;
  pickle_ = pickled::document(pickling.run(value, ""));
  tensors_ = std::move(pickling.tensors());
}

std::uint64_t ObjectFile::bytes() const {
  return archive_of(folder_, pickle_, tensors_).layout.bytes();
}

void ObjectFile::write(const std::function<void(std::span<const std::byte>)>& append) const {
  const launcher::TorchArchive archive = archive_of(folder_, pickle_, tensors_);
  const std::map<std::size_t, std::string> records(archive.records.begin(), archive.records.end());
  std::vector<std::uint32_t> checksums;
  const auto append_text = [&](const std::string& text) { append(std::as_bytes(std::span(text))); };
  const auto append_entry = [&](std::span<const std::byte> bytes) {
    const std::uint32_t checksum =
        crc32_of({reinterpret_cast<const char*>(bytes.data()), bytes.size()});
    append_text(archive.layout.header(checksums.size(), checksum));
    append(bytes);
    checksums.push_back(checksum);
  };
  for (std::size_t entry = 0; entry < archive.layout.count(); ++entry) {
    if (const auto record = records.find(entry); record != records.end())
      append_entry(std::as_bytes(std::span(record->second)));
    else
      append_entry(bytes_of(plain(tensors_[entry - archive.first_storage])));
  }
  append_text(archive.layout.tail(checksums));
}

FileDigest write_object_file(FileSystem& file_system,
                             const std::filesystem::path& path,
                             const ObjectFile& object,
                             UnsyncedFiles& unsynced) {
  OutputFile file(file_system, path);
  object.write([&](std::span<const std::byte> bytes) { file.append(bytes); });
  return file.finish(unsynced);
}

}  // namespace accel::checkpoint
