// OwnOperator: a function of libaccel's as an operator of LibTorch, "accel::NAME".
//
// What is called so passes the dispatcher, and is seen by whoever sees operators: the owner of a parameter's memory brings it in
// for this one as for any other (parameter_operators.h), and profilers show it.
//
// Threads:  any; LibTorch locks. Defined once (a static of the caller), and until the process ends.
#pragma once

#include <optional>
#include <string>

#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/library.h>

namespace accel::interception {

// schema: "name(Tensor x, int n) -> Tensor", whose types are those of the function. For every kind of device; derives nothing.
// Errors  throws c10::Error: the schema and the function differ, or there is such an operator.
template <typename Function>
[[nodiscard]] c10::OperatorHandle define_operator(const std::string& schema, Function* function) {
  auto& library = *new torch::Library(  // NOLINT: never freed, operators may run until the end
      torch::Library::FRAGMENT,
      "accel",
      std::nullopt,
      __FILE__,
      __LINE__);
  const std::string name = schema.substr(0, schema.find('('));
  library.def(schema.c_str());
  library.impl(name.c_str(),
               torch::dispatch(c10::DispatchKey::CompositeExplicitAutograd, function));
  return c10::Dispatcher::singleton().findSchemaOrThrow(("accel::" + name).c_str(), "");
}

}  // namespace accel::interception
