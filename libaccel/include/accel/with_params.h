// with_params: holds the parameters of a prepared model in memory, for code that takes their addresses.
//
//   accel::with_params(model, {}, [&] { torch::save(model.unwrap(), "net.pt"); });
//   {
//     const auto held = accel::with_params(model, {"fc.weight"});
//     my_kernel(model->fc->weight.data_ptr<float>());
//   }
//
// FULL_SHARD over several nodes keeps parameters in memory only while operators use them. Operators need no hold; data_ptr(),
// accessor(), torch::save(module) and kernels of one's own do. Everywhere else parameters are always in memory, and holding
// them does nothing, so that one program serves both.
//
// Held parameters can be read. A write ends with pager.read_only, as on one node. optimizer.step() and load_state() throw
// kUnsupported on all ranks, naming a held parameter, while one is held.
//
// Threads:  the thread that trains.
// Cost:     over several nodes the bytes of the units that the parameters lie in, fetched where the node lacks them.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <accel/export.h>
#include <accel/prepared_model.h>

namespace accel {

namespace detail {

// nullptr when there is nothing to hold.
[[nodiscard]] ACCEL_EXPORT std::shared_ptr<void> hold_parameters(
    ModelRuntime& runtime, const std::vector<std::string>& names);

}  // namespace detail

// Holds until it is destroyed or released. May outlive the model.
class ParameterHold {
 public:
  explicit ParameterHold(std::shared_ptr<void> held) : held_(std::move(held)) {}
  // Ends the hold before it is destroyed.
  void release() noexcept { held_.reset(); }

 private:
  std::shared_ptr<void> held_;
};

// names: as in named_parameters(); empty for all of them. Throws kInvalidArgument naming those that there are not, and the
// nearest ones; kPeerLost.
template <typename Handle>
[[nodiscard]] ParameterHold with_params(const Prepared<Handle>& model,
                                        const std::vector<std::string>& names = {}) {
  return ParameterHold(detail::hold_parameters(*model.runtime(), names));
}

// Returns what fn() returns.
template <typename Handle, typename F>
auto with_params(const Prepared<Handle>& model, const std::vector<std::string>& names, F&& fn) {
  const ParameterHold held = with_params(model, names);
  return std::forward<F>(fn)();
}

}  // namespace accel
