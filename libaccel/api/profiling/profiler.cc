// A profiler's steps, as torch.profiler.profile makes them: what is done between two steps follows from what the schedule says of
// both.
//
//   from \ to       none    warmup            record                 end
//   none            -       prepare           prepare, start         -
//   warmup                  -                 start                  (thrown away)
//   record                                    -                      stop, ready
//   record, save    stop,   stop, ready,      stop, ready,           stop, ready
//                   ready   prepare           prepare, start

#include <exception>
#include <optional>
#include <string>
#include <system_error>
#include <utility>

#include <ATen/record_function.h>

#include <accel/accelerator.h>
#include <accel/error.h>
#include <accel/logging.h>
#include <accel/profiler.h>

#include "libaccel/api/accelerator/accelerator_impl.h"
#include "libaccel/api/profiling/key_averages.h"
#include "libaccel/api/profiling/kineto_recording.h"
#include "libaccel/api/profiling/operator_calls.h"
#include "libaccel/api/profiling/profile_schedule.h"
#include "libaccel/engine/process/process_group.h"

namespace accel {
namespace {

using profiling::ProfileAction;

constexpr const char* kStepName = "ProfilerStep#";

bool is_recording(ProfileAction action) {
  return action == ProfileAction::kRecord || action == ProfileAction::kRecordAndSave;
}

// What the trace says of itself, names and JSON.
std::vector<std::pair<std::string, std::string>> trace_metadata(const ProfileKwargs& kwargs) {
  std::vector<std::pair<std::string, std::string>> metadata;
  const std::pair<const char*, bool> flags[] = {{"profile_memory", kwargs.profile_memory},
                                                {"with_stack", kwargs.with_stack},
                                                {"record_shapes", kwargs.record_shapes},
                                                {"with_modules", kwargs.with_modules},
                                                {"with_flops", kwargs.with_flops}};
  for (const auto& [name, is_set] : flags)
    if (is_set) metadata.emplace_back(name, "1");
  if (const auto group = PartialState::process_group()) {
    metadata.emplace_back("distributedInfo",
                          "{\"backend\": \"" + group->backend() +
                              "\", \"rank\": " + std::to_string(group->rank()) +
                              ", \"world_size\": " + std::to_string(group->size()) + "}");
  }
  return metadata;
}

}  // namespace

struct Profiler::Impl {
  Impl(const ProfileKwargs& options, profiling::Activities activities)
      : kwargs(options), recording(std::in_place, options, std::move(activities)) {}

  // Returns whether a cycle is complete.
  bool leave(ProfileAction from, bool is_end) {
    if (from == ProfileAction::kRecordAndSave || (is_end && from == ProfileAction::kRecord)) {
      recording->stop();
      return true;
    }
    return false;
  }
  void enter(ProfileAction to) {
    if (to != ProfileAction::kNone && !recording->is_prepared()) recording->prepare();
    if (is_recording(to) && !recording->is_running()) recording->start(trace_metadata(kwargs));
    if (!kwargs.schedule_option) return;
    scope.emplace(at::RecordScope::USER_SCOPE);
    if (scope->isActive()) scope->before(kStepName + std::to_string(step));
  }

  ProfileKwargs kwargs;
  std::optional<profiling::KinetoRecording> recording;
  std::optional<at::RecordFunction> scope;  // of the step, with a schedule
  std::int64_t step = 0;
  ProfileAction action = ProfileAction::kNone;
  bool is_over = false;
  int exceptions = std::uncaught_exceptions();
};

Profiler::Profiler(const ProfileKwargs& kwargs) {
  if (kwargs.schedule_option) profiling::check_schedule(*kwargs.schedule_option);
  profiling::ChosenActivities chosen = profiling::activities_of(kwargs.activities);
  impl_ = std::make_unique<Impl>(kwargs, std::move(chosen.types));
  const Logger logger = get_logger("accel.profiler");
  if (chosen.is_cuda_missing) logger.warning("CUDA is not available, disabling CUDA profiling");
  if (kwargs.schedule_option && kwargs.schedule_option->warmup == 0)
    logger.warning("Profiler won't be using warmup, this can skew profiler results");
  impl_->action = profiling::action_of(kwargs.schedule_option, 0);
  impl_->enter(impl_->action);
}

Profiler::Profiler(Profiler&&) noexcept = default;

Profiler::~Profiler() {
  if (impl_ == nullptr) return;
  if (std::uncaught_exceptions() > impl_->exceptions) return;  // what was recorded is lost
  try {
    stop();
  } catch (const std::exception& error) {
    get_logger("accel.profiler")
        .error(std::string("the profiler could not end well: ") + error.what(),
               {.main_process_only = false});
  }
}

void Profiler::step() {
  if (impl_->is_over) return;
  impl_->scope.reset();
  const ProfileAction from = impl_->action;
  ++impl_->step;
  impl_->action = profiling::action_of(impl_->kwargs.schedule_option, impl_->step);
  if (impl_->leave(from, /*is_end=*/false) && impl_->kwargs.on_trace_ready)
    impl_->kwargs.on_trace_ready(*this);
  impl_->enter(impl_->action);
}

std::int64_t Profiler::step_num() const noexcept {
  return impl_->step;
}

void Profiler::stop() {
  if (impl_->is_over) return;
  impl_->is_over = true;
  impl_->scope.reset();
  const bool is_ready = impl_->leave(impl_->action, /*is_end=*/true);
  impl_->recording->end();
  if (is_ready && impl_->kwargs.on_trace_ready) impl_->kwargs.on_trace_ready(*this);
  if (!impl_->kwargs.output_trace_dir) return;
  const std::filesystem::path folder = *impl_->kwargs.output_trace_dir;
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error)
    throw Error(ErrorCode::kFileIo,
                "cannot make the folder " + folder.string() + ": " + error.message());
  const PartialState state;
  export_chrome_trace(folder / ("profile_" + std::to_string(state.process_index()) + ".json"));
  state.wait_for_everyone();
}

KeyAverages Profiler::key_averages(const KeyAveragesOptions& options) const {
  KeyAverages averages;
  averages.events_ =
      profiling::averages_of(profiling::operator_calls(impl_->recording->result()), options);
  averages.has_memory_ = impl_->kwargs.profile_memory;
  averages.has_flops_ = impl_->kwargs.with_flops;
  return averages;
}

void Profiler::export_chrome_trace(const std::filesystem::path& path) const {
  impl_->recording->save(path);
}

Profiler Accelerator::profile() const {
  return profile(impl_->preparation.options.profile);
}

Profiler Accelerator::profile(const ProfileKwargs& kwargs) const {
  return Profiler(kwargs);
}

}  // namespace accel
