// What configuration files mean, and what is said about those that make no sense. The hostile ones
// are files of tests/hostile/configs, each named after its fault.

#include "launcher/config/config_file.h"

#include <cstdlib>
#include <filesystem>
#include <set>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "launcher/config/config_schema.h"
#include "tests/support/scratch_folder.h"

namespace accel::launcher::config_file_test {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

std::string source_path(const std::string& name) {
  const char* folder = std::getenv("ACCEL_SOURCE_DIR");
  return std::string(folder != nullptr ? folder : ".") + "/" + name;
}

std::string fixture(const std::string& name) {
  return source_path("tests/unit/launcher/configs/" + name);
}

ConfigFile yaml(std::string_view text) {
  return or_throw(parse_config_file(text, ConfigFormat::kYaml, "c.yaml"));
}

class ConfigFixture : public ::testing::TestWithParam<const char*> {};

TEST_P(ConfigFixture, IsReadWithoutAWarning) {
  const Result<ConfigFile> file = load_config_file(fixture(GetParam()));

  ASSERT_TRUE(file) << file.error().render();
  EXPECT_THAT(texts_of(file->notices), IsEmpty());
}

INSTANTIATE_TEST_SUITE_P(OfThePeer,
                         ConfigFixture,
                         ::testing::Values("0_11_0.yaml",
                                           "0_12_0.yaml",
                                           "latest.yaml",
                                           "latest_fsdp.yaml",
                                           "validate_launch_cmd.yaml",
                                           "0_28_0_mpi.yaml",
                                           "0_34_0_fp8.yaml",
                                           "cluster_with_everything.json"));

TEST(ConfigFile, ReadsTheTypesOfItsKeys) {
  const ConfigFile file = or_throw(load_config_file(fixture("0_28_0_mpi.yaml")));

  EXPECT_EQ(file.distributed_type, "MULTI_CPU");
  EXPECT_EQ(file.num_processes, 16);
  EXPECT_EQ(file.num_machines, 4);
  EXPECT_EQ(file.main_process_ip, "127.0.0.1");
  EXPECT_EQ(file.main_process_port, 29500);
  EXPECT_EQ(file.use_cpu, true);
  EXPECT_EQ(file.mixed_precision, "no");
}

TEST(ConfigFile, JsonMeansTheSameAsYaml) {
  const ConfigFile file = or_throw(load_config_file(fixture("cluster_with_everything.json")));

  EXPECT_EQ(file.distributed_type, "MULTI_CPU");
  EXPECT_EQ(file.num_processes, 3);
  EXPECT_EQ(file.mixed_precision, "bf16");
  EXPECT_EQ(file.dynamo.backend, "inductor");
  EXPECT_EQ(file.dynamo.mode, "max-autotune");
}

TEST(ConfigFile, AnUnquotedNoIsTheWordWhereItIsAChoice) {
  const ConfigFile file = yaml("distributed_type: NO\nmixed_precision: no\n");

  EXPECT_EQ(file.distributed_type, "NO");
  EXPECT_EQ(file.mixed_precision, "no");
}

TEST(ConfigFile, TypesOfOlderVersionsHaveTheirPresentName) {
  const ConfigFile mps = yaml("num_processes: 1\ndistributed_type: MPS\n");

  EXPECT_EQ(mps.distributed_type, "NO");
  ASSERT_THAT(mps.notices, ::testing::SizeIs(1));
  EXPECT_THAT(mps.notices[0].text(),
              HasSubstr(":2: distributed_type is MPS, as in older versions"));
  EXPECT_EQ(yaml("distributed_type: TPU\n").distributed_type, "XLA");
}

TEST(ConfigFile, ScalarsFollowYaml11) {
  const ConfigFile file = yaml(
      "distributed_type: 'NO'\nnum_processes: 010\nmain_process_port: 1_000\nuse_cpu: on\ngpu_ids: "
      "0,1\n");

  EXPECT_EQ(file.num_processes, 8);
  EXPECT_EQ(file.main_process_port, 1000);
  EXPECT_EQ(file.use_cpu, true);
  EXPECT_EQ(file.gpu_ids, "0,1");
}

TEST(ConfigFile, QuotedNumbersAndWordsForBooleansAreUnderstood) {
  const ConfigFile file =
      yaml("distributed_type: 'NO'\nmain_process_port: '29501'\ndebug: 'true'\n");

  EXPECT_EQ(file.main_process_port, 29501);
  EXPECT_EQ(file.debug, true);
}

TEST(ConfigFile, TheNumberOfProcessesIsOneOnlyForTypeNo) {
  EXPECT_EQ(yaml("distributed_type: 'NO'\n").num_processes, 1);
  EXPECT_EQ(yaml("distributed_type: MULTI_GPU\n").num_processes, std::nullopt);
  EXPECT_EQ(yaml("distributed_type: 'NO'\nnum_processes: -1\n").num_processes, std::nullopt);
}

TEST(ConfigFile, OlderFormsAreRead) {
  EXPECT_EQ(yaml("distributed_type: 'NO'\nfp16: true\n").mixed_precision, "fp16");
  EXPECT_EQ(yaml("distributed_type: 'NO'\nfp16: true\nmixed_precision: bf16\n").mixed_precision,
            "bf16");
  EXPECT_EQ(yaml("distributed_type: 'NO'\ndynamo_backend: INDUCTOR\n").dynamo.backend, "inductor");
}

TEST(ConfigFile, MergesMapsAsPyYamlDoes) {
  // Of the file itself before what is merged, of several the first.
  const ConfigFile one = yaml(
      "fsdp_config: &base {fsdp_version: 2, fsdp_offload_params: true}\n"
      "distributed_type: FSDP\n"
      "num_processes: 3\n"
      "<<: {num_processes: 2, machine_rank: 1, num_machines: 2}\n");
  EXPECT_EQ(one.num_processes, 3);
  EXPECT_EQ(one.machine_rank, 1);
  EXPECT_THAT(one.notices, IsEmpty());
  const ConfigFile several = yaml(
      "distributed_type: MULTI_CPU\n<<: [{num_processes: 4}, {num_processes: 5, num_machines: "
      "2}]\n");
  EXPECT_EQ(several.num_processes, 4);
  EXPECT_EQ(several.num_machines, 2);
}

TEST(ConfigFile, OneDocumentBetweenMarkersIsRead) {
  EXPECT_EQ(
      yaml("# a file\n---\ndistributed_type: MULTI_CPU\nnum_processes: 2\n...\n").num_processes, 2);
}

TEST(ConfigFile, ARepeatedKeyIsAWarningWithBothLines) {
  const ConfigFile file =
      yaml("distributed_type: 'NO'\nnum_processes: 2\ndebug: true\nnum_processes: 3\n");

  EXPECT_EQ(file.num_processes, 3);
  EXPECT_THAT(
      texts_of(file.notices),
      Contains(AllOf(HasSubstr("num_processes"), HasSubstr("line 2"), HasSubstr("line 4"))));
}

TEST(ConfigFile, RetiredKeysAreAWarningWithTheReplacement) {
  const ConfigFile file = yaml("distributed_type: 'NO'\nipex_config: {}\namax_history_length: 3\n");

  EXPECT_THAT(texts_of(file.notices), Contains(HasSubstr("c.yaml:2: ipex_config has no effect")));
  EXPECT_THAT(texts_of(file.notices), Contains(HasSubstr("fp8_config.amax_history_len")));
}

TEST(ConfigFile, AnUnknownKeyOfDynamoIsAWarning) {
  const ConfigFile file = yaml("distributed_type: 'NO'\ndynamo_config:\n  bakend: eager\n");

  EXPECT_THAT(texts_of(file.notices),
              Contains(HasSubstr("c.yaml:3: dynamo_config has no key bakend")));
}

TEST(ConfigFile, UnknownKeysGiveThePeersTextSorted) {
  const std::string path = source_path("tests/hostile/configs/unknown_keys.yaml");

  const Result<ConfigFile> file = load_config_file(path);

  ASSERT_FALSE(file);
  EXPECT_EQ(
      file.error().message(),
      "The config file at " + path +
          " had unknown keys (['another_invalid_key', 'invalid_key']), please try upgrading your "
          "`accelerate` version or fix (and potentially remove) these keys from your config file.");
}

TEST(ConfigFile, AFileOfSageMakerHasKeysOfItsOwn) {
  const ConfigFile file = or_throw(load_config_file(fixture("0_30_0_sagemaker.yaml")));

  ASSERT_TRUE(file.sagemaker);
  EXPECT_EQ(file.sagemaker->instance_type, "MY_TYPE");
  EXPECT_EQ(file.sagemaker->role, "MY_ROLE");
  EXPECT_EQ(file.sagemaker->distributed_type, "NO");
  EXPECT_EQ(file.sagemaker->num_machines, 1);
  EXPECT_EQ(file.mixed_precision, "fp16");
  EXPECT_EQ(file.debug, false);
  EXPECT_THAT(texts_of(file.notices),
              Contains(HasSubstr("debug is given on line 2 and again on line 8")));
}

TEST(ConfigFile, AFileOfSageMakerIsCheckedLikeAnyOther) {
  const auto message = [](const std::string& more) {
    const auto file =
        parse_config_file("compute_environment: AMAZON_SAGEMAKER\ndistributed_type: NO\n" + more,
                          ConfigFormat::kYaml,
                          "F");
    if (file) throw std::logic_error("it was read");
    return file.error().message();
  };

  EXPECT_THAT(message("ec2_instance_type: t\n"), HasSubstr("iam_role_name must be given"));
  EXPECT_THAT(message("ec2_instance_typo: t\n"),
              HasSubstr("had unknown keys (['ec2_instance_typo'])"));
  EXPECT_THAT(message("num_processes: 2\n"), HasSubstr("unknown keys (['num_processes'])"));
  EXPECT_THAT(message("ec2_instance_type: t\niam_role_name: r\nnum_machines: 0\n"),
              HasSubstr("num_machines is 0"));
}

TEST(ConfigFile, AFileThatIsNotThereOrAFolderIsUnreadable) {
  const test::ScratchFolder folder;

  EXPECT_EQ(load_config_file(folder.file("none.yaml")).error().code(),
            ErrorCode::kConfigUnreadable);
  EXPECT_EQ(load_config_file(folder.path()).error().code(), ErrorCode::kConfigUnreadable);
}

TEST(ConfigFile, AHugeFileIsRefused) {
  const test::ScratchFolder folder;
  const std::string path = folder.write("huge.yaml", std::string(2 << 20, '#'));

  EXPECT_EQ(load_config_file(path).error().code(), ErrorCode::kConfigSyntax);
}

struct HostileConfig {
  const char* file;
  ErrorCode code;
  const char* expected;  // part of the message
};

constexpr HostileConfig kHostile[] = {
    {"unknown_keys.yaml", ErrorCode::kConfigUnknownKey, "['another_invalid_key', 'invalid_key']"},
    {"misspelt_key.yaml", ErrorCode::kConfigUnknownKey, "['num_proceses']"},
    {"indented_with_tab.yaml",
     ErrorCode::kConfigSyntax,
     "indented_with_tab.yaml:3: the line is indented with a tab"},
    {"number_is_text.yaml",
     ErrorCode::kConfigInvalidValue,
     "number_is_text.yaml:2: num_processes is 'two', expected a whole number"},
    {"number_is_fraction.yaml", ErrorCode::kConfigInvalidValue, "num_processes is '2.5'"},
    {"number_is_list.yaml", ErrorCode::kConfigInvalidValue, "num_processes is a list or map"},
    {"number_overflows.yaml",
     ErrorCode::kConfigInvalidValue,
     "num_processes is '99999999999999999999'"},
    {"three_wrong_values.yaml",
     ErrorCode::kConfigInvalidValue,
     "yaml:4: main_process_port is 'http'"},
    {"map_is_boolean.yaml",
     ErrorCode::kConfigInvalidValue,
     "fsdp_config is 'yes', expected a map of keys"},
    {"unknown_distributed_type.yaml",
     ErrorCode::kConfigInvalidValue,
     "distributed_type is 'MULTI_CPUS', expected one of NO, MULTI_CPU"},
    {"no_distributed_type.yaml",
     ErrorCode::kConfigInvalidValue,
     "A `distributed_type` must be specified in the config file."},
    {"empty.yaml", ErrorCode::kConfigInvalidValue, "A `distributed_type` must be specified"},
    {"top_level_is_list.yaml", ErrorCode::kConfigSyntax, "expected `key: value` lines"},
    {"unclosed_list.yaml", ErrorCode::kConfigSyntax, "unclosed_list.yaml:"},
    {"alias_bomb.yaml", ErrorCode::kConfigSyntax, "more than 10000 values"},
    {"alias_of_itself.yaml", ErrorCode::kConfigSyntax, "levels deep"},
    {"too_deep.yaml", ErrorCode::kConfigSyntax, "levels deep"},
    {"key_is_list.yaml", ErrorCode::kConfigSyntax, "yaml:2: a key must be a word"},
    {"trailing_comma.json", ErrorCode::kConfigSyntax, "trailing_comma.json:2: "},
    {"number_is_text.json",
     ErrorCode::kConfigInvalidValue,
     "number_is_text.json:3: num_processes is 'two'"},
    {"top_level_is_list.json", ErrorCode::kConfigSyntax, "expected an object"},
    {"two_documents.yaml",
     ErrorCode::kConfigSyntax,
     "two_documents.yaml:5: the file has a second document"},
    {"endless_documents.yaml", ErrorCode::kConfigSyntax, "endless_documents.yaml:2: "},
    {"merges_a_number.yaml", ErrorCode::kConfigSyntax, "yaml:2: what << merges must be a map"},
    {"empty.json", ErrorCode::kConfigSyntax, "empty.json:1: "},
    {"binary.yaml", ErrorCode::kConfigSyntax, "binary.yaml:"},
    {"program.yaml", ErrorCode::kConfigSyntax, "program.yaml:"},
};

class ConfigHostile : public ::testing::TestWithParam<HostileConfig> {};

TEST_P(ConfigHostile, IsAnErrorThatNamesThePlace) {
  const Result<ConfigFile> file =
      load_config_file(source_path(std::string("tests/hostile/configs/") + GetParam().file));

  ASSERT_FALSE(file);
  EXPECT_EQ(file.error().code(), GetParam().code) << file.error().render();
  EXPECT_THAT(file.error().render(), HasSubstr(GetParam().expected));
  EXPECT_THAT(file.error().remedy(), Not(IsEmpty()));
}

INSTANTIATE_TEST_SUITE_P(Files,
                         ConfigHostile,
                         ::testing::ValuesIn(kHostile),
                         [](const auto& param_info) {
                           std::string name = param_info.param.file;
                           for (char& c : name) c = c == '.' ? '_' : c;
                           return name;
                         });

TEST(ConfigHostileFiles, EachOneIsInTheTable) {
  std::set<std::string> listed;
  for (const HostileConfig& hostile : kHostile) listed.insert(hostile.file);

  for (const auto& entry :
       std::filesystem::directory_iterator(source_path("tests/hostile/configs"))) {
    EXPECT_EQ(listed.count(entry.path().filename().string()), 1u) << entry.path();
  }
}

}  // namespace
}  // namespace accel::launcher::config_file_test
