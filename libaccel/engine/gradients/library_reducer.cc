// c10d::Reducer hooks the gradient accumulator of every parameter. prepare_for_backward() arms the hooks; backward then fills
// the buckets and all-reduces each when it is full, and the last one waits for all. A forward without prepare_for_backward()
// leaves the hooks idle, so gradients only add up locally: that is what accumulation and no_sync use.
//
// With find_unused_parameters or static_graph the outputs pass through an autograd node of ours. It keeps undefined gradients
// undefined (an output that the loss does not use), and for a static graph it puts the all-reduce of the first step at the end
// of backward, since the number of uses of each parameter is only known then.
//
// A parameter without a gradient leaves the reduction open; with a static graph the Reducer says so at the next forward, with
// indices. They are turned into names here. The text it is read from belongs to the pinned LibTorch 2.11; ddp_test notices
// when it changes.
//
// This file alone includes reducer.hpp.

#include "libaccel/engine/gradients/library_reducer.h"

#include <algorithm>
#include <limits>
#include <sstream>
#include <string>
#include <unordered_map>
#include <utility>

#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/distributed/c10d/comm.hpp>
#include <torch/csrc/distributed/c10d/logger.hpp>
#include <torch/csrc/distributed/c10d/reducer.hpp>

#include <accel/error.h>

#include "libaccel/engine/gradients/communication_hooks.h"
#include "libaccel/engine/process/process_group.h"
#include "libaccel/interception/backward_hooks.h"

namespace accel {
namespace {

constexpr std::int64_t kFirstBucketBytes = c10d::kDefaultFirstBucketBytes;

std::vector<at::Tensor> tensors_of(const std::vector<NamedParameter>& parameters) {
  std::vector<at::Tensor> tensors;
  for (const NamedParameter& parameter : parameters) tensors.push_back(parameter.tensor);
  return tensors;
}

std::vector<bool> sparse_flags(const std::vector<NamedParameter>& parameters) {
  std::vector<bool> flags;
  for (const NamedParameter& parameter : parameters)
    flags.push_back(parameter.expects_sparse_gradient);
  return flags;
}

// The numbers after "did not receive grad for rank N:" in the Reducer's complaint.
std::vector<std::size_t> unused_indices(const std::string& complaint) {
  const std::string_view marker = "did not receive grad for rank";
  const std::size_t found = complaint.find(marker);
  if (found == std::string::npos) return {};
  std::istringstream rest(complaint.substr(found + marker.size()));
  std::string rank_and_colon;
  rest >> rank_and_colon;
  std::vector<std::size_t> indices;
  for (std::size_t index = 0; rest >> index;) indices.push_back(index);
  return indices;
}

// Passes gradients back unchanged, undefined ones included, after calling start(). One node for all outputs:
// when the loss uses some of them only, the others' gradients still arrive, undefined, and so do those of
// the parameters behind them. (torch::autograd::Function sees no tensors inside a list.)
class BackwardGate final : public torch::autograd::Node {
 public:
  explicit BackwardGate(std::function<void()> start) : start_(std::move(start)) {}

  torch::autograd::variable_list apply(torch::autograd::variable_list&& gradients) override {
    start_();
    return std::move(gradients);
  }

  // Replaces the outputs that have a history by copies whose gradients pass through a gate.
  static void insert(std::vector<at::Tensor>& outputs, std::function<void()> start) {
    std::vector<at::Tensor*> gated;
    torch::autograd::edge_list edges;
    for (at::Tensor& output : outputs) {
      if (output.grad_fn() == nullptr) continue;
      gated.push_back(&output);
      edges.push_back(torch::autograd::impl::gradient_edge(output));
    }
    if (gated.empty()) return;
    const std::shared_ptr<BackwardGate> gate(new BackwardGate(std::move(start)),
                                             torch::autograd::deleteNode);
    gate->set_next_edges(std::move(edges));
    for (at::Tensor* output : gated) {
      const at::NoGradGuard no_grad;
      *output = output->clone();
      torch::autograd::set_history(*output, gate);
    }
  }

 private:
  std::function<void()> start_;
};

// The hook ends before it returns: its future has its result.
class FinishedHook final : public c10d::CppCommHookInterface<CommunicationHook> {
 public:
  FinishedHook(CommunicationHook hook, CommunicationGroup ranks)
      : CppCommHookInterface(std::move(hook)), ranks_(std::move(ranks)) {}

  c10::intrusive_ptr<c10::ivalue::Future> runHook(c10d::GradBucket& bucket) override {
    GradientBucket own{.buffer = bucket.getBuffer(),
                       .parameters = bucket.getParameters(),
                       .index = bucket.getIndex(),
                       .is_last = bucket.isLast()};
    for (const at::Tensor& gradient : bucket.getGradients())
      own.offsets.push_back(gradient.storage_offset() - own.buffer.storage_offset());
    run_hook(state_, own, ranks_);
    auto result = c10::make_intrusive<c10::ivalue::Future>(c10::TensorType::get());
    result->markCompleted(bucket.getBuffer());
    return result;
  }

