#include "libaccel/exported/compiled_package.h"

#include <algorithm>
#include <cerrno>

#include <fcntl.h>
#include <nlohmann/json.hpp>

#include <accel/error.h>
#include <accel/result.h>

#include "libaccel/exported/graph_reader.h"
#include "runtime/checksum.h"
#include "runtime/printable.h"
#include "runtime/text/joined.h"
#include "runtime/unique_fd.h"
#include "runtime/write_all.h"

namespace accel::exported {
namespace {

using nlohmann::json;

constexpr std::string_view kCompiledFolder = "data/aotinductor/";
constexpr const char* kTable = "accel.json";
constexpr std::int64_t kTableFormat = 1;
constexpr std::uint64_t kPieceBytes = std::uint64_t{1} << 20;

std::set<std::string> words_of(std::string_view text) {
  std::set<std::string> words;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find_first_of(" \t\r\n"), text.size());
    if (end > 0) words.emplace(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return words;
}

// What AOTInductor's word for a CPU stands for: torch/_inductor/cpu_vec_isa.py.
std::set<std::string> features_of_isa(const std::string& isa) {
  static const std::map<std::string, std::set<std::string>> known = {
      {"AVX2", {"avx2", "fma", "f16c"}},
      {"AVX512", {"avx512f", "avx512dq", "avx512vl", "avx512bw", "fma"}},
      {"AVX512_VNNI", {"avx512_vnni"}},
      {"AMX_TILE", {"amx_tile", "amx_bf16", "amx_int8"}},
      {"ASIMD", {"asimd"}},
  };
  std::set<std::string> features;
  for (const std::string& word : words_of(isa)) {
    const auto found = known.find(word);
    if (found != known.end()) features.insert(found->second.begin(), found->second.end());
  }
  return features;
}

std::string optional_text(const json& object, const char* key) {
  const auto found = object.find(key);
  return found != object.end() && found->is_string() ? found->get<std::string>() : "";
}

// "2.11" of "2.11.0".
std::string minor_version(const std::string& version) {
  return version.substr(0, version.find('.', version.find('.') + 1));
}

// [["parameter", "a.weight"], ...]
CompiledPackage::Named named_list(const json& table, const char* key) {
  CompiledPackage::Named named;
  const json& list = member_of(table, key);
  if (!list.is_array()) throw damaged_export(std::string("its ") + key + " are no list");
  for (const json& item : list) {
    if (!item.is_array() || item.size() != 2 || !item[0].is_string() || !item[1].is_string())
      throw damaged_export(std::string("its ") + key + " are not named");
    named.emplace_back(item[0].get<std::string>(), item[1].get<std::string>());
  }
  return named;
}

void write_file(const launcher::FileSlice& bytes, const std::filesystem::path& path) {
  const UniqueFd file(::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0700));
  int failure = file ? 0 : errno;
  for (std::uint64_t offset = 0; failure == 0 && offset < bytes.size; offset += kPieceBytes) {
    const std::string piece =
        or_throw(bytes.text(offset, std::min(kPieceBytes, bytes.size - offset)));
    std::string_view rest = piece;
    failure = write_all(file.get(), rest);
  }
  if (failure != 0)
    throw Error(failure == ENOSPC ? ErrorCode::kDiskFull : ErrorCode::kFileIo,
                "cannot write the compiled code to " + printable(path.string()) + ": " +
                    errno_text(failure),
                "name a folder with space in TMPDIR");
}

}  // namespace

std::set<std::string> cpu_features(std::string_view cpuinfo) {
  for (std::size_t begin = 0; begin < cpuinfo.size();) {
    const std::size_t end = std::min(cpuinfo.find('\n', begin), cpuinfo.size());
    const std::string_view line = cpuinfo.substr(begin, end - begin);
    begin = end + 1;
    const std::size_t colon = line.find(':');
    if (colon == std::string_view::npos) continue;
    if (line.starts_with("flags") || line.starts_with("Features"))
      return words_of(line.substr(colon + 1));
  }
  return {};
}

std::vector<std::string> CompiledPackage::models(const Archive& archive) {
  std::vector<std::string> models;
  for (const std::string& entry : archive.entries(std::string(kCompiledFolder))) {
    const std::size_t end = entry.find('/', kCompiledFolder.size());
    if (end == std::string::npos) continue;
    const std::string model = entry.substr(kCompiledFolder.size(), end - kCompiledFolder.size());
    if (std::ranges::find(models, model) == models.end()) models.push_back(model);
  }
  return models;
}

