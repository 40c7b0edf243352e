#include "libaccel/exported/graph_reader.h"

#include <algorithm>
#include <limits>
#include <set>
#include <unordered_map>
#include <unordered_set>

#include <nlohmann/json.hpp>

#include "runtime/printable.h"
#include "runtime/text/number_text.h"

namespace accel::exported {
namespace {

using nlohmann::json;

constexpr int kDeepestGraph = 32;
constexpr std::size_t kShownName = 120;
constexpr const char* kExportAgain =
    "export the model again: torch.export.save(torch.export.export(model, inputs), path), with "
    "torch 2.11";

// Names of a file may be megabytes of control characters.
std::string shown(const std::string& name) {
  return "'" + printable(std::string_view(name).substr(0, kShownName)) + "'";
}

const json& object_of(const json& value, const char* what) {
  if (!value.is_object()) throw damaged_export(std::string(what) + " is no object");
  return value;
}

const json& list_of(const json& object, const char* key) {
  const json& list = member_of(object, key);
  if (!list.is_array()) throw damaged_export(std::string(key) + " is no list");
  return list;
}

// A member that is null or not there is as good as none.
const json* optional_member(const json& object, const char* key) {
  const auto found = object_of(object, key).find(key);
  return found == object.end() || found->is_null() ? nullptr : &*found;
}

double fraction_of(const json& value) {
  if (value.is_number()) return value.get<double>();
  // As serialize.py writes what JSON has no number for.
  if (value == "Infinity") return std::numeric_limits<double>::infinity();
  if (value == "-Infinity") return -std::numeric_limits<double>::infinity();
  if (value == "NaN") return std::numeric_limits<double>::quiet_NaN();
  throw damaged_export("a fraction is no number");
}

int code_of(const json& value, const char* what) {
  const std::int64_t code = integer_of(value, what);
  if (code < 0 || code > 255) throw damaged_export(std::string(what) + " is out of range");
  return static_cast<int>(code);
}

bool boolean_of(const json& value) {
  if (!value.is_boolean()) throw damaged_export("a flag is neither true nor false");
  return value.get<bool>();
}

const std::string& string_of(const json& value) {
  if (!value.is_string()) throw damaged_export("a text is no string");
  return value.get_ref<const std::string&>();
}

template <typename Item, typename Read>
std::vector<Item> items_of(const json& value, const Read& read) {
  if (!value.is_array()) throw damaged_export("a list is none");
  std::vector<Item> items;
  items.reserve(value.size());
  for (const json& item : value) items.push_back(read(item));
  return items;
}

DeviceArgument device_of(const json& value) {
  DeviceArgument device;
  device.type = text_of(value, "type");
  if (const json* index = optional_member(value, "index"))
    device.index = code_of(*index, "the index of a device");
  return device;
}

// "L__self__,,__main__.Gpt;L__self___h_0,h.0,__main__.Block": a key, a path and a class for each call.
std::vector<ModuleCall> calls_of(std::string_view stack) {
  std::vector<ModuleCall> calls;
  while (!stack.empty()) {
    const std::string_view entry = stack.substr(0, stack.find(';'));
    stack.remove_prefix(std::min(stack.size(), entry.size() + 1));
    const std::size_t first = entry.find(',');
    if (first == std::string_view::npos) continue;
    const std::size_t second = entry.find(',', first + 1);
    if (second == std::string_view::npos) continue;
    calls.push_back({.path = std::string(entry.substr(first + 1, second - first - 1)),
                     .class_name = std::string(entry.substr(second + 1))});
  }
  return calls;
}

class Scope {
 public:
  explicit Scope(int depth) : depth_(depth) {
    if (depth > kDeepestGraph) throw damaged_export("its graphs are too deep within each other");
  }

  Graph read(const json& source) {
    for (const json& input : list_of(source, "inputs")) graph_.inputs.push_back(input_of(input));
    for (const json& node : list_of(source, "nodes")) graph_.nodes.push_back(node_of(node));
    for (const json& output : list_of(source, "outputs"))
      graph_.outputs.push_back(argument_of(output));
    read_shapes(source);
    return std::move(graph_);
  }

 private:
  ValueId define(const std::string& name) {
    const auto id = static_cast<ValueId>(graph_.values.size());
    if (!ids_.emplace(name, id).second)
      throw damaged_export("the value " + shown(name) + " is defined twice");
    graph_.values.push_back(name);
    return id;
  }

