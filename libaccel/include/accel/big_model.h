// Big models: modules whose parameters have no memory at first.
//
//   std::shared_ptr<Net> net;
//   {
//     const auto empty = accel::init_empty_weights();
//     net = std::make_shared<Net>(options);  // any torch::nn code, unmodified
//   }                                        // 4.8 billion parameters: some megabytes
//
// Inside the scope the thread's tensors are made on LibTorch's meta device: they have sizes and no
// values. At the end of the scope parameters stay empty. All other tensors in use (buffers, tables
// of a module) get memory and the values that the constructor gave them. A parameter is a tensor
// that requires a gradient, as register_parameter() makes it. A parameter that the constructor
// freezes gets memory.
//
// With FullyShardedDataParallelPlugin::cpu_ram_efficient_loading only the main process builds and
// reads the model. prepare() sends its values to the others, which never hold the whole model:
//
//   const auto empty = accel::init_empty_unless_main();
//   Net net(options);
//   accel::load_checkpoint_in_model(*net, "weights");  // if empty: compares names and shapes
//
// Random initialisers draw no values inside the scope, so the generators of the ranks differ
// afterwards.
//
// Threads:  the thread that makes the scope must end it; other threads are not affected.
// Cost:     the constructor's operator calls are recorded until the scope ends.
#pragma once

#include <memory>
#include <optional>

#include <c10/core/Device.h>

#include <accel/export.h>

namespace accel {

namespace detail {
class EmptyConstruction;
}

struct InitEmptyWeightsOptions {
  // Leaves all tensors without memory, buffers too. Default: ACCELERATE_INIT_INCLUDE_BUFFERS, else
  // false.
  std::optional<bool> include_buffers = {};
};

// During its lifetime modules are made without memory for their parameters; see
// init_empty_weights().
class ACCEL_EXPORT EmptyWeights {
 public:
  EmptyWeights();  // changes nothing
  explicit EmptyWeights(const InitEmptyWeightsOptions& options);
  // Gives memory to all tensors but parameters. A tensor that cannot get it stays empty, and
  // prepare() names it.
  ~EmptyWeights();
  EmptyWeights(EmptyWeights&&) noexcept;
  EmptyWeights& operator=(EmptyWeights&&) = delete;

  // Whether tensors are made without memory.
  [[nodiscard]] bool is_active() const noexcept { return construction_ != nullptr; }

 private:
  std::unique_ptr<detail::EmptyConstruction> construction_;
};

// Inside the scope, code that uses the address of a tensor (accessor(), data_ptr()) throws
// c10::Error. Code that needs values (item(), comparisons) gets them: these tensors get memory at
// once. Tensors with an explicit device keep it, except parameters on the CPU, which lose their
// memory at the end. Throws kEnvInvalid: a variable that is neither true nor false.
[[nodiscard]] inline EmptyWeights init_empty_weights(const InitEmptyWeightsOptions& options = {}) {
  return EmptyWeights(options);
}

// Makes modules on that device: at::kMeta is init_empty_weights(), at::kCPU has no effect. Errors
// throws kUnsupported: another device, which this build does not have; and the errors of
// init_empty_weights().
[[nodiscard]] ACCEL_EXPORT EmptyWeights init_on_device(const c10::Device& device,
                                                       const InitEmptyWeightsOptions& options = {});

// The same as init_empty_weights() on all processes but the main one if cpu_ram_efficient_loading
// is on; otherwise a scope that changes nothing. Throws kNotInitialized before an Accelerator
// exists.
[[nodiscard]] ACCEL_EXPORT EmptyWeights
init_empty_unless_main(const InitEmptyWeightsOptions& options = {});

}  // namespace accel
