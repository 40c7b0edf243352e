// Hyperparameters: the arguments of a script as SageMaker hands them on.
//
// Threads:  pure functions.
// Source:   _convert_nargs_to_dict() of accelerate 1.15.0; tests/peer/sagemaker_request.py compares both.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

#include <accel/result.h>

namespace accel::launcher {

// "3" and "3.0" are 3, "5e-5" a fraction, True and False truths, all else text.
[[nodiscard]] nlohmann::json typed_value(std::string_view text);

// `--some-key VALUE` and `--some-key=VALUE` as some_key. Errors  kUsage: a flag without a value (the
// peer's text), a value without a flag, a flag that is there twice.
[[nodiscard]] Result<nlohmann::json> hyperparameters_of(const std::vector<std::string>& arguments);

}  // namespace accel::launcher
