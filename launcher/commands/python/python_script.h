// PythonScript: a script that stands in this program, run under the user's Python, once.
//
// It is told a JSON object and answers with one line of JSON: {"done": facts} or {"error": {"id", "message", "remedy"}}.
//
// Threads:  any; waits for the script.
#pragma once

#include <chrono>
#include <string>
#include <string_view>

#include <nlohmann/json_fwd.hpp>

#include <accel/env_contract.h>
#include <accel/result.h>

namespace accel::launcher {

// The Python named by --python, or that of a launch where `named` is empty. `needs`: "torch and the library of the model".
// Errors  kScriptMissing, kScriptNotExecutable.
[[nodiscard]] Result<std::string> choose_python(const std::string& named,
                                                EnvMap environment,
                                                std::string_view needs);

// The facts of an answer; the error that the script answered with; or one that says that it did not come to an answer. `who`
// is "the exporting Python". Pure.
[[nodiscard]] Result<nlohmann::json> script_answer(std::string_view output,
                                                   int exit_code,
                                                   std::string_view who);

// Errors  as above; kExecFailed: Python cannot be started, or `limit` was over.
[[nodiscard]] Result<nlohmann::json> run_script(const std::string& python,
                                                std::string_view script,
                                                const nlohmann::json& request,
                                                const EnvMap& environment,
                                                std::chrono::hours limit,
                                                std::string_view who);

// The text of a field, or another value as JSON; "" where there is none.
[[nodiscard]] std::string text_at(const nlohmann::json& values, const char* key);

}  // namespace accel::launcher