CompiledPackage::CompiledPackage(const Archive& archive, std::string model)
    : archive_(archive), prefix_(std::string(kCompiledFolder) + model + "/") {
  for (const std::string& entry : archive_.entries(prefix_)) {
    const std::string name = entry.substr(prefix_.size());
    if (name.empty() || name == "." || name == ".." || name.find('/') != std::string::npos ||
        name.find('\0') != std::string::npos)
      throw damaged_export("its compiled code has a file called " + printable(name));
    if (std::ranges::find(files_, name) != files_.end())
      throw damaged_export("its compiled code has two files called " + printable(name));
    files_.push_back(name);
    if (!name.ends_with(".so")) continue;
    if (!library_.empty()) throw damaged_export("its compiled code has two libraries");
    library_ = name;
  }
  if (library_.empty())
    throw damaged_export("its compiled code " + printable(model) + " has no shared library");
  read_metadata();
  read_table();
}

void CompiledPackage::read_metadata() {
  const auto is_metadata = [](const std::string& name) { return name.ends_with("_metadata.json"); };
  const auto found = std::ranges::find_if(files_, is_metadata);
  if (found == files_.end())
    throw damaged_export("its compiled code does not say for which machine it is");
  const json metadata = parse_export(archive_.text(prefix_ + *found));
  device_ = optional_text(metadata, "AOTI_DEVICE_KEY");
  system_ = optional_text(metadata, "AOTI_PLATFORM");
  architecture_ = optional_text(metadata, "AOTI_MACHINE");
  cpu_ = features_of_isa(optional_text(metadata, "AOTI_CPU_ISA"));
  if (device_.empty())
    throw damaged_export("its compiled code does not say for which device it is");
}

void CompiledPackage::read_table() {
  if (std::ranges::find(files_, kTable) == files_.end()) return;
  const json table = parse_export(archive_.text(prefix_ + kTable));
  const std::int64_t format = integer_of(member_of(table, "format"), "a format");
  if (format != kTableFormat)
    throw Error(ErrorCode::kCheckpointVersion,
                "the compiled code has the format " + std::to_string(format) + ", expected " +
                    std::to_string(kTableFormat),
                "export the model again with the accel that reads it");
  torch_ = text_of(table, "torch");
  const json& features = member_of(table, "cpu");
  if (!features.is_array()) throw damaged_export("the features of its CPU are no list");
  for (const json& feature : features)
    if (feature.is_string()) cpu_.insert(feature.get<std::string>());
  inputs_ = named_list(table, "inputs");
  outputs_ = named_list(table, "outputs");
  const json& graph = member_of(table, "graph");
  graph_ = GraphMark{.bytes = integer_of(member_of(graph, "bytes"), "a size"),
                     .crc32 = integer_of(member_of(graph, "crc32"), "a checksum")};
}

std::string CompiledPackage::fault_on(const MachineFeatures& machine) const {
  if (!system_.empty() && system_ != machine.system)
    return "it was compiled for " + printable(system_) + ", and this is " + machine.system;
  if (!architecture_.empty() && architecture_ != machine.architecture)
    return "it was compiled for " + printable(architecture_) + ", and this machine is " +
           machine.architecture;
  std::vector<std::string> missing;
  std::ranges::set_difference(cpu_, machine.cpu, std::back_inserter(missing));
  if (!missing.empty())
    return "it was compiled for a CPU with " + printable(joined(missing, ", ")) +
           ", which this one has not";
  if (!torch_.empty() && minor_version(torch_) != minor_version(machine.torch))
    return "it was compiled with torch " + printable(torch_) + ", and this is LibTorch " +
           machine.torch;
  return "";
}

bool CompiledPackage::is_made_of(std::string_view graph_text) const {
  return graph_ && graph_->bytes == static_cast<std::int64_t>(graph_text.size()) &&
         graph_->crc32 == static_cast<std::int64_t>(crc32_of(graph_text));
}

std::filesystem::path CompiledPackage::unpack(const std::filesystem::path& folder) const {
  for (const std::string& name : files_)
    if (!name.ends_with(".cpp")) write_file(archive_.slice_of(prefix_ + name), folder / name);
  return folder / library_;
}

}  // namespace accel::exported
