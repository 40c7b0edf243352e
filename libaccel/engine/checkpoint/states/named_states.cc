#include "libaccel/engine/checkpoint/states/named_states.h"

#include <cmath>
#include <limits>
#include <utility>

#include <nlohmann/json.hpp>

#include <accel/error.h>

#include "libaccel/tensors/unique_parameters.h"

namespace accel::checkpoint {

using nlohmann::json;

SavedOptimizer save_by_names(torch::optim::Optimizer& optimizer,
                             const ParameterNames& names,
                             const StateWriter& writer) {
  SavedOptimizer saved;
  json states = json::object();
  json groups = json::array();
  const auto unique = unique_groups(optimizer);
  for (std::size_t g = 0; g < unique.size(); ++g) {
    json group_names = json::array();
    for (std::size_t i = 0; i < unique[g].size(); ++i) {
      const std::string name = names.name_of(unique[g][i], g, i);
      group_names.push_back(name);
      const auto state = optimizer.state().find(unique[g][i].unsafeGetTensorImpl());
      if (state == optimizer.state().end()) continue;  // it never had a gradient
      states[name] = writer.write_state(*state->second, name, saved.tensors);
    }
    groups.push_back({{"params", std::move(group_names)}, {"options", writer.write_options(g)}});
  }
  const json root = {
      {"type", writer.type}, {"state", std::move(states)}, {"param_groups", std::move(groups)}};
  saved.json = root.dump(2) + "\n";
  return saved;
}

const char* non_finite_text(double value) {
  if (std::isnan(value)) return "nan";
  return value > 0 ? "inf" : "-inf";
}

double non_finite_number(const std::string& text) {
  if (text == "nan") return std::numeric_limits<double>::quiet_NaN();
  return std::copysign(std::numeric_limits<double>::infinity(), text == "inf" ? 1.0 : -1.0);
}

void throw_mismatch(const std::string& message) {
  throw Error(ErrorCode::kCheckpointMismatch, message);
}

}  // namespace accel::checkpoint
