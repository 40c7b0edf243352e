#include "checkpoint_tools/formats/torch_archive.h"

#include "checkpoint_tools/formats/state_dict_pickle.h"

namespace accel::launcher {

Result<TorchArchive> plan_torch_archive(std::span<const safetensors::TensorSpec> tensors,
                                        const std::map<std::string, std::string>& aliases) {
  std::vector<PickledTensor> pickled;
  std::unordered_map<std::string_view, std::size_t> storages;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    storages[tensors[i].name] = i;
    pickled.push_back({.name = tensors[i].name,
                       .dtype = tensors[i].dtype,
                       .shape = tensors[i].shape,
                       .storage = i});
  }
  for (const auto& [name, original] : aliases) {
    const auto storage = storages.find(original);
    if (storage == storages.end() || storages.contains(name)) continue;
    pickled.push_back(pickled[storage->second]);
    pickled.back().name = name;
  }
  auto pickle = state_dict_pickle(pickled);
  if (!pickle) return std::move(pickle).error();

  const std::string folder = "pytorch_model/";
  std::vector<ZipLayout::Item> items = {{folder + "data.pkl", pickle->size()},
                                        {folder + "byteorder", 6}};
  const std::size_t first = items.size();
  for (std::size_t i = 0; i < tensors.size(); ++i)
    items.push_back({folder + "data/" + std::to_string(i),
                     *safetensors::tensor_bytes(
                         tensors[i].name, tensors[i].dtype, tensors[i].shape)});  // checked above
  items.push_back({folder + "version", 2});
  TorchArchive archive{.layout = ZipLayout(std::move(items)), .records = {}, .places = {}};
  archive.records = {{0, *std::move(pickle)}, {1, "little"}, {archive.layout.count() - 1, "3\n"}};
  for (std::size_t i = 0; i < tensors.size(); ++i)
    archive.places[tensors[i].name] = archive.layout.begin_of(first + i);
  return archive;
}

}  // namespace accel::launcher
