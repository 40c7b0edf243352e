#include "libaccel/exporting/dynamic_batch.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <utility>

#include <ATen/ops/arange.h>
#include <ATen/ops/index_select.h>
#include <ATen/ops/remainder.h>

#include <accel/error.h>

#include "libaccel/exporting/value_names.h"

namespace accel::exporting {
namespace {

using exported::Argument;
using exported::Node;
using exported::NumberList;
using exported::ValueArgument;
using exported::ValueId;

constexpr const char* kSymbol = "s0";

[[noreturn]] void refuse_batches(const std::string& what, std::int64_t batch, std::int64_t other) {
  throw Error(ErrorCode::kUnsupported,
              what + " is not the same for batches of " + std::to_string(batch) + " and " +
                  std::to_string(other) + ", nor a multiple of the batch and a number",
              "compute without the size of the batch, or export one file for each size, without "
              "ExportOptions::batch_axes");
}

// "s0" as sympy writes it.
exported::SymbolicNumber symbol() {
  LinearSize batch;
  batch.per_batch = 1;
  return exported::SymbolicNumber::parse(symbol_text(batch));
}

class Merge {
 public:
  Merge(std::vector<SizedTrace> traces, BatchAxes axes)
      : traces_(std::move(traces)), axes_(std::move(axes)), out_(traces_.front().traced) {}

  TracedGraph merged(std::int64_t least) {
    check_form();
    const auto& graph = out_.exported.graph;
    for (const std::string& name : graph.values) (void)names_.take_as_is(name);
    for (const Node& node : graph.nodes) (void)names_.take_as_is(node.name);
    for (std::size_t i = 0; i < graph.nodes.size(); ++i) merge_node(i);
    for (ValueId id = 0; id < traces_.front().traced.metas.size(); ++id) merge_meta(id);
    check_constants();
    auto& nodes = out_.exported.graph.nodes;
    nodes.insert(nodes.begin(),
                 std::make_move_iterator(sizes_.begin()),
                 std::make_move_iterator(sizes_.end()));
    for (const exported::InputSpec& input : out_.exported.inputs) mark_input(input);
    out_.exported.ranges[kSymbol] = {.min = least, .max = std::nullopt};
    return std::move(out_);
  }

 private:
  [[nodiscard]] std::int64_t batch(std::size_t trace) const { return traces_[trace].batch; }

  void check_form() const {
    const auto& first = traces_.front().traced;
    for (const SizedTrace& other : traces_) {
      const auto& nodes = other.traced.exported.graph.nodes;
      const auto& expected = first.exported.graph.nodes;
      const auto differ = std::ranges::mismatch(expected, nodes, [](const Node& a, const Node& b) {
        return a.target == b.target && a.inputs.size() == b.inputs.size() && a.name == b.name &&
               std::ranges::equal(a.outputs,
                                  b.outputs,
                                  std::ranges::equal,
                                  &exported::NodeOutput::ids,
                                  &exported::NodeOutput::ids);
      });
      const bool is_end = differ.in1 == expected.end() || differ.in2 == nodes.end();
      if (!is_end || expected.size() != nodes.size())
        refuse_batches("the operator that forward() calls after " +
                           std::to_string(differ.in1 - expected.begin()) + " others",
                       batch(0),
                       other.batch);
      if (other.traced.exported.graph.values != first.exported.graph.values)
        refuse_batches("what forward() computes", batch(0), other.batch);
    }
  }

  // Of one place in all traces.
  LinearSize linear(const std::vector<std::int64_t>& numbers, const std::string& what) const {
    LinearSize size(numbers[0]);
    size.per_batch = (numbers[1] - numbers[0]) / (batch(1) - batch(0));
    size.at_zero = numbers[0] - size.per_batch * batch(0);
    for (std::size_t i = 0; i < numbers.size(); ++i)
      if (size.at_zero + size.per_batch * batch(i) != numbers[i])
        refuse_batches(what, batch(0), batch(i));
    return size;
  }

  template <typename Get>
  LinearSize linear_of(const std::string& what, const Get& get) const {
    std::vector<std::int64_t> numbers;
    for (const SizedTrace& trace : traces_) numbers.push_back(get(trace.traced));
    return linear(numbers, what);
  }

