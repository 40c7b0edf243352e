// accel-docs: writes the generated pages into the folder docs of a source tree.

#include <cstdio>
#include <fstream>
#include <iterator>
#include <string>

#include "launcher/commands/documents.h"

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fputs("Usage: accel-docs SOURCE_DIR\n", stderr);
    return 2;
  }
  const std::string source = argv[1];
  std::ifstream agent_file(source + "/configs/agent.yaml", std::ios::binary);
  const std::string agent_text(std::istreambuf_iterator<char>(agent_file), {});
  if (agent_text.empty()) {
    std::fprintf(stderr, "accel-docs: cannot read %s/configs/agent.yaml\n", source.c_str());
    return 1;
  }
  for (const auto& document : accel::launcher::generated_documents(agent_text)) {
    const std::string path = source + "/docs/" + document.name;
    std::ofstream file(path, std::ios::binary);
    file << document.text;
    if (!file.flush()) {
      std::fprintf(stderr, "accel-docs: cannot write %s\n", path.c_str());
      return 1;
    }
  }
  return 0;
}
