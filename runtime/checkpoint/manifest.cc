// The manifest's encoding, and whether a folder keeps what it promises.
//
// The manifest protects itself: its "digest" is the XXH3 hash of the file's own text, taken with
// sixteen zeros in the digest's place. A manifest that was cut short, or in which one character
// changed, is recognized without a second file.

#include "runtime/checkpoint/manifest.h"

#include <charconv>
#include <cstdio>
#include <optional>
#include <utility>

#include <nlohmann/json.hpp>

#include <accel/error.h>

namespace accel::checkpoint {
namespace {

using nlohmann::ordered_json;

constexpr std::string_view kFormatName = "accel_checkpoint";
constexpr std::string_view kNoDigest = "0000000000000000";
// A checkpoint has some files per rank; this is far above any and keeps a hostile manifest small.
constexpr std::uint64_t kMaxManifestBytes = 64 << 20;

Error incomplete(std::string message) {
  return Error(ErrorCode::kCheckpointIncomplete, std::move(message));
}

std::uint64_t hash_of(std::string_view text) {
  return xxh3(std::as_bytes(std::span(text)));
}

std::optional<std::uint64_t> parse_hash(const std::string& text) {
  std::uint64_t hash = 0;
  const char* end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, hash, 16);
  if (error != std::errc() || rest != end || text.size() != kNoDigest.size()) return std::nullopt;
  return hash;
}

// A name that stays within the folder.
bool is_plain_name(const std::string& name) {
  return !name.empty() && name != "." && name != ".." && name.find('/') == std::string::npos &&
         name.find('\0') == std::string::npos;
}

bool digest_matches(std::string_view text, const std::string& digest) {
  const std::string field = "\"digest\": \"" + digest + "\"";
  const size_t place = text.rfind(field);
  const std::optional<std::uint64_t> expected = parse_hash(digest);
  if (place == std::string_view::npos || !expected) return false;
  std::string blank(text);
  blank.replace(place + field.size() - 1 - kNoDigest.size(), kNoDigest.size(), kNoDigest);
  return hash_of(blank) == *expected;
}

std::vector<FileRange> decode_ranges(const std::string& name, const ordered_json& file) {
  std::vector<FileRange> ranges;
  for (const ordered_json& item : file.at("ranges")) {
    const std::optional<std::uint64_t> hash = parse_hash(item.at(3).get<std::string>());
    if (!hash) throw incomplete("a range of \"" + name + "\" has no valid hash");
    ranges.push_back({.begin = item.at(0).get<std::uint64_t>(),
                      .bytes = item.at(1).get<std::uint64_t>(),
                      .rank = item.at(2).get<int>(),
                      .xxh3 = *hash});
  }
  const Result<void> whole = sort_and_check(ranges, file.at("bytes").get<std::uint64_t>());
  if (!whole)
    throw incomplete("the ranges of \"" + name + "\" do not fit: " + whole.error().message());
  return ranges;
}

Manifest decode(const ordered_json& root) {
  Manifest manifest;
  manifest.version = root.at("version").get<int>();
  manifest.world_size = root.at("world_size").get<int>();
  manifest.step = root.at("step").get<std::int64_t>();
  manifest.generation = root.at("generation").get<std::int64_t>();
  manifest.iteration = root.at("iteration").get<std::int64_t>();
  const ordered_json& objects = root.at("objects");
  manifest.objects.models = objects.at("models").get<std::int64_t>();
  manifest.objects.optimizers = objects.at("optimizers").get<std::int64_t>();
  manifest.objects.schedulers = objects.at("schedulers").get<std::int64_t>();
  manifest.objects.loaders = objects.at("loaders").get<std::int64_t>();
  manifest.objects.custom = objects.at("custom").get<std::int64_t>();
  manifest.objects.has_scaler = objects.at("scaler").get<bool>();
  for (const auto& [name, file] : root.at("files").items()) {
    const bool has_ranges = file.contains("ranges");
    const std::optional<std::uint64_t> hash =
        has_ranges ? 0 : parse_hash(file.at("xxh3").get<std::string>());
    if (!is_plain_name(name) || !hash)
      throw incomplete("the manifest's entry \"" + name + "\" is not valid");
    manifest.files[name] = {file.at("bytes").get<std::uint64_t>(), *hash};
    if (has_ranges) manifest.ranges[name] = decode_ranges(name, file);
  }
  return manifest;
}

}  // namespace

std::string hash_text(std::uint64_t hash) {
  char text[17];
  std::snprintf(text, sizeof text, "%016llx", static_cast<unsigned long long>(hash));
  return text;
}

