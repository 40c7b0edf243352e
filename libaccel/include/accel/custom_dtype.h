// CustomDtype: types of numbers without tensors in LibTorch, with the names of HF Accelerate, for texts of memory estimates and
// files.
#pragma once

namespace accel {

enum class CustomDtype { kFp8, kInt4, kInt2 };

}  // namespace accel
