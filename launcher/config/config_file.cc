// From the tree of values to a ConfigFile: unknown keys first (one error for all, in the peer's
// words), then every value against the schema, so that a user sees all wrong lines at once.

#include "launcher/config/config_file.h"

#include <algorithm>
#include <filesystem>
#include <map>
#include <span>
#include <utility>

#include "launcher/config/config_schema.h"
#include "launcher/flags/flag_table.h"
#include "launcher/text/choice_list.h"
#include "launcher/text/faults.h"
#include "runtime/suggest.h"
#include "runtime/text/letter_case.h"
#include "runtime/text/number_text.h"
#include "runtime/text/text_file.h"

namespace accel::launcher {
namespace {

using Values = std::map<std::string, const ConfigValue*, std::less<>>;

// By key; of a repeated key the last value, with a notice.
Values last_of_each(const ConfigValue::Map& map,
                    const std::string& path,
                    std::vector<FileNotice>& notices) {
  Values values;
  std::map<std::string, int, std::less<>> lines;
  for (const ConfigEntry& entry : map) {
    if (const auto before = lines.find(entry.key); before != lines.end()) {
      notices.push_back(repeated_key(path, entry.key, before->second, entry.line));
    }
    lines[entry.key] = entry.line;
    values[entry.key] = &entry.value;
  }
  return values;
}

// The peer's words, so that scripts and people who know them find them. The remedy and the lines
// are ours.
Error unknown_keys(std::vector<const ConfigEntry*> entries,
                   const std::string& path,
                   const std::vector<std::string>& known) {
  std::sort(entries.begin(), entries.end(), [](const ConfigEntry* a, const ConfigEntry* b) {
    return a->key < b->key;
  });
  std::string list;
  std::string remedy;
  for (const ConfigEntry* entry : entries) {
    list += (list.empty() ? "'" : ", '") + entry->key + "'";
    remedy +=
        (remedy.empty() ? "remove " : ", ") + entry->key + " (line " + std::to_string(entry->line);
    if (std::optional<std::string> guess = nearest(entry->key, known)) {
      remedy += ", did you mean " + *guess + "?";
    }
    remedy += ")";
  }
  return Error(ErrorCode::kConfigUnknownKey,
               "The config file at " + path + " had unknown keys ([" + list +
                   "]), please try upgrading your `accelerate` version or fix (and potentially "
                   "remove) these keys from your config file.",
               remedy);
}

// Reads single values; what does not fit becomes a fault.
class ValueReader {
 public:
  ValueReader(const Values& values, std::string path, std::string prefix, Faults& faults)
      : values_(values), path_(std::move(path)), prefix_(std::move(prefix)), faults_(faults) {}

  std::optional<int> integer(std::string_view key) {
    const ConfigValue* value = find(key);
    if (value == nullptr) return std::nullopt;
    std::optional<std::int64_t> number;
    if (const auto* integer = std::get_if<std::int64_t>(&value->data)) number = *integer;
    if (const auto* text = std::get_if<std::string>(&value->data)) {  // a quoted number
      number = number_of<std::int64_t>(*text);
    }
    constexpr std::int64_t kMost = 1'000'000'000;
    if (number && *number >= -kMost && *number <= kMost) return static_cast<int>(*number);
    refuse(key, *value, "a whole number");
    return std::nullopt;
  }

  std::optional<bool> boolean(std::string_view key) {
    const ConfigValue* value = find(key);
    if (value == nullptr) return std::nullopt;
    if (const auto* boolean = std::get_if<bool>(&value->data)) return *boolean;
    if (const auto* text = std::get_if<std::string>(&value->data)) {
      if (Result<bool> parsed = parse_env_bool(key, *text)) return *parsed;
    }
    refuse(key, *value, "true or false");
    return std::nullopt;
  }

