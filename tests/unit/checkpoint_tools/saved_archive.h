// SavedArchive: what PyTorch writes, made without it: pickles from their opcodes, archives of torch.save(), and folders of
// torch.distributed.checkpoint.
#pragma once

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/scratch_folder.h"

namespace accel::test {

inline std::string little(std::uint64_t number, std::size_t width) {
  std::string bytes;
  for (std::size_t i = 0; i < width; ++i, number >>= 8) bytes += static_cast<char>(number & 0xFF);
  return bytes;
}

// ---- pickles: each function gives the opcodes that push a value ----

inline std::string text_op(const std::string& text) {
  return "X" + little(text.size(), 4) + text;
}
inline std::string int_op(std::uint64_t value) {
  if (value < 0x80000000) return "J" + little(value, 4);
  return std::string("\x8a\x08") + little(value, 8);
}
inline std::string name_op(const std::string& module, const std::string& name) {
  return "c" + module + "\n" + name + "\n";
}
inline std::string tuple_op(const std::vector<std::string>& items) {
  std::string ops = "(";
  for (const std::string& item : items) ops += item;
  return ops + "t";
}
inline std::string list_op(const std::vector<std::string>& items) {
  std::string ops = "](";
  for (const std::string& item : items) ops += item;
  return ops + "e";
}
inline std::string dict_op(const std::vector<std::pair<std::string, std::string>>& items) {
  std::string ops = "}(";
  for (const auto& [key, value] : items) ops += key + value;
  return ops + "u";
}
inline std::string call_op(const std::string& callable, const std::vector<std::string>& arguments) {
  return callable + tuple_op(arguments) + "R";
}
// An instance of a dataclass.
inline std::string object_op(const std::string& type, const std::string& state) {
  return type + ")\x81" + state + "b";
}
inline std::string sizes_op(const std::vector<std::uint64_t>& sizes) {
  std::vector<std::string> items;
  for (const std::uint64_t size : sizes) items.push_back(int_op(size));
  return tuple_op(items);
}
inline std::string pickle_of(const std::string& ops) {
  return "\x80\x02" + ops + ".";
}

// ---- archives ----

struct ZipEntry {
  std::string name;
  std::string bytes;
};

// Stored, as torch.save() does; zip64 when asked for.
inline std::string zip_of(const std::vector<ZipEntry>& entries, bool is_zip64 = true) {
  std::string archive;
  std::string directory;
  for (const ZipEntry& entry : entries) {
    const std::uint64_t offset = archive.size();
    const std::string padding = "FB" + little(5, 2) + "ZZZZZ";
    archive += "PK\x03\x04" + little(0, 22) + little(entry.name.size(), 2) +
               little(padding.size(), 2) + entry.name + padding + entry.bytes;
    const std::string extra = is_zip64
                                  ? little(1, 2) + little(24, 2) + little(entry.bytes.size(), 8) +
                                        little(entry.bytes.size(), 8) + little(offset, 8)
                                  : "";
    const auto number = [&](std::uint64_t value) {
      return little(is_zip64 ? 0xFFFFFFFF : value, 4);
    };
    directory += "PK\x01\x02" + little(0, 6) + little(0, 2) + little(0, 8) +
                 number(entry.bytes.size()) + number(entry.bytes.size()) +
                 little(entry.name.size(), 2) + little(extra.size(), 2) + little(0, 10) +
                 number(offset) + entry.name + extra;
  }
  const std::uint64_t begin = archive.size();
  archive += directory;
  if (is_zip64) {
    const std::uint64_t record = archive.size();
    archive += "PK\x06\x06" + little(44, 8) + little(0, 12) + little(entries.size(), 8) +
               little(entries.size(), 8) + little(directory.size(), 8) + little(begin, 8);
    archive += "PK\x06\x07" + little(0, 4) + little(record, 8) + little(1, 4);
  }
  archive += "PK\x05\x06" + little(0, 4) + little(is_zip64 ? 0xFFFF : entries.size(), 2) +
             little(is_zip64 ? 0xFFFF : entries.size(), 2) +
             little(is_zip64 ? 0xFFFFFFFF : directory.size(), 4) +
             little(is_zip64 ? 0xFFFFFFFF : begin, 4) + little(0, 2);
  return archive;
}

struct FloatTensor {
  std::vector<std::uint64_t> shape;
  std::vector<std::uint64_t> strides;
  std::uint64_t first = 0;
  std::string storage;  // bytes
};

inline std::vector<std::string> tensor_arguments(const FloatTensor& tensor) {
  const std::string id = tuple_op({text_op("storage"),
                                   name_op("torch", "FloatStorage"),
                                   text_op("0"),
                                   text_op("cpu"),
                                   int_op(tensor.storage.size() / 4)}) +
                         "Q";
  return {id,
          int_op(tensor.first),
          sizes_op(tensor.shape),
          sizes_op(tensor.strides),
          "\x89",
          call_op(name_op("collections", "OrderedDict"), {})};
}
inline std::string tensor_op(const FloatTensor& tensor) {
  return call_op(name_op("torch._utils", "_rebuild_tensor_v2"), tensor_arguments(tensor));
}

// torch.save(tensor).
inline std::string saved(const FloatTensor& tensor) {
  return zip_of({{"archive/data.pkl", pickle_of(tensor_op(tensor))},
                 {"archive/byteorder", "little"},
                 {"archive/data/0", tensor.storage}});
}

inline std::string floats(const std::vector<float>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float)};
}

