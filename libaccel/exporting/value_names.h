// ValueNames: names for the values of a graph, each once, that Python can have as variables.
//
// Threads:  one at a time.
// Source:   torch.fx.graph._Namespace.
#pragma once

#include <map>
#include <set>
#include <string>

namespace accel::exporting {

// Whether Python can call a variable so: letters, digits and _, no digit first, no word of the language.
[[nodiscard]] bool is_python_name(const std::string& name);

class ValueNames {
 public:
  // "relu", then "relu_1" and so on. What Python knows as a function of its own ("sum") starts with the number.
  [[nodiscard]] std::string take(const std::string& wish);
  // Exactly this one; false: somebody has it.
  [[nodiscard]] bool take_as_is(const std::string& name) { return taken_.insert(name).second; }

 private:
  std::set<std::string> taken_;
  std::map<std::string, int> next_;
};

}  // namespace accel::exporting
