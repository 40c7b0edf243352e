// The entry points of libaccel_cluster.so; see launcher/cluster_entry/cluster_library.h for who opens it.
//
// Everything else in it is hidden, so that a program which opens it never meets gRPC or Protobuf by accident.

#include <cstdlib>
#include <string>
#include <string_view>

#include <grpc/support/log.h>

#include "agent/rendezvous/token_proof.h"
#include "launcher/cluster/agents/commands.h"
#include "launcher/cluster/elastic/elastic_launch.h"
#include "launcher/cluster/meeting/etcd_key.h"
#include "launcher/cluster_entry/cluster_library.h"

#define ACCEL_ENTRY extern "C" __attribute__((visibility("default")))

namespace accel::cluster {
namespace {

// gRPC's own lines (a handshake that failed) say nothing that our errors do not; GRPC_VERBOSITY brings them back.
void silence_grpc() {
  if (std::getenv("GRPC_VERBOSITY") == nullptr) gpr_set_log_function([](gpr_log_func_args*) {});
}

std::string prove(std::string_view token,
                  std::string_view session,
                  std::string_view key,
                  std::string_view text) {
  return agent::prove_token(agent::token_key(token), session, key, text);
}

}  // namespace
}  // namespace accel::cluster

// `argv` as of a program: argv[1] is the command. Gives the exit status.
ACCEL_ENTRY int accel_cluster_main(int argc, const char* const* argv) {
  accel::cluster::silence_grpc();
  if (argc == 3 && std::string_view(argv[1]) == accel::launcher::kElasticCommand)
    return accel::cluster::launch_elastic(argv[2]);
  return accel::cluster::run_agent_command(argc, argv);
}

// Loads gRPC's code with it, and starts nothing of it.
ACCEL_ENTRY const accel::launcher::TokenFunctions* accel_cluster_token_functions() {
  static constexpr accel::launcher::TokenFunctions kFunctions = {.read = accel::agent::read_token,
                                                                 .prove = accel::cluster::prove};
  return &kFunctions;
}

// The same.
ACCEL_ENTRY const accel::launcher::EtcdFunctions* accel_cluster_etcd_functions() {
  static constexpr accel::launcher::EtcdFunctions kFunctions = {
      .open = [](const accel::launcher::EtcdAccess& access, const std::string& run_id) {
        return accel::cluster::EtcdKey::open(access, run_id);
      }};
  return &kFunctions;
}
