#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "launcher/plan/launch_plan.h"
#include "tests/support/launch_plan_fixture.h"

namespace accel::launcher::launch_plan_refusals_test {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

using LaunchPlanRefusals = test::LaunchLineFixture;

struct HostileFlag {
  const char* name;
  const char* flag;
  std::vector<const char*> values;
};

class HostileFlagTest : public LaunchPlanRefusals,
                        public ::testing::WithParamInterface<HostileFlag> {};

TEST_P(HostileFlagTest, IsAnErrorThatNamesFlagAndValue) {
  for (const char* value : GetParam().values) {
    const Error error = refused({"--num_processes", "2", GetParam().flag, value, program_});
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument) << value;
    EXPECT_THAT(error.message(), HasSubstr(std::string(GetParam().flag) + " is '" + value + "'"));
    EXPECT_THAT(error.remedy(), Not(IsEmpty()));
  }
}

INSTANTIATE_TEST_SUITE_P(
    Values,
    HostileFlagTest,
    ::testing::Values(
        HostileFlag{"Processes",
                    "--num_processes",
                    {"0", "-1", "two", "", "1e3", "2.0", "99999999999", "2 2"}},
        HostileFlag{"Port", "--main_process_port", {"-1", "65536", "http", "0x10"}},
        HostileFlag{"Threads", "--num_cpu_threads_per_process", {"0", "-2", "many"}},
        HostileFlag{"Restarts", "--max_restarts", {"-1", "often", "1000001"}},
        HostileFlag{"Grace", "--stop_grace", {"soon", "-1", "1w", "nan", "inf", "", "25h"}},
        HostileFlag{"Hang", "--hang_timeout", {"0", "soon", "-1", "", "Auto", "on"}},
        HostileFlag{"Check", "--preflight", {"nameless", "=true", "a b=true", "empty="}},
        HostileFlag{"CheckTime", "--preflight_seconds", {"0", "-1", "long", "nan", "inf"}},
        HostileFlag{"Interval", "--monitor_interval", {"fast", "-0.1"}},
        HostileFlag{
            "Tee", "--tee", {"4", "", "0:4", "0:3,", ",", "a:1", ":1", "-1:1", "0:", "0:3;1:1"}},
        HostileFlag{"Precision", "--mixed_precision", {"fp61", "", "BF16 "}},
        HostileFlag{"Dynamo", "--dynamo_backend", {"inducto", ""}},
        HostileFlag{"Gpus", "--gpu_ids", {"0,,1", ",", "0,", "0 1", "0;rm"}}),
    [](const auto& param_info) { return param_info.param.name; });

TEST_F(LaunchPlanRefusals, AllFaultsAreReportedAtOnce) {
  const Error error = refused(
      {"--num_processes", "0", "--mixed_precision", "bf61", "--tee", "9", folder_.file("none")});

  const std::string text = error.render();
  EXPECT_THAT(text, HasSubstr("--num_processes is '0'"));
  EXPECT_THAT(text, HasSubstr("--mixed_precision is 'bf61'"));
  EXPECT_THAT(text, HasSubstr("did you mean bf16?"));
  EXPECT_THAT(text, HasSubstr("--tee is '9'"));
  EXPECT_THAT(text, HasSubstr("there is no " + folder_.file("none")));
}

TEST_F(LaunchPlanRefusals, AGuessAtAMistypedValueIsSaidOnce) {
  const std::string text = refused({"--mixed_precision", "fp61", program_}).render();

  const std::size_t guess = text.find("did you mean fp16?");
  ASSERT_NE(guess, std::string::npos) << text;
  EXPECT_EQ(text.find("did you mean", guess + 1), std::string::npos) << text;
  EXPECT_THAT(text, HasSubstr("give --mixed_precision one of no, fp16, bf16, fp8"));
}

TEST_F(LaunchPlanRefusals, TooManyProcessesAreRefusedWithTheReason) {
  const Error error = refused({"--num_processes", "10000", program_});

  EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
  EXPECT_THAT(error.message(), HasSubstr("at most 1024 workers run on one machine"));
}

TEST_F(LaunchPlanRefusals, AMissingScriptNamesASimilarOne) {
  const Error error = refused({folder_.file("trian.py")});

  EXPECT_EQ(error.code(), ErrorCode::kScriptMissing);
  EXPECT_THAT(error.message(), HasSubstr("did you mean " + script_ + "?"));
}

