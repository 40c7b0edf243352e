#include "launcher/documents/file_notice.h"

#include "launcher/text/faults.h"

namespace accel::launcher {
namespace {

std::string removal(const std::string& path, int line) {
  return "remove line " + std::to_string(line) + " of " + path;
}

}  // namespace

std::string place_of_line(const std::string& path, int line) {
  return path + ":" + std::to_string(line);
}

FileNotice repeated_key(const std::string& path,
                        const std::string& key,
                        int first_line,
                        int second_line) {
  return {path + ": " + key + " is given on line " + std::to_string(first_line) +
              " and again on line " + std::to_string(second_line),
          "the last one holds",
          removal(path, first_line)};
}

FileNotice unknown_key(const std::string& path,
                       const std::string& section,
                       const std::string& key,
                       int line) {
  return {place_of_line(path, line) + ": " + section + " has no key " + key,
          "it has no effect",
          removal(path, line)};
}

FileNotice retired_key(const std::string& path,
                       const std::string& key,
                       int line,
                       std::string_view advice) {
  return {place_of_line(path, line) + ": " + key + " has no effect",
          std::string(advice),
          removal(path, line) + " (" + std::string(advice) + ")"};
}

FileNotice renamed_key(const std::string& path,
                       const std::string& key,
                       int line,
                       const std::string& present_name) {
  return {place_of_line(path, line) + ": " + key + " is an older name",
          "the key is " + present_name,
          "call it " + present_name + " on line " + std::to_string(line) + " of " + path};
}

FileNotice renamed_value(const std::string& path,
                         const std::string& key,
                         int line,
                         const std::string& value,
                         const std::string& present) {
  return {place_of_line(path, line) + ": " + key + " is " + value + ", as in older versions",
          "it is taken for " + present,
          "write " + key + ": '" + present + "' on line " + std::to_string(line) + " of " + path};
}

std::vector<std::string> texts_of(const std::vector<FileNotice>& notices) {
  std::vector<std::string> texts;
  texts.reserve(notices.size());
  for (const FileNotice& notice : notices) texts.push_back(notice.text());
  return texts;
}

Error strict_error(const std::vector<FileNotice>& notices) {
  Faults faults;
  for (const FileNotice& notice : notices) {
    faults.add(Error(ErrorCode::kConfigInvalidValue,
                     notice.what + ", and --strict allows no such line",
                     notice.remedy + ", or leave --strict out"));
  }
  return faults.merged();
}

}  // namespace accel::launcher
