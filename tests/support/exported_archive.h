// ExportedArchive: a file of torch.export.save() that a test changes before it is read.
//
//   test::ExportedArchive archive("blocks");          // tests/unit/libaccel/exported/models/blocks.pt2
//   archive.graph()["schema_version"]["major"] = 9;
//   ExportedModel net(archive.write(folder.file("other.pt2")));
#pragma once

#include <cstdlib>
#include <fstream>
#include <map>
#include <sstream>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <fcntl.h>
#include <nlohmann/json.hpp>
#include <sys/stat.h>
#include <unistd.h>

#include "checkpoint_tools/formats/zip_archive.h"
#include "checkpoint_tools/formats/zip_layout.h"
#include "runtime/unique_fd.h"

namespace accel::test {

inline std::string exported_model(const std::string& name) {
  return std::string(std::getenv("ACCEL_SOURCE_DIR")) + "/tests/unit/libaccel/exported/models/" +
         name + ".pt2";
}

class ExportedArchive {
 public:
  explicit ExportedArchive(const std::string& name) {
    const std::string path = exported_model(name);
    const UniqueFd file(::open(path.c_str(), O_RDONLY));
    struct ::stat status {};
    if (::fstat(file.get(), &status) != 0) throw std::runtime_error("no file " + path);
    const launcher::FileSlice slice{.fd = file.get(),
                                    .path = path,
                                    .begin = 0,
                                    .size = static_cast<std::uint64_t>(status.st_size)};
    const auto archive = launcher::ZipArchive::open(slice, 1 << 20).value();
    for (const auto& entry : archive.entries()) {
      const std::string inner = entry.name.substr(entry.name.find('/') + 1);
      entries[inner] = archive.bytes_of(entry).value().text(0, entry.size).value();
    }
    for (auto& [entry, text] : entries)
      if (entry.ends_with(".json")) json[entry] = nlohmann::json::parse(text);
  }

  nlohmann::json& graph(const std::string& model = "model") {
    return json["models/" + model + ".json"];
  }
  nlohmann::json& nodes() { return graph()["graph_module"]["graph"]["nodes"]; }
  nlohmann::json& weights() { return json["data/weights/model_weights_config.json"]["config"]; }

  // Returns the path.
  std::string write(const std::string& path) {
    for (auto& [entry, document] : json) entries[entry] = document.dump();
    std::vector<launcher::ZipLayout::Item> items;
    for (const auto& [entry, text] : entries) items.push_back({"net/" + entry, text.size()});
    const launcher::ZipLayout layout(items);
    std::string bytes(layout.bytes(), '\0');
    std::size_t i = 0;
    for (const auto& [entry, text] : entries) {
      const std::string header = layout.header(i, 0);
      bytes.replace(layout.header_of(i), header.size(), header);
      bytes.replace(layout.begin_of(i), text.size(), text);
      ++i;
    }
    const std::vector<std::uint32_t> checksums(entries.size());
    const std::string tail = layout.tail(checksums);
    bytes.replace(layout.tail_begin(), tail.size(), tail);
    std::ofstream(path, std::ios::binary) << bytes;
    return path;
  }

  std::map<std::string, std::string> entries;  // by path below the archive's folder
  std::map<std::string, nlohmann::json> json;  // of those that are; written over the text
};

}  // namespace accel::test
