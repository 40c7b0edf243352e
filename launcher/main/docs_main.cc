// accel-docs: writes the generated pages into a folder.

#include <cstdio>
#include <fstream>
#include <string>

#include "launcher/commands/documents.h"

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fputs("Usage: accel-docs DIR\n", stderr);
    return 2;
  }
  for (const accel::launcher::Document& document : accel::launcher::generated_documents()) {
    const std::string path = std::string(argv[1]) + "/" + document.name;
    std::ofstream file(path, std::ios::binary);
    file << document.text;
    if (!file.flush()) {
      std::fprintf(stderr, "accel-docs: cannot write %s\n", path.c_str());
      return 1;
    }
  }
  return 0;
}
