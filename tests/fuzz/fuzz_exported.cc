// Fuzzes the reader of exported models: any bytes give a graph and payloads whose promises hold, or an error.
//
// Input that begins as a zip archive does is taken for a file of torch.export.save(), all other for the text of a graph.

#include <cstdlib>
#include <string_view>

#include <sys/mman.h>
#include <unistd.h>

#include <accel/error.h>

#include "libaccel/exported/archive.h"
#include "libaccel/exported/graph_reader.h"

using namespace accel::exported;

namespace {

void check_id(ValueId id, std::size_t defined) {
  if (id != kNoValue && id >= defined) std::abort();
}

struct UseCheck {
  const std::vector<bool>& defined;

  void look(ValueId id) const {
    if (id != kNoValue && (id >= defined.size() || !defined[id])) std::abort();
  }
  void operator()(const ValueArgument& value) const { look(value.id); }
  void operator()(const TensorList& list) const {
    for (const ValueId id : list.ids) look(id);
  }
  void operator()(const NumberList& list) const {
    for (const NumberItem& item : list.items) look(item.id);
  }
  template <typename T>
  void operator()(const T&) const {}
};

// What the program relies on without checking again: each value is defined once, before it is used.
void check_graph(const Graph& graph) {
  std::vector<bool> defined(graph.values.size());
  const auto define = [&](ValueId id) {
    check_id(id, defined.size());
    if (id == kNoValue) return;
    if (defined[id]) std::abort();
    defined[id] = true;
  };
  for (const Argument& input : graph.inputs)
    if (const auto* value = std::get_if<ValueArgument>(&input)) define(value->id);
  for (const Node& node : graph.nodes) {
    for (const NamedArgument& input : node.inputs) {
      std::visit(UseCheck{defined}, input.value);
      if (const auto* inner = std::get_if<GraphArgument>(&input.value)) check_graph(*inner->graph);
    }
    for (const NodeOutput& output : node.outputs)
      for (const ValueId id : output.ids) define(id);
  }
  for (const Argument& output : graph.outputs) std::visit(UseCheck{defined}, output);
}

void check_text(std::string_view text) {
  const ExportedGraph graph = read_graph(text);
  check_graph(graph.graph);
  if (graph.inputs.size() != graph.graph.inputs.size()) std::abort();
  if (graph.outputs.size() != graph.graph.outputs.size()) std::abort();
  for (const auto& [id, shape] : graph.graph.input_shapes) {
    check_id(id, graph.graph.values.size());
    for (const Dimension& size : shape.sizes)
      if (const auto* number = std::get_if<SymbolicNumber>(&size))
        static_cast<void>(number->evaluate({{"s0", 3}}));
  }
}

void check_payload(const Payload& payload, std::uint64_t file_bytes) {
  if (payload.bytes.begin + payload.bytes.size > file_bytes) std::abort();
  if (payload.sizes.size() != payload.strides.size()) std::abort();
  std::uint64_t last = static_cast<std::uint64_t>(payload.offset);
  for (std::size_t i = 0; i < payload.sizes.size(); ++i) {
    if (payload.sizes[i] == 0) return;
    last += static_cast<std::uint64_t>(payload.sizes[i] - 1) *
            static_cast<std::uint64_t>(payload.strides[i]);
  }
  if (payload.has_bytes && last >= payload.bytes.size / width_of_dtype(payload.dtype)) std::abort();
}

void check_archive(std::string_view bytes) {
  static const int file = ::memfd_create("archive", 0);
  if (::ftruncate(file, 0) != 0 ||
      ::pwrite(file, bytes.data(), bytes.size(), 0) != static_cast<ssize_t>(bytes.size()))
    std::abort();
  const Archive archive(file, bytes.size(), "archive");
  for (const std::string& model : archive.models()) {
    for (const Payload& payload : archive.weights(model)) check_payload(payload, bytes.size());
    for (const Payload& payload : archive.constants(model)) check_payload(payload, bytes.size());
    check_text(archive.graph_text(model));
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  try {
    if (bytes.starts_with("PK")) {
      check_archive(bytes);
    } else {
      check_text(bytes);
    }
  } catch (const accel::Error&) {
  }
  return 0;
}
