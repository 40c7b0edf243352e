#include "libaccel/exporting/graph_text.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <type_traits>

#include <nlohmann/json.hpp>
#include <torch/version.h>

#include "libaccel/exported/graph_reader.h"

namespace accel::exporting {
namespace {

// Keeps the order of keys: Python takes that of parameters from it.
using json = nlohmann::ordered_json;

using exported::Argument;
using exported::kNoValue;
using exported::ValueId;

constexpr int kSchemaMinor = 17;
constexpr int kAtenOpset = 10;  // torch._C._get_max_operator_version() of torch 2.11
constexpr int kPositional = 1;
constexpr int kKeyword = 2;

json number_text(double number) {
  if (std::isnan(number)) return "NaN";
  if (std::isinf(number)) return number > 0 ? "Infinity" : "-Infinity";
  return number;
}

json size_text(const LinearSize& size) {
  if (size.per_batch == 0) return {{"as_int", size.number}};
  return {{"as_expr", {{"expr_str", symbol_text(size)}, {"hint", {{"as_int", size.number}}}}}};
}

json sizes_text(const std::vector<LinearSize>& sizes) {
  json list = json::array();
  for (const LinearSize& size : sizes) list.push_back(size_text(size));
  return list;
}

json device_text(const std::string& type, const std::optional<int>& index) {
  return {{"type", type}, {"index", index ? json(*index) : json(nullptr)}};
}

json meta_text(const TensorMeta& meta) {
  return {{"dtype", meta.dtype},
          {"sizes", sizes_text(meta.sizes)},
          {"requires_grad", meta.requires_grad},
          {"device", device_text(meta.device_type, meta.device_index)},
          {"strides", sizes_text(meta.strides)},
          {"storage_offset", size_text(meta.offset)},
          {"layout", meta.layout}};
}

class Writer {
 public:
  explicit Writer(const TracedGraph& traced) : traced_(traced), graph_(traced.exported.graph) {}

  [[nodiscard]] json graph() const {
    json nodes = json::array();
    for (const exported::Node& node : graph_.nodes) nodes.push_back(node_text(node));
    json values = json::object();
    json sizes = json::object();
    for (ValueId id = 0; id < graph_.values.size(); ++id) {
      const auto size = traced_.sizes.find(id);
      if (size == traced_.sizes.end()) {
        values[graph_.values[id]] = meta_text(traced_.metas[id]);
      } else {
        sizes[graph_.values[id]] = size_text(size->second);
      }
    }
    return {{"inputs", arguments(graph_.inputs)},
            {"outputs", arguments(graph_.outputs)},
            {"nodes", std::move(nodes)},
            {"tensor_values", std::move(values)},
            {"sym_int_values", std::move(sizes)},
            {"sym_bool_values", json::object()},
            {"is_single_tensor_return", false},
            {"custom_obj_values", json::object()},
            {"sym_float_values", json::object()}};
  }

  [[nodiscard]] json signature() const {
    json inputs = json::array();
    for (const exported::InputSpec& input : traced_.exported.inputs)
      inputs.push_back(input_spec(input));
    json outputs = json::array();
    for (const Argument& output : graph_.outputs)
      outputs.push_back({{"user_output", {{"arg", argument(output)}}}});
    return {{"input_specs", std::move(inputs)}, {"output_specs", std::move(outputs)}};
  }

 private:
  [[nodiscard]] json tensor(ValueId id) const { return {{"name", graph_.values[id]}}; }

  [[nodiscard]] json size_value(ValueId id) const {
    return {{"as_sym_int", {{"as_name", graph_.values[id]}}}};
  }

  [[nodiscard]] json size_list(const exported::NumberList& list) const {
    json items = json::array();
    for (const exported::NumberItem& item : list.items)
      items.push_back(item.id == kNoValue ? json{{"as_int", item.number}}
                                          : json{{"as_name", graph_.values[item.id]}});
    return {{"as_sym_ints", std::move(items)}};
  }

  [[nodiscard]] json tensors(const exported::TensorList& list) const {
    const bool has_none = std::ranges::find(list.ids, kNoValue) != list.ids.end();
    json items = json::array();
    for (const ValueId id : list.ids) {
      if (!has_none) {
        items.push_back(tensor(id));
      } else {
        items.push_back(id == kNoValue ? json{{"as_none", true}} : json{{"as_tensor", tensor(id)}});
      }
    }
    return {{has_none ? "as_optional_tensors" : "as_tensors", std::move(items)}};
  }

