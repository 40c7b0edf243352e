// Which questions come, which answers are taken, and what the answers make of a file. That all branches
// are the peer's is shown by tests/peer/config_command.py.

#include "launcher/config/questionnaire/questionnaire.h"

#include <cstdio>
#include <cstdlib>
#include <map>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "launcher/config/config_normal_form.h"
#include "launcher/config/config_schema.h"
#include "launcher/config/config_writer.h"
#include "launcher/config/questionnaire/answered_config.h"
#include "launcher/config/questionnaire/dialogue.h"

namespace accel::launcher::questionnaire_test {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr const char* kGpuMachine = "multi-GPU";

// Answers by key; what is not among them is left to the fallback, or to "x" where there is none.
Questionnaire answered(const std::map<std::string, std::string, std::less<>>& said) {
  Questionnaire questionnaire;
  while (questionnaire.next() != nullptr) {
    const auto found = said.find(questionnaire.next()->key);
    const bool is_list = questionnaire.next()->kind == AnswerKind::kList;
    std::string line = found == said.end() ? "" : found->second;
    if (found == said.end() && questionnaire.fallback().empty() && !is_list) line = "1";
    const auto taken = questionnaire.answer(line);
    if (!taken) {
      ADD_FAILURE() << questionnaire.next()->key << ": " << taken.error().message();
      return questionnaire;
    }
  }
  return questionnaire;
}

std::string yaml_of(const Questionnaire& questionnaire) {
  return to_text(answered_config(questionnaire.answers(), {.home = "/home/me", .folder = "/work"}),
                 ConfigFormat::kYaml);
}

TEST(Questionnaire, BeginsWithTheEnvironment) {
  const Questionnaire questionnaire;

  ASSERT_NE(questionnaire.next(), nullptr);
  EXPECT_EQ(questionnaire.next()->key, "compute_environment");
}

TEST(Questionnaire, AnUnusableAnswerLeavesTheQuestion) {
  Questionnaire questionnaire;

  const auto taken = questionnaire.answer("a cloud");

  ASSERT_FALSE(taken);
  EXPECT_THAT(taken.error().message(),
              HasSubstr("'a cloud' cannot be used: expected a number from 0 to 1"));
  EXPECT_EQ(questionnaire.next()->key, "compute_environment");
}

TEST(Questionnaire, ChoicesAreTakenByNumberAndByNameInAnyCase) {
  for (const char* line : {"4", "multi-GPU", "MULTI-gpu", " multi-gpu \r"}) {
    Questionnaire questionnaire;
    ASSERT_TRUE(questionnaire.answer(""));
    ASSERT_TRUE(questionnaire.answer(line)) << line;
    EXPECT_EQ(questionnaire.answers().text("?machine"), "MULTI_GPU") << line;
  }
}

TEST(Questionnaire, ChoicesThatAreNumbersAreMeantByThemselves) {
  const auto first = answered({{"?machine", kGpuMachine},
                               {"?use_fsdp", "yes"},
                               {"fsdp_config.fsdp_version", "1"},
                               {"num_processes", "2"}});

  EXPECT_EQ(first.answers().number("fsdp_config.fsdp_version", 0), 1);
  EXPECT_TRUE(first.answers().is_on("fsdp_config.fsdp_use_orig_params"));
}

TEST(Questionnaire, ControlCharactersAreNoAnswer) {
  Questionnaire questionnaire;

  EXPECT_FALSE(questionnaire.answer("This machine\x1b[2J"));
  EXPECT_FALSE(questionnaire.answer("\xff"));
}

TEST(Questionnaire, ACommandIsAskedForUntilThereIsNoOther) {
  Questionnaire questionnaire = answered({{"?machine", "TPU"},
                                          {"tpu_use_cluster", "yes"},
                                          {"?tpu_commands", "yes"},
                                          {"commands", "echo one"},
                                          {"?another_command", "no"}});
  EXPECT_THAT(yaml_of(questionnaire), HasSubstr("commands:\n  - echo one\n"));

  questionnaire = Questionnaire();
  while (questionnaire.next()->key != "commands") {
    const std::string_view key = questionnaire.next()->key;
    const bool is_yes = key == "tpu_use_cluster" || key == "?tpu_commands";
    const bool is_text = questionnaire.fallback().empty();
    ASSERT_TRUE(questionnaire.answer(key == "?machine" ? "TPU"
                                     : is_yes          ? "yes"
                                     : is_text         ? "x"
                                                       : ""));
  }
  ASSERT_TRUE(questionnaire.answer("one"));
  ASSERT_TRUE(questionnaire.answer("yes"));
  EXPECT_EQ(questionnaire.next()->key, "commands");
  ASSERT_TRUE(questionnaire.answer("two"));
  ASSERT_TRUE(questionnaire.answer("no"));
  EXPECT_EQ(questionnaire.next()->key, "tpu_vm");
  const auto& list =
      std::get<ConfigValue::List>(questionnaire.answers().values().find("commands")->second.data);
  ASSERT_EQ(list.size(), 2U);
  EXPECT_EQ(list[1].text, "two");
}

TEST(Questionnaire, ProcessesAreDividedEvenlyOverTheMachines) {
  Questionnaire questionnaire;
  while (questionnaire.next()->key != "num_processes") {
    const std::string_view key = questionnaire.next()->key;
    ASSERT_TRUE(questionnaire.answer(key == "?machine"                  ? kGpuMachine
                                     : key == "num_machines"            ? "3"
                                     : questionnaire.fallback().empty() ? "1"
                                                                        : ""));
  }
  EXPECT_EQ(questionnaire.fallback(), "3");
  EXPECT_THAT(questionnaire.text(), HasSubstr("How many GPU(s)"));
  EXPECT_FALSE(questionnaire.answer("4"));
  EXPECT_TRUE(questionnaire.answer("6"));
}

TEST(Questionnaire, OneGpuIsNoDistributedTraining) {
  Questionnaire questionnaire;
  while (questionnaire.next()->key != "num_processes")
    ASSERT_TRUE(questionnaire.answer(questionnaire.next()->key == "?machine" ? kGpuMachine : ""));

  const auto taken = questionnaire.answer("1");

  ASSERT_FALSE(taken);
  EXPECT_THAT(taken.error().message(), HasSubstr("expected 2 or more"));
}

TEST(Questionnaire, WhatNeuronCannotDoIsRefusedWhereItIsAsked) {
  Questionnaire questionnaire;
  while (questionnaire.next()->key != "?use_deepspeed")
    ASSERT_TRUE(
        questionnaire.answer(questionnaire.next()->key == "?machine" ? "multi-NEURON" : ""));

  EXPECT_FALSE(questionnaire.answer("yes"));
  EXPECT_TRUE(questionnaire.answer("no"));
}

// What the dialogue says to these answers.
struct Held {
  Result<Answers> answers;
  std::string said;
};
Held held(std::string input, const MenuChooser& choose = {}) {
  char* text = nullptr;
  std::size_t size = 0;
  std::FILE* const in = ::fmemopen(input.data(), input.size(), "r");
  std::FILE* const out = ::open_memstream(&text, &size);
  Held held = {hold_dialogue(in, out, choose), ""};
  std::fclose(in);
  std::fclose(out);
  held.said.assign(text, size);
  std::free(text);
  return held;
}

TEST(Dialogue, ShowsChoicesWithTheirNumbersAndTheFallback) {
  const Held dialogue = held("1\n");

  EXPECT_THAT(dialogue.said,
              HasSubstr("  0  This machine\n  1  AWS (Amazon SageMaker)\n[This machine] > "));
}

// The menus that are shown until one of them ends, as "row 0, row 1 [marked row]".
std::vector<std::string> menus_of(std::string input, const std::vector<std::size_t>& chosen) {
  std::vector<std::string> menus;
  const auto dialogue =
      held(std::move(input), [&](const std::vector<MenuRow>& rows, std::size_t position) {
        std::string text;
        for (const MenuRow& row : rows) text += (text.empty() ? "" : ", ") + row.name();
        menus.push_back(text + " [" + rows[position].name() + "]");
        if (menus.size() > chosen.size()) return MenuOutcome{.kind = MenuOutcome::Kind::kEnded};
        return MenuOutcome{.kind = MenuOutcome::Kind::kRow, .row = chosen[menus.size() - 1]};
      });
  EXPECT_FALSE(dialogue.answers);
  return menus;
}

TEST(Dialogue, ChoicesAreMenusWhereTheyCanBeDrawnAndOtherQuestionsAreLines) {
  const auto menus = menus_of("", {0, 4});

  EXPECT_THAT(
      menus,
      ElementsAre("This machine, AWS (Amazon SageMaker) [This machine]", HasSubstr("multi-GPU")));
}

TEST(Dialogue, ChoicesThatAreNumbersAreRowsOfTheirOwnNumbers) {
  // Alone, no debug, no dynamo, no DeepSpeed, FSDP: the version.
  const auto menus = menus_of("\n\nno\nno\nyes\n", {0, 4});

  ASSERT_EQ(menus.size(), 3u);
  EXPECT_EQ(menus.back(), "1, 2 [2]");
}

TEST(Dialogue, AMenuThatCannotBeDrawnIsAskedByLines) {
  const Held dialogue = held("1\n", [](const auto&, std::size_t) { return MenuOutcome{}; });

  EXPECT_THAT(dialogue.said, HasSubstr("[This machine] > "));
}

TEST(Dialogue, AnEndBeforeTheLastQuestionIsAnError) {
  const Held dialogue = held("\n\nyes");

  ASSERT_FALSE(dialogue.answers);
  EXPECT_EQ(dialogue.answers.error().code(), ErrorCode::kUsage);
  EXPECT_THAT(dialogue.answers.error().message(), HasSubstr("the answers ended at: Shall your"));
}

TEST(Dialogue, WhatNobodyTypesIsNoAnswer) {
  EXPECT_THAT(held(std::string("\0\0\n", 3)).said, HasSubstr("without control characters"));
  const Held endless = held(std::string(5000, 'x'));
  ASSERT_FALSE(endless.answers);
  EXPECT_THAT(endless.answers.error().message(), HasSubstr("longer than 4095 bytes"));
}

TEST(AnsweredConfig, CompletesPaths) {
  EXPECT_THAT(yaml_of(answered({{"?machine", "multi-CPU"}, {"?use_mpirun", "yes"}})),
              AllOf(HasSubstr("mpirun_hostfile: /home/me/hostfile\n"),
                    HasSubstr("use_cpu: true\n"),
                    HasSubstr("distributed_type: MULTI_CPU\n")));
  EXPECT_THAT(yaml_of(answered({{"?machine", "TPU"},
                                {"tpu_use_cluster", "yes"},
                                {"?tpu_commands", "yes"},
                                {"?tpu_command_file", "yes"},
                                {"command_file", "setup.sh"}})),
              HasSubstr("command_file: /work/setup.sh\n"));
}

TEST(AnsweredConfig, WritesTheKeysOfFp8ThatLaunchReads) {
  const std::string text = yaml_of(answered(
      {{"mixed_precision", "fp8"}, {"fp8_config.backend", "te"}, {"?override_precision", "yes"}}));

  EXPECT_THAT(text, HasSubstr("  amax_history_len: 1024\n"));
  EXPECT_THAT(text, HasSubstr("  amax_compute_algo: max\n"));
  EXPECT_THAT(text, Not(HasSubstr("amax_history_length")));
  EXPECT_THAT(text, HasSubstr("  override_linear_precision:\n    - false\n"));
}

TEST(AnsweredConfig, ANewRoleComesWithTheCommandsThatCreateIt) {
  const auto questionnaire =
      answered({{"compute_environment", "1"}, {"?role", "1"}, {"?use_dynamo", "yes"}});

  EXPECT_THAT(yaml_of(questionnaire),
              HasSubstr("iam_role_name: accelerate_sagemaker_execution_role\n"));
  EXPECT_THAT(closing_notes(questionnaire.answers()),
              ElementsAre(HasSubstr("TF32"),
                          HasSubstr("aws CLI"),
                          HasSubstr("aws iam create-role"),
                          HasSubstr("aws iam attach-role-policy")));
}

ConfigValue::Map parsed(const char* text) {
  return or_throw(parse_config(text, ConfigFormat::kYaml, "c.yaml"));
}

std::string normal_text(const char* text) {
  return to_text(normal_form(parsed(text)), ConfigFormat::kYaml);
}

TEST(ConfigNormalForm, RenamesWhatOlderVersionsWrote) {
  const std::string text =
      normal_text("distributed_type: NO\nfp16: true\ndynamo_backend: inductor\nfsdp_config: {}\n");

  EXPECT_THAT(text,
              AllOf(HasSubstr("mixed_precision: fp16\n"),
                    HasSubstr("distributed_type: 'NO'\n"),
                    HasSubstr("dynamo_config:\n  dynamo_backend: INDUCTOR\n"),
                    HasSubstr("num_processes: 1\n")));
  EXPECT_THAT(text, AllOf(Not(HasSubstr("fp16: true")), Not(HasSubstr("fsdp_config"))));
}

// A key that the reader learns would be dropped by `accel config update`.
TEST(ConfigNormalForm, KeepsEveryKeyThatTheReaderKnows) {
  constexpr std::string_view kOfTheWhole = "fp16,dynamo_backend,compute_environment";
  for (const ConfigKey& key : config_keys()) {
    if (key.effect == ConfigEffect::kRetired ||
        kOfTheWhole.find(key.name) != std::string_view::npos)
      continue;
    const ConfigValue::Map document = {{std::string(key.name), 0, text_value("kept")}};
    const ConfigValue::Map normal = normal_form(document);
    const ConfigValue* const kept = find_value(normal, key.name);
    ASSERT_NE(kept, nullptr) << key.name;
    EXPECT_EQ(kept->text, "kept") << key.name;
  }
}

TEST(ConfigNormalForm, TheLastOfARepeatedKeyHolds) {
  EXPECT_THAT(normal_text("distributed_type: MULTI_CPU\ndebug: true\ndebug: false\n"),
              AllOf(HasSubstr("debug: false\n"), HasSubstr("num_processes: -1\n")));
}

TEST(ConfigNormalForm, KnowsTheFieldsOfSagemaker) {
  const char* const file =
      "compute_environment: AMAZON_SAGEMAKER\ndistributed_type: NO\nec2_instance_type: x\n";

  EXPECT_THAT(normal_text(file), HasSubstr("py_version: py38\n"));
}

TEST(BasicConfig, FollowsTheGpus) {
  const auto text = [](int gpus) {
    return to_text(basic_config("bf16", gpus), ConfigFormat::kYaml);
  };
  EXPECT_THAT(text(0), AllOf(HasSubstr("use_cpu: true\n"), HasSubstr("num_processes: 1\n")));
  EXPECT_THAT(text(1), AllOf(HasSubstr("use_cpu: false\n"), HasSubstr("distributed_type: 'NO'\n")));
  EXPECT_THAT(text(8),
              AllOf(HasSubstr("distributed_type: MULTI_GPU\n"), HasSubstr("num_processes: 8\n")));
}

}  // namespace
}  // namespace accel::launcher::questionnaire_test
