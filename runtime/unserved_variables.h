// UnservedVariables: what launchers tell workers and programs of libaccel do not act on. None of it is passed over in silence:
// what would change the result of a training is refused, what would change its speed or its files alone is said.
//
// Threads:  pure functions over constant data.
// Source:   the variables of `accelerate launch` 1.15.0; tests/unit/launcher/strategies/unserved_variables_test.cc walks the
//           launcher's tables.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <accel/env_contract.h>
#include <accel/error.h>

namespace accel {

enum class Unserved {
  kRefused,  // the training would be another one
  kSaid,     // the same numbers without it
  kDependent,  // has a meaning only with `counts_with`, which is refused, or said, with a value that asks for it
};

struct UnservedVariable {
  std::string_view name;  // may end with a star
  Unserved treatment = Unserved::kRefused;
  std::string_view flag;  // "--use_megatron_lm"; empty: none sets it
  std::string_view key;   // of a configuration file; empty: none sets it
  // Values that ask for nothing, in small letters between commas; the empty one always is one.
  std::string_view asks_nothing;
  std::string_view counts_with;  // another variable; empty: this one alone
  std::string_view reason;       // a half-sentence: why it has no effect
  std::string_view remedy;       // of a refusal
};

[[nodiscard]] std::span<const UnservedVariable> unserved_variables();

// What `env` asks for and is only said: a line each, with variable, value, flag, key and reason. Throws Error kUnsupported for
// the first that is refused.
[[nodiscard]] std::vector<std::string> check_unserved_variables(const EnvLookup& env);

}  // namespace accel