  [[nodiscard]] json argument(const Argument& value) const {
    return std::visit(
        [&](const auto& item) -> json {
          using T = std::decay_t<decltype(item)>;
          if constexpr (std::is_same_v<T, exported::NoneArgument>) {
            return {{"as_none", true}};
          } else if constexpr (std::is_same_v<T, exported::ValueArgument>) {
            return item.is_tensor ? json{{"as_tensor", tensor(item.id)}} : size_value(item.id);
          } else if constexpr (std::is_same_v<T, exported::NumberList>) {
            return size_list(item);
          } else if constexpr (std::is_same_v<T, exported::TensorList>) {
            return tensors(item);
          } else if constexpr (std::is_same_v<T, bool>) {
            return {{"as_bool", item}};
          } else if constexpr (std::is_same_v<T, std::int64_t>) {
            return {{"as_int", item}};
          } else if constexpr (std::is_same_v<T, double>) {
            return {{"as_float", number_text(item)}};
          } else if constexpr (std::is_same_v<T, std::complex<double>>) {
            return {{"as_complex",
                     {{"real", number_text(item.real())}, {"imag", number_text(item.imag())}}}};
          } else if constexpr (std::is_same_v<T, std::string>) {
            return {{"as_string", item}};
          } else if constexpr (std::is_same_v<T, std::vector<bool>>) {
            return {{"as_bools", item}};
          } else if constexpr (std::is_same_v<T, std::vector<std::int64_t>>) {
            return {{"as_ints", item}};
          } else if constexpr (std::is_same_v<T, std::vector<double>>) {
            json numbers = json::array();
            for (const double number : item) numbers.push_back(number_text(number));
            return {{"as_floats", std::move(numbers)}};
          } else if constexpr (std::is_same_v<T, exported::DtypeArgument>) {
            return {{"as_scalar_type", item.code}};
          } else if constexpr (std::is_same_v<T, exported::LayoutArgument>) {
            return {{"as_layout", item.code}};
          } else if constexpr (std::is_same_v<T, exported::MemoryFormatArgument>) {
            return {{"as_memory_format", item.code}};
          } else if constexpr (std::is_same_v<T, exported::DeviceArgument>) {
            return {{"as_device", device_text(item.type, item.index)}};
          } else {
            throw Error(ErrorCode::kInternal,
                        "a traced graph has an argument that is never traced");
          }
        },
        value);
  }

  [[nodiscard]] json arguments(const std::vector<Argument>& values) const {
    json list = json::array();
    for (const Argument& value : values) list.push_back(argument(value));
    return list;
  }

  [[nodiscard]] json output_text(const exported::NodeOutput& output) const {
    if (output.is_list) return tensors({output.ids});
    if (output.ids.front() == kNoValue) return {{"as_none", true}};
    if (traced_.sizes.contains(output.ids.front())) return size_value(output.ids.front());
    return {{"as_tensor", tensor(output.ids.front())}};
  }

  [[nodiscard]] static std::string calls_text(const std::vector<exported::ModuleCall>& calls) {
    std::string text;
    for (const exported::ModuleCall& call : calls) {
      std::string key = call.path.empty() ? "L__self__" : "L__self___" + call.path;
      std::ranges::replace(key, '.', '_');
      text += (text.empty() ? "" : ";") + key + "," + call.path + "," + call.class_name;
    }
    return text;
  }

  [[nodiscard]] json node_text(const exported::Node& node) const {
    json inputs = json::array();
    for (const exported::NamedArgument& input : node.inputs)
      inputs.push_back({{"name", input.name},
                        {"arg", argument(input.value)},
                        {"kind", input.is_keyword ? kKeyword : kPositional}});
    json outputs = json::array();
    for (const exported::NodeOutput& output : node.outputs) outputs.push_back(output_text(output));
    return {{"target", node.target},
            {"inputs", std::move(inputs)},
            {"outputs", std::move(outputs)},
            {"metadata", {{"nn_module_stack", calls_text(node.calls)}}},
            {"is_hop_single_tensor_return", nullptr},
            {"name", node.name}};
  }