  // Any scalar, as it was written.
  std::optional<std::string> text(std::string_view key) {
    const ConfigValue* value = find(key);
    if (value == nullptr) return std::nullopt;
    if (const auto* text = std::get_if<std::string>(&value->data)) return *text;
    if (is_collection(*value)) {
      refuse(key, *value, "text");
      return std::nullopt;
    }
    return value->text;
  }

  // The choice in the schema's own spelling. An unquoted NO, which YAML 1.1 takes for false, counts
  // as the word when it is a choice; however true is spelled, it is the choice "true".
  std::optional<std::string> choice(std::string_view key, std::string_view choices) {
    const std::optional<std::string> written = text(key);
    if (!written) return std::nullopt;
    std::string expected;
    const bool* const flag = std::get_if<bool>(&find(key)->data);
    const bool is_false = flag != nullptr && !*flag;
    for (std::string_view candidate : split_choices(choices)) {
      const bool is_the_word =
          lowercase(*written) == lowercase(candidate) ||
          (flag != nullptr && lowercase(candidate) == (*flag ? "true" : "false"));
      if (is_the_word || (is_false && lowercase(candidate) == "no")) return std::string(candidate);
      expected += (expected.empty() ? "one of " : ", ") + std::string(candidate);
    }
    refuse(key, *find(key), expected);
    return std::nullopt;
  }

  const ConfigValue::Map* map(std::string_view key) {
    const ConfigValue* value = find(key);
    if (value == nullptr) return nullptr;
    if (const auto* map = std::get_if<ConfigValue::Map>(&value->data)) return map;
    refuse(key, *value, "a map of keys");
    return nullptr;
  }

  // Its scalars as they were written, but for empty ones.
  std::vector<std::string> list(std::string_view key) {
    std::vector<std::string> texts;
    const ConfigValue* value = find(key);
    if (value == nullptr) return texts;
    const auto* const list = std::get_if<ConfigValue::List>(&value->data);
    if (list == nullptr) {
      refuse(key, *value, "a list");
      return texts;
    }
    for (const ConfigValue& item : *list) {
      const auto* const text = std::get_if<std::string>(&item.data);
      const std::string& written = text != nullptr ? *text : item.text;
      if (is_collection(item)) refuse(key, item, "a list of texts");
      if (!is_collection(item) && !written.empty()) texts.push_back(written);
    }
    return texts;
  }

 private:
  static bool is_collection(const ConfigValue& value) {
    return std::holds_alternative<ConfigValue::Map>(value.data) ||
           std::holds_alternative<ConfigValue::List>(value.data);
  }

  // nullptr when the key is absent or null.
  [[nodiscard]] const ConfigValue* find(std::string_view key) const {
    const auto found = values_.find(key);
    return found == values_.end() || found->second->is_null() ? nullptr : found->second;
  }

  void refuse(std::string_view key, const ConfigValue& value, const std::string& expected) {
    const std::string shown = is_collection(value) ? "a list or map" : "'" + value.text + "'";
    faults_.add(Error(ErrorCode::kConfigInvalidValue,
                      place_of_line(path_, value.line) + ": " + prefix_ + std::string(key) +
                          " is " + shown + ", expected " + expected,
                      "change line " + std::to_string(value.line) + " of " + path_));
  }

