// How gradients meet.
//
// c10d::Reducer hooks the gradient accumulator of every parameter. prepare_for_backward() arms the
// hooks; backward then fills the buckets and all-reduces each when it is full, and the last one
// waits for all. A forward without prepare_for_backward() leaves the hooks idle, so gradients only
// add up locally: that is what accumulation and no_sync use.
//
// The order of calls is that of Python's DistributedDataParallel, so that losses are equal to the
// bit: before forward {prepare_for_forward, rebuild buckets once, broadcast buffers}, after it
// prepare_for_backward. Like there, the buffers are only sent when the forward before synchronised.
//
// With find_unused_parameters or static_graph the outputs pass through an autograd node of ours. It
// keeps undefined gradients undefined (an output that the loss does not use), and for a static
// graph it puts the all-reduce of the first step at the end of backward, since the number of uses
// of each parameter is only known then.
//
// A parameter without a gradient leaves the reduction open; the Reducer says so at the next
// forward, with indices. They are turned into names here. The text it is read from belongs to the
// pinned LibTorch 2.11; ddp_test notices when it changes.
//
// A forward of the module itself, past the prepared model (model->forward(x), the handle of before, a method of the module's
// own), tells nobody that a backward will come. So hooks of this class sit before the reducer's and arm it at the first gradient
// that no forward has announced; what is still missing when that backward ends is named then, and the buffers of rank 0 are
// sent. find_unused_parameters and static_graph look at outputs, so there such a backward is refused.
//
//   gradients come   enters on                                        leaves on
//   kUndecided       start; the end of a backward that was local,     a forward; the first gradient -> kReduced
//                    or brought all gradients
//   kLocal           a forward without sync                           the end of its backward; a forward with sync
//   kReduced         a forward with sync; sync_next_backward()        the end of the backward that brings the last gradient;
//                                                                     abandon_backward()
//
// Where ranks share memory and nothing unusual is asked for, GradientBuckets takes the place of c10d::Reducer, called in the
// same order.
//
// This file alone includes reducer.hpp.

#include "libaccel/engine/gradients/ddp_reducer.h"

#include <algorithm>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <sstream>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/distributed/c10d/logger.hpp>
#include <torch/csrc/distributed/c10d/reducer.hpp>
#include <torch/nn/module.h>

#include <accel/error.h>

#include "libaccel/engine/gradients/gradient_buckets.h"
#include "libaccel/engine/gradients/gradient_hooks.h"
#include "libaccel/engine/process/model_comparison.h"
#include "libaccel/interception/backward_hooks.h"
#include "libaccel/tensors/parameter_list.h"
#include "libaccel/tensors/unique_parameters.h"

namespace accel {
namespace {

constexpr std::size_t kBroadcastBytes = std::size_t{250} << 20;  // of one message, as in Python
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

// Tensors without history that can be sent: Gloo knows no bool.
std::vector<at::Tensor> sendable(const std::vector<at::Tensor>& tensors) {
  std::vector<at::Tensor> views;
  for (const at::Tensor& tensor : tensors) {
    if (!tensor.defined() || tensor.numel() == 0) continue;
    const at::Tensor detached = tensor.detach();
    views.push_back(detached.scalar_type() == at::kBool ? detached.view(at::kByte) : detached);
  }
  return views;
}

// The name of the first parameter that requires a gradient and is not `known`. Cost: 25 to 45 us for the 144 parameters of a
// transformer of 12 layers, whose forward of 8 positions of width 64 takes 3 ms. Looking without names is hardly cheaper:
// LibTorch copies its dictionaries all the same.
std::optional<std::string> added_parameter(
    const torch::nn::Module& module, const std::unordered_set<const c10::TensorImpl*>& known) {
  for (const auto& item : module.named_parameters(/*recurse=*/false)) {
    const at::Tensor& tensor = item.value();
    if (tensor.defined() && tensor.requires_grad() && !known.contains(tensor.unsafeGetTensorImpl()))
      return item.key();
  }
  for (const auto& child : module.named_children()) {
    const auto added = added_parameter(*child.value(), known);
    if (added) return child.key() + "." + *added;
  }
  return std::nullopt;
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

}  // namespace

struct DdpReducer::Impl : std::enable_shared_from_this<DdpReducer::Impl> {
  std::shared_ptr<ProcessGroup> group;
  DistributedDataParallelKwargs options;
  std::weak_ptr<const torch::nn::Module> module;
  std::vector<NamedParameter> parameters;  // in the reducer's order
  std::unordered_set<const c10::TensorImpl*> trained;
  std::vector<at::Tensor> buffers;
  std::unique_ptr<GradientBuckets> gradients;  // or, where these cannot serve:
  std::shared_ptr<c10d::Reducer> reducer;
  std::shared_ptr<c10d::Logger> logger;  // the Reducer calls it unasked when the graph changes
  bool sync_in_backward = true;
  bool buffers_are_due = true;  // the forward before synchronised
  bool first_static_backward_seen = false;
  bool was_abandoned = false;  // the reducer waits for the rest of a backward that will not come

