// AccessPolicy: who may do what on this agent, decided without any I/O.
//
//   caller                                    sees            stops, signals   starts                      drains, scales
//   local user                                its own jobs    its own          as itself, if allowed       its own jobs
//   local uid 0, or the agent's own uid       all             all              as itself (0: allow_root)   yes
//   certificate, role viewer                  all             -                -                           -
//   certificate, role operator                all             all              by remote_users alone       yes
//   certificate, role node or launcher        -               -                -                           -
//
// Whom agents and launchers take for one of theirs, admits() says.
//
// An agent that does not run as root serves its own uid alone.
//
// Threads:  pure functions.
// Source:   docs/admin/security.md.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include <sys/types.h>

#include <accel/result.h>

#include "agent/config/agent_config.h"

namespace accel::agent {

enum class Role { kLocal, kNode, kLauncher, kOperator, kViewer };

// Who makes a call, as far as the transport proves it.
struct Caller {
  Role role = Role::kLocal;
  uid_t uid = 0;                 // kLocal
  std::string name;              // for audit lines: "uid 1000", or the certificate's name
  std::string certificate = {};  // PEM; empty: without one
};

// "node", "launcher", "operator", "viewer": what a certificate may say.
[[nodiscard]] std::optional<Role> parse_role(std::string_view text);

// "accel://<cluster>/<role>/<name>" -> the role; std::nullopt for another cluster or form.
struct CertificateName {
  Role role = Role::kNode;
  std::string name;
};
[[nodiscard]] std::string_view cluster_of(std::string_view uri);  // empty: of another form
[[nodiscard]] std::optional<CertificateName> parse_certificate_name(std::string_view uri,
                                                                    std::string_view cluster);

// Where a peer stands: as a client that calls, or as the server that answers.
//
//                   a call of            a session with       a session with       the server at        the server that
//                   accel.v1.Cluster     an agent's           a launcher's         an agent's           hosts a launcher's
//                                        coordinator          coordinator          address              coordinator
//   node            yes                  yes                  yes                  yes                  yes
//   launcher        -                    -                    yes                  -                    yes
//   all others      -                    -                    -                    -                    -
//
// A node is an agent: it vouches for the users of the whole cluster, and is asked to run their jobs. A launcher takes part
// in one job, whose token it proves. Nodes may do what launchers may.
enum class Place { kClusterCall, kAgentSession, kJobSession, kAgent, kJobHost };
[[nodiscard]] bool admits(Place place, Role role);
// "node", "launcher or node": for messages.
[[nodiscard]] std::string_view roles_at(Place place);

enum class Deed { kSee, kControl };

class AccessPolicy {
 public:
  AccessPolicy(const AgentConfig& config, uid_t agent_uid)
      : config_(config), agent_uid_(agent_uid) {}

  // Whether `caller` may do that to a job of `owner`.
  [[nodiscard]] bool allows(const Caller& caller, Deed deed, uid_t owner) const;

  // Whether `caller` may drain the node, scale any job.
  [[nodiscard]] bool allows_operation(const Caller& caller) const;

  // The user as whom a job of `caller` runs. `asked_user` counts for operators only, who must name one.
  // Errors  kAgentRefused.
  [[nodiscard]] Result<std::string> user_for(const Caller& caller,
                                             const std::string& caller_user,
                                             const std::string& asked_user) const;

  // Whether this node runs jobs of many nodes of that user, for whom another agent vouches. Never as root or as a
  // system user. Errors  kAgentRefused.
  [[nodiscard]] Result<void> check_cluster_user(const std::string& user, uid_t uid) const;

  // Whether the agent may run anything as `uid`. Errors  kAgentRefused.
  [[nodiscard]] Result<void> check_uid(uid_t uid, bool is_remote) const;

 private:
  const AgentConfig& config_;
  uid_t agent_uid_;
};

}  // namespace accel::agent