  ValueId use(const std::string& name) const {
    const auto found = ids_.find(name);
    if (found == ids_.end())
      throw damaged_export("the value " + shown(name) + " is used before it is defined");
    return found->second;
  }

  Argument input_of(const json& source) {
    const auto [kind, value] = union_of(source);
    if (kind == "as_tensor") return ValueArgument{.id = define(text_of(value, "name"))};
    if (kind == "as_sym_int" || kind == "as_sym_bool" || kind == "as_sym_float") {
      return ValueArgument{.id = define(text_of(value, "as_name")), .is_tensor = false};
    }
    if (kind == "as_custom_obj") return OtherArgument{kind};
    return argument_of(source);
  }

  // A value, or a number in its place.
  Argument symbolic(const json& source) const {
    const auto [kind, value] = union_of(source);
    if (kind == "as_name") return ValueArgument{.id = use(string_of(value)), .is_tensor = false};
    if (kind == "as_int") return integer_of(value, "a number");
    if (kind == "as_float") return fraction_of(value);
    if (kind == "as_bool") return boolean_of(value);
    throw damaged_export("a number is " + shown(kind));
  }

  NumberList number_list(const json& source) const {
    return {items_of<NumberItem>(source, [&](const json& item) {
      const Argument number = symbolic(item);
      if (const auto* value = std::get_if<ValueArgument>(&number))
        return NumberItem{.id = value->id};
      if (const auto* known = std::get_if<std::int64_t>(&number))
        return NumberItem{.number = *known};
      if (const auto* flag = std::get_if<bool>(&number)) return NumberItem{.number = *flag ? 1 : 0};
      throw damaged_export("a list of integers has a fraction");
    })};
  }

  TensorList tensor_list(const json& source) const {
    return {
        items_of<ValueId>(source, [&](const json& item) { return use(text_of(item, "name")); })};
  }

  TensorList optional_tensors(const json& source) const {
    return {items_of<ValueId>(source, [&](const json& item) {
      const auto [kind, value] = union_of(item);
      return kind == "as_none" ? kNoValue : use(text_of(value, "name"));
    })};
  }

  Argument argument_of(const json& source) const {
    const auto [kind, value] = union_of(source);
    if (kind == "as_none") return NoneArgument{};
    if (kind == "as_tensor") return ValueArgument{.id = use(text_of(value, "name"))};
    if (kind == "as_tensors") return tensor_list(value);
    if (kind == "as_optional_tensors") return optional_tensors(value);
    if (kind == "as_optional_tensor") return argument_of(value);
    if (kind == "as_int") return integer_of(value, "an integer");
    if (kind == "as_float") return fraction_of(value);
    if (kind == "as_bool") return boolean_of(value);
    if (kind == "as_string") return string_of(value);
    if (kind == "as_complex")
      return std::complex<double>(fraction_of(member_of(value, "real")),
                                  fraction_of(member_of(value, "imag")));
    if (kind == "as_ints")
      return items_of<std::int64_t>(
          value, [](const json& item) { return integer_of(item, "an integer"); });
    if (kind == "as_floats") return items_of<double>(value, fraction_of);
    if (kind == "as_bools") return items_of<bool>(value, boolean_of);
    if (kind == "as_strings") return items_of<std::string>(value, string_of);
    if (kind == "as_sym_int" || kind == "as_sym_bool" || kind == "as_sym_float")
      return symbolic(value);
    if (kind == "as_sym_ints" || kind == "as_sym_bools") return number_list(value);
    if (kind == "as_scalar_type") return DtypeArgument{code_of(value, "a dtype")};
    if (kind == "as_layout") return LayoutArgument{code_of(value, "a layout")};
    if (kind == "as_memory_format") return MemoryFormatArgument{code_of(value, "a memory format")};
    if (kind == "as_device") return device_of(value);
    if (kind == "as_graph")
      return GraphArgument{
          std::make_shared<const Graph>(Scope(depth_ + 1).read(member_of(value, "graph")))};
    return OtherArgument{kind};
  }

