// Documents: the pages of docs/ that are written from tables in the code, so that they cannot be
// wrong.
//
// `accel-docs docs` writes them (scripts/generate_docs.sh); a test fails when one is stale.
//
// Threads:  pure functions.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace accel::launcher {

struct Document {
  std::string name;  // "reference/errors.md", below docs/
  std::string text;
};

// reference/errors.md, env_contract.md, config.md and flags.md, the man pages of all commands and of agent.yaml, and the completions.
// `agent_file` is the text of configs/agent.yaml.
[[nodiscard]] std::vector<Document> generated_documents(std::string_view agent_file);

}  // namespace accel::launcher