std::string encode_manifest(const Manifest& manifest, const WriterVersions& writer) {
  ordered_json files = ordered_json::object();
  for (const auto& [name, digest] : manifest.files) {
    const auto ranges = manifest.ranges.find(name);
    if (ranges == manifest.ranges.end()) {
      files[name] = {{"bytes", digest.bytes}, {"xxh3", hash_text(digest.xxh3)}};
      continue;
    }
    ordered_json list = ordered_json::array();
    for (const FileRange& range : ranges->second) {
      list.push_back(
          ordered_json::array({range.begin, range.bytes, range.rank, hash_text(range.xxh3)}));
    }
    files[name] = {{"bytes", digest.bytes}, {"ranges", std::move(list)}};
  }
  const ObjectCounts& objects = manifest.objects;
  const ordered_json root = {{"format", kFormatName},
                             {"version", manifest.version},
                             {"accel_version", writer.accel},
                             {"torch_version", writer.torch},
                             {"world_size", manifest.world_size},
                             {"step", manifest.step},
                             {"generation", manifest.generation},
                             {"iteration", manifest.iteration},
                             {"objects",
                              {{"models", objects.models},
                               {"optimizers", objects.optimizers},
                               {"schedulers", objects.schedulers},
                               {"loaders", objects.loaders},
                               {"custom", objects.custom},
                               {"scaler", objects.has_scaler}}},
                             {"files", std::move(files)},
                             {"digest", kNoDigest}};
  std::string text = root.dump(2) + "\n";
  const std::string digest = hash_text(hash_of(text));
  text.replace(text.rfind(kNoDigest), kNoDigest.size(), digest);
  return text;
}

Result<Manifest> parse_manifest(std::string_view text) {
  const ordered_json root = ordered_json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!root.is_object())
    return incomplete("the manifest is not a JSON object; it may be cut short");
  try {
    if (root.at("format").get<std::string>() != kFormatName) {
      return incomplete("the manifest is not of the format " + std::string(kFormatName));
    }
    const auto version = root.at("version").get<std::int64_t>();
    if (version > kFormatVersion) {
      return Error(ErrorCode::kCheckpointVersion,
                   "the checkpoint has format version " + std::to_string(version) +
                       "; this accel reads versions up to " + std::to_string(kFormatVersion));
    }
    if (!digest_matches(text, root.at("digest").get<std::string>())) {
      return incomplete("the manifest does not match its own digest: it was changed or damaged");
    }
    Manifest manifest = decode(root);
    manifest.digest = root.at("digest").get<std::string>();
    return manifest;
  } catch (const Error& error) {
    return error;
  } catch (const ordered_json::exception& error) {
    return incomplete(std::string("the manifest lacks a field or has one of another type: ") +
                      error.what());
  }
}

Result<Manifest> read_manifest(const std::filesystem::path& folder) {
  const std::filesystem::path path = folder / kManifestName;
  std::error_code error;
  if (!std::filesystem::exists(path, error)) {
    const std::filesystem::file_status status = std::filesystem::status(folder, error);
    if (!std::filesystem::exists(status)) return incomplete(folder.string() + " does not exist");
    if (!std::filesystem::is_directory(status)) {
      return Error(ErrorCode::kCheckpointIncomplete,
                   folder.string() + " is not a folder",
                   "name the folder that holds " + std::string(kManifestName));
    }
    return incomplete(folder.string() + " has no " + std::string(kManifestName) +
                      ": it is no checkpoint, or its save did not end");
  }
  Result<TextFile> file = to_result([&] { return read_text_file(path, kMaxManifestBytes); });
  if (!file) return std::move(file).error();
  Result<Manifest> manifest = parse_manifest(file->text);
  if (!manifest) manifest.error().while_doing("reading " + path.string());
  return manifest;
}

Result<void> check_sizes(const std::filesystem::path& folder, const Manifest& manifest) {
  std::string faults;
  for (const auto& [name, digest] : manifest.files) {
    std::error_code error;
    const std::uint64_t bytes = std::filesystem::file_size(folder / name, error);
    if (!error && bytes == digest.bytes) continue;
    if (!faults.empty()) faults += ", ";
    faults += name + (error ? " is missing or unreadable"
                            : " has " + std::to_string(bytes) + " bytes instead of " +
                                  std::to_string(digest.bytes));
  }
  if (!faults.empty()) return incomplete(folder.string() + " is damaged: " + faults);
  return {};
}

}  // namespace accel::checkpoint
