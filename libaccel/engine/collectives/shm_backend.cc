// What is checked here is what the group cannot see: the lists of tensors. Complex tensors are the group's complex numbers for
// products, and two numbers each for sums and averages (reduced_numbers.h).

#include "libaccel/engine/collectives/shm_backend.h"

#include <algorithm>
#include <numeric>
#include <span>
#include <utility>

#include <ATen/ops/_sparse_coo_tensor_unsafe.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>

#include "libaccel/engine/collectives/queued_group.h"
#include "libaccel/engine/collectives/reduced_numbers.h"
#include "libaccel/engine/collectives/shm_work.h"
#include "libaccel/tensors/tensor_memory.h"

namespace accel {
namespace {

using Tensors = ShmBackend::Tensors;

[[noreturn]] void refuse_call(ErrorCode code, std::string message, std::string remedy = {}) {
  throw Error(code, std::move(message), std::move(remedy));
}

void check_one(std::size_t num_tensors) {
  if (num_tensors == 1) return;
  refuse_call(
      ErrorCode::kShapeMismatch,
      "a rank of the CPU brings one tensor to a collective, not " + std::to_string(num_tensors));
}

// One of `parts` for each rank, all as large as `like`.
void check_parts(const Tensors& parts, const at::Tensor& like, int world_size) {
  if (static_cast<int>(parts.size()) != world_size) {
    refuse_call(ErrorCode::kShapeMismatch,
                "a list of " + std::to_string(parts.size()) + " tensors for " +
                    std::to_string(world_size) + " ranks");
  }
  for (const at::Tensor& part : parts) {
    if (part.scalar_type() == like.scalar_type() && part.numel() == like.numel()) continue;
    refuse_call(ErrorCode::kShapeMismatch,
                "a part of " + std::to_string(part.numel()) + " elements of " +
                    at::toString(part.scalar_type()) + " beside one of " +
                    std::to_string(like.numel()) + " of " + at::toString(like.scalar_type()));
  }
}

void all_reduce_tensors(shm::ByteGroup& group, const Tensors& tensors, const c10d::ReduceOp& op) {
  const shm::ReduceOp reduce_op = reduce_op_of(op);
  for (const at::Tensor& tensor : tensors) {
    Target target(tensor);
    const Numbers numbers(tensor, op);
    const at::Tensor operand = scaled(target.memory(), op);
    or_throw(group.all_reduce(
        bytes_of(operand), target.bytes(), numbers.count, numbers.type, reduce_op));
    target.settle();
  }
}

}  // namespace

ShmBackend::ShmBackend(std::shared_ptr<shm::ByteGroup> group,
                       std::string name,
                       std::chrono::milliseconds timeout)
    : Backend(group->rank(), group->world_size()),
      group_(std::move(group)),
      name_(std::move(name)),
      timeout_(timeout),
      queue_(std::dynamic_pointer_cast<QueuedGroup>(group_)) {}

ShmBackend::WorkPtr ShmBackend::done(c10d::OpType type, Tensors results) {
  ++sequence_;
  return completed_work(getRank(), type, std::move(results));
}

// Of a tensor whose memory is contiguous: a view for each rank.
ShmBackend::Tensors ShmBackend::even_pieces(const at::Tensor& whole,
                                            std::int64_t elements_each) const {
  if (whole.numel() != elements_each * getSize()) {
    refuse_call(ErrorCode::kShapeMismatch,
                "a tensor of " + std::to_string(whole.numel()) + " elements for " +
                    std::to_string(getSize()) + " ranks with " + std::to_string(elements_each) +
                    " elements each");
  }
  const at::Tensor flat = whole.view({-1});
  Tensors pieces;
  for (int rank = 0; rank < getSize(); ++rank)
    pieces.push_back(flat.narrow(0, rank * elements_each, elements_each));
  return pieces;
}

ShmBackend::WorkPtr ShmBackend::barrier(const c10d::BarrierOptions&) {
  or_throw(group_->barrier());
  return done(c10d::OpType::BARRIER, {});
}

void ShmBackend::monitoredBarrier(const c10d::BarrierOptions& options, bool wait_all_ranks) {
  const bool is_default = options.timeout == c10d::kUnsetTimeout;
  if (!is_default && options.timeout.count() <= 0) {
    refuse_call(ErrorCode::kInvalidArgument,
                "the timeout of a monitored barrier is " + std::to_string(options.timeout.count()) +
                    " ms, expected more than 0");
  }
  or_throw(group_->monitored_barrier(
      is_default ? timeout_ : options.timeout,
      wait_all_ranks ? shm::RollCall::kOfAll : shm::RollCall::kUntilFirstLoss));
  ++sequence_;
}

// The Reducer asks for the index of a CPU, which has none.
bool ShmBackend::supportsTensorAlloc(c10::DeviceIndex) {
  return getSize() > 1;
}

// The Reducer takes a bucket of complex gradients for the real numbers that they are made of, twice as many, but views only
// memory that it allocates itself so.
at::Tensor ShmBackend::allocateTensor(long size, at::TensorOptions options) {
  const at::ScalarType type = c10::typeMetaToScalarType(options.dtype());
  if (at::isComplexType(type)) {
    options = options.dtype(at::toRealValueType(type));
    size *= 2;
  }
  const bool is_plain = options.device().is_cpu() && options.layout() == at::kStrided && size > 0;
  if (!is_plain) return at::empty({size}, options);
  const std::size_t bytes =
      static_cast<std::size_t>(size) * c10::elementSize(c10::typeMetaToScalarType(options.dtype()));
  const auto room = group_->allocate(bytes);
  if (!room) return at::empty({size}, options);
  return at::from_blob((*room).get(), {size}, [room = *room](void*) {}, options);
}

ShmBackend::WorkPtr ShmBackend::broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) {
  check_one(tensors.size());
  Target target(tensors[0]);
  or_throw(group_->broadcast(
      target.bytes(), target.num_bytes(), static_cast<int>(options.rootRank), name_of(tensors[0])));
  target.settle();
  return done(c10d::OpType::BROADCAST, tensors);
}