  const Values& values_;
  std::string path_;
  std::string prefix_;
  Faults& faults_;
};

// Values of keys without effect must still have their type: a slip there would bite later.
void check_types_of_unused_keys(ValueReader& reader) {
  for (const ConfigKey& key : config_keys()) {
    if (key.effect == ConfigEffect::kUsed) continue;
    switch (key.type) {
      case ConfigType::kInteger:
        (void)reader.integer(key.name);
        break;
      case ConfigType::kBool:
        (void)reader.boolean(key.name);
        break;
      case ConfigType::kChoice:
        (void)reader.choice(key.name, key.choices);
        break;
      case ConfigType::kMap:
        (void)reader.map(key.name);
        break;
      case ConfigType::kList:
        (void)reader.list(key.name);
        break;
      case ConfigType::kText:
        break;  // anything
    }
  }
}

// A map whose keys may have or lack a prefix: without it, those that it knows no key for with a notice.
ConfigValue::Map bare_keys(const ConfigValue::Map& map,
                           std::string_view name,
                           std::span<const ConfigKey> known,
                           const std::string& path,
                           std::vector<FileNotice>& notices) {
  const std::string prefix = std::string(name) + "_";
  ConfigValue::Map bare = map;
  for (ConfigEntry& entry : bare) {
    if (entry.key.starts_with(prefix)) entry.key.erase(0, prefix.size());
    const bool is_known = std::any_of(
        known.begin(), known.end(), [&](const ConfigKey& key) { return key.name == entry.key; });
    if (!is_known) notices.push_back(unknown_key(path, prefix + "config", entry.key, entry.line));
  }
  return bare;
}

DynamoSettings read_dynamo(const ConfigValue::Map& map,
                           const std::string& path,
                           std::vector<FileNotice>& notices,
                           Faults& faults) {
  const ConfigValue::Map bare = bare_keys(map, "dynamo", dynamo_keys(), path, notices);
  const Values values = last_of_each(bare, path, notices);
  ValueReader reader(values, path, "dynamo_config.", faults);
  DynamoSettings dynamo;
  dynamo.backend = reader.choice("backend", find_flag("dynamo_backend")->choices);
  dynamo.mode = reader.choice("mode", find_flag("dynamo_mode")->choices);
  dynamo.use_fullgraph = reader.boolean("use_fullgraph");
  dynamo.use_dynamic = reader.boolean("use_dynamic");
  dynamo.use_regional_compilation = reader.boolean("use_regional_compilation");
  return dynamo;
}

// mpirun_config.
void read_mpirun(const ConfigValue::Map& map, ConfigFile& file, Faults& faults) {
  for (const ConfigEntry& entry : map) {
    if (entry.key == "mpirun_hostfile") continue;
    const bool is_retired = entry.key == "mpirun_ccl";
    file.notices.push_back(is_retired
                               ? retired_key(file.path,
                                             entry.key,
                                             entry.line,
                                             "set CCL_WORKER_COUNT for workers that use oneCCL")
                               : unknown_key(file.path, "mpirun_config", entry.key, entry.line));
  }
  const Values values = last_of_each(map, file.path, file.notices);
  file.mpirun_hostfile =
      ValueReader(values, file.path, "mpirun_config.", faults).text("mpirun_hostfile");
}

// The maps of the strategies.
void read_sections(ValueReader& reader, ConfigFile& file, Faults& faults) {
  for (const Strategy* strategy : strategies()) {
    const ConfigValue::Map* const map = reader.map(strategy->section);
    if (map == nullptr) continue;
    read_section(*strategy, *map, file.path, file.options, file.notices, faults);
    if (strategy == &parallelism_strategy()) file.has_parallelism = !map->empty();
    if (strategy != &deepspeed_strategy()) continue;
    for (const ConfigEntry& entry : *map) file.deepspeed_keys.push_back(lowercase(entry.key));
  }
}

void read_precision(ValueReader& reader, ConfigFile& file) {
  file.mixed_precision =
      reader.choice("mixed_precision", find_config_key("mixed_precision")->choices);
  if (const std::optional<bool> fp16 = reader.boolean("fp16"); fp16 && *fp16) {
    if (!file.mixed_precision) file.mixed_precision = "fp16";
  }
}

void read_dynamo_backend(ValueReader& reader, ConfigFile& file) {
  if (auto backend = reader.choice("dynamo_backend", find_flag("dynamo_backend")->choices)) {
    file.dynamo.backend = *backend;
  }
}

void read_values(ValueReader& reader, ConfigFile& file, Faults& faults) {
  const auto choices_of = [](std::string_view key) { return find_config_key(key)->choices; };
  if (auto text = reader.choice("compute_environment", choices_of("compute_environment"))) {
    file.compute_environment = *text;
  }
  if (auto text = reader.choice("distributed_type", choices_of("distributed_type"))) {
    file.distributed_type = *text;
  }
  file.num_processes = reader.integer("num_processes");
  if (file.num_processes == -1) file.num_processes.reset();
  file.num_machines = reader.integer("num_machines");
  file.machine_rank = reader.integer("machine_rank");
  file.main_process_port = reader.integer("main_process_port");
  file.main_process_ip = reader.text("main_process_ip");
  file.rdzv_backend = reader.text("rdzv_backend");
  file.gpu_ids = reader.text("gpu_ids");
  read_precision(reader, file);
  file.use_cpu = reader.boolean("use_cpu");
  file.tpu_use_cluster = reader.boolean("tpu_use_cluster");
  file.tpu_name = reader.text("tpu_name");
  file.tpu_vm = reader.list("tpu_vm");
  file.tpu_env = reader.list("tpu_env");
  file.tpu_use_sudo = reader.boolean("tpu_use_sudo");
  if (file.distributed_type == "XLA") file.downcast_bf16 = reader.boolean("downcast_bf16");
  file.main_training_function = reader.text("main_training_function");
  file.debug = reader.boolean("debug");
  file.enable_cpu_affinity = reader.boolean("enable_cpu_affinity");
  if (const ConfigValue::Map* dynamo = reader.map("dynamo_config")) {
    file.dynamo = read_dynamo(*dynamo, file.path, file.notices, faults);
  }
  if (const ConfigValue::Map* mpirun = reader.map("mpirun_config"))
    read_mpirun(*mpirun, file, faults);
  read_sections(reader, file, faults);
  read_dynamo_backend(reader, file);
}

// Texts that must be given, and texts with a default.
void read_sagemaker_texts(ValueReader& reader, SageMakerConfig& config, Faults& faults) {
  const std::pair<const char*, std::string*> texts[] = {
      {"ec2_instance_type", &config.instance_type},
      {"iam_role_name", &config.role},
      {"image_uri", &config.image},
      {"profile", &config.profile},
      {"region", &config.region},
      {"base_job_name", &config.base_job_name},
      {"pytorch_version", &config.pytorch_version},
      {"transformers_version", &config.transformers_version},
      {"py_version", &config.py_version},
      {"sagemaker_inputs_file", &config.inputs_file},
      {"sagemaker_metrics_file", &config.metrics_file}};
  for (const auto& [key, target] : texts) {
    if (auto text = reader.text(key)) *target = *std::move(text);
  }
  for (const char* key : {"ec2_instance_type", "iam_role_name"}) {
    const std::string& text = key[0] == 'e' ? config.instance_type : config.role;
    if (!text.empty()) continue;
    faults.add(Error(ErrorCode::kConfigInvalidValue,
                     std::string(key) + " must be given for Amazon SageMaker",
                     "add the line `" + std::string(key) + ": ...`"));
  }
}

// A file of Amazon SageMaker has keys of its own.
Result<ConfigFile> parse_sagemaker(const ConfigValue::Map& document,
                                   const Values& values,
                                   ConfigFile file) {
  const std::vector<std::string> known(sagemaker_keys().begin(), sagemaker_keys().end());
  std::vector<const ConfigEntry*> unknown;
  for (const ConfigEntry& entry : document) {
    if (std::ranges::count(known, entry.key) == 0) unknown.push_back(&entry);
  }
  if (!unknown.empty()) return unknown_keys(std::move(unknown), file.path, known);
  Faults faults;
  ValueReader reader(values, file.path, "", faults);
  SageMakerConfig config;
  read_sagemaker_texts(reader, config, faults);
  if (auto type = reader.choice("distributed_type", "NO,DATA_PARALLEL,MODEL_PARALLEL"))
    config.distributed_type = *std::move(type);
  config.num_machines = reader.integer("num_machines").value_or(1);
  if (config.num_machines < 1) {
    faults.add(Error(ErrorCode::kConfigInvalidValue,
                     file.path + ": num_machines is " + std::to_string(config.num_machines) +
                         ", expected a whole number from 1",
                     "change num_machines in " + file.path));
  }
  if (const ConfigValue::Map* map = reader.map("additional_args")) config.additional_args = *map;
  file.compute_environment = "AMAZON_SAGEMAKER";
  file.distributed_type = "NO";
  file.num_processes = 1;
  read_precision(reader, file);
  file.debug = reader.boolean("debug");
  if (const ConfigValue::Map* dynamo = reader.map("dynamo_config"))
    file.dynamo = read_dynamo(*dynamo, file.path, file.notices, faults);
  read_dynamo_backend(reader, file);
  file.sagemaker = std::move(config);
  if (!faults.empty()) return faults.merged();
  return file;
}

// Types of older versions get their present name.
void rename_types(ConfigValue::Map& document,
                  const std::string& path,
                  std::vector<FileNotice>& notices) {
  constexpr std::pair<std::string_view, std::string_view> kRenamed[] = {{"TPU", "XLA"},
                                                                        {"MPS", "NO"}};
  for (ConfigEntry& entry : document) {
    if (entry.key != "distributed_type") continue;
    for (const auto& [old_name, present] : kRenamed) {
      if (entry.value.text != old_name) continue;
      notices.push_back(
          renamed_value(path, entry.key, entry.line, std::string(old_name), std::string(present)));
      entry.value.data = std::string(present);
      entry.value.text = present;
    }
  }
}

}  // namespace

Result<ConfigFile> parse_config_file(std::string_view text,
                                     ConfigFormat format,
                                     const std::string& path) {
  Result<ConfigValue::Map> document = parse_config(text, format, path);
  if (!document) return std::move(document).error();
  ConfigFile file;
  file.path = path;
  rename_types(*document, path, file.notices);
  std::vector<const ConfigEntry*> unknown;
  for (const ConfigEntry& entry : *document) {
    const ConfigKey* key = find_config_key(entry.key);
    if (key == nullptr) unknown.push_back(&entry);
    if (key != nullptr && key->effect == ConfigEffect::kRetired) {
      file.notices.push_back(retired_key(path, entry.key, entry.line, key->meaning));
    }
  }
  const Values values = last_of_each(*document, path, file.notices);
  if (const auto type = values.find("distributed_type");
      type == values.end() || type->second->is_null()) {
    return Error(ErrorCode::kConfigInvalidValue,
                 "A `distributed_type` must be specified in the config file.",
                 "add the line `distributed_type: 'NO'` to " + path);
  }
  if (const auto where = values.find("compute_environment");
      where != values.end() && where->second->text == "AMAZON_SAGEMAKER") {
    return parse_sagemaker(*document, values, std::move(file));
  }
  if (!unknown.empty()) {
    std::vector<std::string> known;
    for (const ConfigKey& key : config_keys()) known.emplace_back(key.name);
    return unknown_keys(std::move(unknown), path, known);
  }

  Faults faults;
  ValueReader reader(values, path, "", faults);
  read_values(reader, file, faults);
  check_types_of_unused_keys(reader);
  if (!faults.empty()) return faults.merged();
  if (values.find("num_processes") == values.end() && file.distributed_type == "NO") {
    file.num_processes = 1;
  }
  return file;
}

Result<ConfigFile> load_config_file(const std::string& path) {
  const auto text = read_text_file(path, kMostConfigBytes, "the configuration file");
  if (!text) return text.error();
  const bool is_json = path.ends_with(".json");
  return parse_config_file(*text, is_json ? ConfigFormat::kJson : ConfigFormat::kYaml, path);
}

}  // namespace accel::launcher
