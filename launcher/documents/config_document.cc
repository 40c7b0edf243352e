// YAML comes from yaml-cpp, JSON from nlohmann's event interface. The latter has no line numbers,
// so the text is fed to it through an iterator that counts the line feeds it hands out: when an
// event arrives, the parser has read just to the end of the token.

#include "launcher/documents/config_document.h"

#include <algorithm>
#include <iterator>
#include <memory>
#include <optional>
#include <sstream>
#include <utility>

#include <nlohmann/json.hpp>
#include <yaml-cpp/eventhandler.h>
#include <yaml-cpp/yaml.h>

#include "launcher/documents/yaml_scalar.h"

namespace accel::launcher {
namespace {

constexpr size_t kMaxBytes = 1 << 20;
constexpr int kMaxValues = 10'000;
constexpr int kMaxDepth = 16;

Error syntax_error(const std::string& path, int line, const std::string& what) {
  return Error(ErrorCode::kConfigSyntax, path + ":" + std::to_string(line) + ": " + what);
}

// ---- YAML

class YamlReader {
 public:
  explicit YamlReader(const std::string& path) : path_(path) {}

  ConfigValue read(const YAML::Node& node, int depth) {
    const int line = node.Mark().line + 1;
    if (depth > kMaxDepth) throw syntax_error(path_, line, "more than 16 levels deep");
    if (++num_values_ > kMaxValues) throw syntax_error(path_, line, "more than 10000 values");
    ConfigValue value;
    value.line = line;
    switch (node.Type()) {
      case YAML::NodeType::Undefined:
      case YAML::NodeType::Null:
        break;
      case YAML::NodeType::Scalar:
        read_scalar(node, value);
        break;
      case YAML::NodeType::Sequence:
        read_list(node, depth, value);
        break;
      case YAML::NodeType::Map:
        read_map(node, depth, value);
        break;
    }
    return value;
  }

 private:
  static void read_scalar(const YAML::Node& node, ConfigValue& value) {
    value.text = node.Scalar();
    value.data = value.text;
    if (node.Tag() != "?") return;  // quoted, or tagged: text
    const YamlScalar scalar = resolve_yaml_scalar(value.text);
    if (std::holds_alternative<YamlNull>(scalar)) value.data = ConfigValue::Null{};
    if (const auto* boolean = std::get_if<bool>(&scalar)) value.data = *boolean;
    if (const auto* integer = std::get_if<std::int64_t>(&scalar)) value.data = *integer;
    if (const auto* number = std::get_if<double>(&scalar)) value.data = *number;
  }

  void read_list(const YAML::Node& node, int depth, ConfigValue& value) {
    ConfigValue::List list;
    for (const YAML::Node& item : node) list.push_back(read(item, depth + 1));
    value.data = std::move(list);
  }

  void read_map(const YAML::Node& node, int depth, ConfigValue& value) {
    ConfigValue::Map own;
    ConfigValue::Map merged;
    for (const auto& pair : node) {
      const int line = pair.first.Mark().line + 1;
      if (!pair.first.IsScalar()) throw syntax_error(path_, line, "a key must be a word");
      ConfigValue entry = read(pair.second, depth + 1);
      if (is_merge_key(pair.first)) {
        merge(std::move(entry), line, merged);
      } else {
        own.push_back({pair.first.Scalar(), line, std::move(entry)});
      }
    }
    std::erase_if(merged, [&](const ConfigEntry& entry) { return contains(own, entry.key); });
    own.insert(own.begin(),
               std::make_move_iterator(merged.begin()),
               std::make_move_iterator(merged.end()));
    value.data = std::move(own);
  }

  // An unquoted "<<" (https://yaml.org/type/merge.html).
  static bool is_merge_key(const YAML::Node& key) {
    return key.Tag() == "?" && key.Scalar() == "<<";
  }

  static bool contains(const ConfigValue::Map& map, const std::string& key) {
    return std::any_of(
        map.begin(), map.end(), [&](const ConfigEntry& entry) { return entry.key == key; });
  }

  // A later entry takes the place of an earlier one; of a list of maps, the first that has a key gives its value.
  void merge(ConfigValue source, int line, ConfigValue::Map& merged) const {
    if (auto* list = std::get_if<ConfigValue::List>(&source.data)) {
      for (auto part = list->rbegin(); part != list->rend(); ++part)
        merge_map(std::move(*part), line, merged);
    } else {
      merge_map(std::move(source), line, merged);
    }
  }

