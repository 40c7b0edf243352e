// TracedGraph: what a module's forward computed, as a graph of operators that a file can hold.
//
// Threads:  value types.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "libaccel/exported/graph.h"

namespace accel::exporting {

// A size, as it was on the example and as it follows from that of the batch.
struct LinearSize {
  LinearSize() = default;
  LinearSize(std::int64_t known)
      : number(known), at_zero(known) {}  // NOLINT(google-explicit-constructor)

  std::int64_t number = 0;
  std::int64_t at_zero = 0;
  std::int64_t per_batch = 0;  // 0: it is always the number
};

// "Add(Mul(Integer(2), Symbol('s0', ...)), Integer(1))", as sympy writes it. Requires: it depends on the batch.
[[nodiscard]] std::string symbol_text(const LinearSize& size);

// What the file says of a tensor besides its values. Codes as in exported/graph.h.
struct TensorMeta {
  int dtype = 0;
  int layout = 0;
  std::vector<LinearSize> sizes;
  std::vector<LinearSize> strides;
  LinearSize offset;  // elements
  bool requires_grad = false;
  std::string device_type;
  std::optional<int> device_index;
};

// Throws kUnsupported, naming the tensor as `name`, where the file has no words for it: sparse, quantized, of an unknown dtype.
[[nodiscard]] TensorMeta meta_of(const at::Tensor& tensor, const std::string& name);

struct TracedGraph {
  exported::ExportedGraph exported;
  std::vector<TensorMeta> metas;                              // by value; of no meaning for sizes
  std::map<exported::ValueId, LinearSize> sizes;              // values that are no tensors
  std::vector<std::pair<std::string, at::Tensor>> constants;  // in the order of their use
};

}  // namespace accel::exporting
