#include "launcher/start/machines/board/job_token.h"

#include "launcher/cluster_entry/cluster_library.h"
#include "runtime/environment_value.h"

namespace accel::launcher {
namespace {

constexpr std::size_t kLeastTokenBytes = 16;  // as of a file: agent/rendezvous/token_proof.h

}  // namespace

Result<std::optional<JobToken>> find_job_token(const EnvMap& environment) {
  const std::string token = value_in(environment, kJobTokenVariable);
  const std::string path = value_in(environment, kJobTokenFileVariable);
  if (token.empty() && path.empty()) return std::optional<JobToken>();
  if (!token.empty() && token.size() < kLeastTokenBytes) {
    return Error(ErrorCode::kAuthentication,
                 std::string(kJobTokenVariable) + " has " + std::to_string(token.size()) +
                     " characters, at least " + std::to_string(kLeastTokenBytes) + " are needed",
                 "make one with `openssl rand -hex 32`, the same for every machine");
  }
  const auto functions = load_token_functions();
  if (!functions) return functions.error();
  if (!token.empty()) return std::optional(JobToken(token, **functions));
  auto from_file = (*functions)->read(path);
  if (!from_file) {
    return std::move(from_file).error().while_doing(std::string("reading the file of ") +
                                                    kJobTokenFileVariable);
  }
  return std::optional(JobToken(*std::move(from_file), **functions));
}

}  // namespace accel::launcher
