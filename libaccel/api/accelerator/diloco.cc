// When fragments are exchanged and merged, and what of that goes into checkpoints.
//
// What is the same on all ranks (global parameters, outer optimizers, the count of steps, the mean of an exchange that has begun) is
// written once, by the rank that writes registered objects. What each rank has of its own is in its random states. A load takes
// both in, and puts them into place at its end (take_loaded()), after models and optimizers, which come from rank 0.
//
// An exchange that has begun when a checkpoint is made is waited for: its mean belongs to the state, so that a run which goes on has
// no exchange to repeat. The wait changes no number.

#include <exception>
#include <functional>
#include <initializer_list>
#include <iomanip>
#include <limits>
#include <memory>
#include <optional>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/grad_mode.h>
#include <torch/nn/module.h>

#include <accel/detail/sync_scopes.h>
#include <accel/diloco.h>
#include <accel/error.h>
#include <accel/logging.h>
#include <accel/operations.h>
#include <accel/state.h>
#include <accel/state_dict.h>

#include "libaccel/api/accelerator/local_training.h"
#include "libaccel/api/accelerator/model_runtime.h"
#include "libaccel/api/accelerator/outer_fragment.h"
#include "libaccel/engine/optim/model_fragments.h"
#include "libaccel/engine/process/agreement.h"
#include "libaccel/engine/process/background_mean.h"
#include "libaccel/engine/process/process_group.h"
#include "libaccel/engine/settings/settings_agreement.h"
#include "libaccel/interception/state_staging.h"
#include "libaccel/tensors/state_reader.h"

namespace accel {
namespace {

constexpr const char* kNameInMessages = "DiLoCo";
constexpr const char* kNumStepsKey = "num_steps";
constexpr const char* kMeanKey = "mean";  // of the exchange that has begun
constexpr const char* kRanksKey = "num_processes";
constexpr const char* kInnerPrefix = "inner.";
constexpr const char* kOwnPrefix = "own.";

struct NamedNumber {
  const char* name;
  std::int64_t value;
};

// Those that say when what happens: a run goes on with the same.
std::vector<NamedNumber> schedule_of(const DiLoCoOptions& options) {
  return {{"sync_every", options.sync_every},
          {"num_fragments", options.num_fragments},
          {"fragment_sync_delay", options.fragment_sync_delay}};
}

void require_same_on_all(const std::string& text, ProcessGroup* group) {
  if (group == nullptr) return;
  const auto other = first_deviation(
      text, sharding::first_differing_option, *group, "comparing the options of DiLoCo");
  if (!other) return;
  throw Error(ErrorCode::kInvalidArgument,
              "DiLoCoOptions of rank " + std::to_string(other->rank) + " " + other->difference,
              "give every rank the same DiLoCoOptions");
}

std::string numbers_text(const DiLoCoOptions& options) {
  std::ostringstream text;
  for (const auto& [name, value] : schedule_of(options)) text << name << ' ' << value << '\n';
  text << "fragment_update_alpha " << std::setprecision(std::numeric_limits<double>::max_digits10)
       << options.fragment_update_alpha << '\n';
  return text.str();
}

void require_option(bool holds, const char* name, const std::string& value, const char* expected) {
  if (holds) return;
  throw Error(ErrorCode::kInvalidArgument,
              std::string("DiLoCoOptions.") + name + " is " + value + ", expected " + expected);
}

FragmentSchedule checked_schedule(const DiLoCoOptions& options) {
  const auto require = [](bool holds, const char* name, int value, const std::string& expected) {
    require_option(holds, name, std::to_string(value), expected.c_str());
  };
  const int num_fragments = options.num_fragments;
  require(options.sync_every >= 1, "sync_every", options.sync_every, "at least 1");
  require(num_fragments >= 1, "num_fragments", num_fragments, "at least 1");
  require(options.sync_every % num_fragments == 0,
          "sync_every",
          options.sync_every,
          "a multiple of num_fragments, " + std::to_string(num_fragments));
  const int distance = options.sync_every / num_fragments;
  require(options.fragment_sync_delay >= 0 && options.fragment_sync_delay < distance,
          "fragment_sync_delay",
          options.fragment_sync_delay,
          "0 or above and less than sync_every / num_fragments, " + std::to_string(distance));
  require_option(options.fragment_update_alpha >= 0 && options.fragment_update_alpha <= 1,
                 "fragment_update_alpha",
                 std::to_string(options.fragment_update_alpha),
                 "0 to 1");
  return {.sync_every = options.sync_every,
          .num_fragments = num_fragments,
          .delay = options.fragment_sync_delay};
}

std::shared_ptr<ProcessGroup> group_of_several() {
  std::shared_ptr<ProcessGroup> group = PartialState::process_group();
  return group != nullptr && group->size() > 1 ? group : nullptr;
}

}  // namespace

struct DiLoCo::Impl final : detail::LocalTraining {
  Impl(const Accelerator& accelerator,
       std::shared_ptr<detail::ModelRuntime> model,
       AcceleratedOptimizer inner,
       const DiLoCoOptions& options);
  ~Impl() override { model_->set_local_training(nullptr); }

