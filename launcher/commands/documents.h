// Documents: the pages of docs/ that are written from tables in the code, so that they cannot be
// wrong.
//
// `accel-docs docs` writes them (scripts/generate_docs.sh); a test fails when one is stale.
//
// Threads:  pure functions.
#pragma once

#include <string>
#include <vector>

namespace accel::launcher {

struct Document {
  std::string name;  // "errors.md", below docs/
  std::string text;
};

// errors.md, env_contract.md, config.md, flags.md, and of accel-launch the man page and the completion.
[[nodiscard]] std::vector<Document> generated_documents();

}  // namespace accel::launcher