  NodeOutput output_of(const json& source) {
    const auto [kind, value] = union_of(source);
    NodeOutput output;
    if (kind == "as_tensor") {
      output.ids.push_back(define(text_of(value, "name")));
    } else if (kind == "as_tensors") {
      output.is_list = true;
      output.ids =
          items_of<ValueId>(value, [&](const json& item) { return define(text_of(item, "name")); });
    } else if (kind == "as_optional_tensors") {
      output.is_list = true;
      output.ids = items_of<ValueId>(value, [&](const json& item) {
        const auto [inner, tensor] = union_of(item);
        return inner == "as_none" ? kNoValue : define(text_of(tensor, "name"));
      });
    } else if (kind == "as_optional_tensor") {
      const auto [inner, tensor] = union_of(value);
      output.ids.push_back(inner == "as_none" ? kNoValue : define(text_of(tensor, "name")));
    } else if (kind == "as_sym_int" || kind == "as_sym_bool" || kind == "as_sym_float") {
      const auto [inner, name] = union_of(value);
      output.ids.push_back(inner == "as_name" ? define(string_of(name)) : kNoValue);
    } else if (kind == "as_none") {
      output.ids.push_back(kNoValue);
    } else {
      throw damaged_export("a node returns " + shown(kind));
    }
    return output;
  }

  Node node_of(const json& source) {
    Node node;
    node.target = text_of(source, "target");
    const json* name = optional_member(source, "name");
    node.name = name != nullptr ? string_of(*name) : node.target;
    for (const json& input : list_of(source, "inputs"))
      node.inputs.push_back(
          {.name = text_of(input, "name"), .value = argument_of(member_of(input, "arg"))});
    for (const json& output : list_of(source, "outputs")) node.outputs.push_back(output_of(output));
    if (const json* metadata = optional_member(source, "metadata")) {
      if (const json* stack = optional_member(*metadata, "nn_module_stack"))
        node.calls = calls_of(string_of(*stack));
      if (const json* trace = optional_member(*metadata, "stack_trace"))
        node.stack_trace = string_of(*trace);
    }
    return node;
  }

  static Dimension dimension_of(const json& source) {
    const auto [kind, value] = union_of(source);
    if (kind == "as_int") return integer_of(value, "a size");
    if (kind != "as_expr") throw damaged_export("a size is " + shown(kind));
    return SymbolicNumber::parse(text_of(value, "expr_str"));
  }

  void read_shapes(const json& source) {
    const json& shapes = object_of(member_of(source, "tensor_values"), "tensor_values");
    for (const Argument& input : graph_.inputs) {
      const auto* value = std::get_if<ValueArgument>(&input);
      if (value == nullptr || !value->is_tensor) continue;
      const auto found = shapes.find(graph_.values[value->id]);
      if (found == shapes.end()) continue;
      graph_.input_shapes[value->id] = {
          .dtype = code_of(member_of(*found, "dtype"), "a dtype"),
          .sizes = items_of<Dimension>(member_of(*found, "sizes"), dimension_of)};
    }
  }