// ---- folders ----

struct SavedChunk {
  std::vector<std::uint64_t> offsets;
  std::vector<std::uint64_t> sizes;
  std::string archive;
};

inline std::string metadata_name(const std::string& name) {
  return name_op("torch.distributed.checkpoint.metadata", name);
}

// The opcodes of one tensor's entries in state_dict_metadata and in storage_data. `begin` is where its first chunk lies in
// `file`; the others follow.
struct TensorOps {
  std::string state;
  std::vector<std::pair<std::string, std::string>> storage;
};
inline TensorOps tensor_ops(const std::string& key,
                            const std::vector<std::uint64_t>& shape,
                            const std::vector<SavedChunk>& chunks,
                            const std::string& file,
                            std::uint64_t begin) {
  TensorOps ops;
  std::vector<std::string> list;
  for (const SavedChunk& chunk : chunks) {
    list.push_back(object_op(metadata_name("ChunkStorageMetadata"),
                             dict_op({{text_op("offsets"), sizes_op(chunk.offsets)},
                                      {text_op("sizes"), sizes_op(chunk.sizes)}})));
    ops.storage.emplace_back(
        object_op(metadata_name("MetadataIndex"),
                  dict_op({{text_op("fqn"), text_op(key)},
                           {text_op("offset"), sizes_op(chunk.offsets)}})),
        object_op(name_op("torch.distributed.checkpoint.filesystem", "_StorageInfo"),
                  dict_op({{text_op("relative_path"), text_op(file)},
                           {text_op("offset"), int_op(begin)},
                           {text_op("length"), int_op(chunk.archive.size())}})));
    begin += chunk.archive.size();
  }
  const std::string properties =
      object_op(metadata_name("TensorProperties"), tuple_op({name_op("torch", "float32"), "\x89"}));
  ops.state = object_op(metadata_name("TensorStorageMetadata"),
                        dict_op({{text_op("properties"), properties},
                                 {text_op("size"), sizes_op(shape)},
                                 {text_op("chunks"), list_op(list)}}));
  return ops;
}

inline std::string metadata_pickle(const std::string& key, const TensorOps& ops) {
  return pickle_of(
      object_op(metadata_name("Metadata"),
                dict_op({{text_op("state_dict_metadata"), dict_op({{text_op(key), ops.state}})},
                         {text_op("planner_data"), "N"},
                         {text_op("storage_data"), dict_op(ops.storage)}})));
}

// A folder with one tensor of that name, "w", in one file.
inline void write_checkpoint(const ScratchFolder& folder,
                             const std::vector<std::uint64_t>& shape,
                             const std::vector<SavedChunk>& chunks) {
  std::string file;
  for (const SavedChunk& chunk : chunks) file += chunk.archive;
  folder.write("__0_0.distcp", file);
  folder.write(".metadata",
               metadata_pickle("w", tensor_ops("w", shape, chunks, "__0_0.distcp", 0)));
}

}  // namespace accel::test
