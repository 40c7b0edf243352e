// A library of devices without a device: its tensors are on the CPU. So tests go the way of ranks that have GPUs, from the loader to
// the exchange of gradients.
//
// ACCEL_FAKE_DEVICES    how many there are, 1; 0: count() says why there are none
// ACCEL_FAKE_TENSORS    when set: its tensors are of a device of their own (fake_tensors.h), and not on the CPU
// ACCEL_FAKE_INTERFACE  the number of the interface that it claims
// Each call of libaccel is a line on stderr.

#include <cstdio>
#include <cstdlib>
#include <stdexcept>
#include <string>

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "libaccel/engine/device/device_backend.h"
#include "tests/support/fake_tensors.h"

namespace {

int number_of(const char* variable, int fallback) {
  const char* const text = std::getenv(variable);
  return text == nullptr ? fallback : std::atoi(text);
}

class FakeDevices final : public accel::device::DeviceBackend {
 public:
  FakeDevices() {
    if (has_tensors()) accel::test::register_fake_tensors();
  }
  [[nodiscard]] c10::DeviceType type() const noexcept override {
    return has_tensors() ? c10::DeviceType::PrivateUse1 : c10::DeviceType::CPU;
  }
  [[nodiscard]] int count() override {
    std::fputs("fake: count\n", stderr);
    const int count = number_of("ACCEL_FAKE_DEVICES", 1);
    if (count == 0) throw std::runtime_error("the driver is too old for this fake");
    return count;
  }
  [[nodiscard]] std::string place_of(int index) override {
    std::fprintf(stderr, "fake: place of %d\n", index);
    return "0000:0" + std::to_string(index) + ":00.0";
  }
  void select(int index) override { std::fprintf(stderr, "fake: select %d\n", index); }
  [[nodiscard]] std::string why_no_connection() const override {
    return std::getenv("ACCEL_FAKE_NO_CONNECTION") != nullptr ? "the fake has no links" : "";
  }
  [[nodiscard]] c10::intrusive_ptr<c10d::Backend> connect(
      const c10::intrusive_ptr<c10d::Store>& /*store*/,
      const accel::device::DeviceRank& rank) override {
    std::fprintf(stderr, "fake: connect %d of %d by %d\n", rank.rank, rank.world_size, rank.device);
    throw std::runtime_error("the fake connects nobody");
  }

 private:
  static bool has_tensors() { return std::getenv("ACCEL_FAKE_TENSORS") != nullptr; }
};

}  // namespace

extern "C" {
__attribute__((visibility("default"))) int accel_device_interface() {
  return number_of("ACCEL_FAKE_INTERFACE", accel::device::kDeviceInterface);
}

__attribute__((visibility("default"))) accel::device::DeviceBackend* accel_device_backend() {
  static FakeDevices devices;
  return &devices;
}
}
