#include "launcher/commands/python/python_script.h"

#include <utility>

#include <nlohmann/json.hpp>

#include <accel/error.h>

#include "launcher/system/program_output.h"
#include "launcher/workers/script.h"
#include "runtime/printable.h"

namespace accel::launcher {
namespace {

ErrorCode code_of(std::string_view id) {
  for (int i = 0; i < static_cast<int>(ErrorCode::kCount_); ++i) {
    const auto code = static_cast<ErrorCode>(i);
    if (error_info(code).id == id) return code;
  }
  return ErrorCode::kInternal;
}

}  // namespace

std::string text_at(const nlohmann::json& values, const char* key) {
  const auto found = values.find(key);
  if (found == values.end()) return "";
  return found->is_string() ? found->get<std::string>() : found->dump();
}

Result<std::string> choose_python(const std::string& named,
                                  EnvMap environment,
                                  std::string_view needs) {
  if (named.empty()) {
    auto python = find_python(environment);
    if (python) return python;
    const Error& error = python.error();
    return Error(error.code(),
                 error.message(),
                 "install a Python with " + std::string(needs) + ", or name one with --python");
  }
  environment["PYTHON_EXEC"] = named;
  auto python = find_python(environment);
  if (python) return python;
  return Error(ErrorCode::kScriptNotExecutable,
               "--python is " + printable(named) + ", which cannot be executed",
               "name a Python that has " + std::string(needs));
}

Result<nlohmann::json> script_answer(std::string_view output, int exit_code, std::string_view who) {
  auto answer = nlohmann::json::parse(output, nullptr, /*allow_exceptions=*/false);
  if (answer.is_object() && answer.contains("error")) {
    const auto& error = answer["error"];
    return Error(code_of(text_at(error, "id")),
                 printable(text_at(error, "message")),
                 printable(text_at(error, "remedy")));
  }
  if (exit_code != 0 || !answer.is_object() || !answer.contains("done"))
    return Error(ErrorCode::kWorkerFailed,
                 std::string(who) + " ended with " + std::to_string(exit_code) + " and no answer",
                 "read its last lines above");
  return std::move(answer["done"]);
}

Result<nlohmann::json> run_script(const std::string& python,
                                  std::string_view script,
                                  const nlohmann::json& request,
                                  const EnvMap& environment,
                                  std::chrono::hours limit,
                                  std::string_view who) {
  const std::string words = request.dump(-1, ' ', true, nlohmann::json::error_handler_t::replace);
  const auto output = run_program({python, "-c", std::string(script), words}, environment, limit);
  if (!output) return output.error();
  return script_answer(output->out, output->exit_code, who);
}

}  // namespace accel::launcher