  int depth_;
  Graph graph_;
  std::unordered_map<std::string, ValueId> ids_;
};

void check_version(const json& document) {
  const json& version = member_of(document, "schema_version");
  const std::int64_t major = integer_of(member_of(version, "major"), "the version of the schema");
  if (major == kSchemaMajor) return;
  const json* torch = optional_member(document, "torch_version");
  throw Error(ErrorCode::kCheckpointVersion,
              "the exported model has version " + std::to_string(major) +
                  " of torch's export schema, expected " + std::to_string(kSchemaMajor) +
                  (torch != nullptr && torch->is_string()
                       ? " (it was written by torch " + printable(torch->get<std::string>()) + ")"
                       : ""),
              kExportAgain);
}

InputSpec input_spec_of(const json& source) {
  const auto [kind, value] = union_of(source);
  using Kind = InputSpec::Kind;
  if (kind == "parameter") return {Kind::kParameter, text_of(value, "parameter_name")};
  if (kind == "buffer")
    return {.kind = Kind::kBuffer,
            .target = text_of(value, "buffer_name"),
            .is_persistent = boolean_of(member_of(value, "persistent"))};
  if (kind == "tensor_constant") return {Kind::kConstant, text_of(value, "tensor_constant_name")};
  if (kind == "user_input") return {Kind::kUser, ""};
  if (kind == "constant_input") return {Kind::kFixed, text_of(value, "name")};
  throw Error(ErrorCode::kUnsupported,
              "the exported model has an input of kind " + shown(kind) +
                  ", which is read from a pickle or has effects that are no tensor's",
              "export a model whose constants are tensors");
}

std::vector<InputSpec> input_specs_of(const json& signature, const Graph& graph) {
  std::vector<InputSpec> specs;
  for (const json& source : list_of(signature, "input_specs"))
    specs.push_back(input_spec_of(source));
  if (specs.size() != graph.inputs.size())
    throw damaged_export("its signature has " + std::to_string(specs.size()) +
                         " inputs, its graph " + std::to_string(graph.inputs.size()));
  std::set<std::string> names;
  for (std::size_t i = 0; i < specs.size(); ++i) {
    const auto* value = std::get_if<ValueArgument>(&graph.inputs[i]);
    if (specs[i].kind == InputSpec::Kind::kFixed) {
      if (value != nullptr)
        throw damaged_export("a constant of its signature is none in its graph");
      continue;
    }
    if (value == nullptr)
      throw damaged_export("input " + std::to_string(i) + " of its graph is no value");
    specs[i].id = value->id;
    if (specs[i].kind == InputSpec::Kind::kUser) {
      specs[i].target = graph.values[value->id];
    } else if (!value->is_tensor || !names.insert(specs[i].target).second) {
      throw damaged_export("two of its tensors are called " + shown(specs[i].target));
    }
  }
  return specs;
}

OutputSpec output_spec_of(const json& source) {
  const auto [kind, value] = union_of(source);
  using Kind = OutputSpec::Kind;
  if (kind == "user_output") return {Kind::kUser, ""};
  if (kind == "loss_output") return {Kind::kUser, "loss"};
  if (kind == "buffer_mutation") return {Kind::kBufferMutation, text_of(value, "buffer_name")};
  if (kind == "parameter_mutation")
    return {Kind::kParameterMutation, text_of(value, "parameter_name")};
  if (kind == "user_input_mutation")
    return {Kind::kInputMutation, text_of(value, "user_input_name")};
  throw Error(ErrorCode::kUnsupported,
              "the exported model has an output of kind " + shown(kind) +
                  ": it is a graph of forward and backward together, or has effects",
              "export the forward alone, with torch.export.export(): libaccel derives it");
}

// Whether the graph or the caller's tensors have what an output writes.
void check_target(const OutputSpec& output, const std::vector<InputSpec>& inputs) {
  using Kind = OutputSpec::Kind;
  if (output.kind == Kind::kUser) return;
  const auto wanted = output.kind == Kind::kBufferMutation      ? InputSpec::Kind::kBuffer
                      : output.kind == Kind::kParameterMutation ? InputSpec::Kind::kParameter
                                                                : InputSpec::Kind::kUser;
  for (const InputSpec& input : inputs)
    if (input.kind == wanted && input.target == output.target) return;
  throw damaged_export("an output writes " + shown(output.target) + ", which is no input");
}

void name_outputs(const json& module, const Graph& graph, std::vector<OutputSpec>& outputs) {
  std::vector<std::string> names;
  const json* calls = optional_member(module, "module_call_graph");
  if (calls != nullptr && calls->is_array() && !calls->empty()) {
    if (const json* signature = optional_member((*calls)[0], "signature"))
      names = leaf_names(text_of(*signature, "out_spec"));
  }
  std::size_t next = 0;
  std::unordered_set<std::string> taken;
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    if (outputs[i].kind != OutputSpec::Kind::kUser) continue;
    const std::string keys = next < names.size() ? names[next] : "";
    const auto* value = std::get_if<ValueArgument>(&graph.outputs[i]);
    std::string& name = outputs[i].target;
    if (name.empty()) name = keys;
    if (name.empty()) name = value != nullptr ? graph.values[value->id] : "output";
    if (!taken.insert(name).second) name += "." + std::to_string(next);
    ++next;
  }
}

std::map<std::string, SymbolRange> ranges_of(const json& document) {
  std::map<std::string, SymbolRange> ranges;
  const json* source = optional_member(document, "range_constraints");
  if (source == nullptr) return ranges;
  for (const auto& [name, range] : object_of(*source, "range_constraints").items()) {
    SymbolRange& into = ranges[name];
    if (const json* min = optional_member(range, "min_val")) into.min = integer_of(*min, "min_val");
    if (const json* max = optional_member(range, "max_val")) into.max = integer_of(*max, "max_val");
  }
  return ranges;
}

bool has_training_ir(const json& document) {
  const json* verifiers = optional_member(document, "verifiers");
  if (verifiers == nullptr || !verifiers->is_array()) return false;
  return std::any_of(verifiers->begin(), verifiers->end(), [](const json& verifier) {
    return verifier == "TRAINING";
  });
}

void read_leaves(const json& spec,
                 const std::string& path,
                 bool has_keys,
                 int depth,
                 std::vector<std::string>& names) {
  if (depth > kDeepestGraph) throw damaged_export("its outputs are too deep within each other");
  const json& children = list_of(spec, "children_spec");
  if (member_of(spec, "type").is_null()) {
    names.push_back(has_keys ? path : "");
    return;
  }
  json keys;  // of a dict or one of transformers' outputs: a list of texts
  if (const json* context = optional_member(spec, "context"); context && context->is_string())
    keys = json::parse(context->get_ref<const std::string&>(), nullptr, /*allow_exceptions=*/false);
  const bool is_keyed = keys.is_array() && keys.size() == children.size();
  for (std::size_t i = 0; i < children.size(); ++i) {
    const bool has_key = is_keyed && keys[i].is_string();
    const std::string part = has_key ? keys[i].get<std::string>() : std::to_string(i);
    read_leaves(children[i],
                path.empty() ? part : path + "." + part,
                has_keys || has_key,
                depth + 1,
                names);
  }
}

}  // namespace

