// DeviceBackend: what libaccel needs of a kind of device beyond LibTorch's own interfaces.
//
// LibTorch knows streams, events, pinned memory, generators and kernels of a device once its library is loaded. What it does not
// say without the headers of CUDA is here: which devices two processes share, and how ranks exchange tensors of the device.
// libaccel_cuda.so implements it (libaccel/cuda); tests bring a fake.
//
//   load_device_backend() --> count() --> select(local rank) --> connect()     in this order, each once in a process
//
// Threads:  one at a time.
// Source:   tests/unit/libaccel/device/device_choice_test.cc.
#pragma once

#include <chrono>
#include <string>

#include <c10/core/Device.h>
#include <c10/util/intrusive_ptr.h>

namespace c10d {
class Backend;
class Store;
}  // namespace c10d

namespace accel::device {

// A rank of a group whose ranks have a device each.
struct DeviceRank {
  int rank = 0;
  int world_size = 1;
  int device = 0;  // index of its device
  std::chrono::milliseconds timeout{1'800'000};
};

class DeviceBackend {
 public:
  virtual ~DeviceBackend() = default;

  [[nodiscard]] virtual c10::DeviceType type() const noexcept = 0;
  // How many this process may use, at least 1. Throws std::exception, which says why there is none (a driver that is too old).
  [[nodiscard]] virtual int count() = 0;
  // The same text in two processes of a machine that use the same device: where it is on the bus.
  [[nodiscard]] virtual std::string place_of(int index) = 0;
  // Makes it the device of the calling thread, and of those that ask for none.
  virtual void select(int index) = 0;
  // Why connect() cannot serve; empty when it can.
  [[nodiscard]] virtual std::string why_no_connection() const = 0;
  // The collectives of ranks that have a device each. Throws what LibTorch throws. Requires: no two ranks have the same device;
  // every rank calls it.
  [[nodiscard]] virtual c10::intrusive_ptr<c10d::Backend> connect(
      const c10::intrusive_ptr<c10d::Store>& store, const DeviceRank& rank) = 0;
};

// What a library of a backend exports: its functions' names and the number of this interface, which both sides compare.
inline constexpr int kDeviceInterface = 1;
inline constexpr const char* kInterfaceFunction = "accel_device_interface";  // int()
inline constexpr const char* kBackendFunction = "accel_device_backend";      // DeviceBackend*()

}  // namespace accel::device
