// OperatorHook: what runs for operators with one of LibTorch's dispatch keys, for the life of the process.
//
// Registered when it is first needed and not when the program is loaded: programs that do not need it keep LibTorch as it is.
// Never taken back: operators may run until the process ends.
//
//   hook_operators("_", kKey).fallback(torch::CppFunction::makeFromBoxedFunction<&run>());
//
// Threads:  any; LibTorch locks. What registers is called once (a static of the caller).
#pragma once

#include <torch/library.h>

namespace accel::detail {

// `operators`: a namespace of them, "aten", or "_" for all.
// Errors  throws c10::Error: the key has a fallback of another library.
[[nodiscard]] inline torch::Library& hook_operators(const char* operators, c10::DispatchKey key) {
  return *new torch::Library(  // NOLINT: never freed
      torch::Library::IMPL,
      operators,
      key,
      __FILE__,
      __LINE__);
}

}  // namespace accel::detail
