#include "launcher/commands/train_command.h"

#include <algorithm>
#include <cstdio>

#include "launcher/commands/libaccel_program.h"
#include "launcher/flags/command_parser.h"
#include "launcher/launch/cmd_launch.h"

namespace accel::launcher {
namespace {

constexpr const char* kTrain = "train";
constexpr const char* kProgram = "accel-trainer";

bool asks_for_help(const std::vector<std::string>& arguments) {
  return arguments.empty() || arguments.front() == "--help" || arguments.front() == "-h";
}

}  // namespace

Result<std::vector<std::string>> train_launch(const std::vector<std::string>& arguments,
                                              const std::string& program) {
  const auto model = std::ranges::find_if(
      arguments, [](const std::string& word) { return word.ends_with(".pt2"); });
  if (model == arguments.end()) {
    return Error(ErrorCode::kUsage,
                 "no word ends with .pt2: which model is to be trained is not said",
                 "accel train [FLAGS OF accel launch] MODEL.pt2 --data FILE...; `accel export` "
                 "writes such a file");
  }
  std::vector<std::string> words(arguments.begin(), model);
  words.push_back(program);
  words.insert(words.end(), model, arguments.end());
  return words;
}

int train_command(const std::vector<std::string>& arguments) {
  const auto program = find_libaccel_program(kProgram);
  if (!program) return print_error(kTrain, program.error());
  // Without workers: the launcher would show its own flags.
  if (asks_for_help(arguments)) return cmd_launch({"--num_processes", "1", *program, "--help"});
  const auto words = train_launch(arguments, *program);
  if (!words) return print_error(kTrain, words.error());
  return cmd_launch(*words);
}

}  // namespace accel::launcher