  ValueId add_size(const std::string& name, Node node, const LinearSize& size) {
    node.name = names_.take(name);
    node.calls.assign(1, out_.exported.graph.nodes.front().calls.front());  // of the module itself
    const auto id = static_cast<ValueId>(out_.exported.graph.values.size());
    out_.exported.graph.values.push_back(node.name);
    out_.metas.emplace_back();
    out_.sizes.emplace(id, size);
    node.outputs.push_back({.is_list = false, .ids = {id}});
    sizes_.push_back(std::move(node));
    return id;
  }

  ValueId arithmetic(const char* name, const LinearSize& result, ValueId left, std::int64_t right) {
    Node node{.target = std::string("_operator.") + name};
    node.inputs.push_back({.name = "a", .value = ValueArgument{.id = left, .is_tensor = false}});
    node.inputs.push_back({.name = "b", .value = right});
    return add_size(name, std::move(node), result);
  }

  // The value that is a + k * batch.
  ValueId value_of(const LinearSize& size) {
    const auto [found, is_new] = known_.try_emplace({size.at_zero, size.per_batch});
    if (!is_new) return found->second;
    ValueId id = exported::kNoValue;
    if (size.at_zero != 0) {
      LinearSize multiple = size;
      multiple.at_zero = 0;
      multiple.number -= size.at_zero;
      id = arithmetic("add", size, value_of(multiple), size.at_zero);
    } else if (size.per_batch != 1) {
      LinearSize once = size;
      once.per_batch = 1;
      once.number = batch(0);
      id = arithmetic("mul", size, value_of(once), size.per_batch);
    } else {
      Node node{.target = "torch.ops.aten.sym_size.int"};
      node.inputs.push_back({.name = "self", .value = ValueArgument{.id = batch_input()}});
      node.inputs.push_back({.name = "dim", .value = axes_.begin()->second});
      id = add_size("sym_size_int", std::move(node), size);
    }
    return known_[{size.at_zero, size.per_batch}] = id;
  }

  ValueId batch_input() const {
    for (const exported::InputSpec& input : out_.exported.inputs)
      if (input.kind == exported::InputSpec::Kind::kUser && input.target == axes_.begin()->first)
        return input.id;
    return exported::kNoValue;  // the caller has seen to it
  }

  void merge_node(std::size_t index) {
    Node& node = out_.exported.graph.nodes[index];
    for (std::size_t i = 0; i < node.inputs.size(); ++i) {
      std::vector<const Argument*> all;
      for (const SizedTrace& trace : traces_)
        all.push_back(&trace.traced.exported.graph.nodes[index].inputs[i].value);
      const std::string what = node.inputs[i].name + " of the node " + node.name;
      node.inputs[i].value = merged_argument(what, all);
    }
  }

  Argument merged_argument(const std::string& what, const std::vector<const Argument*>& all) {
    for (std::size_t i = 1; i < all.size(); ++i)
      if (all[i]->index() != all[0]->index()) refuse_batches(what, batch(0), batch(i));
    if (std::holds_alternative<std::int64_t>(*all[0])) {
      std::vector<std::int64_t> numbers;
      for (const Argument* one : all) numbers.push_back(std::get<std::int64_t>(*one));
      const LinearSize size = linear(numbers, what);
      if (size.per_batch == 0) return *all[0];
      return ValueArgument{.id = value_of(size), .is_tensor = false};
    }
    if (std::holds_alternative<std::vector<std::int64_t>>(*all[0])) return merged_list(what, all);
    for (std::size_t i = 1; i < all.size(); ++i)
      if (!is_same(*all[0], *all[i])) refuse_batches(what, batch(0), batch(i));
    return *all[0];
  }

  Argument merged_list(const std::string& what, const std::vector<const Argument*>& all) {
    NumberList list;
    bool is_known = true;
    const auto length = std::get<std::vector<std::int64_t>>(*all[0]).size();
    for (std::size_t place = 0; place < length; ++place) {
      std::vector<std::int64_t> numbers;
      for (std::size_t i = 0; i < all.size(); ++i) {
        const auto& items = std::get<std::vector<std::int64_t>>(*all[i]);
        if (items.size() != length) refuse_batches(what, batch(0), batch(i));
        numbers.push_back(items[place]);
      }
      const LinearSize size = linear(numbers, what);
      is_known &= size.per_batch == 0;
      list.items.push_back(size.per_batch == 0 ? exported::NumberItem{.number = numbers[0]}
                                               : exported::NumberItem{.id = value_of(size)});
    }
    return is_known ? *all[0] : Argument(std::move(list));
  }

