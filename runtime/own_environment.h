// OwnEnvironment: the environment of this process, as a map.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include <unistd.h>

#include <accel/env_contract.h>

namespace accel {

// Of a variable that is there twice the first value. Threads: while nobody changes the environment.
[[nodiscard]] inline EnvMap own_environment() {
  EnvMap environment;
  for (char** entry = ::environ; entry != nullptr && *entry != nullptr; ++entry) {
    const std::string_view text = *entry;
    const std::size_t equals = text.find('=');
    if (equals == std::string_view::npos || equals == 0) continue;
    environment.try_emplace(std::string(text.substr(0, equals)), text.substr(equals + 1));
  }
  return environment;
}

}  // namespace accel
