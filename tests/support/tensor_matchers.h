// TensorMatchers: compare tensors to the bit, also where NaN or a dtype without == is in them.
#pragma once

#include <cstring>
#include <sstream>
#include <string>

#include <ATen/core/Tensor.h>
#include <gmock/gmock.h>

namespace accel::test {

inline std::string tensor_summary(const at::Tensor& tensor) {
  std::ostringstream out;
  out << c10::toString(tensor.scalar_type()) << tensor.sizes();
  return out.str();
}

inline bool same_tensor(const at::Tensor& a, const at::Tensor& b) {
  if (a.scalar_type() != b.scalar_type() || a.sizes() != b.sizes()) return false;
  const at::Tensor x = a.detach().contiguous();
  const at::Tensor y = b.detach().contiguous();
  return x.nbytes() == 0 || std::memcmp(x.const_data_ptr(), y.const_data_ptr(), x.nbytes()) == 0;
}

// Same dtype, shape and bytes.
MATCHER_P(SameTensor, expected, "is equal to the bit to " + tensor_summary(expected)) {
  *result_listener << tensor_summary(arg);
  return same_tensor(arg, expected);
}

}  // namespace accel::test