  void step();
  void finish();
  [[nodiscard]] std::int64_t num_steps() const noexcept { return num_steps_; }

  [[nodiscard]] Stateful& shared_state() noexcept override { return shared_; }
  [[nodiscard]] Stateful& own_state() noexcept override { return own_; }
  void take_loaded() override;

 private:
  // Hands what checkpoints ask of it to two functions.
  class State final : public Stateful {
   public:
    State(std::function<StateDict()> save, std::function<void(const StateDict&)> load)
        : save_(std::move(save)), load_(std::move(load)) {}
    [[nodiscard]] StateDict state_dict() const override { return save_(); }
    void load_state_dict(const StateDict& state) override { load_(state); }

   private:
    std::function<StateDict()> save_;
    std::function<void(const StateDict&)> load_;
  };

  void merge(std::size_t fragment, double alpha);
  [[nodiscard]] StateDict save_shared();
  void load_shared(const StateDict& state);
  [[nodiscard]] StateDict save_own() const;
  void load_own(const StateDict& state);
  // All parameters and buffers of the model, by name.
  void for_each_own(const std::function<void(const std::string&, const at::Tensor&)>& act) const;

  const Accelerator& accelerator_;
  std::shared_ptr<detail::ModelRuntime> model_;
  AcceleratedOptimizer inner_;
  DiLoCoOptions options_;
  std::shared_ptr<ProcessGroup> group_;  // nullptr: one process
  FragmentSchedule schedule_;
  std::vector<detail::OuterFragment> fragments_;
  std::optional<NoSyncScope> no_sync_;
  std::int64_t num_steps_ = 0;
  State shared_{[this] { return save_shared(); },
                [this](const StateDict& state) { load_shared(state); }};
  State own_{[this] { return save_own(); }, [this](const StateDict& state) { load_own(state); }};
  // Of a load, until its end.
  std::function<void()> put_shared_;
  std::function<void()> put_own_;
  std::optional<BackgroundMean> mean_;  // last: it ends before the rest
};

DiLoCo::Impl::Impl(const Accelerator& accelerator,
                   std::shared_ptr<detail::ModelRuntime> model,
                   AcceleratedOptimizer inner,
                   const DiLoCoOptions& options)
    : accelerator_(accelerator),
      model_(std::move(model)),
      inner_(std::move(inner)),
      options_(options),
      group_(group_of_several()) {
  require_same_on_all(numbers_text(options), group_.get());
  schedule_ = checked_schedule(options);
  for (auto& parameters : strided_fragments(*model_->module(), options.num_fragments))
    fragments_.emplace_back(std::move(parameters), options.outer_optimizer);
  require_same_on_all("outer_optimizer " + fragments_[0].describe_optimizer() + "\n", group_.get());
  mean_.emplace(group_ == nullptr ? nullptr : group_->twin());
  model_->set_local_training(this);
  no_sync_.emplace(std::initializer_list<detail::ModelRuntime*>{model_.get()});
}

void DiLoCo::Impl::step() {
  if (!accelerator_.sync_gradients()) return;
  ++num_steps_;
  if (const auto fragment = schedule_.begins_after(num_steps_))
    mean_->begin(fragments_[*fragment].outer_gradient());
  if (const auto fragment = schedule_.merged_after(num_steps_))
    merge(*fragment, options_.fragment_update_alpha);
}

void DiLoCo::Impl::merge(std::size_t fragment, double alpha) {
  fragments_[fragment].merge(mean_->take(), alpha);
}

void DiLoCo::Impl::finish() {
  if (mean_->has_begun()) {
    std::int64_t merged = num_steps_;
    while (!schedule_.merged_after(merged)) ++merged;
    merge(*schedule_.merged_after(merged), options_.fragment_update_alpha);
  }
  if (group_ == nullptr) return;
  // A fragment that has just become the global one is the same on all ranks, and its mean might round.
  const auto merged = options_.fragment_update_alpha == 0 && num_steps_ > 0
                          ? schedule_.merged_after(num_steps_)
                          : std::nullopt;
  std::vector<at::Tensor> parameters;
  for (std::size_t i = 0; i < fragments_.size(); ++i) {
    if (i == merged) continue;
    for (const NamedParameter& parameter : fragments_[i].parameters())
      parameters.push_back(parameter.tensor);
  }
  const at::NoGradGuard no_grad;
  const std::vector<at::Tensor> means = reduce(parameters, Reduction::kMean);
  before_state_is_written();
  for (std::size_t i = 0; i < means.size(); ++i) parameters[i].copy_(means[i]);
}

// ---- checkpoints

StateDict DiLoCo::Impl::save_shared() {
  StateDict state;
  for (const auto& [name, value] : schedule_of(options_)) state.values[name] = value;
  state.values[kNumStepsKey] = num_steps_;
  for (std::size_t i = 0; i < fragments_.size(); ++i)
    fragments_[i].save("fragment_" + std::to_string(i) + ".", state);
  if (mean_->has_begun()) state.tensors[kMeanKey] = mean_->wait();
  return state;
}

void DiLoCo::Impl::load_shared(const StateDict& state) {
  const StateReader reader(kNameInMessages, state);
  for (const auto& [name, value] : schedule_of(options_)) {
    const std::int64_t saved = reader.integer(name);
    if (saved == value) continue;
    throw Error(ErrorCode::kCheckpointMismatch,
                std::string("the checkpoint was made with ") + name + " " + std::to_string(saved) +
                    ", and it is " + std::to_string(value) + " now",
                std::string("set DiLoCoOptions.") + name + " to " + std::to_string(saved));
  }
  std::vector<std::function<void()>> actions;
  for (std::size_t i = 0; i < fragments_.size(); ++i)
    actions.push_back(fragments_[i].prepare_load("fragment_" + std::to_string(i) + ".", state));
  const std::int64_t num_steps = reader.integer(kNumStepsKey);
  const auto mean = state.tensors.find(kMeanKey);
  put_shared_ = [this,
                 num_steps,
                 actions = std::move(actions),
                 mean = mean == state.tensors.end() ? at::Tensor() : mean->second.clone()] {
    for (const auto& action : actions) action();
    num_steps_ = num_steps;
    mean_->restore(mean);
  };
}

void DiLoCo::Impl::for_each_own(
    const std::function<void(const std::string&, const at::Tensor&)>& act) const {
  for (const auto& item : model_->module()->named_parameters()) act(item.key(), item.value());
  for (const auto& item : model_->module()->named_buffers())
    if (item.value().defined()) act(item.key(), item.value());
}

StateDict DiLoCo::Impl::save_own() const {
  StateDict state;
  state.values[kRanksKey] = std::int64_t{accelerator_.num_processes()};
  for_each_own([&](const std::string& name, const at::Tensor& tensor) {
    state.tensors[kOwnPrefix + name] = tensor.detach();
  });
  detail::save_optimizer_to(kInnerPrefix, inner_.optimizer(), {model_->module().get()}, state);
  return state;
}

void DiLoCo::Impl::load_own(const StateDict& state) {
  const StateReader reader(kNameInMessages, state);
  if (reader.integer(kRanksKey) != accelerator_.num_processes()) return;
  std::vector<std::function<void()>> actions;
  for_each_own([&](const std::string& name, const at::Tensor& tensor) {
    actions.push_back(
        detail::prepare_copy(name, tensor.detach(), reader.tensor(kOwnPrefix + name)));
  });
  actions.push_back(detail::prepare_optimizer_load_from(
      kInnerPrefix, inner_.optimizer(), {model_->module().get()}, state, "the inner optimizer"));
  put_own_ = [actions = std::move(actions)] {
    for (const auto& action : actions) action();
  };
}

void DiLoCo::Impl::take_loaded() {
  const auto put_shared = std::exchange(put_shared_, nullptr);
  const auto put_own = std::exchange(put_own_, nullptr);
  if (put_shared) put_shared();
  const bool lacks_own = !put_own;
  const bool any_lacks =
      group_ == nullptr ? lacks_own : group_->begin_any(lacks_own, "going on with DiLoCo")();
  if (!any_lacks) return put_own();
  get_logger("accel").warning(
      "the checkpoint has no parameters of its own for each rank, or was made by another number of "
      "ranks: DiLoCo goes on from the global parameters");
  for (detail::OuterFragment& fragment : fragments_) fragment.reset_parameters();
}

// ---- the scope

DiLoCo::DiLoCo(const Accelerator& accelerator,
               std::shared_ptr<detail::ModelRuntime> model,
               const AcceleratedOptimizer& inner_optimizer,
               const DiLoCoOptions& options)
    : exceptions_(std::uncaught_exceptions()) {
  detail::refuse_divided(accelerator, kNameInMessages);
  detail::refuse_steps_in_common(accelerator, kNameInMessages);
  impl_ = std::make_unique<Impl>(accelerator, std::move(model), inner_optimizer, options);
}

DiLoCo::~DiLoCo() noexcept(false) {
  if (std::uncaught_exceptions() == exceptions_) impl_->finish();
}

void DiLoCo::step() {
  impl_->step();
}

std::int64_t DiLoCo::num_steps() const noexcept {
  return impl_->num_steps();
}

}  // namespace accel