 private:
  CommunicationGroup ranks_;
};

}  // namespace

LibraryReducer::LibraryReducer(std::vector<NamedParameter> parameters,
                               std::shared_ptr<ProcessGroup> group,
                               const DistributedDataParallelKwargs& options,
                               CommunicationHook hook)
    : parameters_(std::move(parameters)),
      group_(std::move(group)),
      options_(options),
      hook_(std::move(hook)) {}

LibraryReducer::~LibraryReducer() {
  if (reducer_ != nullptr) reducer_->remove_autograd_hooks();
}

void LibraryReducer::connect() {
  if (reducer_ != nullptr) reducer_->remove_autograd_hooks();
  is_broken_ = first_static_backward_seen_ = false;
  const std::vector<bool> is_sparse = sparse_flags(parameters_);
  const auto cap_bytes = static_cast<std::int64_t>(options_.bucket_cap_mb * 1024 * 1024);
  // Without knowing the order of the gradients one bucket is right; the Reducer rebuilds them after
  // the first backward, when it knows. A changing graph never gets there and starts with small
  // ones.
  std::vector<std::size_t> limits{std::numeric_limits<std::size_t>::max() >> 1U};
  if (options_.find_unused_parameters && !options_.static_graph) {
    limits = {static_cast<std::size_t>(kFirstBucketBytes), static_cast<std::size_t>(cap_bytes)};
  }
  auto [buckets, bucket_limits] =
      c10d::compute_bucket_assignment_by_size(tensors_of(parameters_), limits, is_sparse);
  std::reverse(buckets.begin(),
               buckets.end());  // backward runs from the last parameter to the first
  std::unordered_map<std::size_t, std::string> names;
  for (std::size_t i = 0; i < parameters_.size(); ++i) names[i] = parameters_[i].name;
  guarded("preparing the model", [&, &buckets = buckets] {
    reducer_ =
        std::make_shared<c10d::Reducer>(tensors_of(parameters_),
                                        std::move(buckets),
                                        group_->c10d_group(),
                                        is_sparse,
                                        cap_bytes,
                                        options_.find_unused_parameters,
                                        options_.gradient_as_bucket_view,
                                        std::move(names),
                                        kFirstBucketBytes,
                                        /*skip_all_reduce_unused_params=*/false,
                                        /*use_python_reducer=*/false,
                                        /*bucket_bytes_cap_list=*/std::vector<std::int64_t>{});
    logger_ = std::make_shared<c10d::Logger>(reducer_);
    reducer_->set_logger(logger_);
    if (hook_) {
      reducer_->register_comm_hook(
          std::make_unique<FinishedHook>(hook_, CommunicationGroup(group_)));
    }
    if (options_.static_graph) reducer_->set_static_graph();
  });
}

void LibraryReducer::guarded(const char* operation, const std::function<void()>& call) const {
  try {
    call();
  } catch (const Error&) {
    throw;
  } catch (const std::exception& error) {
    const std::vector<std::size_t> unused = unused_indices(error.what());
    if (unused.empty())
      throw collective_error(error.what(), operation, group_->rank(), group_->size());
    throw missing_gradients(parameters_, unused, group_->rank());
  }
}

ExchangeState::Rules LibraryReducer::rules() const {
  using Missing = ExchangeState::Missing;
  return {.missing = looks_at_outputs() ? Missing::kIsFound : Missing::kIsRefused,
          .allows_second = options_.static_graph,
          .group_of = std::vector<std::size_t>(parameters_.size(), ExchangeState::kNoGroup)};
}

void LibraryReducer::before_forward(bool sync) {
  if (is_broken_) connect();
  guarded("preparing a forward pass", [&] {
    if (sync) reducer_->prepare_for_forward();
    reducer_->rebuild_buckets();
  });
}

void LibraryReducer::before_backward(bool exchanges, const std::vector<at::Tensor>& outputs) {
  if (!exchanges) return;
  const bool searches = options_.find_unused_parameters && !options_.static_graph;
  guarded("preparing a backward pass",
          [&] { reducer_->prepare_for_backward(searches ? outputs : std::vector<at::Tensor>{}); });
}

bool LibraryReducer::wants_outputs() const noexcept {
  return options_.static_graph ? !first_static_backward_seen_ : options_.find_unused_parameters;
}

void LibraryReducer::watch(const std::shared_ptr<LibraryReducer>& self,
                           std::vector<at::Tensor>& outputs,
                           std::function<void()> start) {
  if (!self->wants_outputs()) return;
  BackwardGate::insert(outputs,
                       [weak = std::weak_ptr<LibraryReducer>(self), start = std::move(start)] {
                         const std::shared_ptr<LibraryReducer> owner = weak.lock();
                         if (owner == nullptr) return;
                         start();
                         if (!owner->options_.static_graph) return;
                         if (std::exchange(owner->first_static_backward_seen_, true)) return;
                         interception::call_at_end_of_backward(
                             [reducer = owner->reducer_] { reducer->delay_all_reduce(); });
                       });
}

}  // namespace accel