  [[nodiscard]] json input_spec(const exported::InputSpec& input) const {
    using Kind = exported::InputSpec::Kind;
    const json arg = tensor(input.id);
    if (input.kind == Kind::kParameter)
      return {{"parameter", {{"arg", arg}, {"parameter_name", input.target}}}};
    if (input.kind == Kind::kBuffer)
      return {{"buffer", {{"arg", arg}, {"buffer_name", input.target}, {"persistent", true}}}};
    if (input.kind == Kind::kConstant)
      return {{"tensor_constant", {{"arg", arg}, {"tensor_constant_name", input.target}}}};
    return {{"user_input", {{"arg", {{"as_tensor", arg}}}}}};
  }

  const TracedGraph& traced_;
  const exported::Graph& graph_;
};

json leaf() {
  return {{"type", nullptr}, {"context", nullptr}, {"children_spec", json::array()}};
}

json tree(const char* type, const std::string& context, std::size_t num_leaves) {
  json children = json::array();
  for (std::size_t i = 0; i < num_leaves; ++i) children.push_back(leaf());
  return {{"type", type}, {"context", context}, {"children_spec", std::move(children)}};
}

// As torch.utils._pytree.treespec_dumps() writes it, its first version.
std::string tree_text(const json& root) {
  return json::array({1, root}).dump();
}

json call_signature(const TracedGraph& traced, OutputForm form) {
  json names = json::array();
  for (const exported::InputSpec& input : traced.exported.inputs)
    if (input.kind == exported::InputSpec::Kind::kUser) names.push_back(input.target);
  json keys = json::array();
  for (const exported::OutputSpec& output : traced.exported.outputs) keys.push_back(output.target);
  const json inputs = {{"type", "builtins.tuple"},
                       {"context", "null"},
                       {"children_spec",
                        json::array({tree("builtins.tuple", "null", names.size()),
                                     tree("builtins.dict", "[]", 0)})}};
  const json outputs = form == OutputForm::kTensor ? leaf()
                       : form == OutputForm::kDict ? tree("builtins.dict", keys.dump(), keys.size())
                                                   : tree("builtins.tuple", "null", keys.size());
  return {{"inputs", json::array()},
          {"outputs", json::array()},
          {"in_spec", tree_text(inputs)},
          {"out_spec", tree_text(outputs)},
          {"forward_arg_names", std::move(names)}};
}

json ranges_text(const std::map<std::string, exported::SymbolRange>& ranges) {
  json text = json::object();
  for (const auto& [symbol, range] : ranges)
    text[symbol] = {{"min_val", range.min ? json(*range.min) : json(nullptr)},
                    {"max_val", range.max ? json(*range.max) : json(nullptr)}};
  return text;
}

json module_calls(const TracedGraph& traced, OutputForm form) {
  json calls = json::array();
  calls.push_back({{"fqn", ""}, {"signature", call_signature(traced, form)}});
  std::set<std::string> known = {""};
  for (const exported::Node& node : traced.exported.graph.nodes)
    for (const exported::ModuleCall& call : node.calls)
      if (known.insert(call.path).second)
        calls.push_back({{"fqn", call.path}, {"signature", nullptr}});
  return calls;
}

}  // namespace

std::string graph_text(const TracedGraph& traced, OutputForm form) {
  const Writer writer(traced);
  const json document = {
      {"graph_module",
       {{"graph", writer.graph()},
        {"signature", writer.signature()},
        {"module_call_graph", module_calls(traced, form)},
        {"metadata", json::object()},
        {"treespec_namedtuple_fields", json::object()}}},
      {"opset_version", {{"aten", kAtenOpset}}},
      {"range_constraints", ranges_text(traced.exported.ranges)},
      {"schema_version", {{"major", exported::kSchemaMajor}, {"minor", kSchemaMinor}}},
      {"verifiers", json::array({"TRAINING"})},
      {"torch_version", TORCH_VERSION},
      {"guards_code", json::array()}};
  return document.dump();
}

std::string payload_text(const std::vector<StoredTensor>& tensors) {
  json config = json::object();
  for (const StoredTensor& tensor : tensors)
    config[tensor.name] = {{"path_name", tensor.path},
                           {"is_param", tensor.is_parameter},
                           {"use_pickle", false},
                           {"tensor_meta", meta_text(tensor.meta)}};
  return json{{"config", std::move(config)}}.dump();
}

}  // namespace accel::exporting
