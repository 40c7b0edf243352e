// accel: all headers for a training program. Include single headers if compile time matters.
#pragma once

#include <ATen/TensorOperators.h>

#include <accel/accelerator.h>
#include <accel/big_model.h>
#include <accel/checkpoint.h>
#include <accel/dataloader.h>
#include <accel/error.h>
#include <accel/logging.h>
#include <accel/memory_use.h>
#include <accel/operations.h>
#include <accel/optim.h>
#include <accel/plan.h>
#include <accel/precision.h>
#include <accel/profiler.h>
#include <accel/progress.h>
#include <accel/random.h>
#include <accel/safetensors_file.h>
#include <accel/samplers.h>
#include <accel/schedulers.h>
#include <accel/state.h>
#include <accel/state_dict.h>
#include <accel/state_view.h>
#include <accel/tracking.h>
#include <accel/version.h>
#include <accel/with_params.h>
