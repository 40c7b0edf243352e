#include "checkpoint_tools/models/weight_files.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string_view>

#include "runtime/printable.h"
#include "runtime/text/number_text.h"

namespace accel::launcher {
namespace {

constexpr std::string_view kSuffix = ".safetensors";
constexpr std::string_view kModel = "model";
constexpr std::size_t kDigits = 5;

// "model-00002-of-00003.safetensors"
struct Numbered {
  std::string prefix;  // "model"
  unsigned number = 0;
  unsigned total = 0;
};

std::optional<Numbered> parse_numbered(std::string_view name) {
  constexpr std::string_view kOf = "-of-";
  constexpr std::size_t kTail = 1 + kDigits + kOf.size() + kDigits;
  if (!name.ends_with(kSuffix)) return std::nullopt;
  name.remove_suffix(kSuffix.size());
  if (name.size() <= kTail) return std::nullopt;
  const std::string_view tail = name.substr(name.size() - kTail);
  if (tail.front() != '-' || tail.substr(1 + kDigits, kOf.size()) != kOf) return std::nullopt;
  const auto number = number_of<unsigned>(tail.substr(1, kDigits));
  const auto total = number_of<unsigned>(tail.substr(tail.size() - kDigits));
  if (!number || !total) return std::nullopt;
  return Numbered{.prefix = std::string(name.substr(0, name.size() - kTail)),
                  .number = *number,
                  .total = *total};
}

std::string with_zeros(unsigned number) {
  const std::string digits = std::to_string(number);
  return std::string(kDigits - std::min(kDigits, digits.size()), '0') + digits;
}

// The first that a set of numbered files lacks.
std::optional<std::string> missing_file(const std::string& prefix,
                                        unsigned total,
                                        const std::set<unsigned>& present) {
  for (unsigned number = 1; number <= total; ++number)
    if (!present.contains(number))
      return prefix + "-" + with_zeros(number) + "-of-" + with_zeros(total) + std::string(kSuffix);
  return std::nullopt;
}

struct Unread {
  std::string_view suffix;
  std::string_view remedy;
};

constexpr std::string_view kPickled =
    "pickled weights are not read; save them as safetensors, or name the model's config.json";
constexpr std::array kUnread = {
    Unread{".bin", kPickled},
    Unread{".pt", kPickled},
    Unread{".pth", kPickled},
    Unread{".ckpt", kPickled},
    Unread{".bin.index.json", kPickled},
    Unread{".gguf",
           "GGUF files are not read; name the model's config.json or its safetensors files"},
    Unread{".h5", "weights of TensorFlow are not read; name the model's config.json"},
    Unread{".msgpack", "weights of Flax are not read; name the model's config.json"},
    Unread{".onnx", "ONNX files are not read; name the model's config.json"},
    Unread{".distcp",
           "merge the folder first, `accel merge-weights FOLDER OUTPUT`, and name the result"},
};

}  // namespace

Result<std::vector<std::string>> safetensors_among(std::vector<std::string> names) {
  std::erase_if(names, [](const std::string& name) { return !name.ends_with(kSuffix); });
  std::ranges::sort(names);
  const std::string whole = std::string(kModel) + std::string(kSuffix);
  if (std::ranges::binary_search(names, whole)) return std::vector{whole};

  std::map<std::pair<std::string, unsigned>, std::set<unsigned>> sets;  // by prefix and total
  bool has_model = false;
  for (const std::string& name : names)
    if (const auto numbered = parse_numbered(name)) {
      sets[{numbered->prefix, numbered->total}].insert(numbered->number);
      has_model = has_model || numbered->prefix == kModel;
    }
  for (const auto& [set, present] : sets) {
    if (has_model && set.first != kModel) continue;
    if (const auto missing = missing_file(set.first, set.second, present))
      return Error(ErrorCode::kConfigUnreadable,
                   printable(*missing) + " is missing, of " + std::to_string(set.second) +
                       " files of which " + std::to_string(present.size()) + " are there",
                   "fetch it too, or name the model's config.json");
  }
  if (has_model)
    std::erase_if(names, [](const std::string& name) {
      const auto numbered = parse_numbered(name);
      return !numbered || numbered->prefix != kModel;
    });
  return names;
}

std::string remedy_for_unread(const std::string& name) {
  for (const Unread& kind : kUnread)
    if (name.ends_with(kind.suffix)) return std::string(kind.remedy);
  return "";
}

Error nothing_to_read(const std::string& folder, const std::vector<std::string>& names) {
  const std::string message =
      printable(folder) + ": there is no safetensors file, index or config.json in it";
  const auto unread = std::ranges::find_if(
      names, [](const std::string& name) { return !remedy_for_unread(name).empty(); });
  if (unread == names.end())
    return Error(ErrorCode::kConfigUnreadable,
                 message,
                 "name the folder that has the model's weights or its config.json");
  return Error(ErrorCode::kConfigUnreadable,
               message + ", only " + printable(*unread),
               remedy_for_unread(*unread));
}

}  // namespace accel::launcher
