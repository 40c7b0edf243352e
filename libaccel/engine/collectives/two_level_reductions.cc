// The reductions of TwoLevelGroup.
//
// An average is a sum until the end: it is divided once, by all ranks. Sums, products and averages of 16-bit floating
// point numbers, complex ones too, are taken of their float32 values, which are rounded at the end.

#include <utility>

#include "libaccel/engine/collectives/two_level_group.h"
#include "libaccel/engine/shm/group/group_checks.h"
#include "libaccel/engine/shm/memory/call.h"
#include "libaccel/engine/shm/numbers/half.h"
#include "libaccel/engine/shm/numbers/reduction.h"

namespace accel {
namespace {

using shm::call_of;
using shm::CallKind;
using shm::copy_bytes;
using shm::DataType;
using shm::ReduceOp;

std::vector<std::byte*> equal_parts(std::byte* data, std::size_t count, std::size_t bytes) {
  std::vector<std::byte*> parts;
  for (std::size_t part = 0; part < count; ++part) parts.push_back(data + part * bytes);
  return parts;
}

bool is_half(DataType type) {
  return type == DataType::kFloat16 || type == DataType::kBFloat16;
}

bool rounds(ReduceOp op) {
  return op == ReduceOp::kSum || op == ReduceOp::kAverage || op == ReduceOp::kProduct;
}

// What is computed with.
DataType wide(DataType type, ReduceOp op) {
  if (type == DataType::kComplex32) return DataType::kComplex64;
  return is_half(type) && rounds(op) ? DataType::kFloat32 : type;
}

template <typename T>
void widen_as(const std::byte* in, std::size_t count, float* out) {
  const T* values = reinterpret_cast<const T*>(in);
  for (std::size_t i = 0; i < count; ++i) out[i] = shm::to_float(values[i]);
}

void widen(const std::byte* in, std::size_t count, DataType type, std::byte* out) {
  auto* const floats = reinterpret_cast<float*>(out);
  if (type == DataType::kFloat16) return widen_as<shm::Half>(in, count, floats);
  if (type == DataType::kComplex32) return widen_as<shm::Half>(in, 2 * count, floats);
  widen_as<shm::BFloat16>(in, count, floats);
}

void narrow(const std::byte* in, std::size_t count, DataType type, std::byte* out) {
  const auto* const floats = reinterpret_cast<const float*>(in);
  if (type != DataType::kBFloat16) {
    auto* const halves = reinterpret_cast<shm::Half*>(out);
    const std::size_t num_halves = type == DataType::kComplex32 ? 2 * count : count;
    for (std::size_t i = 0; i < num_halves; ++i) halves[i] = shm::to_half(floats[i]);
    return;
  }
  auto* const halves = reinterpret_cast<shm::BFloat16*>(out);
  for (std::size_t i = 0; i < count; ++i) halves[i] = shm::to_bfloat16(floats[i]);
}

void divide(std::byte* data, std::size_t count, DataType type, int divisor) {
  shm::divide_elements(data, count, type, static_cast<std::size_t>(divisor));
}

ReduceOp sum_of(ReduceOp op) {
  return op == ReduceOp::kAverage ? ReduceOp::kSum : op;
}

}  // namespace

void TwoLevelGroup::reduce_nodes(std::span<const std::byte* const> operands,
                                 std::size_t count,
                                 DataType type,
                                 ReduceOp op,
                                 std::byte* out) const {
  if (count > 0) shm::reduce_elements(operands, count, type, sum_of(op), out);
}

Result<void> TwoLevelGroup::reduce_between(std::byte* data,
                                           std::size_t count,
                                           DataType type,
                                           ReduceOp op) {
  const std::size_t bytes = count * size_of(type);
  // With two nodes parts save nothing: half there and half back is the whole.
  if (num_nodes_ > 2 && bytes > kWholeBytes) return reduce_between_by_parts(data, count, type, op);
  std::byte* const room = incoming_.room(bytes * static_cast<std::size_t>(num_nodes_));
  std::vector<NodeLink::Outgoing> out;
  std::vector<NodeLink::Incoming> in;
  std::vector<const std::byte*> operands;
  for (int node = 0; node < num_nodes_; ++node) {
    std::byte* const theirs = node == node_ ? data : room + static_cast<std::size_t>(node) * bytes;
    operands.push_back(theirs);
    if (node == node_) continue;
    out.push_back({name_at(node, place_), data, bytes});
    in.push_back({name_at(node, place_), theirs, bytes});
  }
  if (auto done = exchange(out, in); !done) return done;
  reduce_nodes(operands, count, type, op, data);
  return {};
}

Result<void> TwoLevelGroup::reduce_between_by_parts(std::byte* data,
                                                    std::size_t count,
                                                    DataType type,
                                                    ReduceOp op) {
  const auto begin_of = [&](int node) {
    return count * static_cast<std::size_t>(node) / static_cast<std::size_t>(num_nodes_);
  };
  const auto part_of = [&](int node) { return data + begin_of(node) * size_of(type); };
  const auto bytes_of = [&](int node) {
    return (begin_of(node + 1) - begin_of(node)) * size_of(type);
  };
  const std::size_t own_bytes = bytes_of(node_);
  std::byte* const room = incoming_.room(own_bytes * static_cast<std::size_t>(num_nodes_));
  std::vector<NodeLink::Outgoing> parts_out;
  std::vector<NodeLink::Incoming> parts_in;
  std::vector<NodeLink::Outgoing> sums_out;
  std::vector<NodeLink::Incoming> sums_in;
  std::vector<const std::byte*> operands;
  for (int node = 0; node < num_nodes_; ++node) {
    std::byte* const theirs = room + static_cast<std::size_t>(node) * own_bytes;
    operands.push_back(node == node_ ? part_of(node) : theirs);
    if (node == node_) continue;
    const int name = name_at(node, place_);
    parts_out.push_back({name, part_of(node), bytes_of(node)});
    parts_in.push_back({name, theirs, own_bytes});
    sums_out.push_back({name, part_of(node_), own_bytes});
    sums_in.push_back({name, part_of(node), bytes_of(node)});
  }
  if (auto done = exchange(parts_out, parts_in); !done) return done;
  reduce_nodes(operands, begin_of(node_ + 1) - begin_of(node_), type, op, part_of(node_));
  return exchange(sums_out, sums_in);
}

Result<void> TwoLevelGroup::reduce_at(
    int node, std::byte* data, std::size_t count, DataType type, ReduceOp op) {
  const std::size_t bytes = count * size_of(type);
  if (node != node_) return exchange_with_all({{name_at(node, place_), data, bytes}}, {});
  std::byte* const room = incoming_.room(bytes * static_cast<std::size_t>(num_nodes_));
  std::vector<NodeLink::Incoming> in;
  std::vector<const std::byte*> operands;
  for (int other = 0; other < num_nodes_; ++other) {
    std::byte* const theirs = room + static_cast<std::size_t>(other) * bytes;
    operands.push_back(other == node_ ? data : theirs);
    if (other != node_) in.push_back({name_at(other, place_), theirs, bytes});
  }
  if (auto done = exchange_with_all({}, std::move(in)); !done) return done;
  reduce_nodes(operands, count, type, op, data);
  return {};
}

// In the node: this rank's of the parts.
Result<void> TwoLevelGroup::reduce_to_share(std::span<std::byte* const> parts,
                                            std::byte* mine,
                                            std::size_t each,
                                            DataType type,
                                            ReduceOp op) {
  const std::vector<const std::byte*> inputs(parts.begin(), parts.end());
  return parts_.node->reduce_scatter(inputs, mine, each, type, sum_of(op));
}

Result<void> TwoLevelGroup::all_reduce_in_place(std::byte* data,
                                                std::size_t count,
                                                DataType type,
                                                ReduceOp op) {
  const auto places = static_cast<std::size_t>(num_places_);
  // A rank that is alone on its node has nobody to meet there.
  const std::size_t each = places > 1 && count * size_of(type) > kWholeBytes ? count / places : 0;
  const std::size_t share_bytes = each * size_of(type);
  if (each > 0) {
    const std::vector<std::byte*> shares = equal_parts(data, places, share_bytes);
    std::byte* const mine = share_.room(share_bytes);
    if (auto done = reduce_to_share(shares, mine, each, type, op); !done) return done;
    if (auto done = reduce_between(mine, each, type, op); !done) return done;
    if (auto done = parts_.node->all_gather(mine, shares, share_bytes); !done) return done;
  }
  // What is left over when shares are equal, or all.
  const std::size_t rest = count - each * places;
  std::byte* const begin = data + each * places * size_of(type);
  if (rest > 0 || count == 0) {
    if (places > 1) {
      if (auto done = parts_.node->all_reduce(begin, begin, rest, type, sum_of(op)); !done)
        return done;
    }
    if (auto done = reduce_between(begin, rest, type, op); !done) return done;
  }
  if (op == ReduceOp::kAverage) divide(data, count, type, world_size());
  return {};
}

Result<void> TwoLevelGroup::all_reduce(
    const std::byte* in, std::byte* out, std::size_t count, DataType type, ReduceOp op) {
  if (auto fits = shm::check_reduction(type, op); !fits) return fits;
  call_ = call_of(CallKind::kAllReduce, count * size_of(type), type, op);
  const DataType computed = wide(type, op);
  if (computed == type) {
    copy_bytes(out, in, count * size_of(type));
    return settled(all_reduce_in_place(out, count, type, op));
  }
  std::byte* const values = widened_.room(count * size_of(computed));
  widen(in, count, type, values);
  if (auto done = settled(all_reduce_in_place(values, count, computed, op)); !done) return done;
  narrow(values, count, type, out);
  return {};
}

Result<void> TwoLevelGroup::reduce_in_place(
    std::byte* data, std::size_t count, DataType type, ReduceOp op, int root) {
  const int root_node = parts_.layout.node_of(root);
  const int root_place = parts_.layout.place_of(root);
  const auto places = static_cast<std::size_t>(num_places_);
  const std::size_t each = count * size_of(type) > kWholeBytes ? count / places : 0;
  const std::size_t share_bytes = each * size_of(type);
  if (each > 0) {
    const std::vector<std::byte*> shares = equal_parts(data, places, share_bytes);
    std::byte* const mine = share_.room(share_bytes);
    if (auto done = reduce_to_share(shares, mine, each, type, op); !done) return done;
    if (auto done = reduce_at(root_node, mine, each, type, op); !done) return done;
    if (node_ == root_node) {
      if (auto done = parts_.node->gather(mine, shares, share_bytes, root_place); !done)
        return done;
    }
  }
  const std::size_t rest = count - each * places;
  std::byte* const begin = data + each * places * size_of(type);
  if (rest > 0 || count == 0) {
    if (auto done = parts_.node->reduce(begin, begin, rest, type, sum_of(op), root_place); !done)
      return done;
    // The sum of the node is at the root's place; the others have nothing to send.
    const std::size_t own = place_ == root_place ? rest : 0;
    if (auto done = reduce_at(root_node, begin, own, type, op); !done) return done;
  }
  if (op == ReduceOp::kAverage && rank() == root) divide(data, count, type, world_size());
  return {};
}

Result<void> TwoLevelGroup::reduce(
    const std::byte* in, std::byte* out, std::size_t count, DataType type, ReduceOp op, int root) {
  if (auto fits = shm::check_reduction(type, op); !fits) return fits;
  if (auto exists = shm::check_root(root, world_size()); !exists) return exists;
  call_ = call_of(CallKind::kReduce, count * size_of(type), type, op, root);
  const DataType computed = wide(type, op);
  // Of the others nothing is written to `out`.
  std::byte* const values = widened_.room(count * size_of(computed));
  if (computed == type) {
    copy_bytes(values, in, count * size_of(type));
  } else {
    widen(in, count, type, values);
  }
  if (auto done = settled(reduce_in_place(values, count, computed, op, root)); !done) return done;
  if (rank() != root) return {};
  if (computed == type) {
    copy_bytes(out, values, count * size_of(type));
  } else {
    narrow(values, count, type, out);
  }
  return {};
}

Result<void> TwoLevelGroup::reduce_scatter_sums(std::span<const std::byte* const> in,
                                                std::byte* out,
                                                std::size_t count,
                                                DataType type,
                                                ReduceOp op) {
  const std::size_t bytes = count * size_of(type);
  std::byte* const sums = share_.room(bytes * static_cast<std::size_t>(num_nodes_));
  std::byte* const room = incoming_.room(bytes * static_cast<std::size_t>(num_nodes_));
  std::vector<NodeLink::Outgoing> parts_out;
  std::vector<NodeLink::Incoming> parts_in;
  std::vector<const std::byte*> operands;
  for (int node = 0; node < num_nodes_; ++node) {
    std::byte* const sum = sums + static_cast<std::size_t>(node) * bytes;
    std::byte* const theirs = room + static_cast<std::size_t>(node) * bytes;
    std::vector<const std::byte*> pieces;
    for (int place = 0; place < num_places_; ++place)
      pieces.push_back(in[static_cast<std::size_t>(rank_at(node, place))]);
    if (num_places_ > 1) {
      if (auto done = parts_.node->reduce_scatter(pieces, sum, count, type, sum_of(op)); !done)
        return done;
    }
    const std::byte* const of_node = num_places_ > 1 ? sum : pieces[0];
    operands.push_back(node == node_ ? of_node : theirs);
    if (node == node_) continue;
    parts_out.push_back({name_at(node, place_), of_node, bytes});
    parts_in.push_back({name_at(node, place_), theirs, bytes});
  }
  if (auto done = exchange(parts_out, parts_in); !done) return done;
  reduce_nodes(operands, count, type, op, out);
  if (op == ReduceOp::kAverage) divide(out, count, type, world_size());
  return {};
}

Result<void> TwoLevelGroup::reduce_scatter(std::span<const std::byte* const> in,
                                           std::byte* out,
                                           std::size_t count,
                                           DataType type,
                                           ReduceOp op) {
  if (auto fits = shm::check_reduction(type, op); !fits) return fits;
  call_ = call_of(CallKind::kReduceScatter, count * size_of(type), type, op);
  const DataType computed = wide(type, op);
  if (computed == type) return settled(reduce_scatter_sums(in, out, count, type, op));
  const std::size_t bytes = count * size_of(computed);
  std::byte* const values = widened_.room(bytes * (in.size() + 1));
  std::vector<const std::byte*> pieces;
  for (std::size_t rank = 0; rank < in.size(); ++rank) {
    widen(in[rank], count, type, values + rank * bytes);
    pieces.push_back(values + rank * bytes);
  }
  std::byte* const sum = values + in.size() * bytes;
  if (auto done = settled(reduce_scatter_sums(pieces, sum, count, computed, op)); !done)
    return done;
  narrow(sum, count, type, out);
  return {};
}

}  // namespace accel