ShmBackend::WorkPtr ShmBackend::allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) {
  check_one(tensors.size());
  if (tensors[0].is_sparse()) return allreduce_sparse(tensors, options);
  c10d::AllreduceCoalescedOptions coalesced;
  coalesced.reduceOp = options.reduceOp;
  return allreduce_coalesced(tensors, coalesced);
}

// `own` is coalesced: its entries are in the order of their coordinates, each once.
at::Tensor ShmBackend::sparse_of(int root, const at::Tensor& own) {
  const bool is_own = getRank() == root;
  std::int64_t num_entries = own._nnz();
  or_throw(group_->broadcast(reinterpret_cast<std::byte*>(&num_entries), sizeof num_entries, root));
  const auto send = [&](const at::Tensor& whole, std::int64_t entry_dim) {
    auto shape = whole.sizes().vec();
    shape[static_cast<std::size_t>(entry_dim)] = num_entries;
    const at::Tensor memory = is_own ? whole.contiguous() : at::empty(shape, whole.options());
    or_throw(group_->broadcast(bytes_of(memory), memory.nbytes(), root, name_of(memory)));
    return memory;
  };
  const at::Tensor indices = send(own._indices(), 1);
  const at::Tensor values = send(own._values(), 0);
  return at::_sparse_coo_tensor_unsafe(indices, values, own.sizes(), own.options(), true);
}

