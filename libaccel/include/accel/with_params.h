// with_params: holds the parameters of a prepared model in memory, for code that takes their addresses.
//
//   accel::with_params(model, {}, [&] { torch::save(model.unwrap(), "net.pt"); });
//   {
//     const auto held = accel::with_params(model, {"fc.weight"});
//     my_kernel(model->fc->weight.data_ptr<float>());
//   }
//
// FULL_SHARD over several nodes keeps parameters in memory only while operators use them. Operators need no hold. data_ptr(),
// accessor(), torch::save(module) and your own kernels need one. With all other strategies parameters are always in memory, and a
// hold does nothing, so the same program works.
//
// Held parameters are read-only. A write ends with pager.read_only, as on one node. While a parameter is held, optimizer.step() and
// load_state() throw kUnsupported on all ranks and name it.
//
// Threads:  the thread that trains.
// Cost:     over several nodes the bytes of the units with these parameters; missing shards are fetched.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <accel/export.h>
#include <accel/prepared_model.h>

namespace accel {

namespace detail {

// nullptr if there is nothing to hold.
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

// names: as in named_parameters(); empty for all. Throws kInvalidArgument with the unknown names and the nearest known ones; kPeerLost.
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
