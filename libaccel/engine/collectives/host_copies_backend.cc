#include "libaccel/engine/collectives/host_copies_backend.h"

#include <cstddef>
#include <utility>

#include "libaccel/engine/collectives/shm_work.h"

namespace accel {
namespace {

using TensorRow = HostCopiesBackend::Tensors;

// Contiguous, with the values; waits for the device. A copy also of what is on the CPU, so that tests see the copies.
at::Tensor on_host(const at::Tensor& tensor) {
  return at::empty(tensor.sizes(), tensor.options().device(at::kCPU).requires_grad(false))
      .copy_(tensor.detach());
}

// For values that are to come.
at::Tensor room_on_host(const at::Tensor& tensor) {
  return at::empty(tensor.sizes(), tensor.options().device(at::kCPU).requires_grad(false));
}

template <typename Copy>
TensorRow each(const TensorRow& tensors, Copy copy) {
  TensorRow copies;
  copies.reserve(tensors.size());
  for (const at::Tensor& tensor : tensors) copies.push_back(copy(tensor));
  return copies;
}

template <typename Copy>
std::vector<TensorRow> each_of(const std::vector<TensorRow>& lists, Copy copy) {
  std::vector<TensorRow> copies;
  copies.reserve(lists.size());
  for (const TensorRow& tensors : lists) copies.push_back(each(tensors, copy));
  return copies;
}

void put_back(const TensorRow& host, const TensorRow& tensors) {
  for (std::size_t i = 0; i < tensors.size(); ++i) tensors[i].detach().copy_(host[i]);
}

void put_back(const std::vector<TensorRow>& host, const std::vector<TensorRow>& tensors) {
  for (std::size_t i = 0; i < tensors.size(); ++i) put_back(host[i], tensors[i]);
}

TensorRow all_of(const std::vector<TensorRow>& lists) {
  TensorRow all;
  for (const TensorRow& tensors : lists) all.insert(all.end(), tensors.begin(), tensors.end());
  return all;
}

}  // namespace

HostCopiesBackend::HostCopiesBackend(c10::intrusive_ptr<c10d::Backend> host)
    : c10d::Backend(host->getRank(), host->getSize()), host_(std::move(host)) {}

HostCopiesBackend::WorkPtr HostCopiesBackend::done(c10d::OpType type, Tensors results) {
  ++sequence_;
  return completed_work(getRank(), type, std::move(results));
}

HostCopiesBackend::WorkPtr HostCopiesBackend::broadcast(Tensors& tensors,
                                                        const c10d::BroadcastOptions& options) {
  Tensors host = each(tensors, on_host);
  host_->broadcast(host, options)->wait();
  put_back(host, tensors);
  return done(c10d::OpType::BROADCAST, tensors);
}

HostCopiesBackend::WorkPtr HostCopiesBackend::allreduce(Tensors& tensors,
                                                        const c10d::AllreduceOptions& options) {
  Tensors host = each(tensors, on_host);
  host_->allreduce(host, options)->wait();
  put_back(host, tensors);
  return done(c10d::OpType::ALLREDUCE, tensors);
}

HostCopiesBackend::WorkPtr HostCopiesBackend::allreduce_coalesced(
    Tensors& tensors, const c10d::AllreduceCoalescedOptions& options) {
  Tensors host = each(tensors, on_host);
  host_->allreduce_coalesced(host, options)->wait();
  put_back(host, tensors);
  return done(c10d::OpType::ALLREDUCE_COALESCED, tensors);
}

HostCopiesBackend::WorkPtr HostCopiesBackend::reduce(Tensors& tensors,
                                                     const c10d::ReduceOptions& options) {
  Tensors host = each(tensors, on_host);
  host_->reduce(host, options)->wait();
  if (getRank() == options.rootRank) put_back(host, tensors);
  return done(c10d::OpType::REDUCE, tensors);
}

HostCopiesBackend::WorkPtr HostCopiesBackend::allgather(std::vector<Tensors>& outputs,
                                                        Tensors& inputs,
                                                        const c10d::AllgatherOptions& options) {
  auto host = each_of(outputs, room_on_host);
  Tensors from = each(inputs, on_host);
  host_->allgather(host, from, options)->wait();
  put_back(host, outputs);
  return done(c10d::OpType::ALLGATHER, all_of(outputs));
}

HostCopiesBackend::WorkPtr HostCopiesBackend::_allgather_base(
    at::Tensor& output, at::Tensor& input, const c10d::AllgatherOptions& options) {
  at::Tensor host = room_on_host(output);
  at::Tensor from = on_host(input);
  host_->_allgather_base(host, from, options)->wait();
  put_back(Tensors{host}, Tensors{output});
  return done(c10d::OpType::_ALLGATHER_BASE, {output});
}

HostCopiesBackend::WorkPtr HostCopiesBackend::gather(std::vector<Tensors>& outputs,
                                                     Tensors& inputs,
                                                     const c10d::GatherOptions& options) {
  auto host = each_of(outputs, room_on_host);
  Tensors from = each(inputs, on_host);
  host_->gather(host, from, options)->wait();
  put_back(host, outputs);
  return done(c10d::OpType::GATHER, all_of(outputs));
}

HostCopiesBackend::WorkPtr HostCopiesBackend::scatter(Tensors& outputs,
                                                      std::vector<Tensors>& inputs,
                                                      const c10d::ScatterOptions& options) {
  Tensors host = each(outputs, room_on_host);
  auto from = each_of(inputs, on_host);
  host_->scatter(host, from, options)->wait();
  put_back(host, outputs);
  return done(c10d::OpType::SCATTER, outputs);
}

HostCopiesBackend::WorkPtr HostCopiesBackend::reduce_scatter(
    Tensors& outputs, std::vector<Tensors>& inputs, const c10d::ReduceScatterOptions& options) {
  Tensors host = each(outputs, room_on_host);
  auto from = each_of(inputs, on_host);
  host_->reduce_scatter(host, from, options)->wait();
  put_back(host, outputs);
  return done(c10d::OpType::REDUCE_SCATTER, outputs);
}

HostCopiesBackend::WorkPtr HostCopiesBackend::_reduce_scatter_base(
    at::Tensor& output, at::Tensor& input, const c10d::ReduceScatterOptions& options) {
  at::Tensor host = room_on_host(output);
  at::Tensor from = on_host(input);
  host_->_reduce_scatter_base(host, from, options)->wait();
  put_back(Tensors{host}, Tensors{output});
  return done(c10d::OpType::_REDUCE_SCATTER_BASE, {output});
}

HostCopiesBackend::WorkPtr HostCopiesBackend::alltoall_base(
    at::Tensor& output,
    at::Tensor& input,
    std::vector<std::int64_t>& output_splits,
    std::vector<std::int64_t>& input_splits,
    const c10d::AllToAllOptions& options) {
  at::Tensor host = room_on_host(output);
  at::Tensor from = on_host(input);
  host_->alltoall_base(host, from, output_splits, input_splits, options)->wait();
  put_back(Tensors{host}, Tensors{output});
  return done(c10d::OpType::ALLTOALL_BASE, {output});
}

HostCopiesBackend::WorkPtr HostCopiesBackend::alltoall(Tensors& outputs,
                                                       Tensors& inputs,
                                                       const c10d::AllToAllOptions& options) {
  Tensors host = each(outputs, room_on_host);
  Tensors from = each(inputs, on_host);
  host_->alltoall(host, from, options)->wait();
  put_back(host, outputs);
  return done(c10d::OpType::ALLTOALL, outputs);
}

// Ends when the message is on its way or taken, so a rank that sends and then receives needs a partner that receives first.
HostCopiesBackend::WorkPtr HostCopiesBackend::send(Tensors& tensors, int to, int tag) {
  Tensors host = each(tensors, on_host);
  host_->send(host, to, tag)->wait();
  return done(c10d::OpType::SEND, tensors);
}

HostCopiesBackend::WorkPtr HostCopiesBackend::recv(Tensors& tensors, int from, int tag) {
  Tensors host = each(tensors, room_on_host);
  host_->recv(host, from, tag)->wait();
  put_back(host, tensors);
  return done(c10d::OpType::RECV, tensors);
}

HostCopiesBackend::WorkPtr HostCopiesBackend::barrier(const c10d::BarrierOptions& options) {
  return host_->barrier(options);
}

}  // namespace accel
