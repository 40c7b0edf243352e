#include "libaccel/exporting/archive_writer.h"

#include <cstring>
#include <map>
#include <span>
#include <string>
#include <variant>

#include <ATen/core/Dict.h>
#include <ATen/core/ivalue.h>
#include <ATen/ops/empty.h>
#include <torch/csrc/jit/serialization/pickle.h>

#include <accel/safetensors_file.h>

#include "checkpoint_tools/formats/zip_layout.h"
#include "runtime/checksum.h"
#include "safetensors/hidden_file.h"

namespace accel::exporting {
namespace {

struct Entry {
  std::string name;
  std::variant<std::string, at::Tensor> content;  // a tensor of bytes, on the CPU

  [[nodiscard]] std::span<const std::byte> bytes() const {
    if (const auto* text = std::get_if<std::string>(&content))
      return std::as_bytes(std::span(*text));
    const auto& tensor = std::get<at::Tensor>(content);
    return {static_cast<const std::byte*>(tensor.const_data_ptr()), tensor.nbytes()};
  }
};

// All that lies in the memory of a tensor.
at::Tensor bytes_of_storage(const at::Tensor& tensor) {
  const auto size = static_cast<std::int64_t>(tensor.storage().nbytes());
  return at::empty({0}, at::TensorOptions().dtype(at::kByte).device(tensor.device()))
      .set_(tensor.storage(), 0, {size}, {1})
      .cpu();
}

// The entries of tensors below one folder; those that share memory share an entry.
class TensorEntries {
 public:
  TensorEntries(std::string folder, std::string prefix, bool has_values)
      : folder_(std::move(folder)), prefix_(std::move(prefix)), has_values_(has_values) {}

  std::string path_of(const at::Tensor& tensor) {
    const auto [found, is_new] = paths_.try_emplace(tensor.storage().unsafeGetStorageImpl(),
                                                    prefix_ + std::to_string(paths_.size()));
    if (is_new && has_values_)
      entries_.push_back({folder_ + found->second, bytes_of_storage(tensor)});
    if (is_new && !has_values_) entries_.push_back({folder_ + found->second, std::string()});
    return found->second;
  }
  [[nodiscard]] const std::vector<Entry>& entries() const noexcept { return entries_; }

 private:
  std::string folder_;
  std::string prefix_;
  bool has_values_;
  std::map<const void*, std::string> paths_;
  std::vector<Entry> entries_;
};

// (args, kwargs), as torch.save() writes it.
std::string example_inputs(const std::vector<at::Tensor>& inputs) {
  std::vector<c10::IValue> values;
  for (const at::Tensor& input : inputs) values.emplace_back(input.detach());
  const auto arguments = c10::ivalue::Tuple::create(
      c10::ivalue::Tuple::create(std::move(values)),
      c10::impl::GenericDict(c10::StringType::get(), c10::TensorType::get()));
  const std::vector<char> bytes = torch::jit::pickle_save(arguments);
  return {bytes.begin(), bytes.end()};
}

std::vector<Entry> entries_of(const ArchiveContent& content) {
  TensorEntries weights("data/weights/", "weight_", content.has_values);
  TensorEntries constants("data/constants/", "tensor_", /*has_values=*/true);
  std::vector<StoredTensor> weight_table;
  for (const ModuleTensor& item : content.tensors)
    weight_table.push_back({.name = item.name,
                            .path = weights.path_of(item.tensor),
                            .is_parameter = item.is_parameter,
                            .meta = meta_of(item.tensor, item.name)});
  std::vector<Entry> texts;
  const std::string inputs = example_inputs(content.example_inputs);
  for (const auto& [name, traced] : content.graphs) {
    std::vector<StoredTensor> constant_table;
    for (const auto& [target, tensor] : traced.constants)
      constant_table.push_back(
          {.name = target, .path = constants.path_of(tensor), .meta = meta_of(tensor, target)});
    texts.push_back({"data/weights/" + name + "_weights_config.json", payload_text(weight_table)});
    texts.push_back(
        {"data/constants/" + name + "_constants_config.json", payload_text(constant_table)});
    texts.push_back({"models/" + name + ".json", graph_text(traced, content.form)});
    texts.push_back({"data/sample_inputs/" + name + ".pt", inputs});
  }
  std::vector<Entry> entries = {{"archive_format", "pt2"},
                                {"archive_version", "0"},
                                {"byteorder", "little"},
                                {".data/version", "6\n"}};
  entries.insert(entries.end(), weights.entries().begin(), weights.entries().end());
  entries.insert(entries.end(), constants.entries().begin(), constants.entries().end());
  entries.insert(entries.end(), texts.begin(), texts.end());
  return entries;
}

}  // namespace

void write_archive(const ArchiveContent& content, const std::filesystem::path& path) {
  const std::vector<Entry> entries = entries_of(content);
  std::vector<launcher::ZipLayout::Item> items;
  std::vector<std::uint32_t> checksums;
  for (const Entry& entry : entries) {
    items.push_back({"archive/" + entry.name, entry.bytes().size()});
    const std::span<const std::byte> bytes = entry.bytes();
    checksums.push_back(crc32_of({reinterpret_cast<const char*>(bytes.data()), bytes.size()}));
  }
  const launcher::ZipLayout layout(std::move(items));
  safetensors::HiddenFile file(path, layout.bytes());
  std::uint64_t end = 0;
  const auto append = [&](const auto& bytes) {
    file.write_at(end, bytes);
    end += bytes.size();
  };
  for (std::size_t i = 0; i < entries.size(); ++i) {
    append(layout.header(i, checksums[i]));
    append(entries[i].bytes());
  }
  append(layout.tail(checksums));
  file.publish();
}

void write_weights(const std::vector<ModuleTensor>& tensors, const std::filesystem::path& path) {
  safetensors::TensorMap map;
  std::map<const void*, bool> is_written;
  for (const ModuleTensor& item : tensors)
    if (is_written.try_emplace(item.tensor.unsafeGetTensorImpl(), true).second)
      map.emplace(item.name, item.tensor.detach());
  safetensors::save_file(map, path, {{"format", "pt"}});
}

}  // namespace accel::exporting
