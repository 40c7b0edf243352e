// ConfigNormalForm: a configuration with every field that the peer's present version has, and nothing of
// older ones.
//
// Fields that nobody said get their default; fields that are null and maps that are empty are left out,
// as the peer leaves them out of its files. Maps below the top stay as they are.
//
// Threads:  pure functions.
// Source:   accelerate 1.15.0, commands/config/config_args.py; tests/peer/config_command.py compares.
#pragma once

#include <string_view>

#include "launcher/documents/config_document.h"

namespace accel::launcher {

// In the peer's order. Of a repeated key the last value holds; keys that it does not have are left out.
[[nodiscard]] ConfigValue::Map normal_form(const ConfigValue::Map& document);

// As the peer writes its files: keys in alphabetical order, those of maps below too.
[[nodiscard]] ConfigValue::Map in_alphabetical_order(ConfigValue::Map document);

// nullptr: there is none. Of a repeated key the last value.
[[nodiscard]] const ConfigValue* find_value(const ConfigValue::Map& document, std::string_view key);

// For one machine: its GPUs, or one process on the CPU. In normal form.
[[nodiscard]] ConfigValue::Map basic_config(std::string_view mixed_precision, int num_gpus);

}  // namespace accel::launcher
