// Graph: what torch.export wrote of a model, typed and checked, without LibTorch.
//
// Values are numbered within their graph. Each is defined once, by an input or a node, before it is used: whoever has a Graph
// need not check that again. Numbers of dtypes, layouts and memory formats are those of the file (schema.py), not LibTorch's.
//
// Threads:  value types.
// Source:   torch/_export/serde/schema.py of torch 2.11.
#pragma once

#include <complex>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "libaccel/exported/symbols.h"

namespace accel::exported {

using ValueId = std::uint32_t;
inline constexpr ValueId kNoValue = ~ValueId{0};  // None in a list of tensors

struct Graph;

struct NoneArgument {};
struct ValueArgument {
  ValueId id = kNoValue;
  bool is_tensor = true;  // else a number that is known when the graph runs
};
// Numbers, some of which are values.
struct NumberItem {
  ValueId id = kNoValue;  // kNoValue: the number
  std::int64_t number = 0;
};
struct NumberList {
  std::vector<NumberItem> items;
};
struct TensorList {
  std::vector<ValueId> ids;
};
struct DtypeArgument {
  int code = 0;
};
struct LayoutArgument {
  int code = 0;
};
struct MemoryFormatArgument {
  int code = 0;
};
struct DeviceArgument {
  std::string type;
  std::optional<int> index;
};
struct GraphArgument {
  std::shared_ptr<const Graph> graph;
};
// Of a kind that no operator here takes: an error for who needs it.
struct OtherArgument {
  std::string kind;
};

using Argument = std::variant<NoneArgument,
                              ValueArgument,
                              TensorList,
                              NumberList,
                              bool,
                              std::int64_t,
                              double,
                              std::complex<double>,
                              std::string,
                              std::vector<bool>,
                              std::vector<std::int64_t>,
                              std::vector<double>,
                              std::vector<std::string>,
                              DtypeArgument,
                              LayoutArgument,
                              MemoryFormatArgument,
                              DeviceArgument,
                              GraphArgument,
                              OtherArgument>;

struct NamedArgument {
  std::string name;  // of the operator's schema; empty for higher-order operators
  Argument value;
  bool is_keyword = false;  // how Python gives it; of no meaning here
};

struct NodeOutput {
  bool is_list = false;      // one result that is a list of tensors
  std::vector<ValueId> ids;  // kNoValue: a result that nobody names
};

// A module that was being called: "model.layers.0", "transformers.models.llama.modeling_llama.LlamaDecoderLayer".
struct ModuleCall {
  std::string path;
  std::string class_name;
};

struct Node {
  std::string name;
  std::string target;  // "torch.ops.aten.linear.default", "_operator.mul"
  std::vector<NamedArgument> inputs;
  std::vector<NodeOutput> outputs;
  std::vector<ModuleCall> calls;  // from the root inwards
  std::string stack_trace;        // of Python; may be empty
};

// A dimension of a tensor that the graph takes.
using Dimension = std::variant<std::int64_t, SymbolicNumber>;

struct TensorShape {
  int dtype = 0;
  std::vector<Dimension> sizes;
};

struct Graph {
  std::vector<std::string> values;  // their names
  std::vector<Argument> inputs;     // ValueArgument, or a constant that is ignored
  std::vector<Argument> outputs;
  std::vector<Node> nodes;
  std::map<ValueId, TensorShape> input_shapes;
};

struct InputSpec {
  enum class Kind { kParameter, kBuffer, kConstant, kUser, kFixed };
  Kind kind = Kind::kUser;
  std::string target;         // the name of the parameter, buffer or constant; of a user's input
  ValueId id = kNoValue;      // kFixed: none
  bool is_persistent = true;  // a buffer that Python saves
};

struct OutputSpec {
  enum class Kind { kUser, kBufferMutation, kParameterMutation, kInputMutation };
  Kind kind = Kind::kUser;
  std::string target;  // what is written; of a user's output, its name
};

// inputs and outputs: as those of the graph, one for one.
struct ExportedGraph {
  Graph graph;
  std::vector<InputSpec> inputs;
  std::vector<OutputSpec> outputs;
  std::map<std::string, SymbolRange> ranges;
  std::string torch_version;
  bool is_training_ir = true;  // false: run_decompositions() was called
};

}  // namespace accel::exported
