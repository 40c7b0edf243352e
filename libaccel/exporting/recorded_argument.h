// RecordedArgument: an argument that an operator was called with, as a graph has it.
//
// Threads:  pure functions.
// Source:   GraphModuleSerializer.serialize_input of torch/_export/serde/serialize.py.
#pragma once

#include <functional>
#include <optional>
#include <string>

#include <ATen/core/Tensor.h>
#include <ATen/core/function_schema.h>
#include <ATen/core/ivalue.h>

#include "libaccel/exported/graph.h"

namespace accel::exporting {

// A tensor that is defined: the value that it is, or the number that stands for it.
using ArgumentOfTensor = std::function<exported::Argument(const at::Tensor&)>;

// Throws kUnsupported, naming the operator and the argument, for what a graph cannot hold: generators, storages, streams, objects.
[[nodiscard]] exported::Argument recorded_argument(const c10::FunctionSchema& schema,
                                                   const c10::Argument& to,
                                                   const c10::IValue& value,
                                                   const ArgumentOfTensor& argument_of);

// Whether the operator does the same when the argument is left out.
[[nodiscard]] bool is_default(const c10::Argument& argument, const c10::IValue& value);

// "aten::add.Tensor"
[[nodiscard]] std::string operator_text(const c10::FunctionSchema& schema);

}  // namespace accel::exporting
