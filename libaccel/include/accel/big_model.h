// Big models: modules whose parameters have no memory at first.
//
//   std::shared_ptr<Net> net;
//   {
//     const auto empty = accel::init_empty_weights();
//     net = std::make_shared<Net>(options);  // any torch::nn code, unmodified
//   }                                        // 4.8 billion parameters: some megabytes
//
// Inside of the scope the thread's tensors are made on LibTorch's meta device: they have sizes and
// no values. When it ends, parameters stay so, and everything else that is still in use (buffers,
// tables that a module keeps for itself) gets memory and the values that its constructor gave it.
// What is meant by a parameter is a tensor that requires a gradient, for that is what
// register_parameter() makes of one; a parameter that the constructor freezes itself gets memory.
//
// With FullyShardedDataParallelPlugin::cpu_ram_efficient_loading only the main process builds and
// reads the model. prepare() sends its values to the others, which never hold the whole model:
//
//   const auto empty = accel::init_empty_unless_main();
//   Net net(options);
//   accel::load_checkpoint_in_model(*net, "weights");  // if empty: compares names and shapes
//
// Values of random initialisers are not drawn inside of the scope, so the generators of the ranks
// differ afterwards.
//
// Threads:  the thread that makes the scope ends it; others are not concerned.
// Cost:     the constructor's calls of operators are remembered until the scope ends.
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

// While it lives, modules are made without memory for their parameters, as init_empty_weights()
// says.
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

// Errors of code inside of the scope: what takes the address of a tensor (accessor(), data_ptr())
// throws c10::Error. What needs values (item(), comparisons) gets them: the tensors in question are
// given memory at once. Tensors that are made with an explicit device keep it, but for parameters
// on the CPU, which lose their memory at the end. Throws kEnvInvalid: a variable that is neither
// true nor false.
[[nodiscard]] inline EmptyWeights init_empty_weights(const InitEmptyWeightsOptions& options = {}) {
  return EmptyWeights(options);
}

// Modules are made on that device: at::kMeta is init_empty_weights(); on at::kCPU they are made as
// ever. Errors  throws kUnsupported: another device, which this build does not have; as
// init_empty_weights().
[[nodiscard]] ACCEL_EXPORT EmptyWeights init_on_device(const c10::Device& device,
                                                       const InitEmptyWeightsOptions& options = {});

// The same as init_empty_weights() on all processes but the main one if cpu_ram_efficient_loading
// is on; otherwise a scope that changes nothing. Throws kNotInitialized before an Accelerator
// exists.
[[nodiscard]] ACCEL_EXPORT EmptyWeights
init_empty_unless_main(const InitEmptyWeightsOptions& options = {});

}  // namespace accel