ShmBackend::WorkPtr ShmBackend::allreduce_sparse(Tensors& tensors,
                                                 const c10d::AllreduceOptions& options) {
  check_one(tensors.size());
  const bool is_mean = options.reduceOp == c10d::ReduceOp::AVG;
  if (!is_mean && options.reduceOp != c10d::ReduceOp::SUM)
    refuse_call(ErrorCode::kUnsupported, "sparse tensors can be summed and averaged, nothing else");
  if (!tensors[0].is_sparse() || !tensors[0].device().is_cpu())
    refuse_call(ErrorCode::kUnsupported, "a sum of sparse tensors takes COO tensors on the CPU");
  const at::Tensor own = tensors[0].coalesce();
  at::Tensor sum = sparse_of(0, own);
  for (int rank = 1; rank < getSize(); ++rank) sum = sum + sparse_of(rank, own);
  if (is_mean) sum = sum / getSize();
  tensors[0].copy_(sum.coalesce());
  return done(c10d::OpType::_ALLREDUCE_SPARSE, tensors);
}

ShmBackend::WorkPtr ShmBackend::begin_allreduce(const Tensors& tensors, const c10d::ReduceOp& op) {
  ++sequence_;
  return job_work(queue_->thread(),
                  queue_->begin([tensors, op](shm::ByteGroup& group) {
                    all_reduce_tensors(group, tensors, op);
                  }),
                  getRank(),
                  c10d::OpType::ALLREDUCE,
                  tensors);
}

ShmBackend::WorkPtr ShmBackend::allreduce_coalesced(
    Tensors& tensors, const c10d::AllreduceCoalescedOptions& options) {
  if (overlaps_ && queue_) return begin_allreduce(tensors, options.reduceOp);
  all_reduce_tensors(*group_, tensors, options.reduceOp);
  return done(c10d::OpType::ALLREDUCE, tensors);
}

ShmBackend::WorkPtr ShmBackend::reduce(Tensors& tensors, const c10d::ReduceOptions& options) {
  check_one(tensors.size());
  const auto root = static_cast<int>(options.rootRank);
  Target target(tensors[0]);
  const Numbers numbers(tensors[0], options.reduceOp);
  const at::Tensor operand = scaled(target.memory(), options.reduceOp);
  or_throw(group_->reduce(bytes_of(operand),
                          target.bytes(),
                          numbers.count,
                          numbers.type,
                          reduce_op_of(options.reduceOp),
                          root));
  if (getRank() == root) target.settle();
  return done(c10d::OpType::REDUCE, tensors);
}

void ShmBackend::all_gather_pieces(const at::Tensor& input, const Tensors& outputs) {
  check_parts(outputs, input, getSize());
  const at::Tensor source = source_of(input);
  std::vector<Target> targets = targets_of(outputs);
  or_throw(
      group_->all_gather(bytes_of(source), bytes_of(targets), source.nbytes(), name_of(source)));
  for (Target& target : targets) target.settle();
}

ShmBackend::WorkPtr ShmBackend::allgather(std::vector<Tensors>& outputs,
                                          Tensors& inputs,
                                          const c10d::AllgatherOptions&) {
  check_one(inputs.size());
  check_one(outputs.size());
  all_gather_pieces(inputs[0], outputs[0]);
  return done(c10d::OpType::ALLGATHER, outputs[0]);
}

ShmBackend::WorkPtr ShmBackend::_allgather_base(at::Tensor& output,
                                                at::Tensor& input,
                                                const c10d::AllgatherOptions& options) {
  Tensors outputs = {output};
  Tensors inputs = {input};
  allgather_into_tensor_coalesced(outputs, inputs, options);
  return done(c10d::OpType::_ALLGATHER_BASE, outputs);
}

ShmBackend::WorkPtr ShmBackend::allgather_into_tensor_coalesced(Tensors& outputs,
                                                                Tensors& inputs,
                                                                const c10d::AllgatherOptions&) {
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    check_place(outputs.at(i));
    const at::Tensor memory = plain_memory_of(outputs[i]);
    all_gather_pieces(inputs[i], even_pieces(memory, inputs[i].numel()));
    copy_back(memory, outputs[i]);
  }
  return done(c10d::OpType::COALESCED, outputs);
}

