// Who is there: rendezvous, accelerator, ranks, and what ranks exchange.
//
// libaccel keeps one state for a process, so there is one accelerator at a time here; with it the state begins and ends, and the
// next one may be of other ranks.

#include <atomic>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <accel/accelerator.h>
#include <accel/c/accel.h>
#include <accel/error.h>
#include <accel/operations.h>
#include <accel/random.h>
#include <accel/rendezvous.h>
#include <accel/state.h>

#include "libaccel/c_interface/arrays.h"
#include "libaccel/c_interface/guarded_call.h"
#include "libaccel/c_interface/handles.h"
#include "libaccel/c_interface/options.h"
#include "libaccel/c_interface/registered_array.h"

namespace accel::c_interface {
namespace {

std::atomic<bool>& has_accelerator() {
  static std::atomic<bool> exists{false};
  return exists;
}

accel_options default_options() {
  accel_options options{};
  options.gradient_accumulation_steps = 1;
  options.timeout = 1800;
  options.store_timeout = 300;
  return options;
}

// Gives the one place back, and the process's state with it, unless the program had that before.
class Place {
 public:
  Place() : had_state_(PartialState::initialized()) {
    if (!has_accelerator().exchange(true)) return;
    throw Error(
        ErrorCode::kInvalidArgument,
        "this process has an accelerator already",
        "call accel_destroy() first; for several models call accel_load_model() several times");
  }
  ~Place() {
    if (is_kept_) return;
    if (!had_state_) PartialState::reset();
    has_accelerator() = false;
  }
  Place(const Place&) = delete;
  Place& operator=(const Place&) = delete;
  void keep() { is_kept_ = true; }

 private:
  bool had_state_;
  bool is_kept_ = false;
};

Reduction reduction_of(int reduction) {
  switch (reduction) {
    case ACCEL_SUM:
      return Reduction::kSum;
    case ACCEL_MEAN:
      return Reduction::kMean;
    case ACCEL_MAX:
      return Reduction::kMax;
    default:
      throw Error(ErrorCode::kInvalidArgument,
                  "the reduction is " + std::to_string(reduction) + ", which is none",
                  "pass ACCEL_SUM, ACCEL_MEAN or ACCEL_MAX");
  }
}

// What gather() will return.
void check_gathered(const accel_array& gathered, const at::Tensor& tensor, int world_size) {
  std::vector<std::int64_t> shape = tensor.sizes().vec();
  if (shape.empty()) shape.push_back(1);
  shape[0] *= world_size;
  check_alike(gathered, tensor.new_empty(shape, at::kMeta), "gathered");
}

}  // namespace
}  // namespace accel::c_interface

accel_accelerator::accel_accelerator(const accel::AcceleratorOptions& options)
    : accelerator(options) {}
accel_accelerator::~accel_accelerator() = default;

using namespace accel::c_interface;

int accel_rendezvous_open(const char* host, accel_rendezvous** rendezvous) {
  return guarded(__func__, [&] {
    auto& result = given(rendezvous, "rendezvous");
    result = new accel_rendezvous{accel::Rendezvous(host == nullptr ? "" : host)};
  });
}

const char* accel_rendezvous_address(const accel_rendezvous* rendezvous) {
  return guarded_value<const char*>(__func__, nullptr, [&] {
    return given(rendezvous, "rendezvous").rendezvous.address().c_str();
  });
}

void accel_rendezvous_close(accel_rendezvous** rendezvous) {
  if (rendezvous == nullptr) return;
  delete std::exchange(*rendezvous, nullptr);
}

void accel_options_init(accel_options* options) {
  if (options != nullptr) *options = default_options();
}

int accel_create(const accel_options* options, accel_accelerator** accelerator) {
  return guarded(__func__, [&] {
    auto& result = given(accelerator, "accelerator");
    const accel::AcceleratorOptions wanted =
        accelerator_options(options == nullptr ? default_options() : *options);
    Place place;
    result = new accel_accelerator(wanted);
    place.keep();
  });
}

