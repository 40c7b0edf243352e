// Flags without their values, and the abbreviations of torchrun.

#include "launcher/flags/flag_words.h"

#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace accel::launcher::flag_words_test {
namespace {

using ::testing::ElementsAreArray;
using ::testing::HasSubstr;

using Words = std::vector<std::string>;

Words completed(const Words& words, Program program = Program::kLaunch) {
  return or_throw(complete_flags(words, program));
}

Error refused(const Words& words, Program program = Program::kLaunch) {
  const Result<Words> result = complete_flags(words, program);
  if (result) throw std::logic_error("the words were accepted");
  return result.error();
}

TEST(FlagWords, AFlagIsNoValueOfTheFlagBeforeIt) {
  const Words lines[] = {{"--log_dir", "--cpu", "x"},
                         {"--main_process_ip", "--num_processes", "2", "x"},
                         {"--role", "-m", "x"},
                         {"--cpu", "--gpu_ids", "--unheard-of", "x"},
                         {"-r", "--tee", "3", "x"}};
  for (const Words& line : lines) {
    const Error error = refused(line);
    EXPECT_EQ(error.code(), ErrorCode::kUsage) << line[0];
    EXPECT_THAT(error.message(), HasSubstr("needs a value")) << line[0];
  }
  EXPECT_THAT(refused(lines[0]).message(),
              HasSubstr("--log_dir needs a value, and --cpu is a flag"));
}

TEST(FlagWords, ValuesMayBeginWithADash) {
  for (const Words& line : {Words{"--num_processes", "-1", "x"},
                            Words{"--log_dir=--cpu", "x"},
                            Words{"--role", "-", "x"},
                            Words{"--role", "-qq", "x"},
                            Words{"-r3", "--cpu", "x"},
                            Words{"--cpu", "x", "--log_dir", "--cpu"},
                            Words{"--cpu", "--", "--log_dir", "--cpu"},
                            Words{"--unheard-of", "--log_dir", "--cpu", "x"},
                            Words{"--=3", "x"},
                            Words{"--log_dir"}}) {
    EXPECT_THAT(completed(line), ElementsAreArray(line)) << line[0];
    EXPECT_THAT(completed(line, Program::kTorchrun), ElementsAreArray(line)) << line[0];
  }
}

TEST(FlagWords, TheBeginningOfOneFlagOfTorchrunMeansIt) {
  EXPECT_THAT(completed({"--stand", "--nproc=2", "--max-r", "1", "--max_re=3", "x", "--stand"},
                        Program::kTorchrun),
              ElementsAreArray(Words{"--standalone",
                                     "--nproc-per-node=2",
                                     "--max-restarts",
                                     "1",
                                     "--max-restarts=3",
                                     "x",
                                     "--stand"}));
  EXPECT_THAT(refused({"--rdzv", "x"}, Program::kTorchrun).message(),
              HasSubstr("--rdzv may be the beginning of --rdzv-backend, --rdzv-conf"));
  EXPECT_THAT(refused({"--max-r", "--tee", "3", "x"}, Program::kTorchrun).message(),
              HasSubstr("--max-restarts needs a value"));
  // accelerate launch allows none.
  EXPECT_THAT(completed({"--stand", "x"}), ElementsAreArray(Words{"--stand", "x"}));
}

}  // namespace
}  // namespace accel::launcher::flag_words_test