// outputs[rank][i] is that rank's inputs[i].
ShmBackend::WorkPtr ShmBackend::allgather_coalesced(std::vector<Tensors>& outputs,
                                                    Tensors& inputs,
                                                    const c10d::AllgatherOptions&) {
  Tensors all;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    Tensors parts;
    for (Tensors& of_rank : outputs) parts.push_back(of_rank.at(i));
    all_gather_pieces(inputs[i], parts);
    all.insert(all.end(), parts.begin(), parts.end());
  }
  return done(c10d::OpType::ALLGATHER_COALESCED, std::move(all));
}

ShmBackend::WorkPtr ShmBackend::gather(std::vector<Tensors>& outputs,
                                       Tensors& inputs,
                                       const c10d::GatherOptions& options) {
  check_one(inputs.size());
  const auto root = static_cast<int>(options.rootRank);
  const at::Tensor source = source_of(inputs[0]);
  std::vector<Target> targets;
  if (getRank() == root) {
    check_one(outputs.size());
    check_parts(outputs[0], source, getSize());
    targets = targets_of(outputs[0]);
  }
  or_throw(
      group_->gather(bytes_of(source), bytes_of(targets), source.nbytes(), root, name_of(source)));
  for (Target& target : targets) target.settle();
  return done(c10d::OpType::GATHER, getRank() == root ? outputs[0] : Tensors());
}

ShmBackend::WorkPtr ShmBackend::scatter(Tensors& outputs,
                                        std::vector<Tensors>& inputs,
                                        const c10d::ScatterOptions& options) {
  check_one(outputs.size());
  const auto root = static_cast<int>(options.rootRank);
  Tensors sources;
  if (getRank() == root) {
    check_one(inputs.size());
    check_parts(inputs[0], outputs[0], getSize());
    for (const at::Tensor& input : inputs[0]) sources.push_back(source_of(input));
  }
  Target target(outputs[0]);
  or_throw(group_->scatter(
      sources_of(sources), target.bytes(), target.num_bytes(), root, name_of(outputs[0])));
  target.settle();
  return done(c10d::OpType::SCATTER, outputs);
}

void ShmBackend::reduce_scatter_pieces(const Tensors& inputs,
                                       at::Tensor& output,
                                       const c10d::ReduceOp& op) {
  check_parts(inputs, output, getSize());
  Tensors sources;
  const Numbers numbers(output, op);
  for (const at::Tensor& input : inputs) sources.push_back(scaled(source_of(input), op));
  Target target(output);
  or_throw(group_->reduce_scatter(
      sources_of(sources), target.bytes(), numbers.count, numbers.type, reduce_op_of(op)));
  target.settle();
}

ShmBackend::WorkPtr ShmBackend::reduce_scatter(Tensors& outputs,
                                               std::vector<Tensors>& inputs,
                                               const c10d::ReduceScatterOptions& options) {
  check_one(outputs.size());
  check_one(inputs.size());
  reduce_scatter_pieces(inputs[0], outputs[0], options.reduceOp);
  return done(c10d::OpType::REDUCE_SCATTER, outputs);
}

ShmBackend::WorkPtr ShmBackend::_reduce_scatter_base(at::Tensor& output,
                                                     at::Tensor& input,
                                                     const c10d::ReduceScatterOptions& options) {
  Tensors outputs = {output};
  Tensors inputs = {input};
  reduce_scatter_tensor_coalesced(outputs, inputs, options);
  return done(c10d::OpType::_REDUCE_SCATTER_BASE, outputs);
}

ShmBackend::WorkPtr ShmBackend::reduce_scatter_tensor_coalesced(
    Tensors& outputs, Tensors& inputs, const c10d::ReduceScatterOptions& options) {
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    const at::Tensor source = source_of(inputs.at(i));
    reduce_scatter_pieces(even_pieces(source, outputs[i].numel()), outputs[i], options.reduceOp);
  }
  return done(c10d::OpType::COALESCED, outputs);
}

