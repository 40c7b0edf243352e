// What `accel env` says of the facts it found, and how it finds versions without importing anything.

#include "launcher/commands/environment_report.h"

#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "launcher/commands/python_packages.h"
#include "tests/support/scratch_folder.h"

namespace accel::launcher::environment_report_test {
namespace {

using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Not;

ConfigValue::Map yaml(const char* text) {
  return or_throw(parse_config(text, ConfigFormat::kYaml, "c.yaml"));
}

TEST(EnvironmentReport, SaysWhatIsNotThere) {
  const std::string text = environment_report({.accel_version = "1.2", .platform = "Linux"});

  EXPECT_THAT(text, HasSubstr("- `accel` version: 1.2\n"));
  EXPECT_THAT(text, HasSubstr("- PyTorch version: Not found\n- PyTorch accelerator: N/A\n"));
  EXPECT_THAT(text, HasSubstr("- `Accelerate` default config:\n\tNot found\n"));
  EXPECT_THAT(text, Not(HasSubstr("GPU")));
}

TEST(EnvironmentReport, NamesGpusOfAKindOnce) {
  EnvironmentFacts facts;
  facts.torch_cuda = "13.0";
  facts.gpus = {"A", "A", "B"};

  const std::string text = environment_report(facts);

  EXPECT_THAT(text, HasSubstr("- PyTorch accelerator: CUDA\n"));
  EXPECT_THAT(text, HasSubstr("- GPU type: A (2 of them), B\n"));
}

TEST(EnvironmentReport, AGpuIsOfNoUseToATorchWithoutCuda) {
  EnvironmentFacts facts;
  facts.gpus = {"A"};

  EXPECT_THAT(environment_report(facts), HasSubstr("- PyTorch accelerator: N/A\n"));
}

TEST(EnvironmentReport, ShowsTheConfigurationAsPythonWould) {
  EnvironmentFacts facts;
  facts.is_config_given = true;
  facts.config = yaml("a: text\nb: yes\nc: {d: 1, e: null, f: it's, g: 1.0}\nh: [x, 010]\n");

  EXPECT_THAT(environment_report(facts),
              HasSubstr("- `Accelerate` config passed:\n\t- a: text\n\t- b: True\n\t- c: {'d': 1, "
                        "'e': None, 'f': \"it's\", 'g': 1.0}\n\t- h: ['x', 8]\n"));
}

TEST(PythonPackages, ReadsVersionsOfTheFirstFolderThatHasThem) {
  const test::ScratchFolder scratch;
  scratch.write("a/numpy-2.4.6.dist-info/METADATA", "");
  scratch.write("a/Typing_Extensions-4.0.dist-info/METADATA", "");
  scratch.write("b/numpy-1.0.dist-info/METADATA", "");
  scratch.write("b/numpydoc-9.0.dist-info/METADATA", "");
  const std::vector<std::string> folders = {
      scratch.file("none"), scratch.file("a"), scratch.file("b")};

  EXPECT_EQ(package_version(folders, "numpy"), "2.4.6");
  EXPECT_EQ(package_version(folders, "numpydoc"), "9.0");
  EXPECT_EQ(package_version(folders, "typing.extensions"), "4.0");
  EXPECT_EQ(package_version(folders, "torch"), std::nullopt);
}

TEST(PythonPackages, ReadsWithWhatTorchWasBuilt) {
  const test::ScratchFolder scratch;
  scratch.write("gpu/torch/version.py",
                "__all__ = ['__version__', 'cuda']\n__version__ = '2.11.0+cu130'\ndebug = False\n"
                "cuda: Optional[str] = '13.0'\nhip: Optional[str] = None\n");
  scratch.write("cpu/torch/version.py", "__version__ = '2.11.0+cpu'\ncuda: Optional[str] = None\n");

  const auto gpu = torch_build({scratch.file("gpu")});
  const auto cpu = torch_build({scratch.file("none"), scratch.file("cpu")});

  ASSERT_TRUE(gpu && cpu);
  EXPECT_EQ(gpu->version, "2.11.0+cu130");
  EXPECT_EQ(gpu->cuda, "13.0");
  EXPECT_EQ(cpu->version, "2.11.0+cpu");
  EXPECT_EQ(cpu->cuda, "");
  EXPECT_FALSE(torch_build({scratch.file("none")}));
}

TEST(EnvironmentReport, AConfigurationThatCannotBeUsedIsPartOfTheReport) {
  EnvironmentFacts facts;
  facts.accel_version = "1.2.3";
  facts.config_fault = "default_config.yaml:2: a tab";

  const std::string text = environment_report(facts);

  EXPECT_THAT(text, HasSubstr("- `accel` version: 1.2.3\n"));
  EXPECT_THAT(text, EndsWith("default config:\n\tNot usable: default_config.yaml:2: a tab\n"));
}

}  // namespace
}  // namespace accel::launcher::environment_report_test