TEST_F(LaunchPlanRefusals, AFileWithoutThePermissionNamesTheCommand) {
  const Error error = refused({folder_.write("prog",
                                             "\x7f"
                                             "ELF")});

  EXPECT_EQ(error.code(), ErrorCode::kScriptNotExecutable);
  EXPECT_THAT(error.remedy(), HasSubstr("chmod +x " + folder_.file("prog")));
}

TEST_F(LaunchPlanRefusals, PythonIsRunWithPythonWhateverItsNameIs) {
  folder_.write("bin/python3", "#!/bin/sh\n", true);
  const std::string scripts[] = {folder_.write("train", "import os\n"),
                                 folder_.write("train2", "\n#!/usr/bin/env python3\n"),
                                 folder_.write("train3", "#!/usr/bin/env python3\n"),
                                 folder_.write("train4", "import os\n", true),
                                 folder_.write("app.pyz", std::string("PK\x03\x04\0", 5), true),
                                 folder_.write("m.pyc", std::string("\xa7\r\0", 3))};
  for (const std::string& script : scripts) {
    const std::vector<std::string> argv = plan({script}).spec.workers[0].argv;
    ASSERT_EQ(argv.size(), 3U) << script;
    EXPECT_EQ(argv[0], folder_.file("bin/python3")) << script;
    EXPECT_EQ(argv[2], script);
  }
  for (const std::string& other : {folder_.write("job", "#!/bin/sh\n"),
                                   folder_.write("run.sh", "python train.py\n"),
                                   folder_.write("settings.json", "{}"),
                                   folder_.write("data", std::string("a\0b", 3))}) {
    EXPECT_EQ(refused({other}).code(), ErrorCode::kScriptNotExecutable) << other;
  }
}

TEST_F(LaunchPlanRefusals, AProgramOfTextSaysWhatRunsIt) {
  const Error error = refused({folder_.write("run.sh", "python train.py\n", true)});

  EXPECT_EQ(error.code(), ErrorCode::kExecFailed);
  EXPECT_THAT(error.remedy(), HasSubstr("#!/bin/sh"));
}

TEST_F(LaunchPlanRefusals, AScriptFromTheStandardInputIsSentToAFile) {
  for (const std::string script : {"-", "/dev/stdin"}) {
    const Error error = refused({script});

    EXPECT_EQ(error.code(), ErrorCode::kScriptMissing);
    EXPECT_THAT(error.message(), HasSubstr("standard input"));
  }
}

TEST_F(LaunchPlanRefusals, AScriptWhoseInterpreterIsMissingSaysWhich) {
  const Error error = refused({folder_.write("prog", "#!/no/such/python\n", true)});

  EXPECT_EQ(error.code(), ErrorCode::kExecFailed);
  EXPECT_THAT(error.message(), HasSubstr("/no/such/python"));
}

TEST_F(LaunchPlanRefusals, FoldersAndEmptyFilesAreNoPrograms) {
  EXPECT_EQ(refused({folder_.file("bin")}).code(), ErrorCode::kScriptNotExecutable);
  EXPECT_THAT(refused({folder_.write("empty", "", true)}).message(), HasSubstr("empty file"));
}

TEST_F(LaunchPlanRefusals, AProgramOnPathIsPointedAt) {
  folder_.write("bin/accel_test_tool", "#!/bin/sh\n", true);

  EXPECT_THAT(refused({"accel_test_tool"}).remedy(), HasSubstr("--no_python accel_test_tool"));
  EXPECT_EQ(plan({"--no_python", "accel_test_tool"}).spec.workers[0].argv[0],
            folder_.file("bin/accel_test_tool"));
  EXPECT_EQ(refused({"--no_python", "accel_no_such_tool"}).code(), ErrorCode::kScriptMissing);
}

TEST_F(LaunchPlanRefusals, ModuleAndNoPythonExcludeEachOther) {
  EXPECT_THAT(refused({"-m", "--no_python", "x"}).message(),
              HasSubstr("--module and --no_python cannot be used together"));
}

TEST_F(LaunchPlanRefusals, OneMachineHasTheRankZero) {
  EXPECT_EQ(refused({"--machine_rank", "1", program_}).code(), ErrorCode::kInvalidArgument);
}

TEST_F(LaunchPlanRefusals, NoScriptAtAllShowsTheUsage) {
  EXPECT_THAT(refused({"--cpu"}).message(), HasSubstr("no script"));
  EXPECT_THAT(refused({}).remedy(), HasSubstr("accel-launch --help"));
}

}  // namespace
}  // namespace accel::launcher::launch_plan_refusals_test
