// Answers: what was said to the questionnaire of `accel config` so far, by the key of the file.
//
// "fsdp_config.fsdp_version" is a key within a map of the file; "?use_fsdp" steers which questions come
// and is in no file.
//
// Threads:  pure.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>

#include "launcher/documents/config_document.h"

namespace accel::launcher {

class Answers {
 public:
  using Map = std::map<std::string, ConfigValue, std::less<>>;

  void set(std::string_view key, ConfigValue value);
  // Adds to a list.
  void append(std::string_view key, ConfigValue value);

  [[nodiscard]] bool has(std::string_view key) const { return values_.find(key) != values_.end(); }
  [[nodiscard]] bool is_on(std::string_view key) const;
  [[nodiscard]] std::string text(std::string_view key) const;  // empty: none, or no text
  [[nodiscard]] std::int64_t number(std::string_view key, std::int64_t otherwise) const;
  [[nodiscard]] const Map& values() const noexcept { return values_; }

  [[nodiscard]] bool is_sagemaker() const;
  // A value of the key distributed_type: the kind of machine, or DEEPSPEED, FSDP or MEGATRON_LM once
  // that was chosen.
  [[nodiscard]] std::string distributed_type() const;

 private:
  Map values_;
};

// `word` is one of the words between commas.
[[nodiscard]] bool is_one_of(std::string_view word, std::string_view words);

}  // namespace accel::launcher