  static bool is_same(const Argument& left, const Argument& right) {
    return std::visit(
        [&](const auto& a) {
          using T = std::decay_t<decltype(a)>;
          const T& b = std::get<T>(right);
          if constexpr (std::is_same_v<T, ValueArgument>) {
            return a.id == b.id;
          } else if constexpr (std::is_same_v<T, exported::TensorList>) {
            return a.ids == b.ids;
          } else if constexpr (std::is_same_v<T, exported::DtypeArgument> ||
                               std::is_same_v<T, exported::LayoutArgument> ||
                               std::is_same_v<T, exported::MemoryFormatArgument>) {
            return a.code == b.code;
          } else if constexpr (std::is_same_v<T, exported::DeviceArgument>) {
            return a.type == b.type && a.index == b.index;
          } else if constexpr (std::is_same_v<T, exported::NoneArgument>) {
            return true;
          } else if constexpr (std::is_same_v<T, double>) {
            return a == b || (std::isnan(a) && std::isnan(b));
          } else if constexpr (requires { a == b; }) {
            return a == b;
          } else {
            return false;  // never traced
          }
        },
        left);
  }

  void merge_meta(ValueId id) {
    TensorMeta& meta = out_.metas[id];
    const std::string what = "the size of " + out_.exported.graph.values[id];
    for (std::size_t i = 1; i < traces_.size(); ++i) {
      const TensorMeta& other = traces_[i].traced.metas[id];
      if (other.sizes.size() != meta.sizes.size() || other.dtype != meta.dtype)
        refuse_batches(what, batch(0), batch(i));
    }
    for (std::size_t axis = 0; axis < meta.sizes.size(); ++axis) {
      meta.sizes[axis] = linear_of(
          what, [&](const TracedGraph& traced) { return traced.metas[id].sizes[axis].number; });
      meta.strides[axis] = linear_of(
          what, [&](const TracedGraph& traced) { return traced.metas[id].strides[axis].number; });
    }
    meta.offset =
        linear_of(what, [&](const TracedGraph& traced) { return traced.metas[id].offset.number; });
  }

  void check_constants() const {
    const auto& constants = traces_.front().traced.constants;
    for (std::size_t i = 1; i < traces_.size(); ++i) {
      const auto& others = traces_[i].traced.constants;
      for (std::size_t j = 0; j < constants.size(); ++j)
        if (j >= others.size() || !constants[j].second.equal(others[j].second))
          refuse_batches("the constant " + constants[j].first, batch(0), batch(i));
    }
  }

  void mark_input(const exported::InputSpec& input) {
    const auto axis = axes_.find(input.target);
    if (input.kind != exported::InputSpec::Kind::kUser || axis == axes_.end()) return;
    out_.exported.graph.input_shapes.at(input.id).sizes.at(static_cast<std::size_t>(axis->second)) =
        symbol();
  }

  std::vector<SizedTrace> traces_;
  BatchAxes axes_;
  TracedGraph out_;
  ValueNames names_;
  std::vector<Node> sizes_;  // come first
  std::map<std::pair<std::int64_t, std::int64_t>, ValueId> known_;
};

}  // namespace

at::Tensor with_batch(const at::Tensor& input, std::int64_t axis, std::int64_t batch) {
  const at::Tensor rows =
      at::arange(batch, at::TensorOptions().dtype(at::kLong).device(input.device()));
  return input.detach()
      .index_select(axis, rows.remainder(input.size(axis)))
      .requires_grad_(input.requires_grad());
}

TracedGraph with_dynamic_batch(std::vector<SizedTrace> traces,
                               const BatchAxes& axes,
                               std::int64_t least) {
  return Merge(std::move(traces), axes).merged(least);
}

}  // namespace accel::exporting