  void merge_map(ConfigValue source, int line, ConfigValue::Map& merged) const {
    auto* map = std::get_if<ConfigValue::Map>(&source.data);
    if (map == nullptr) {
      throw syntax_error(path_, line, "what << merges must be a map of keys, or a list of maps");
    }
    std::erase_if(merged, [&](const ConfigEntry& entry) { return contains(*map, entry.key); });
    std::move(map->begin(), map->end(), std::back_inserter(merged));
  }

  const std::string& path_;
  int num_values_ = 0;
};

std::string_view line_of(std::string_view text, int line) {
  for (int i = 1; i < line && !text.empty(); ++i) {
    text.remove_prefix(std::min(text.find('\n'), text.size() - 1) + 1);
  }
  return text.substr(0, text.find('\n'));
}

Error explain_yaml_failure(const YAML::Exception& failure,
                           std::string_view text,
                           const std::string& path) {
  const int line = failure.mark.line + 1;
  const std::string_view bad = line_of(text, line);
  const size_t indent = std::min(bad.find_first_not_of(" \t"), bad.size());
  if (bad.substr(0, indent).find('\t') != std::string_view::npos) {
    return Error(ErrorCode::kConfigSyntax,
                 path + ":" + std::to_string(line) + ": the line is indented with a tab",
                 "indent with spaces; `expand -t 2 FILE` turns tabs into spaces");
  }
  return syntax_error(path, line, failure.msg);
}

// Notes where a document begins: at its first node, or where it is empty, at what begins it.
class DocumentPlace final : public YAML::EventHandler {
 public:
  [[nodiscard]] int line() const { return (node_.is_null() ? start_.line : node_.line) + 1; }

  void OnDocumentStart(const YAML::Mark& mark) override { start_ = mark; }
  void OnDocumentEnd() override {}
  void OnNull(const YAML::Mark& mark, YAML::anchor_t) override { note(mark); }
  void OnAlias(const YAML::Mark& mark, YAML::anchor_t) override { note(mark); }
  void OnScalar(const YAML::Mark& mark,
                const std::string&,
                YAML::anchor_t,
                const std::string&) override {
    note(mark);
  }
  void OnSequenceStart(const YAML::Mark& mark,
                       const std::string&,
                       YAML::anchor_t,
                       YAML::EmitterStyle::value) override {
    note(mark);
  }
  void OnSequenceEnd() override {}
  void OnMapStart(const YAML::Mark& mark,
                  const std::string&,
                  YAML::anchor_t,
                  YAML::EmitterStyle::value) override {
    note(mark);
  }
  void OnMapEnd() override {}

 private:
  void note(const YAML::Mark& mark) {
    if (node_.is_null()) node_ = mark;
  }
  YAML::Mark start_;
  YAML::Mark node_ = YAML::Mark::null_mark();
};

// The line of the second document. Two are looked at and no more: yaml-cpp 0.7 finds documents without end behind a scalar
// that something follows which cannot, so YAML::LoadAll() would never return.
std::optional<int> line_of_second_document(const std::string& text) {
  std::istringstream stream(text);
  YAML::Parser parser(stream);
  DocumentPlace first;
  DocumentPlace second;
  if (!parser.HandleNextDocument(first) || !parser.HandleNextDocument(second)) return std::nullopt;
  return second.line();
}

Error second_document(int line, const std::string& path) {
  return Error(ErrorCode::kConfigSyntax,
               path + ":" + std::to_string(line) + ": the file has a second document",
               "keep one document in it: nothing behind a line --- or ... is read");
}

Result<ConfigValue::Map> parse_yaml(std::string_view text, const std::string& path) {
  ConfigValue top;
  try {
    const std::string whole(text);
    if (const auto line = line_of_second_document(whole)) return second_document(*line, path);
    top = YamlReader(path).read(YAML::Load(whole), 0);
  } catch (const YAML::Exception& failure) {
    return explain_yaml_failure(failure, text, path);
  } catch (const Error& failure) {
    return failure;
  }
  if (top.is_null()) return ConfigValue::Map();
  if (auto* map = std::get_if<ConfigValue::Map>(&top.data)) return std::move(*map);
  return syntax_error(path, 1, "expected `key: value` lines at the top level");
}

// ---- JSON

class LineCounter {
 public:
  using iterator_category = std::input_iterator_tag;
  using value_type = char;
  using difference_type = std::ptrdiff_t;
  using pointer = const char*;
  using reference = const char&;

  LineCounter(const char* place, int* line) : place_(place), line_(line) {}

  reference operator*() const { return *place_; }
  LineCounter& operator++() {
    if (*place_++ == '\n') ++*line_;
    return *this;
  }
  LineCounter operator++(int) {
    LineCounter before = *this;
    ++*this;
    return before;
  }
  bool operator==(const LineCounter& other) const { return place_ == other.place_; }
  bool operator!=(const LineCounter& other) const { return place_ != other.place_; }

