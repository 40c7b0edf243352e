// Preparable: the types that Accelerator::prepare() accepts, and how it gets the object.
//
// Concepts detect the objects, so that this header includes no module, optimizer or loader.
#pragma once

#include <concepts>
#include <cstdint>
#include <memory>
#include <type_traits>
#include <utility>

#include <accel/detail/dataloader_base.h>
#include <accel/schedulers.h>
#include <accel/state_dict.h>

namespace torch::nn {
class Module;
}
namespace torch::optim {
class Optimizer;
}

namespace accel::detail {

template <typename T>
struct Pointee {
  using type = void;
};
template <typename T>
struct Pointee<std::shared_ptr<T>> {
  using type = T;
};
template <typename T>
struct Pointee<std::unique_ptr<T>> {
  using type = T;
};

template <typename T>
concept ModuleHandle = requires {
  typename T::ContainedType;
}
|| std::is_convertible_v<typename Pointee<T>::type*, torch::nn::Module*>;

template <typename T>
concept OptimizerObject = !std::is_void_v<T> && std::is_convertible_v<T*, torch::optim::Optimizer*>;

template <typename T>
concept SchedulerObject =
    !std::is_void_v<T> && std::is_convertible_v<T*, Stateful*> && requires(T & scheduler) {
  scheduler.step();
};

// accel::DataLoader, detected by a concept so that this header need not include it.
template <typename T>
concept DataLoaderHandle = requires(const T& loader) {
  typename T::batch_type;
  { loader.ptr() } -> std::convertible_to<std::shared_ptr<DataLoaderBase>>;
};

// Calls the function of accel/dataloader.h, which the caller's code includes.
template <DataLoaderHandle Loader>
Loader shard_loader(const Loader& loader, const ShardOptions& options) {
  return prepare_data_loader(loader, options);
}

template <DataLoaderHandle Loader, typename Slicer>
Loader shard_loader(const Loader& loader, const ShardOptions& options, const Slicer& slicer) {
  return prepare_data_loader(loader, options, slicer);
}
template <DataLoaderHandle Loader>
Loader skip_batches(const Loader& loader, std::int64_t num_batches) {
  return skip_first_batches(loader, num_batches);
}

// Lets a scheduler that only has step() and a state be stepped by AcceleratedScheduler.
template <typename T>
class SchedulerAdapter final : public Scheduler {
 public:
  explicit SchedulerAdapter(std::shared_ptr<T> scheduler) : scheduler_(std::move(scheduler)) {}
  void step() override { scheduler_->step(); }
  [[nodiscard]] StateDict state_dict() const override { return scheduler_->state_dict(); }
  void load_state_dict(const StateDict& state) override { scheduler_->load_state_dict(state); }

 private:
  std::shared_ptr<T> scheduler_;
};

// An object that the caller keeps alive.
template <typename T>
std::shared_ptr<T> borrowed(T& object) {
  return std::shared_ptr<T>(std::shared_ptr<void>(), &object);
}

// The object of an argument: an lvalue is borrowed, an rvalue is moved, a smart pointer is
// shared.
template <typename T>
auto share(T&& object) {
  using Object = std::remove_cvref_t<T>;
  using Target = typename Pointee<Object>::type;
  if constexpr (!std::is_void_v<Target>) {
    return std::shared_ptr<Target>(std::forward<T>(object));
  } else if constexpr (std::is_lvalue_reference_v<T>) {
    return borrowed(object);
  } else {
    return std::make_shared<Object>(std::move(object));
  }
}

// The type of the object of an argument; for a smart pointer the type that it points to.
template <typename T>
using ObjectOf = std::conditional_t<std::is_void_v<typename Pointee<std::remove_cvref_t<T>>::type>,
                                    std::remove_cvref_t<T>,
                                    typename Pointee<std::remove_cvref_t<T>>::type>;

}  // namespace accel::detail
