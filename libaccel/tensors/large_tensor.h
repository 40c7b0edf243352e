// LargeTensor: memory for large copies that are kept, and for what each step of a training passes over.
//
// Memory that a program asks for is empty pages, which the kernel finds and clears one by one as they are first written: for
// pages of 4 KiB that takes longer than the copy that fills them; and passing over it later costs a translation for each. Here
// large tensors get huge pages where the kernel gives them to who asks (transparent_hugepage: madvise or always), and ordinary
// ones elsewhere.
//
// Threads:  any.
#pragma once

#include <ATen/core/Tensor.h>

namespace accel {

// As at::empty(). Errors  throws kOutOfMemory.
[[nodiscard]] at::Tensor empty_large_tensor(at::IntArrayRef shape,
                                            const at::TensorOptions& options);

}  // namespace accel
