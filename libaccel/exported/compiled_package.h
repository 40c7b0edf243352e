// CompiledPackage: the machine code that AOTInductor made of a graph, as it lies in an archive, and whether this machine can run it.
//
//   NAME/data/aotinductor/MODEL/*.so               one shared library
//   NAME/data/aotinductor/MODEL/*_metadata.json    the machine that it was compiled for
//   NAME/data/aotinductor/MODEL/accel.json         of `accel export --compile`: the graph it was made of, its inputs and outputs,
//                                                  PyTorch's version and the features of the CPU; packages that others wrote have none
//
// Code of `accel export` takes parameters, buffers and constants as inputs, and holds no value of them.
//
// Nothing of it is executed here.
//
// Threads:  one at a time. Borrows the archive.
// Source:   torch/export/pt2_archive/_package.py, torch/_inductor/codecache.py of torch 2.11; launcher/commands/export/export_model.py.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "libaccel/exported/archive.h"

namespace accel::exported {

// What code may need of a machine.
struct MachineFeatures {
  std::string system;         // "linux"
  std::string architecture;   // "x86_64"
  std::set<std::string> cpu;  // as /proc/cpuinfo names them: "avx512f"
  std::string torch;          // the version of LibTorch, "2.11.0"
};

// Of /proc/cpuinfo's text: the features that all kernels of this machine may use.
[[nodiscard]] std::set<std::string> cpu_features(std::string_view cpuinfo);

class CompiledPackage {
 public:
  // The names under which an archive has code.
  [[nodiscard]] static std::vector<std::string> models(const Archive& archive);

  // Throws kCheckpointIncomplete for a package that is damaged, kCheckpointVersion for another format of `accel export`.
  CompiledPackage(const Archive& archive, std::string model);

  // "cpu", "cuda".
  [[nodiscard]] const std::string& device() const noexcept { return device_; }
  // Written by `accel export`: takes the tensors of a graph as inputs.
  [[nodiscard]] bool is_of_graph() const noexcept { return graph_.has_value(); }

  // Of code of a graph, in order: "parameter", "buffer", "constant" and the name in the graph; "user" and the place.
  using Named = std::vector<std::pair<std::string, std::string>>;
  [[nodiscard]] const Named& inputs() const noexcept { return inputs_; }
  // "output" and its place; "gradient" and the parameter; "buffer", a new value, and the buffer.
  [[nodiscard]] const Named& outputs() const noexcept { return outputs_; }

  // Why this machine cannot run it; empty: it can.
  [[nodiscard]] std::string fault_on(const MachineFeatures& machine) const;
  // Whether it was made of this graph.
  [[nodiscard]] bool is_made_of(std::string_view graph_text) const;

  // Writes its files into an empty folder and returns the path of the library. Throws kFileIo, kDiskFull, kCheckpointIncomplete.
  [[nodiscard]] std::filesystem::path unpack(const std::filesystem::path& folder) const;

 private:
  struct GraphMark {
    std::int64_t bytes = 0;
    std::int64_t crc32 = 0;
  };
  void read_metadata();
  void read_table();

  const Archive& archive_;
  std::string prefix_;
  std::vector<std::string> files_;  // names within prefix_
  std::string library_;
  std::string device_ = "cpu";
  std::string system_;
  std::string architecture_;
  std::set<std::string> cpu_;
  std::string torch_;  // empty: not known
  std::optional<GraphMark> graph_;
  Named inputs_;
  Named outputs_;
};

}  // namespace accel::exported
