// FakeTensors: tensors of a device that is none. LibTorch's private device type (PrivateUse1), whose memory is the host's and whose
// operators are those of the CPU, on copies: so numbers have the bits of the CPU, and what mixes tensors of the host and of the device
// is refused by LibTorch, as on a GPU.
//
// Memory that is new, and memory that is given back, is filled with NaN: who reads it shows.
//
// Threads:  any.
// Source:   the comments of c10/core/impl/DeviceGuardImplInterface.h and ATen/native/CPUFallback.h of LibTorch 2.11.
#pragma once

namespace accel::test {

// To be called once in a process, before the first tensor on the device.
void register_fake_tensors();

}  // namespace accel::test
