#include "launcher/commands/train_command.h"

#include <algorithm>
#include <iterator>

#include "launcher/commands/libaccel_program.h"
#include "launcher/commands/tokenize/text_tokens.h"
#include "launcher/flags/command_parser.h"
#include "launcher/launch/cmd_launch.h"
#include "launcher/system/own_environment.h"
#include "train/train_settings.h"

namespace accel::launcher {
namespace {

constexpr const char* kTrain = "train";
constexpr const char* kSummary =
    "Train a model that `accel export` wrote on files, without Python. What stands before "
    "MODEL.pt2 "
    "are flags of `accel launch`.";

std::vector<std::string>::const_iterator find_model(const std::vector<std::string>& arguments) {
  return std::ranges::find_if(arguments,
                              [](const std::string& word) { return word.ends_with(".pt2"); });
}

// Shows what would be launched, and makes nothing.
bool is_dry_run(const std::vector<std::string>& launch_flags) {
  return std::ranges::any_of(
      launch_flags, [](const std::string& word) { return with_underscores(word) == "--dry_run"; });
}

void append_files(std::vector<std::string>& words,
                  const char* flag,
                  const std::vector<std::string>& files) {
  if (files.empty()) return;
  words.emplace_back(flag);
  words.insert(words.end(), files.begin(), files.end());
}

}  // namespace

Result<std::vector<std::string>> train_launch(const std::vector<std::string>& arguments,
                                              const std::string& program) {
  const auto model = find_model(arguments);
  if (model == arguments.end()) {
    return Error(ErrorCode::kUsage,
                 "no word ends with .pt2: which model is to be trained is not said",
                 "accel train [FLAGS OF accel launch] MODEL.pt2 --data FILE...; `accel export` "
                 "writes such a file");
  }
  std::vector<std::string> words(arguments.begin(), model);
  words.push_back(program);
  std::transform(model, arguments.end(), std::back_inserter(words), with_underscores);
  return words;
}

int train_command(const std::vector<std::string>& arguments) {
  CommandParser line(kTrain, kSummary);
  train::TrainSettings settings;
  train::add_flags(line.app(), settings);
  const auto model = find_model(arguments);
  const bool asks_for_help = std::ranges::find(arguments, "--help") != arguments.end() ||
                             std::ranges::find(arguments, "-h") != arguments.end();
  if (asks_for_help) return *line.parse({"--help"});
  if (model != arguments.end()) {  // a slip is told once, before there are workers
    if (const auto status = line.parse({model, arguments.end()})) return *status;
  }
  const auto program = find_libaccel_program(kTrainerProgram);
  if (!program) return print_error(kTrain, program.error());
  auto words = train_launch(arguments, *program);
  if (!words) return print_error(kTrain, words.error());
  if (is_dry_run({arguments.begin(), model})) return cmd_launch(*words);
  if (const auto tokenized = tokenize_texts(settings, own_environment()); !tokenized)
    return print_error(kTrain, tokenized.error());
  append_files(*words, "--tokenized_data", settings.tokenized_data);
  append_files(*words, "--tokenized_eval_data", settings.tokenized_eval_data);
  return cmd_launch(*words);
}

}  // namespace accel::launcher
