// What an Accelerator does when its job has to make room, and at the boundaries where it does it.
//
// The boundary is the moment when a training loop asks a loader for its next batch: optimizer,
// scheduler and whatever the program counts have taken their step, and the loader's position says that
// the batch is done with. Inside optimizer.step() all of that is still half true. A boundary counts
// only when a backward pass came since the last one and nothing is being accumulated: loops that
// evaluate are not cut in two.

#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <string>
#include <tuple>

#include <accel/accelerator.h>
#include <accel/error.h>

#include "libaccel/api/accelerator/accelerator_impl.h"
#include "libaccel/engine/process/supervisor_link.h"

namespace accel {
namespace {

bool is_asked() noexcept {
  const WorkerChannel* const channel = detail::supervisor_channel();
  return channel != nullptr && channel->requests().has(WorkerRequest::kPreempt);
}

}  // namespace

void Accelerator::Impl::set_up_preemption() {
  if (options.preemption_exit_code < 1 || options.preemption_exit_code > 255) {
    throw Error(ErrorCode::kInvalidArgument,
                "preemption_exit_code is " + std::to_string(options.preemption_exit_code) +
                    ", expected 1 to 255");
  }
  if (options.on_preemption == OnPreemption::kStop) return;
  if (options.on_preemption == OnPreemption::kSaveAndExit) {
    if (project.project_dir.empty() || !project.automatic_checkpoint_naming) {
      throw Error(ErrorCode::kInvalidArgument,
                  "on_preemption = kSaveAndExit has no place to save to",
                  "set project_dir and project_config.automatic_checkpoint_naming");
    }
    preemption.emplace(state.process_group());
  }
  if (WorkerChannel* const channel = detail::supervisor_channel()) {
    channel->declare(WorkerAbility::kHandlesPreemption);
  }
}

void Accelerator::Impl::reach_boundary() {
  if (num_batches == boundary_batch || !gradient_state.sync_gradients()) return;
  boundary_batch = num_batches;
  if (preemption && preemption->is_due(is_asked())) save_and_exit();
  if (project.memory_checkpoint_every == 0) return;
  if (++steps_since_memory >= project.memory_checkpoint_every) save_in_memory();
}

void Accelerator::Impl::save_and_exit() {
  try {
    std::ignore = finish_save();
  } catch (const Error& error) {  // on all ranks
    logger.warning(std::string("the save before this one failed: ") + error.what());
  }
  const CheckpointInfo saved = save({});
  logger.warning("preempted: saved " + saved.folder.string() + ", ending with exit code " +
                 std::to_string(options.preemption_exit_code));
  if (WorkerChannel* const channel = detail::supervisor_channel()) {
    channel->mark_saved(static_cast<std::uint64_t>(saved.step));
  }
  std::cout.flush();
  std::clog.flush();
  std::fflush(nullptr);
  // Not exit(): the threads of the process group and of data loaders are still there.
  std::quick_exit(options.preemption_exit_code);
}

bool Accelerator::preemption_requested() const noexcept {
  return is_asked();
}

void Accelerator::save_state_and_exit() {
  impl_->save_and_exit();
}

}  // namespace accel