Error damaged_export(const std::string& what) {
  return Error(
      ErrorCode::kCheckpointIncomplete, "the exported model is damaged: " + what, kExportAgain);
}

const json& member_of(const json& object, const char* key) {
  const auto found = object_of(object, key).find(key);
  if (found == object.end()) throw damaged_export(std::string(key) + " is missing");
  return *found;
}

const std::string& text_of(const json& object, const char* key) {
  const json& value = member_of(object, key);
  if (!value.is_string()) throw damaged_export(std::string(key) + " is no text");
  return value.get_ref<const std::string&>();
}

bool flag_of(const json& object, const char* key) {
  const json& value = member_of(object, key);
  if (!value.is_boolean()) throw damaged_export(std::string(key) + " is neither true nor false");
  return value.get<bool>();
}

std::int64_t integer_of(const json& value, const char* what) {
  const bool fits = value.is_number_integer() &&
                    (!value.is_number_unsigned() || value.get<std::uint64_t>() <= INT64_MAX);
  if (!fits) throw damaged_export(std::string(what) + " is no integer");
  return value.get<std::int64_t>();
}

UnionValue union_of(const json& object) {
  if (!object.is_object() || object.size() != 1)
    throw damaged_export("an argument is not of exactly one kind");
  const auto item = object.begin();
  return {item.key(), item.value()};
}

json parse_export(std::string_view text) {
  // Which keys the objects that are open have; the parser itself keeps the last of two.
  std::vector<std::unordered_set<std::string>> open;
  const auto look = [&](int /*depth*/, json::parse_event_t event, json& value) {
    switch (event) {
      case json::parse_event_t::object_start:
        open.emplace_back();
        break;
      case json::parse_event_t::object_end:
        if (!open.empty()) open.pop_back();
        break;
      case json::parse_event_t::key: {
        const auto& key = value.get_ref<const std::string&>();
        if (!open.empty() && !open.back().insert(key).second)
          throw damaged_export("its text has " + shown(key) + " twice in one object");
        return key != "from_node" && key != "torch_fn" && key != "source_fn_stack";
      }
      default:
        break;
    }
    return true;
  };
  try {
    return json::parse(text, look);
  } catch (const json::exception& error) {
    throw damaged_export("its text is no JSON: " + printable(error.what()));
  }
}

ExportedGraph read_graph(std::string_view text) {
  const json document = parse_export(text);
  check_version(document);
  const json& module = member_of(document, "graph_module");
  ExportedGraph out;
  out.graph = Scope(0).read(member_of(module, "graph"));
  const json& signature = member_of(module, "signature");
  out.inputs = input_specs_of(signature, out.graph);
  for (const json& source : list_of(signature, "output_specs"))
    out.outputs.push_back(output_spec_of(source));
  if (out.outputs.size() != out.graph.outputs.size())
    throw damaged_export("its signature has " + std::to_string(out.outputs.size()) +
                         " outputs, its graph " + std::to_string(out.graph.outputs.size()));
  for (const OutputSpec& output : out.outputs) check_target(output, out.inputs);
  name_outputs(module, out.graph, out.outputs);
  out.ranges = ranges_of(document);
  if (const json* torch = optional_member(document, "torch_version"))
    out.torch_version = string_of(*torch);
  out.is_training_ir = has_training_ir(document);
  return out;
}

std::vector<std::string> leaf_names(const std::string& tree) {
  const json document = json::parse(tree, nullptr, /*allow_exceptions=*/false);
  std::vector<std::string> names;
  if (!document.is_array() || document.size() != 2 || document[0] != 1) return names;
  read_leaves(document[1], "", /*has_keys=*/false, 0, names);
  return names;
}

}  // namespace accel::exported
