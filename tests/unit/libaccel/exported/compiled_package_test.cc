// Packages of machine code as files: what they say of a machine, what is refused, and what is written where they are unpacked.
// tests/peer/compiled_models.py runs real ones.

#include "libaccel/exported/compiled_package.h"

#include <fstream>
#include <iterator>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <accel/error.h>

#include "tests/support/error_of.h"
#include "tests/support/exported_archive.h"
#include "tests/support/scratch_folder.h"

namespace accel::exported {
namespace {

using test::error_of;
using test::ExportedArchive;
using test::ScratchFolder;

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Pair;

constexpr const char* kCode = "data/aotinductor/eval/";

const MachineFeatures kMachine = {
    .system = "linux", .architecture = "x86_64", .cpu = {"avx2", "fma", "f16c"}, .torch = "2.11.0"};

class CompiledPackageTest : public ::testing::Test {
 protected:
  CompiledPackageTest() {
    metadata() = {{"AOTI_DEVICE_KEY", "cpu"},
                  {"AOTI_PLATFORM", "linux"},
                  {"AOTI_MACHINE", "x86_64"},
                  {"AOTI_CPU_ISA", "AVX2"}};
    file_.entries[std::string(kCode) + "net.so"] = "machine code";
    file_.entries[std::string(kCode) + "net.cpp"] = "its source";
  }

  nlohmann::json& metadata() { return file_.json[std::string(kCode) + "net_metadata.json"]; }
  nlohmann::json& table() { return file_.json[std::string(kCode) + "accel.json"]; }
  void add_table() {
    table() = nlohmann::json::parse(R"({"format": 1, "torch": "2.11.1", "cpu": ["avx2"],
        "inputs": [["parameter", "a.weight"], ["user", "0"]], "outputs": [["output", "0"]],
        "graph": {"bytes": 9, "crc32": 3421780262}})");
  }
  const Archive& archive() {
    archive_ = std::make_unique<Archive>(file_.write(folder_.file("net.pt2")));
    return *archive_;
  }

  ScratchFolder folder_;
  ExportedArchive file_{"blocks"};
  std::unique_ptr<Archive> archive_;
};

TEST_F(CompiledPackageTest, FitsTheMachineThatItWasCompiledFor) {
  const CompiledPackage package(archive(), "eval");

  EXPECT_THAT(CompiledPackage::models(*archive_), ElementsAre("eval"));
  EXPECT_EQ(package.fault_on(kMachine), "");
  EXPECT_FALSE(package.is_of_graph());
}

TEST_F(CompiledPackageTest, NamesWhatAnotherMachineLacks) {
  const CompiledPackage package(archive(), "eval");
  MachineFeatures other = kMachine;

  other.cpu = {"fma"};
  EXPECT_THAT(package.fault_on(other), HasSubstr("with avx2, f16c, which this one has not"));
  other = kMachine;
  other.architecture = "aarch64";
  EXPECT_THAT(package.fault_on(other), HasSubstr("for x86_64, and this machine is aarch64"));
  other = kMachine;
  other.system = "darwin";
  EXPECT_THAT(package.fault_on(other), HasSubstr("for linux, and this is darwin"));
}

TEST_F(CompiledPackageTest, OfAnotherMinorVersionOfTorchIsForAnother) {
  add_table();
  const CompiledPackage package(archive(), "eval");
  MachineFeatures other = kMachine;
  EXPECT_EQ(package.fault_on(other), "");

  other.torch = "2.12.0";
  EXPECT_THAT(package.fault_on(other), HasSubstr("with torch 2.11.1, and this is LibTorch 2.12.0"));
}

// "123456789" has the checksum cbf43926 by the definition of CRC-32.
TEST_F(CompiledPackageTest, KnowsTheGraphThatItWasMadeOf) {
  add_table();
  const CompiledPackage package(archive(), "eval");

  EXPECT_TRUE(package.is_of_graph());
  EXPECT_THAT(package.inputs(), ElementsAre(Pair("parameter", "a.weight"), Pair("user", "0")));
  EXPECT_THAT(package.outputs(), ElementsAre(Pair("output", "0")));
  EXPECT_TRUE(package.is_made_of("123456789"));
  EXPECT_FALSE(package.is_made_of("123456780"));
  EXPECT_FALSE(package.is_made_of("1234567890"));
}

TEST_F(CompiledPackageTest, IsUnpackedWithoutItsSources) {
  const CompiledPackage package(archive(), "eval");
  const std::filesystem::path into = folder_.file("code");
  std::filesystem::create_directory(into);

  const auto library = package.unpack(into);

  std::ifstream file(library, std::ios::binary);
  EXPECT_EQ(std::string(std::istreambuf_iterator<char>(file), {}), "machine code");
  EXPECT_EQ(library, into / "net.so");
  EXPECT_FALSE(std::filesystem::exists(into / "net.cpp"));
  EXPECT_EQ(error_of([&] { (void)package.unpack(into); }).code(), ErrorCode::kFileIo)
      << "a file that is there was written over";
}

TEST_F(CompiledPackageTest, WithNamesThatLeadElsewhereIsDamaged) {
  for (const char* name : {"../net.so", "a/b.so", ".."}) {
    ExportedArchive other = file_;
    other.entries[std::string(kCode) + name] = "x";
    const Archive archive(other.write(folder_.file("other.pt2")));

    const Error error = error_of([&] { (void)CompiledPackage(archive, "eval"); });
    EXPECT_EQ(error.code(), ErrorCode::kCheckpointIncomplete) << name;
    EXPECT_THAT(error.message(), HasSubstr("has a file called"));
  }
}

TEST_F(CompiledPackageTest, ThatIsNotWholeIsDamaged) {
  const std::vector<std::pair<std::string, std::string>> faults = {
      {"net.so", "no shared library"}, {"net_metadata.json", "for which machine"}};
  for (const auto& [name, said] : faults) {
    ExportedArchive other = file_;
    other.entries.erase(kCode + name);
    other.json.erase(kCode + name);
    const Archive archive(other.write(folder_.file("other.pt2")));

    EXPECT_THAT(error_of([&] { (void)CompiledPackage(archive, "eval"); }).message(),
                HasSubstr(said));
  }
  file_.entries[std::string(kCode) + "second.so"] = "x";
  EXPECT_THAT(error_of([&] { (void)CompiledPackage(archive(), "eval"); }).message(),
              HasSubstr("two libraries"));
}

TEST_F(CompiledPackageTest, OfAnotherFormatIsOfAnotherVersion) {
  add_table();
  table()["format"] = 2;

  EXPECT_EQ(error_of([&] { (void)CompiledPackage(archive(), "eval"); }).code(),
            ErrorCode::kCheckpointVersion);
}

TEST(CpuFeatures, AreThoseOfTheFirstCpu) {
  EXPECT_THAT(cpu_features("processor\t: 0\nflags\t\t: fpu avx2\n\nflags\t\t: other\n"),
              ElementsAre("avx2", "fpu"));
  EXPECT_THAT(cpu_features("Features\t: asimd sve\n"), ElementsAre("asimd", "sve"));
  EXPECT_THAT(cpu_features("flags"), IsEmpty());
  EXPECT_THAT(cpu_features(""), IsEmpty());
}

}  // namespace
}  // namespace accel::exported
