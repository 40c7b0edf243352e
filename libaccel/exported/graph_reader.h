// GraphReader: an ExportedGraph from the JSON text of an archive, whatever that text holds.
//
// Threads:  pure functions.
// Cost:     one pass; the origins of nodes, which are most of a large file, are left out as it goes.
// Source:   torch/_export/serde/schema.py of torch 2.11; tests/fuzz/fuzz_exported_graph.cc.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include <accel/error.h>

#include "libaccel/exported/graph.h"

namespace accel::exported {

// What the file is asked to be.
inline constexpr int kSchemaMajor = 8;

// Throws kCheckpointIncomplete for what is damaged, kCheckpointVersion for another major version of the schema, kUnsupported for
// graphs that are no forward of a model.
[[nodiscard]] ExportedGraph read_graph(std::string_view text);

// A file that is not as its format says.
[[nodiscard]] Error damaged_export(const std::string& what);

// The document; no key twice in one object. Throws kCheckpointIncomplete.
[[nodiscard]] nlohmann::json parse_export(std::string_view text);

// Typed members of an object, for readers of the file's other texts. Each throws kCheckpointIncomplete.
[[nodiscard]] const nlohmann::json& member_of(const nlohmann::json& object, const char* key);
[[nodiscard]] const std::string& text_of(const nlohmann::json& object, const char* key);
[[nodiscard]] bool flag_of(const nlohmann::json& object, const char* key);
[[nodiscard]] std::int64_t integer_of(const nlohmann::json& value, const char* what);
// The one member of an object that stands for a union, and its kind.
struct UnionValue {
  const std::string& kind;
  const nlohmann::json& value;
};
[[nodiscard]] UnionValue union_of(const nlohmann::json& object);

// "[1, {...}]" as torch.utils._pytree writes it: the names of the leaves by the keys that lead to them; empty for a leaf that no
// key leads to. An empty list: it cannot be read.
[[nodiscard]] std::vector<std::string> leaf_names(const std::string& tree);

}  // namespace accel::exported
