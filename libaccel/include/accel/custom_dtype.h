// CustomDtype: types of numbers that LibTorch has no tensors of, with the names of HF Accelerate, to read and to write what an
// estimate of memory or a file says.
#pragma once

namespace accel {

enum class CustomDtype { kFp8, kInt4, kInt2 };

}  // namespace accel
