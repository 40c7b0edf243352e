#include "launcher/commands/fsdp2_conversion.h"

#include <filesystem>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "launcher/commands/to_fsdp2.h"
#include "launcher/commands/tpu_config.h"
#include "launcher/config/config_writer.h"
#include "tests/support/scratch_folder.h"

namespace accel::launcher::fsdp2_conversion_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

struct Converted {
  std::string text;
  std::vector<std::string> notices;
};

Converted convert(const std::string& yaml) {
  auto document = parse_config(yaml, ConfigFormat::kYaml, "f.yaml");
  EXPECT_TRUE(document);
  const auto converted = convert_to_fsdp2(*std::move(document));
  if (!converted) return {converted.error().message(), {}};
  return {to_text(converted->document, ConfigFormat::kYaml), converted->notices};
}

TEST(Fsdp2Conversion, AStrategyOrAVersionThatIsNoneIsRefused) {
  const auto text_of = [](const std::string& line) {
    return convert("fsdp_config:\n  " + line + "\n").text;
  };
  EXPECT_THAT(text_of("fsdp_sharding_strategy: FOO"),
              HasSubstr("line 2: fsdp_sharding_strategy is 'FOO', expected FULL_SHARD, SHARD_"));
  EXPECT_THAT(text_of("sharding_strategy: 6"), HasSubstr("is '6', expected FULL_SHARD"));
  EXPECT_THAT(text_of("fsdp_sharding_strategy: [1]"), HasSubstr("expected FULL_SHARD"));
  EXPECT_THAT(text_of("fsdp_reshard_after_forward: maybe"),
              HasSubstr("expected true, false, FULL"));
  EXPECT_THAT(text_of("fsdp_reshard_after_forward: false"),
              HasSubstr("fsdp_reshard_after_forward: false"));
  EXPECT_THAT(text_of("fsdp_version: abc"), HasSubstr("fsdp_version is 'abc', expected 1 or 2"));
}

TEST(Fsdp2Conversion, AKeyThatIsGivenTwiceIsNamed) {
  const Converted converted = convert(
      "num_processes: 1\nnum_processes: 2\nfsdp_config:\n  fsdp_sharding_strategy: 1\n"
      "  fsdp_sharding_strategy: 2\n");
  EXPECT_THAT(converted.text, HasSubstr("fsdp_reshard_after_forward: false"));
  EXPECT_THAT(
      converted.notices,
      ElementsAre(HasSubstr("num_processes is given in line 1 and again in line 2"),
                  HasSubstr("fsdp_sharding_strategy is given in line 4 and again in line")));
}

// CLI19.
TEST(Fsdp2Conversion, RenamesDropsAndKeeps) {
  const Converted converted = convert(
      "distributed_type: FSDP\n"
      "fsdp_config:\n"
      "  fsdp_backward_prefetch: BACKWARD_PRE\n"
      "  fsdp_use_orig_params: true\n"
      "  fsdp_sync_module_states: true\n"
      "  fsdp_forward_prefetch: false\n"
      "  fsdp_sharding_strategy: FULL_SHARD\n"
      "  fsdp_offload_params: true\n"
      "  some_unknown_key: 5\n");
  EXPECT_EQ(converted.text,
            "distributed_type: FSDP\n"
            "fsdp_config:\n"
            "  fsdp_reshard_after_forward: true\n"
            "  fsdp_offload_params: true\n"
            "  some_unknown_key: 5\n"
            "  fsdp_version: 2\n");
  EXPECT_THAT(converted.notices,
              ElementsAre(HasSubstr("fsdp_backward_prefetch"),
                          HasSubstr("fsdp_use_orig_params"),
                          HasSubstr("fsdp_sync_module_states"),
                          HasSubstr("fsdp_forward_prefetch")));
}

TEST(Fsdp2Conversion, KnowsEveryStrategyByNameAndByNumber) {
  const auto reshards = [](const std::string& strategy) {
    return convert("fsdp_config: {fsdp_sharding_strategy: " + strategy + "}\n").text;
  };
  for (const char* keeps : {"SHARD_GRAD_OP", "HYBRID_SHARD_ZERO2", "NO_SHARD", "2", "3", "5"})
    EXPECT_THAT(reshards(keeps), HasSubstr("fsdp_reshard_after_forward: false")) << keeps;
  for (const char* gives_back : {"FULL_SHARD", "HYBRID_SHARD", "1", "4"})
    EXPECT_THAT(reshards(gives_back), HasSubstr("fsdp_reshard_after_forward: true")) << gives_back;
}

