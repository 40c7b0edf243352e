// StackTensors: the tensors among the arguments or results of an operator, and in lists of them.
//
// Threads:  no state.
#pragma once

#include <cstddef>
#include <vector>

#include <ATen/core/List.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

namespace accel::interception {

// Where a tensor stands. item: in a list, otherwise -1.
struct TensorPlace {
  std::size_t position;
  std::ptrdiff_t item;
};

// Calls visit(place, tensor) for each one that is defined.
template <typename Visit>
void for_each_tensor(c10::ArrayRef<c10::IValue> values, const Visit& visit) {
  const auto is_tensor = [](const c10::IValue& value) {
    return value.isTensor() && value.toTensor().defined();
  };
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (is_tensor(values[i])) visit(TensorPlace{i, -1}, values[i].toTensor());
    if (!values[i].isList()) continue;
    const auto items = values[i].toListRef();
    for (std::size_t item = 0; item < items.size(); ++item) {
      if (!items[item].isTensor() && !items[item].isNone()) break;  // of numbers
      if (is_tensor(items[item]))
        visit(TensorPlace{i, static_cast<std::ptrdiff_t>(item)}, items[item].toTensor());
    }
  }
}

inline void put_tensor(std::vector<c10::IValue>& values,
                       const TensorPlace& place,
                       const at::Tensor& tensor) {
  if (place.item < 0) {
    values[place.position] = tensor;
  } else {
    values[place.position].toList().set(static_cast<std::size_t>(place.item), tensor);
  }
}

inline at::Tensor get_tensor(c10::ArrayRef<c10::IValue> values, const TensorPlace& place) {
  return place.item < 0
             ? values[place.position].toTensor()
             : values[place.position].toListRef()[static_cast<std::size_t>(place.item)].toTensor();
}

// Lists are shared by copies of a value; each call needs its own.
inline std::vector<c10::IValue> with_own_lists(std::vector<c10::IValue> values) {
  for (c10::IValue& value : values) {
    if (value.isList()) value = value.toList().copy();
  }
  return values;
}

}  // namespace accel::interception
