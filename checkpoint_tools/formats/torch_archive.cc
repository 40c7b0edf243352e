#include "checkpoint_tools/formats/torch_archive.h"

#include <limits>
#include <string_view>

#include <accel/error.h>

#include "checkpoint_tools/formats/pickle_writer.h"

namespace accel::launcher {

TorchArchive plan_object_archive(const std::string& folder,
                                 std::string pickle,
                                 std::span<const std::uint64_t> storage_bytes) {
  std::vector<ZipLayout::Item> items = {{folder + "/data.pkl", pickle.size()},
                                        {folder + "/byteorder", 6}};
  const std::size_t first = items.size();
  for (std::size_t i = 0; i < storage_bytes.size(); ++i)
    items.push_back({folder + "/data/" + std::to_string(i), storage_bytes[i]});
  items.push_back({folder + "/version", 2});
  TorchArchive archive{
      .layout = ZipLayout(std::move(items)), .records = {}, .first_storage = first, .places = {}};
  archive.records = {{0, std::move(pickle)}, {1, "little"}, {archive.layout.count() - 1, "3\n"}};
  return archive;
}

Result<TorchArchive> plan_torch_archive(std::span<const safetensors::TensorSpec> tensors,
                                        const std::map<std::string, std::string>& aliases) {
  std::string entries;
  std::vector<std::uint64_t> storage_bytes;
  std::unordered_map<std::string_view, std::size_t> storages;
  const auto add = [&](const std::string& name, std::size_t storage) -> Result<void> {
    const safetensors::TensorSpec& spec = tensors[storage];
    if (name.size() > std::numeric_limits<std::uint32_t>::max())
      return Error(ErrorCode::kInvalidArgument, "a name of more than 4 GiB");
    auto call =
        pickled::tensor(name, {.dtype = spec.dtype, .shape = spec.shape, .storage = storage});
    if (!call) return std::move(call).error();
    entries += pickled::text(name) + *call;
    return {};
  };
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    if (const auto added = add(tensors[i].name, i); !added) return added.error();
    storages[tensors[i].name] = i;
    storage_bytes.push_back(*safetensors::tensor_bytes(
        tensors[i].name, tensors[i].dtype, tensors[i].shape));  // checked above
  }
  for (const auto& [name, original] : aliases) {
    const auto storage = storages.find(original);
    if (storage == storages.end() || storages.contains(name)) continue;
    if (const auto added = add(name, storage->second); !added) return added.error();
  }
  TorchArchive archive = plan_object_archive(
      "pytorch_model", pickled::document(pickled::dict(entries)), storage_bytes);
  for (std::size_t i = 0; i < tensors.size(); ++i)
    archive.places[tensors[i].name] = archive.layout.begin_of(archive.first_storage + i);
  return archive;
}

}  // namespace accel::launcher
