#include "launcher/commands/tokenize/text_tokens.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <filesystem>
#include <set>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>
#include <unistd.h>

#include <accel/error.h>

#include "launcher/commands/python/python_script.h"
#include "launcher/commands/tokenize/tokenize_script.h"
#include "runtime/checkpoint/hashed_file.h"
#include "runtime/checkpoint/manifest.h"
#include "runtime/printable.h"

namespace accel::launcher {
namespace {

namespace fs = std::filesystem;

// Texts of terabytes take days.
constexpr std::chrono::hours kTokenizeLimit{24 * 30};
// Raised when tokenize_text.py gives other tokens for the same input.
constexpr int kTokensVersion = 1;

std::uint64_t hash_of_file(const fs::path& path) {
  return checkpoint::InputFile(path).digest_of_rest().xxh3;
}

// Of all that decides about the tokens but the text.
std::string settings_text(const train::TrainSettings& settings) {
  std::string text = std::to_string(kTokensVersion) + "\n" +
                     checkpoint::hash_text(hash_of_file(settings.tokenizer)) + "\n" +
                     settings.end_of_text + "\n" + settings.text_field + "\n";
  const fs::path config = fs::path(settings.tokenizer).replace_filename("tokenizer_config.json");
  std::error_code ignored;
  if (fs::is_regular_file(config, ignored)) text += checkpoint::hash_text(hash_of_file(config));
  return text;
}

std::string tokens_path(const std::string& text_path,
                        const std::string& decided,
                        const fs::path& folder) {
  const std::string all = checkpoint::hash_text(hash_of_file(text_path)) + "\n" + decided;
  const std::uint64_t hash = checkpoint::xxh3(std::as_bytes(std::span(all)));
  return folder /
         (fs::path(text_path).stem().string() + "-" + checkpoint::hash_text(hash) + ".npy");
}

fs::path tokens_folder(const train::TrainSettings& settings) {
  return fs::absolute(settings.tokens_dir.empty() ? fs::path(settings.project_dir) / "tokens"
                                                  : fs::path(settings.tokens_dir));
}

struct Missing {
  nlohmann::json files = nlohmann::json::array();
  std::set<std::string> places;  // a text that is named twice is tokenized once
};

std::vector<std::string> with_tokens(const std::vector<std::string>& paths,
                                     const std::string& decided,
                                     const fs::path& folder,
                                     Missing& missing) {
  std::vector<std::string> replaced;
  for (const std::string& path : paths) {
    if (!is_text_name(path)) {
      replaced.push_back(path);
      continue;
    }
    replaced.push_back(tokens_path(path, decided, folder));
    if (!fs::exists(replaced.back()) && missing.places.insert(replaced.back()).second)
      missing.files.push_back({{"text", path}, {"tokens", replaced.back()}});
  }
  return replaced;
}

Result<void> make_tokens(const train::TrainSettings& settings,
                         const fs::path& folder,
                         const Missing& missing,
                         const EnvMap& environment) {
  const auto python = choose_python(
      settings.python, environment, "the library tokenizers (pip install tokenizers)");
  if (!python) return python.error();
  const nlohmann::json request = {{"tokenizer", settings.tokenizer},
                                  {"end_of_text", settings.end_of_text},
                                  {"text_field", settings.text_field},
                                  {"folder", folder.string()},
                                  {"parent", ::getpid()},
                                  {"files", missing.files}};
  const auto done = run_script(
      *python, tokenize_script(), request, environment, kTokenizeLimit, "the tokenizing Python");
  if (!done) return done.error();
  return {};
}

}  // namespace

bool is_text_name(std::string_view path) {
  constexpr std::array<std::string_view, 3> kTokens = {".npy", ".safetensors", ".bin"};
  return std::ranges::none_of(kTokens, [&](std::string_view end) { return path.ends_with(end); });
}

Result<void> tokenize_texts(train::TrainSettings& settings, const EnvMap& environment) {
  if (settings.tokenizer.empty()) return {};
  if (settings.task != "causal-lm")
    return Error(ErrorCode::kInvalidArgument,
                 "--tokenizer is for --task causal-lm, and the task is " + settings.task,
                 "leave --tokenizer out");
  return to_result([&] {
    const fs::path folder = tokens_folder(settings);
    const std::string decided = settings_text(settings);
    Missing missing;
    settings.tokenized_data = with_tokens(settings.data, decided, folder, missing);
    settings.tokenized_eval_data = with_tokens(settings.eval_data, decided, folder, missing);
    if (missing.files.empty()) return;
    auto made = make_tokens(settings, folder, missing, environment);
    if (!made)
      throw std::move(made.error().while_doing("tokenizing with " + printable(settings.tokenizer)));
  });
}

}  // namespace accel::launcher
