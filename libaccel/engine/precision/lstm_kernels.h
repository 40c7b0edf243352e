// LstmKernels: what a program is told whose torch::nn::LSTM runs under autocast on a CPU for which oneDNN has no LSTM in 16 bits.
//
// Autocast gives oneDNN's LSTM its arguments in 16 bits whatever the CPU. oneDNN has one in bf16 with AVX-512, and in fp16 with
// AVX-512 FP16 or AMX alone; without, the forward throws "could not create a primitive descriptor for the LSTM forward propagation
// primitive" (LibTorch 2.11). LSTMs with projections, GRU and RNN run everywhere: LibTorch has kernels of its own for them.
//
// Threads:  any.
#pragma once

#include <exception>
#include <optional>

#include <c10/core/ScalarType.h>

#include <accel/error.h>

namespace torch::nn {
class Module;
}

namespace accel {

// Whether an LSTM runs under autocast with this dtype on this CPU: asked of LibTorch once, by a forward of one of a single number.
[[nodiscard]] bool has_lstm_kernel(c10::ScalarType dtype);

// What a forward of the module under autocast with this dtype has thrown, as kUnsupported that names its LSTMs; std::nullopt where
// it is anything else, or this CPU has the kernel.
[[nodiscard]] std::optional<Error> lstm_error(const std::exception& thrown,
                                              const torch::nn::Module& module,
                                              c10::ScalarType dtype);

}  // namespace accel
