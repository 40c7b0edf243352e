// ArchiveWriter: the file that torch.export.load() and ExportedModel open, with the graphs and the tensors of a module.
//
// The entries and their names are those of libaccel/exported/archive.h. Bytes of weights are written once for all graphs, and once
// for tensors that share memory. The same module gives the same bytes.
//
// Threads:  one at a time.
// Cost:     weights go from their memory to the file, and are read once more for their checksums.
// Source:   torch/export/pt2_archive/_package.py of torch 2.11.
#pragma once

#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "libaccel/exporting/graph_text.h"
#include "libaccel/exporting/module_tensors.h"
#include "libaccel/exporting/traced_graph.h"

namespace accel::exporting {

struct ArchiveContent {
  std::vector<std::pair<std::string, TracedGraph>> graphs;  // by name: "model", "eval"
  std::vector<ModuleTensor> tensors;
  std::vector<at::Tensor> example_inputs;
  OutputForm form = OutputForm::kTuple;
  bool has_values = true;  // false: entries of weights are empty
};

// Throws kDiskFull, kFileIo. A file that was there stays as it was until the new one is whole.
void write_archive(const ArchiveContent& content, const std::filesystem::path& path);

// The values of an archive without them, by the names of the tensors; each memory once, under its first name.
void write_weights(const std::vector<ModuleTensor>& tensors, const std::filesystem::path& path);

}  // namespace accel::exporting
