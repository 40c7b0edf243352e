#include "libaccel/exported/operator_table.h"

#include <map>
#include <mutex>
#include <utility>

#include <torch/csrc/jit/frontend/function_schema_parser.h>

#include <accel/error.h>

#include "runtime/printable.h"

namespace accel {
namespace exported {
namespace {

constexpr std::size_t kShownReason = 200;

struct RegisteredOperators {
  std::mutex mutex;
  std::map<std::string, CustomOperator> by_name;
};

std::pair<std::string, CustomOperator> parsed_operator(const std::string& schema,
                                                       ExportedOperator function) {
  CustomOperator custom{std::make_shared<const ExportedOperator>(std::move(function)),
                        std::nullopt};
  std::string name = schema;
  if (schema.find('(') != std::string::npos) {
    try {
      custom.schema = torch::jit::parseSchema(schema);
    } catch (const std::exception& error) {  // the parser's own class, and c10's
      throw Error(ErrorCode::kInvalidArgument,
                  "'" + printable(schema) + "' is no schema of an operator: " +
                      printable(std::string_view(error.what()).substr(0, kShownReason)),
                  "write it as Python's torch.library does: ns::name(Tensor x, int n=1) -> Tensor");
    }
    name = custom.schema->name();
  }
  if (name.find("::") == std::string::npos)
    throw Error(ErrorCode::kInvalidArgument,
                "the operator '" + printable(name) + "' has no namespace",
                "name it as the graph does: ns::name");
  return {name, std::move(custom)};
}

RegisteredOperators& registered_operators() {
  static RegisteredOperators* const table = [] {
    auto* made =
        new RegisteredOperators;  // lives as long as the process: models may be loaded late
    for (auto& [schema, function] : built_in_operators())
      made->by_name.insert(parsed_operator(schema, std::move(function)));
    return made;
  }();
  return *table;
}

}  // namespace

std::optional<c10::OperatorName> operator_name(const std::string& target) {
  constexpr std::string_view kPrefix = "torch.ops.";
  if (!target.starts_with(kPrefix)) return std::nullopt;
  const std::size_t space = target.find('.', kPrefix.size());
  const std::size_t overload = target.rfind('.');
  if (space == std::string::npos || overload <= space) return std::nullopt;
  const std::string name = target.substr(kPrefix.size(), space - kPrefix.size()) +
                           "::" + target.substr(space + 1, overload - space - 1);
  std::string variant = target.substr(overload + 1);
  return c10::OperatorName(name, variant == "default" ? "" : std::move(variant));
}

std::optional<CustomOperator> custom_operator(const std::string& name) {
  RegisteredOperators& table = registered_operators();
  const std::lock_guard lock(table.mutex);
  const auto found = table.by_name.find(name);
  return found == table.by_name.end() ? std::nullopt : std::optional(found->second);
}

}  // namespace exported

void register_operator(const std::string& schema, ExportedOperator function) {
  auto [name, custom] = exported::parsed_operator(schema, std::move(function));
  exported::RegisteredOperators& table = exported::registered_operators();
  const std::lock_guard lock(table.mutex);
  table.by_name.insert_or_assign(std::move(name), std::move(custom));
}

}  // namespace accel
