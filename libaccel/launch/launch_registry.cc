#include "libaccel/launch/launch_registry.h"

#include <map>
#include <utility>

#include <accel/launchers.h>

namespace accel {
namespace launch {
namespace {

// Registration happens before main(), in no order: the map is made by whoever comes first.
std::map<std::string, PlainFunction, std::less<>>& functions() {
  static auto* const map = new std::map<std::string, PlainFunction, std::less<>>;
  return *map;
}

}  // namespace

PlainFunction find_function(std::string_view name) {
  const auto found = functions().find(name);
  return found == functions().end() ? nullptr : found->second;
}

std::string name_of(PlainFunction function) {
  for (const auto& [name, registered] : functions()) {
    if (registered == function) return name;
  }
  return "";
}

std::vector<std::string> registered_names() {
  std::vector<std::string> names;
  for (const auto& [name, function] : functions()) names.push_back(name);
  return names;
}

}  // namespace launch

void register_launch_function(std::string name, void (*function)()) {
  if (name.empty() || function == nullptr) {
    throw Error(ErrorCode::kInvalidArgument, "a launch function needs a name and a function");
  }
  const auto [at, is_new] = launch::functions().emplace(std::move(name), function);
  if (!is_new && at->second != function) {
    throw Error(ErrorCode::kInvalidArgument,
                "two functions are registered for launches as '" + at->first + "'",
                "register one of them under another name with register_launch_function()");
  }
}

}  // namespace accel
