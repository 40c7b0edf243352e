// OperatorTable: which function runs for the operator that a node names.
//
// What the program registered (accel/exported_model.h) comes first, then what libaccel brings, then LibTorch's dispatcher, where
// the program's own TORCH_LIBRARY operators are too.
//
// Threads:  any.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/function_schema.h>

#include <accel/exported_model.h>

namespace accel::exported {

struct CustomOperator {
  std::shared_ptr<const ExportedOperator> function;
  std::optional<c10::FunctionSchema> schema;  // none: arguments come as the file has them
};

// "aten::linear" and "" of "torch.ops.aten.linear.default"; std::nullopt: the target is no operator of a library.
[[nodiscard]] std::optional<c10::OperatorName> operator_name(const std::string& target);

// std::nullopt: nobody registered it.
[[nodiscard]] std::optional<CustomOperator> custom_operator(const std::string& name);

// What libaccel brings: operators of transformers that are Python there.
[[nodiscard]] std::vector<std::pair<std::string, ExportedOperator>> built_in_operators();

}  // namespace accel::exported
