#include "launcher/commands/documents.h"

#include <cstdlib>
#include <fstream>
#include <iterator>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace accel::launcher::documents_test {
namespace {

std::string read_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

TEST(Documents, TheGeneratedPagesAreNotStale) {
  const char* source_folder = std::getenv("ACCEL_SOURCE_DIR");
  ASSERT_NE(source_folder, nullptr) << "ctest sets ACCEL_SOURCE_DIR";

  for (const Document& document :
       generated_documents(read_file(std::string(source_folder) + "/configs/agent.yaml"))) {
    EXPECT_EQ(read_file(std::string(source_folder) + "/docs/" + document.name), document.text)
        << "run scripts/generate_docs.sh to write docs/" << document.name;
  }
}

}  // namespace
}  // namespace accel::launcher::documents_test
