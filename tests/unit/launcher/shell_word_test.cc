#include "launcher/text/shell_word.h"

#include <random>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "launcher/system/own_environment.h"
#include "launcher/system/program_output.h"

namespace accel::launcher::shell_word_test {
namespace {

TEST(ShellWord, PlainWordsStayReadable) {
  EXPECT_EQ(shell_words({"train.py", "--lr=1e-5", "", "a b", "it's"}),
            "train.py --lr=1e-5 '' 'a b' 'it'\\''s'");
}

// Every byte but 0, alone and in random company, comes back from a real shell as it was; also through
// two shells, as behind ssh.
TEST(ShellWord, AnyBytesSurviveARealShell) {
  std::vector<std::string> words = {"", "'", "''", "\\", "\n", "-n", "~", "$HOME", "`id`", "a\\'b"};
  for (int byte = 1; byte < 256; ++byte) words.emplace_back(1, static_cast<char>(byte));
  std::mt19937 dice(20261122);
  for (int i = 0; i < 300; ++i) {
    std::string word(dice() % 12, 'x');
    for (char& c : word) c = static_cast<char>(1 + dice() % 255);
    words.push_back(word);
  }
  std::string expected;
  for (const std::string& word : words) expected += word + '\0';

  const std::string command = "printf '%s\\0' " + shell_words(words);
  const auto once = run_program({"/bin/sh", "-c", command}, own_environment());
  const auto twice =
      run_program({"/bin/sh", "-c", "exec /bin/sh -c " + shell_word(command)}, own_environment());

  ASSERT_TRUE(once && twice);
  EXPECT_EQ(once->out, expected);
  EXPECT_EQ(twice->out, expected);
}

TEST(ProgramOutput, TellsTheExitCodeAndTheSignal) {
  EXPECT_EQ(run_program({"/bin/sh", "-c", "exit 7"}, {})->exit_code, 7);
  EXPECT_EQ(run_program({"/bin/sh", "-c", "kill -9 $$"}, {})->exit_code, 137);
  EXPECT_EQ(run_program({"/bin/sh", "-c", "echo $NAME; cat"}, {{"NAME", "x"}})->out, "x\n");
  EXPECT_EQ(run_program({"no-such-program"}, {}).error().code(), ErrorCode::kExecFailed);
}

}  // namespace
}  // namespace accel::launcher::shell_word_test