// The sizes are compared by the group: another rank knows what it sends here.
void ShmBackend::all_to_all_pieces(const Tensors& inputs, const Tensors& outputs) {
  Tensors sources;
  std::vector<std::span<const std::byte>> in;
  std::vector<std::span<std::byte>> out;
  for (const at::Tensor& input : inputs) {
    sources.push_back(source_of(input));
    in.emplace_back(bytes_of(sources.back()), sources.back().nbytes());
  }
  std::vector<Target> targets = targets_of(outputs);
  for (const Target& target : targets) out.emplace_back(target.bytes(), target.num_bytes());
  or_throw(group_->all_to_all(in, out, inputs.empty() ? "" : name_of(inputs[0])));
  for (Target& target : targets) target.settle();
}

ShmBackend::WorkPtr ShmBackend::alltoall(Tensors& outputs,
                                         Tensors& inputs,
                                         const c10d::AllToAllOptions&) {
  for (const std::size_t num_tensors : {inputs.size(), outputs.size()}) {
    if (num_tensors == static_cast<std::size_t>(getSize())) continue;
    refuse_call(ErrorCode::kShapeMismatch,
                "all_to_all of " + std::to_string(num_tensors) + " tensors between " +
                    std::to_string(getSize()) + " ranks");
  }
  all_to_all_pieces(inputs, outputs);
  return done(c10d::OpType::ALLTOALL, outputs);
}

ShmBackend::Tensors ShmBackend::pieces_of(const at::Tensor& whole,
                                          const std::vector<std::int64_t>& splits) const {
  if (splits.empty()) return even_pieces(whole, whole.numel() / getSize());
  const std::int64_t rows = std::accumulate(splits.begin(), splits.end(), std::int64_t{0});
  const bool fits =
      static_cast<int>(splits.size()) == getSize() && whole.dim() > 0 && rows == whole.size(0) &&
      std::all_of(splits.begin(), splits.end(), [](auto split) { return split >= 0; });
  if (!fits) {
    refuse_call(ErrorCode::kShapeMismatch,
                std::to_string(splits.size()) + " splits with " + std::to_string(rows) +
                    " rows for " + std::to_string(getSize()) + " ranks and a tensor of " +
                    std::to_string(whole.dim() > 0 ? whole.size(0) : 1) + " rows");
  }
  Tensors pieces;
  std::int64_t begin = 0;
  for (const std::int64_t split : splits) {
    pieces.push_back(whole.narrow(0, begin, split));
    begin += split;
  }
  return pieces;
}

ShmBackend::WorkPtr ShmBackend::alltoall_base(at::Tensor& output,
                                              at::Tensor& input,
                                              std::vector<std::int64_t>& output_splits,
                                              std::vector<std::int64_t>& input_splits,
                                              const c10d::AllToAllOptions&) {
  const at::Tensor source = source_of(input);
  check_place(output);
  const at::Tensor memory = plain_memory_of(output);
  all_to_all_pieces(pieces_of(source, input_splits), pieces_of(memory, output_splits));
  copy_back(memory, output);
  return done(c10d::OpType::ALLTOALL_BASE, {output});
}

// ---- messages ----

ShmBackend::WorkPtr ShmBackend::send(Tensors& tensors, int to, int tag) {
  check_one(tensors.size());
  ++sequence_;
  return letter_work(group_, c10d::OpType::SEND, tensors[0], to, tag);
}

ShmBackend::WorkPtr ShmBackend::recv(Tensors& tensors, int from, int tag) {
  if (from == shm::kAnyRank)
    refuse_call(ErrorCode::kInvalidArgument, "recv names no rank", "call recvAnysource");
  return receive(tensors, from, tag);
}

ShmBackend::WorkPtr ShmBackend::recvAnysource(Tensors& tensors, int tag) {
  return receive(tensors, shm::kAnyRank, tag);
}

ShmBackend::WorkPtr ShmBackend::receive(Tensors& tensors, int from, int tag) {
  check_one(tensors.size());
  ++sequence_;
  const auto type = from == shm::kAnyRank ? c10d::OpType::RECVANYSOURCE : c10d::OpType::RECV;
  return letter_work(group_, type, tensors[0], from, tag);
}

}  // namespace accel