  enum class Coming { kUndecided, kLocal, kReduced };
  Coming coming = Coming::kUndecided;
  bool end_is_awaited = false;  // of the backward that runs
  std::vector<bool> arrived;    // by parameter, since expect()
  std::size_t num_arrived = 0;
  std::optional<GradientHooks> hooks;

  void broadcast(const std::vector<at::Tensor>& tensors, const char* operation) {
    guarded(operation, [&] {
      c10d::broadcast_coalesced(group->c10d_group(), tensors, kBroadcastBytes, /*rank=*/0);
    });
  }

  // Runs a call into c10d and says in our words what went wrong.
  template <typename F>
  void guarded(const char* operation, F&& call) {
    try {
      std::forward<F>(call)();
    } catch (const Error&) {
      throw;
    } catch (const std::exception& error) {
      const std::vector<std::size_t> unused = unused_indices(error.what());
      if (unused.empty()) {
        throw collective_error(error.what(), operation, group->rank(), group->size());
      }
      throw unused_error(unused);
    }
  }

  // In place of the present one, if any. Every rank does it at the same place.
  void make_reducer();
  void make_c10d_reducer();

  // Throws when the backward before was not complete.
  void prepare_for_forward();
  void prepare_for_backward(const std::vector<at::Tensor>& outputs);

  [[nodiscard]] bool looks_at_outputs() const noexcept {
    return options.find_unused_parameters || options.static_graph;
  }
  void expect(Coming gradients);
  void on_gradient(std::size_t parameter);
  // Arms the reducer in a backward.
  void arm_late(std::size_t parameter);
  void await_end(bool is_late);
  void end_backward(bool is_late);
  void send_buffers();

  // The Reducer would leave it out, and each rank train its own.
  void refuse_added_parameters() const {
    const auto owner = module.lock();
    if (owner == nullptr) return;
    const auto added = added_parameter(*owner, trained);
    if (!added) return;
    throw Error(ErrorCode::kUnsupported,
                "the parameter " + *added +
                    " was added or unfrozen after prepare(): it would not be trained alike on all "
                    "ranks",
                "register and unfreeze parameters before prepare()");
  }