// CLI20, CLI21.
TEST(Fsdp2Conversion, LeavesAloneWhatIsVersion2OrHasNoFsdp) {
  const Converted second =
      convert("fsdp_config: {fsdp_version: 2, fsdp_sharding_strategy: FULL_SHARD}\n");
  EXPECT_THAT(second.text, HasSubstr("fsdp_sharding_strategy: FULL_SHARD"));
  EXPECT_THAT(second.notices,
              ElementsAre(HasSubstr("Config already specifies FSDP2, skipping conversion...")));
  const Converted none = convert("mixed_precision: 'no'\nfsdp_config: {}\n");
  EXPECT_EQ(none.text, "mixed_precision: 'no'\nfsdp_config: {}\n");
  EXPECT_THAT(none.notices, ElementsAre(HasSubstr("No FSDP config found")));
}

TEST(ConfigWriter, QuotesWhatPyYamlWouldTakeForSomethingElse) {
  const std::string text =
      "a: 'no'\nb: '1:30'\nc: '010'\nd: ''\ne: \"x: y #z\"\nf: [1, two, 'off']\ng: null\nh: 1_000\n"
      "i: \"line\\nbreak\"\nj: {}\nk: []\nl: '~'\n";
  const auto document = parse_config(text, ConfigFormat::kYaml, "f.yaml");
  ASSERT_TRUE(document);
  const std::string written = to_text(*document, ConfigFormat::kYaml);
  const auto again = parse_config(written, ConfigFormat::kYaml, "f.yaml");
  ASSERT_TRUE(again) << written;
  EXPECT_EQ(to_text(*again, ConfigFormat::kJson), to_text(*document, ConfigFormat::kJson));
  EXPECT_THAT(written, HasSubstr("a: 'no'\nb: '1:30'\nc: '010'\n"));
  EXPECT_THAT(written, HasSubstr("h: 1_000"));
}

TEST(ConfigWriter, WritesNumbersOfJsonSoThatPyYamlTakesThemForNumbers) {
  const auto document =
      parse_config(R"({"a": [1e5, -2E-3, 1.5e4, 0.1e+2, 1.5, 7, 123456789012345678901]})",
                   ConfigFormat::kJson,
                   "f.json");
  ASSERT_TRUE(document);
  const std::string written = to_text(*document, ConfigFormat::kYaml);

  EXPECT_EQ(written,
            "a:\n  - 1.0e+5\n  - -2.0E-3\n  - 1.5e+4\n  - 0.1e+2\n  - 1.5\n  - 7\n"
            "  - 123456789012345678901\n");
  const auto again = parse_config(written, ConfigFormat::kYaml, "f.yaml");
  ASSERT_TRUE(again);
  EXPECT_EQ(to_text(*again, ConfigFormat::kJson), to_text(*document, ConfigFormat::kJson));
}

// A status, and no abort.
TEST(FilesOfCommands, FoldersAndDevicesWithoutAnEndAreRefused) {
  const test::ScratchFolder folder;
  const std::string output = folder.file("x.yaml");
  for (const std::string& path : {folder.path().string(), std::string("/dev/zero")}) {
    testing::internal::CaptureStderr();
    const int status = to_fsdp2_command({"--config_file", path, "--output_file", output});
    EXPECT_THAT(testing::internal::GetCapturedStderr(),
                HasSubstr("the configuration file " + path +
                          (path == "/dev/zero" ? " has more than 1048576 bytes" : " is a folder")));
    EXPECT_NE(status, 0);
    EXPECT_FALSE(std::filesystem::exists(output));
    testing::internal::CaptureStderr();
    EXPECT_NE(
        tpu_config_command({"--debug", "--tpu_name=a", "--tpu_zone=b", "--command_file", path}), 0);
    EXPECT_THAT(testing::internal::GetCapturedStderr(), HasSubstr("the file of commands " + path));
  }
}

}  // namespace
}  // namespace accel::launcher::fsdp2_conversion_test
