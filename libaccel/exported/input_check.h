// InputCheck: whether tensors have the shapes that a graph was exported for.
//
// A dimension of the graph is a number, a symbol, or made of symbols. The first dimension that is a symbol says what it is; all
// others have to agree, and be in its range.
//
// Threads:  check() may be called by many at once.
#pragma once

#include <map>
#include <string>
#include <vector>

#include <ATen/core/ivalue.h>

#include "libaccel/exported/graph.h"

namespace accel::exported {

class InputCheck {
 public:
  struct Input {
    std::string name;
    const TensorShape* shape = nullptr;  // nullptr: no tensor
  };

  InputCheck(const std::vector<Input>& inputs, std::map<std::string, SymbolRange> ranges);

  // values: as the inputs, one for one. Throws kInvalidArgument naming the input, the dimension and what was expected.
  void check(const std::vector<c10::IValue>& values) const;

 private:
  struct Expected {
    std::string name;
    bool is_tensor = false;
    bool is_floating = false;
    std::vector<Dimension> sizes;
  };
  void check_kind(const Expected& expected, const c10::IValue& value) const;
  void bind(const Expected& expected, at::IntArrayRef sizes, SymbolValues& symbols) const;
  void compare(const Expected& expected, at::IntArrayRef sizes, const SymbolValues& symbols) const;

  std::vector<Expected> inputs_;
  std::map<std::string, SymbolRange> ranges_;
};

}  // namespace accel::exported