  [[nodiscard]] Error unused_error(const std::vector<std::size_t>& unused) const {
    std::string listed;
    for (const std::size_t index : unused) {
      if (!listed.empty()) listed += ", ";
      listed += index < parameters.size() ? parameters[index].name : std::to_string(index);
    }
    return Error(ErrorCode::kInvalidArgument,
                 "the backward pass before gave these parameters no gradient on rank " +
                     std::to_string(group->rank()) + ": " + listed,
                 "use them in the loss, freeze them with set_requires_grad(false), or set "
                 "AcceleratorOptions.ddp.find_unused_parameters = true");
  }
};

namespace {

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

}  // namespace

DdpReducer::DdpReducer(const torch::nn::Module& module,
                       std::shared_ptr<ProcessGroup> group,
                       const DistributedDataParallelKwargs& options,
                       FirstState first_state)
    : impl_(std::make_shared<Impl>()) {
  const double cap = options.bucket_cap_mb * 1024 * 1024;
  constexpr auto kMaxCap = static_cast<double>(std::numeric_limits<std::int64_t>::max());
  if (!(cap > 0 && cap < kMaxCap)) {  // nor NaN
    throw Error(ErrorCode::kInvalidArgument,
                "bucket_cap_mb is " + std::to_string(options.bucket_cap_mb) +
                    ", expected a finite number above 0");
  }
  const bool sends_buffers = first_state == FirstState::kIsSent || options.broadcast_buffers;
  verify_same_models(module, sends_buffers ? Buffers::kCompared : Buffers::kOwn, *group);
  impl_->parameters = trainable_parameters(module);
  impl_->group = std::move(group);
  impl_->options = options;
  impl_->module = module.weak_from_this();
  for (const NamedParameter& parameter : impl_->parameters)
    impl_->trained.insert(parameter.tensor.unsafeGetTensorImpl());
  if (options.broadcast_buffers) impl_->buffers = sendable(module.buffers());

  if (first_state == FirstState::kIsSent) {
    std::vector<at::Tensor> states = sendable(unique_parameters(module.parameters()));
    for (const at::Tensor& buffer : sendable(module.buffers())) states.push_back(buffer);
    impl_->broadcast(states, "sending the model of rank 0 to all ranks");
  }
  // Before the reducer's.
  impl_->arrived.assign(impl_->parameters.size(), false);
  impl_->hooks.emplace(impl_->parameters,
                       [impl = impl_.get()](std::size_t parameter, const at::Tensor& /*arrived*/) {
                         impl->on_gradient(parameter);
                       });
  impl_->make_reducer();
}

void DdpReducer::Impl::make_reducer() {
  const bool is_usual =
      !options.find_unused_parameters && !options.static_graph && options.gradient_as_bucket_view;
  was_abandoned = false;
  if (!is_usual || !GradientBuckets::can_serve(parameters, *group)) return make_c10d_reducer();
  if (gradients != nullptr) return gradients->abandon();
  const double cap_bytes = options.bucket_cap_mb * 1024 * 1024;
  gradients =
      std::make_unique<GradientBuckets>(parameters, group, static_cast<std::int64_t>(cap_bytes));
}

void DdpReducer::Impl::make_c10d_reducer() {
  if (reducer != nullptr) reducer->remove_autograd_hooks();
  first_static_backward_seen = false;
  const std::vector<bool> is_sparse = sparse_flags(parameters);
  const auto cap_bytes = static_cast<std::int64_t>(options.bucket_cap_mb * 1024 * 1024);
  // Without knowing the order of the gradients one bucket is right; the Reducer rebuilds them after
  // the first backward, when it knows. A changing graph never gets there and starts with small
  // ones.
  std::vector<std::size_t> limits{std::numeric_limits<std::size_t>::max() >> 1U};
  if (options.find_unused_parameters && !options.static_graph) {
    limits = {static_cast<std::size_t>(kFirstBucketBytes), static_cast<std::size_t>(cap_bytes)};
  }
  auto [buckets, bucket_limits] =
      c10d::compute_bucket_assignment_by_size(tensors_of(parameters), limits, is_sparse);
  std::reverse(buckets.begin(),
               buckets.end());  // backward runs from the last parameter to the first
  std::unordered_map<std::size_t, std::string> names;
  for (std::size_t i = 0; i < parameters.size(); ++i) names[i] = parameters[i].name;
  guarded("preparing the model", [&] {
    reducer =
        std::make_shared<c10d::Reducer>(tensors_of(parameters),
                                        std::move(buckets),
                                        group->c10d_group(),
                                        is_sparse,
                                        cap_bytes,
                                        options.find_unused_parameters,
                                        options.gradient_as_bucket_view,
                                        std::move(names),
                                        kFirstBucketBytes,
                                        /*skip_all_reduce_unused_params=*/false,
                                        /*use_python_reducer=*/false,
                                        /*bucket_bytes_cap_list=*/std::vector<std::int64_t>{});
    logger = std::make_shared<c10d::Logger>(reducer);
    reducer->set_logger(logger);
    if (options.static_graph) reducer->set_static_graph();
  });
}

void DdpReducer::Impl::prepare_for_forward() {
  if (gradients == nullptr) {
    guarded("preparing a forward pass", [&] {
      if (sync_in_backward) reducer->prepare_for_forward();
      reducer->rebuild_buckets();
    });
    return;
  }
  const std::vector<std::size_t> missing = gradients->missing();
  if (!missing.empty()) throw unused_error(missing);
}

void DdpReducer::Impl::prepare_for_backward(const std::vector<at::Tensor>& outputs) {
  expect(Coming::kReduced);
  if (gradients != nullptr) return gradients->arm();
  guarded("preparing a backward pass", [&] { reducer->prepare_for_backward(outputs); });
}

void DdpReducer::Impl::expect(Coming gradients_to_come) {
  coming = gradients_to_come;
  end_is_awaited = false;  // an exception may have ended the backward before
  arrived.assign(parameters.size(), false);
  num_arrived = 0;
}

void DdpReducer::Impl::on_gradient(std::size_t parameter) {
  if (coming == Coming::kUndecided) {
    if (!sync_in_backward) return;
    arm_late(parameter);
    await_end(/*is_late=*/true);
  }
  // c10d::Reducer would leave it as it is.
  if (arrived[parameter] && coming == Coming::kReduced && options.find_unused_parameters &&
      !options.static_graph)
    throw second_gradient(parameters[parameter]);
  if (!arrived[parameter]) ++num_arrived;
  arrived[parameter] = true;
  if (coming == Coming::kLocal || looks_at_outputs() || num_arrived == parameters.size())
    await_end(/*is_late=*/false);
}

void DdpReducer::Impl::arm_late(std::size_t parameter) {
  const auto refuse = [&](const std::string& why) {
    throw Error(
        ErrorCode::kInvalidArgument,
        "the parameter " + parameters[parameter].name +
            " got a gradient from a forward of the module itself, " + why,
        "write model(x) or model.forward(x), with the model that prepare() returned, in place "
        "of model->forward(x)");
  };
  if (looks_at_outputs())
    refuse("whose outputs find_unused_parameters and static_graph have not seen");
  if (was_abandoned) {
    if (reducer != nullptr) refuse("after a backward that an exception ended");
    make_reducer();
  }
  refuse_added_parameters();
  prepare_for_forward();
  prepare_for_backward({});
}

// Called again for a backward, it does nothing.
void DdpReducer::Impl::await_end(bool is_late) {
  if (std::exchange(end_is_awaited, true)) return;
  interception::call_at_end_of_backward([weak = weak_from_this(), is_late] {
    if (const auto owner = weak.lock()) owner->end_backward(is_late);
  });
}

void DdpReducer::Impl::end_backward(bool is_late) {
  end_is_awaited = false;
  const bool was_reduced = coming == Coming::kReduced;
  coming = Coming::kUndecided;
  if (!is_late || !was_reduced) return;
  std::vector<std::size_t> missing;
  for (std::size_t i = 0; i < arrived.size(); ++i) {
    if (!arrived[i]) missing.push_back(i);
  }
  was_abandoned = !missing.empty();
  if (was_abandoned) throw unused_error(missing);
  send_buffers();
  buffers_are_due = false;
}

void DdpReducer::Impl::send_buffers() {
  if (!buffers.empty()) broadcast(buffers, "sending the buffers of rank 0 to all ranks");
}

DdpReducer::~DdpReducer() {
  if (impl_->reducer != nullptr) impl_->reducer->remove_autograd_hooks();
}

void DdpReducer::before_forward() {
  Impl& impl = *impl_;
  const bool grad_enabled = at::GradMode::is_enabled();
  if (grad_enabled) {
    impl.refuse_added_parameters();
    if (impl.was_abandoned) impl.make_reducer();
    impl.prepare_for_forward();
  }
  if (impl.buffers_are_due) impl.send_buffers();
}

bool DdpReducer::wants_outputs() const noexcept {
  const DistributedDataParallelKwargs& options = impl_->options;
  return options.static_graph ? !impl_->first_static_backward_seen : options.find_unused_parameters;
}

void DdpReducer::after_forward(std::vector<at::Tensor>& outputs) {
  Impl& impl = *impl_;
  impl.buffers_are_due = at::GradMode::is_enabled() && impl.sync_in_backward;
  if (impl.buffers_are_due) {
    const bool searches = impl.options.find_unused_parameters && !impl.options.static_graph;
    impl.prepare_for_backward(searches ? outputs : std::vector<at::Tensor>{});
  } else if (at::GradMode::is_enabled()) {
    impl.expect(Impl::Coming::kLocal);
  }
  if (!at::GradMode::is_enabled() || !wants_outputs()) return;

  BackwardGate::insert(outputs, [weak = std::weak_ptr<Impl>(impl_), coming = impl.coming] {
    const std::shared_ptr<Impl> owner = weak.lock();
    if (owner == nullptr) return;
    if (owner->coming == Impl::Coming::kUndecided) owner->coming = coming;  // a second backward
    if (!owner->options.static_graph) return;
    if (std::exchange(owner->first_static_backward_seen, true)) return;
    interception::call_at_end_of_backward(
        [reducer = owner->reducer] { reducer->delay_all_reduce(); });
  });
}

// Without sync nothing was begun, and the other ranks need not know.
void DdpReducer::abandon_backward() noexcept {
  if (impl_->sync_in_backward) impl_->was_abandoned = true;
  impl_->coming = Impl::Coming::kUndecided;
  impl_->end_is_awaited = false;
}

bool DdpReducer::set_sync_in_backward(bool sync) noexcept {
  return std::exchange(impl_->sync_in_backward, sync);
}

void DdpReducer::sync_next_backward() {
  impl_->sync_in_backward = true;
  impl_->prepare_for_backward({});
}

}  // namespace accel
