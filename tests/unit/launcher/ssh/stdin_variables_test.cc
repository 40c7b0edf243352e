#include "launcher/start/ssh/stdin_variables.h"

#include <cstdlib>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include "runtime/unique_fd.h"

namespace accel::launcher::stdin_variables_test {
namespace {

using ::testing::HasSubstr;

class StdinVariables : public ::testing::Test {
 protected:
  ~StdinVariables() override {
    for (const char* name : {kStdinVariables, "HF_TOKEN", "EMPTY_SECRET"}) ::unsetenv(name);
  }

  // An input that begins with `text` and then ends.
  static Result<void> take(const std::string& announced, const std::string& text) {
    int ends[2];
    EXPECT_EQ(::pipe(ends), 0);
    const UniqueFd input(ends[0]);
    UniqueFd other(ends[1]);
    EXPECT_EQ(::write(other.get(), text.data(), text.size()), static_cast<ssize_t>(text.size()));
    other.reset();
    ::setenv(kStdinVariables, announced.c_str(), 1);
    return take_stdin_variables(input.get());
  }
};

TEST_F(StdinVariables, ArriveAsTheyWereSent) {
  const std::string text = to_stdin_text({{"HF_TOKEN", "a=b 'c'\nd"}, {"EMPTY_SECRET", ""}});

  ASSERT_TRUE(take(std::to_string(text.size()), text + "what follows is not read"));

  EXPECT_STREQ(std::getenv("HF_TOKEN"), "a=b 'c'\nd");
  EXPECT_STREQ(std::getenv("EMPTY_SECRET"), "");
  EXPECT_EQ(std::getenv(kStdinVariables), nullptr);
}

TEST_F(StdinVariables, NothingIsReadWhereNothingIsAnnounced) {
  ::unsetenv(kStdinVariables);
  EXPECT_TRUE(take_stdin_variables(-1));
}

TEST_F(StdinVariables, AnInputThatIsNotTheirsIsRefused) {
  const auto cut = take("20", "HF_TOKEN=hf");
  ASSERT_FALSE(cut);
  EXPECT_THAT(cut.error().message(), HasSubstr("it ends after 11 of 20 bytes"));
  for (const char* number : {"many", "-1", "999999999"}) EXPECT_FALSE(take(number, "")) << number;
  EXPECT_FALSE(take("4", "text"));
  EXPECT_FALSE(take("3", std::string("=a\0", 3)));
}

TEST_F(StdinVariables, SecretsAreKnownByTheirNames) {
  for (const char* name : {"HF_TOKEN",
                           "hf_token",
                           "MYSQL_PASSWORD",
                           "AWS_SECRET_ACCESS_KEY",
                           "WANDB_API_KEY",
                           "ACCEL_JOB_TOKEN"})
    EXPECT_TRUE(is_secret(name)) << name;
  for (const char* name : {"PATH", "NCCL_DEBUG", "KEYBOARD", "PYTHONPATH"})
    EXPECT_FALSE(is_secret(name)) << name;
}

}  // namespace
}  // namespace accel::launcher::stdin_variables_test
