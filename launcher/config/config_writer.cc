#include "launcher/config/config_writer.h"

#include <cerrno>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <type_traits>

#include <fcntl.h>
#include <nlohmann/json.hpp>
#include <sys/stat.h>
#include <unistd.h>
#include <yaml-cpp/yaml.h>

#include <accel/error.h>

#include "launcher/documents/config_json.h"
#include "launcher/documents/yaml_scalar.h"
#include "runtime/printable.h"
#include "runtime/text/random_digits.h"
#include "runtime/unique_fd.h"
#include "runtime/write_all.h"

namespace accel::launcher {
namespace {

namespace fs = std::filesystem;

constexpr mode_t kNewFile = 0666;  // less the umask

bool has_control_character(std::string_view text) {
  for (const char c : text)
    if (static_cast<unsigned char>(c) < ' ' || c == 0x7f) return true;
  return false;
}

// U+0080 to U+009F, which PyYAML does not take or takes for an end of line, the line separators U+2028 and U+2029, and
// a byte order mark.
bool has_unprintable_letter(std::string_view text) {
  for (std::size_t i = 0; i + 1 < text.size(); ++i) {
    const auto second = static_cast<unsigned char>(text[i + 1]);
    if (text[i] == '\xc2' && second >= 0x80 && second < 0xa0) return true;
    const std::string_view three = text.substr(i, 3);
    if (three == "\xe2\x80\xa8" || three == "\xe2\x80\xa9" || three == "\xef\xbb\xbf") return true;
  }
  return false;
}

void emit_text(YAML::Emitter& out, const std::string& text) {
  if (has_unprintable_letter(text)) {
    out << YAML::DoubleQuoted << YAML::EscapeNonAscii << text;
  } else if (has_control_character(text)) {
    out << YAML::DoubleQuoted << text;
  } else if (std::holds_alternative<YamlText>(resolve_yaml_scalar(text))) {
    out << text;  // yaml-cpp quotes what YAML's syntax makes it quote
  } else {
    out << YAML::SingleQuoted << text;
  }
}

// PyYAML takes 1e5 for text: what comes before an exponent needs a dot, and the exponent a sign.
std::string yaml_number(std::string text) {
  const size_t exponent = text.find_first_of("eE");
  const bool is_text = std::holds_alternative<YamlText>(resolve_yaml_scalar(text));
  if (!is_text || exponent == std::string::npos) return text;
  if (text.find_first_of("+-", exponent) == std::string::npos) text.insert(exponent + 1, "+");
  if (text.find('.') == std::string::npos) text.insert(exponent, ".0");
  return text;
}

void emit(YAML::Emitter& out, const ConfigValue& value);

void emit(YAML::Emitter& out, const ConfigValue::Map& map) {
  if (map.empty()) out << YAML::Flow;
  out << YAML::BeginMap;
  for (const ConfigEntry& entry : map) {
    out << YAML::Key;
    emit_text(out, entry.key);
    out << YAML::Value;
    emit(out, entry.value);
  }
  out << YAML::EndMap;
}

void emit(YAML::Emitter& out, const ConfigValue::List& list) {
  if (list.empty()) out << YAML::Flow;
  out << YAML::BeginSeq;
  for (const ConfigValue& item : list) emit(out, item);
  out << YAML::EndSeq;
}

// Whole numbers and booleans of a JSON file are YAML as they stand.
void emit(YAML::Emitter& out, const ConfigValue& value) {
  std::visit(
      [&](const auto& data) {
        using Data = std::decay_t<decltype(data)>;
        if constexpr (std::is_same_v<Data, ConfigValue::Null>) {
          out << YAML::Null;
        } else if constexpr (std::is_same_v<Data, std::string>) {
          emit_text(out, data);
        } else if constexpr (std::is_same_v<Data, ConfigValue::Map> ||
                             std::is_same_v<Data, ConfigValue::List>) {
          emit(out, data);
        } else if (std::is_same_v<Data, double> && !value.text.empty()) {
          out << yaml_number(value.text);
        } else if (!value.text.empty()) {
          out << value.text;
        } else {
          out << data;
        }
      },
      value.data);
}

// The key of a number that JSON has no word for; empty: there is none.
std::string key_of_endless(const ConfigValue& value);

std::string key_of_endless(const ConfigValue::Map& map) {
  for (const ConfigEntry& entry : map) {
    const std::string below = key_of_endless(entry.value);
    if (!below.empty()) return entry.key + (below == "." ? "" : "." + below);
  }
  return "";
}

std::string key_of_endless(const ConfigValue& value) {
  if (const auto* map = std::get_if<ConfigValue::Map>(&value.data)) return key_of_endless(*map);
  if (const auto* list = std::get_if<ConfigValue::List>(&value.data)) {
    for (const ConfigValue& item : *list) {
      if (std::string below = key_of_endless(item); !below.empty()) return below;
    }
  }
  const auto* number = std::get_if<double>(&value.data);
  return number != nullptr && !std::isfinite(*number) ? "." : "";
}

Error unwritable(const std::string& path, int error) {
  const bool is_full = error == ENOSPC || error == EDQUOT;
  return Error(is_full ? ErrorCode::kDiskFull : ErrorCode::kFileIo,
               "cannot write " + printable(path) + ": " + errno_text(error));
}

// A pipe, a terminal or a device takes the text as it comes: a file in its place would take its name away.
Result<void> write_to_special_file(const std::string& path, std::string_view text) {
  const UniqueFd file(::open(path.c_str(), O_WRONLY | O_NOCTTY | O_CLOEXEC));
  if (file && write_all(file.get(), text) == 0) return {};
  return unwritable(path, errno);
}

// The file that a link, or a chain of them, points to, there or not. A circle ends somewhere in it.
std::string behind_links(const std::string& path) {
  constexpr int kMostLinks = 40;  // as the kernel's
  std::error_code failure;
  fs::path at = path;
  for (int i = 0; i < kMostLinks && fs::is_symlink(at, failure); ++i)
    at = at.parent_path() / fs::read_symlink(at, failure);  // an absolute one replaces the folder
  return at.string();
}

// The folder that the file goes into, or that its folders would be made in.
fs::path nearest_folder(const std::string& path) {
  std::error_code failure;
  fs::path at = fs::absolute(path, failure).parent_path();
  while (at != at.parent_path() && fs::status(at, failure).type() == fs::file_type::not_found)
    at = at.parent_path();
  return at;
}

}  // namespace

std::string to_text(const ConfigValue::Map& document, ConfigFormat format) {
  if (format == ConfigFormat::kJson)
    return json_of<nlohmann::ordered_json>({document, "", 0}).dump(2) + "\n";
  YAML::Emitter out;
  out.SetNullFormat(YAML::LowerNull);
  emit(out, document);
  return std::string(out.c_str()) + "\n";
}

ConfigFormat format_of(const std::string& path) {
  return path.ends_with(".json") ? ConfigFormat::kJson : ConfigFormat::kYaml;
}

Result<void> check_place(const std::string& path) {
  const std::string target = behind_links(path);
  std::error_code failure;
  const fs::file_status status = fs::status(target, failure);
  if (fs::is_directory(status)) return unwritable(path, EISDIR);
  if (fs::exists(status) && !fs::is_regular_file(status)) return {};
  if (fs::is_symlink(target, failure)) return unwritable(path, ELOOP);
  const fs::path folder = nearest_folder(target);
  if (!fs::is_directory(folder, failure)) return unwritable(path, ENOTDIR);
  if (::access(folder.c_str(), W_OK | X_OK) != 0) return unwritable(path, errno);
  return {};
}

Result<void> write_config(const std::string& path, const ConfigValue::Map& document) {
  const ConfigFormat format = format_of(path);
  const std::string endless = format == ConfigFormat::kJson ? key_of_endless(document) : "";
  if (!endless.empty()) {
    return Error(
        ErrorCode::kConfigInvalidValue,
        printable(endless) + " is an infinite number or none, which JSON cannot say",
        "name a file that ends in .yaml, or give " + printable(endless) + " another value");
  }
  return write_config_file(path, to_text(document, format));
}

Result<void> write_config_file(const std::string& path, std::string_view text) {
  const std::string target = behind_links(path);
  struct stat before {};
  const bool is_there = ::stat(path.c_str(), &before) == 0;
  if (!is_there && errno == ELOOP) return unwritable(path, ELOOP);
  if (is_there && !S_ISREG(before.st_mode)) return write_to_special_file(path, text);
  const std::string fresh = target + ".new." + random_digits(16);
  const UniqueFd file(
      ::open(fresh.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, kNewFile));
  if (!file) return unwritable(path, errno);
  if (is_there) (void)::fchmod(file.get(), before.st_mode & 07777);
  if (write_all(file.get(), text) == 0 && ::fsync(file.get()) == 0 &&
      ::rename(fresh.c_str(), target.c_str()) == 0)
    return {};
  const int error = errno;
  ::unlink(fresh.c_str());
  return unwritable(path, error);
}

}  // namespace accel::launcher