int accel_destroy(accel_accelerator** accelerator) {
  if (accelerator == nullptr || *accelerator == nullptr) return ACCEL_OK;
  std::unique_ptr<accel_accelerator> owned(std::exchange(*accelerator, nullptr));
  const int code = guarded(__func__, [&] { owned->accelerator.end_training(); });
  const int freed = guarded(__func__, [&] {
    owned.reset();
    accel::PartialState::reset();
    has_accelerator() = false;
  });
  return code != ACCEL_OK ? code : freed;
}

int accel_rank(const accel_accelerator* accelerator) {
  return guarded_value(
      __func__, -1, [&] { return given(accelerator, "accelerator").accelerator.process_index(); });
}

int accel_world_size(const accel_accelerator* accelerator) {
  return guarded_value(
      __func__, -1, [&] { return given(accelerator, "accelerator").accelerator.num_processes(); });
}

int accel_local_rank(const accel_accelerator* accelerator) {
  return guarded_value(__func__, -1, [&] {
    return given(accelerator, "accelerator").accelerator.local_process_index();
  });
}

int accel_restart_count(const accel_accelerator* accelerator) {
  return guarded_value(
      __func__, -1, [&] { return given(accelerator, "accelerator").accelerator.restart_count(); });
}

int accel_set_seed(accel_accelerator* accelerator, uint64_t seed, int device_specific) {
  return guarded(__func__, [&] {
    (void)given(accelerator, "accelerator");
    accel::set_seed(seed, {.device_specific = device_specific != 0});
  });
}

int accel_barrier(accel_accelerator* accelerator) {
  return guarded(__func__,
                 [&] { given(accelerator, "accelerator").accelerator.wait_for_everyone(); });
}

int accel_reduce(accel_accelerator* accelerator, const accel_array* array, int reduction) {
  return guarded(__func__, [&] {
    const accel::Accelerator& ranks = given(accelerator, "accelerator").accelerator;
    at::Tensor memory = tensor_on(given(array, "array"), "array");
    memory.copy_(accel::reduce(memory.to(ranks.device()), reduction_of(reduction)));
  });
}

int accel_gather(accel_accelerator* accelerator,
                 const accel_array* array,
                 const accel_array* gathered) {
  return guarded(__func__, [&] {
    const accel::Accelerator& ranks = given(accelerator, "accelerator").accelerator;
    const at::Tensor memory = tensor_on(given(array, "array"), "array");
    check_gathered(given(gathered, "gathered"), memory, ranks.num_processes());
    const at::Tensor all = accel::gather(memory.to(ranks.device()));
    read_into(*gathered, all.dim() == 0 ? all.view({1}) : all, "gathered");
  });
}

int accel_broadcast(accel_accelerator* accelerator, const accel_array* array, int from_rank) {
  return guarded(__func__, [&] {
    const accel::Accelerator& ranks = given(accelerator, "accelerator").accelerator;
    at::Tensor memory = tensor_on(given(array, "array"), "array");
    const at::Tensor sent = accel::broadcast(memory.to(ranks.device()), from_rank);
    if (!sent.is_alias_of(memory)) memory.copy_(sent);
  });
}

int accel_register_array(accel_accelerator* accelerator,
                         const char* name,
                         const accel_array* array) {
  return guarded(__func__, [&] {
    accel_accelerator& owner = given(accelerator, "accelerator");
    const std::string text = &given(name, "name");
    for (const auto& other : owner.arrays) {
      if (other->name() != text) continue;
      throw accel::Error(accel::ErrorCode::kInvalidArgument,
                         "an array '" + text + "' is registered already",
                         "give each array a name of its own");
    }
    owner.arrays.push_back(std::make_unique<RegisteredArray>(
        text, tensor_on(given(array, "array"), "array '" + text + "'")));
    owner.accelerator.register_for_checkpointing(*owner.arrays.back());
  });
}

int accel_save_state(accel_accelerator* accelerator, const char* folder) {
  return guarded(__func__, [&] {
    (void)given(accelerator, "accelerator").accelerator.save_state(&given(folder, "folder"));
  });
}

int accel_load_state(accel_accelerator* accelerator, const char* folder) {
  return guarded(__func__, [&] {
    (void)given(accelerator, "accelerator").accelerator.load_state(&given(folder, "folder"));
  });
}
