#include "launcher/config/questionnaire/answers.h"

#include <algorithm>
#include <utility>

#include "launcher/text/choice_list.h"

namespace accel::launcher {

void Answers::set(std::string_view key, ConfigValue value) {
  values_.insert_or_assign(std::string(key), std::move(value));
}

void Answers::append(std::string_view key, ConfigValue value) {
  ConfigValue& list =
      values_.try_emplace(std::string(key), ConfigValue{ConfigValue::List(), "", 0}).first->second;
  if (auto* items = std::get_if<ConfigValue::List>(&list.data)) items->push_back(std::move(value));
}

bool Answers::is_on(std::string_view key) const {
  const auto found = values_.find(key);
  if (found == values_.end()) return false;
  const bool* const value = std::get_if<bool>(&found->second.data);
  return value != nullptr && *value;
}

std::string Answers::text(std::string_view key) const {
  const auto found = values_.find(key);
  if (found == values_.end()) return "";
  const auto* const value = std::get_if<std::string>(&found->second.data);
  return value == nullptr ? "" : *value;
}

std::int64_t Answers::number(std::string_view key, std::int64_t otherwise) const {
  const auto found = values_.find(key);
  if (found == values_.end()) return otherwise;
  const auto* const value = std::get_if<std::int64_t>(&found->second.data);
  return value == nullptr ? otherwise : *value;
}

bool Answers::is_sagemaker() const {
  return text("compute_environment") == "AMAZON_SAGEMAKER";
}

std::string Answers::distributed_type() const {
  if (is_sagemaker()) return text("distributed_type");
  if (is_on("?use_deepspeed")) return "DEEPSPEED";
  if (is_on("?use_fsdp")) return "FSDP";
  if (is_on("?use_megatron_lm")) return "MEGATRON_LM";
  return text("?machine");
}

bool is_one_of(std::string_view word, std::string_view words) {
  const auto all = split_choices(words);
  return std::find(all.begin(), all.end(), word) != all.end();
}

}  // namespace accel::launcher