 private:
  const char* place_;
  int* line_;
};

// Builds the tree from nlohmann's events. The innermost open list or map is at the end of `open_`.
class JsonReader : public nlohmann::json::json_sax_t {
 public:
  explicit JsonReader(const int* line) : line_(line) {}

  [[nodiscard]] ConfigValue take_top() { return std::move(top_); }
  [[nodiscard]] const std::string& fault() const { return fault_; }

  bool null() override { return add({ConfigValue::Null{}, "null", *line_}); }
  bool boolean(bool value) override { return add({value, value ? "true" : "false", *line_}); }
  bool number_integer(number_integer_t value) override {
    return add({static_cast<std::int64_t>(value), std::to_string(value), *line_});
  }
  bool number_unsigned(number_unsigned_t value) override {
    if (value > static_cast<number_unsigned_t>(std::numeric_limits<std::int64_t>::max())) {
      return add({static_cast<double>(value), std::to_string(value), *line_});
    }
    return add({static_cast<std::int64_t>(value), std::to_string(value), *line_});
  }
  bool number_float(number_float_t value, const string_t& text) override {
    return add({value, text, *line_});
  }
  bool string(string_t& value) override { return add({value, value, *line_}); }
  bool binary(binary_t&) override { return false; }
  bool start_object(std::size_t) override { return open(ConfigValue::Map()); }
  bool start_array(std::size_t) override { return open(ConfigValue::List()); }
  bool key(string_t& value) override {
    keys_.push_back({value, *line_, {}});
    return true;
  }
  bool end_object() override { return close(); }
  bool end_array() override { return close(); }
  bool parse_error(std::size_t, const std::string&, const nlohmann::json::exception& e) override {
    fault_ = e.what();
    // "[json.exception.parse_error.101] parse error at line 1, column 2: ..." -> what follows.
    if (const size_t colon = fault_.find(": "); colon != std::string::npos)
      fault_.erase(0, colon + 2);
    return false;
  }

 private:
  bool open(ConfigValue value) {
    if (open_.size() >= kMaxDepth) return fail("more than 16 levels deep");
    open_.push_back(std::move(value));
    open_.back().line = *line_;
    return true;
  }
  bool open(ConfigValue::Map map) { return open(ConfigValue{std::move(map), "", 0}); }
  bool open(ConfigValue::List list) { return open(ConfigValue{std::move(list), "", 0}); }

  bool close() {
    ConfigValue done = std::move(open_.back());
    open_.pop_back();
    return add(std::move(done));
  }

  bool add(ConfigValue value) {
    if (++num_values_ > kMaxValues) return fail("more than 10000 values");
    if (open_.empty()) {
      top_ = std::move(value);
    } else if (auto* list = std::get_if<ConfigValue::List>(&open_.back().data)) {
      list->push_back(std::move(value));
    } else {
      ConfigEntry entry = std::move(keys_.back());
      keys_.pop_back();
      entry.value = std::move(value);
      std::get<ConfigValue::Map>(open_.back().data).push_back(std::move(entry));
    }
    return true;
  }

  bool fail(std::string what) {
    fault_ = std::move(what);
    return false;
  }

  const int* line_;
  int num_values_ = 0;
  std::vector<ConfigValue> open_;
  std::vector<ConfigEntry> keys_;  // keys whose value has not ended
  ConfigValue top_;
  std::string fault_;
};

Result<ConfigValue::Map> parse_json(std::string_view text, const std::string& path) {
  int line = 1;
  JsonReader reader(&line);
  const char* end = text.data() + text.size();
  const bool is_valid =
      nlohmann::json::sax_parse(LineCounter(text.data(), &line), LineCounter(end, &line), &reader);
  if (!is_valid) return syntax_error(path, line, reader.fault());
  ConfigValue top = reader.take_top();
  if (auto* map = std::get_if<ConfigValue::Map>(&top.data)) return std::move(*map);
  return syntax_error(path, 1, "expected an object, {\"key\": value, ...}");
}

}  // namespace

ConfigValue text_value(std::string_view text) {
  return {std::string(text), std::string(text), 0};
}

ConfigValue integer_value(std::int64_t number) {
  return {number, std::to_string(number), 0};
}

ConfigValue bool_value(bool value) {
  return {value, value ? "true" : "false", 0};
}

Result<ConfigValue::Map> parse_config(std::string_view text,
                                      ConfigFormat format,
                                      const std::string& path) {
  if (text.size() > kMaxBytes) return syntax_error(path, 1, "the file is larger than 1 MiB");
  return format == ConfigFormat::kJson ? parse_json(text, path) : parse_yaml(text, path);
}

}  // namespace accel::launcher
