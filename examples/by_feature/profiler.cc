// What the operators of a few training steps cost: a table by name on the main process, and a trace of each rank for
// chrome://tracing or https://ui.perfetto.dev in the folder that is the argument.
//
//   accel-launch --num_processes 2 build/examples/by_feature/profiler traces

#include <string>

#include <ATen/ops/cross_entropy_loss.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>

#include <accel/accelerator.h>
#include <accel/dataloader.h>
#include <accel/profiler.h>

#include "examples/by_feature/points.h"

int main(int argc, char** argv) {
  accel::ProfileKwargs kwargs = {
      // Two steps of warming up, then four that are recorded, once.
      .schedule_option = accel::ProfileSchedule{.wait = 1, .warmup = 2, .active = 4, .repeat = 1},
      .record_shapes = true,
      .profile_memory = true,
      .with_flops = true};
  if (argc > 1) kwargs.output_trace_dir = argv[1];
  accel::Accelerator accelerator({.profile = kwargs});
  torch::nn::Linear net(2, 2);
  torch::optim::SGD sgd(net->parameters(), torch::optim::SGDOptions(1.0));
  accel::DataLoader points(Points{}, {.batch_size = 8, .shuffle = true});
  auto [model, optimizer, loader] = accelerator.prepare(net, sgd, points);

  accel::Profiler profiler = accelerator.profile();
  for (auto& batch : loader) {
    accelerator.backward(at::cross_entropy_loss(model(batch.data), batch.target));
    optimizer.step();
    optimizer.zero_grad();
    profiler.step();
  }
  profiler.stop();

  const accel::KeyAverages averages = profiler.key_averages();
  accelerator.print(averages.table({.sort_by = "self_cpu_time_total", .row_limit = 10}));
  for (const accel::KeyAverage& average : averages) {
    if (average.key == "aten::addmm")
      accelerator.print("addmm:",
                        std::to_string(average.count),
                        "calls,",
                        std::to_string(average.flops),
                        "FLOPs");
  }
  accelerator.end_training();
}
