// Accelerator::Impl: what an Accelerator is made of. An arrow is "refers to":
//
//   Checkpointing --> Training --> Preparation
//
// Trackers beside them know the options alone. Training tells Checkpointing of boundaries as one of its observers.
#pragma once

#include <functional>

#include <accel/accelerator.h>

#include "libaccel/api/accelerator/checkpointing.h"
#include "libaccel/api/accelerator/preparation.h"
#include "libaccel/api/accelerator/trackers.h"
#include "libaccel/api/accelerator/training.h"
#include "libaccel/engine/process/step_clock.h"
#include "libaccel/engine/process/supervisor_link.h"

namespace accel {

struct Accelerator::Impl {
  explicit Impl(const AcceleratorOptions& options) : preparation(options) {
    detail::start_step_clock(process_env());
    training.observe(heartbeat);
    if (!checkpointing.wants_boundaries()) return;
    training.observe(checkpointing);
    on_boundary = [this] { training.end_batch(); };
  }

  // The supervisor learns that the job makes progress.
  struct Heartbeat final : detail::StepObserver {
    void after_backward() override {
      detail::beat();
      detail::publish_step_times(/*is_step=*/true);
    }
  };

  detail::Preparation preparation;
  detail::Training training{preparation};
  detail::Checkpointing checkpointing{preparation, training};
  detail::Trackers trackers{preparation, checkpointing.project().logging_dir};
  Heartbeat heartbeat;
  std::function<void()> on_boundary;  // of prepared loaders; empty: nobody waits for one
};

}  // namespace accel
