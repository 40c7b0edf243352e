#include "launcher/commands/test_command.h"

#include <cstdio>

#include "launcher/commands/libaccel_program.h"
#include "launcher/flags/command_parser.h"
#include "launcher/launch/cmd_launch.h"

namespace accel::launcher {
namespace {

constexpr const char* kTest = "test";
constexpr const char* kSelftest = "accel-selftest";
// The peer's words, so that scripts which look for them find them.
constexpr const char* kSuccess = "Test is a success! You are ready for your distributed training!";

}  // namespace

std::vector<std::string> self_test_launch(const std::string& config_file,
                                          bool is_strict,
                                          const std::string& self_test) {
  std::vector<std::string> words;
  if (!config_file.empty()) words = {"--config_file", config_file};
  if (is_strict) words.emplace_back("--strict");
  words.push_back(self_test);
  return words;
}

int test_command(const std::vector<std::string>& arguments) {
  std::string config_file;
  bool is_strict = false;
  CommandParser line(kTest,
                     "Launch a program that checks collectives, data loaders, random numbers and "
                     "training in the set-up of a configuration file.");
  line.app().add_option("--config_file",
                        config_file,
                        "the configuration to test; the default one where it is not given");
  line.app().add_flag("--strict", is_strict, "warnings about the configuration are errors");
  if (const auto status = line.parse(arguments)) return *status;
  const auto self_test = find_libaccel_program(kSelftest);
  if (!self_test) return print_error(kTest, self_test.error());
  const int status = cmd_launch(self_test_launch(config_file, is_strict, *self_test));
  if (status == 0) std::puts(kSuccess);
  return status;
}

}  // namespace accel::launcher
